"""Runs seeds, one or many, and prints what they found."""

import argparse
import json
import multiprocessing
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.checker.history import History

from .ablations import ABLATIONS, without
from .mix import FAULTS, Mix, draw
from .run import Outcome, run

PROGRESS_SECONDS = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What runs consist of, beyond what their seeds say."""

    without: str | None = None
    """A safeguard that is switched off; runs are of those faults and that work where it matters."""
    like: str | None = None
    """The same runs with the safeguard in place."""
    faults: frozenset[str] | None = None

    def mix(self, seed: int) -> Mix:
        focus = self.without or self.like
        if focus is None:
            return draw(seed, faults=self.faults)
        ablation = ABLATIONS[focus]
        faults = ablation.faults if self.faults is None else self.faults
        return draw(seed, faults=faults, work=ablation.work, given=ablation.mix)

    def command(self, seed: int) -> str:
        """How to see a run again."""
        parts = [f"python -m tests.cluster.wild --seed {seed}"]
        parts += [f"--{name} {given}" for name in ("without", "like") if (given := getattr(self, name)) is not None]
        if self.faults is not None:
            parts.append(f"--faults {','.join(sorted(self.faults))!r}")
        return " ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What is kept of a run among many."""

    seed: int
    violations: tuple[str, ...]
    seconds: float
    virtual_seconds: float
    acknowledged: int
    shown: int
    losses: int
    counts: dict[str, int] = field(default_factory=dict)


def play(seed: int, choice: Choice = Choice(), *, verbose: bool = False) -> Outcome:  # noqa: B008 - it is frozen
    """One run."""
    with without(*([choice.without] if choice.without else [])):
        return run(choice.mix(seed), verbose=verbose)


def _tell(asked: tuple[int, Choice]) -> Told:
    outcome = play(*asked)
    return Told(
        seed=asked[0],
        violations=tuple(outcome.violations),
        seconds=outcome.seconds,
        virtual_seconds=outcome.virtual_seconds,
        acknowledged=outcome.acknowledged,
        shown=outcome.shown,
        losses=outcome.losses,
        counts=outcome.counts,
    )


def outcomes(seeds: Sequence[int], choice: Choice, jobs: int = 1) -> Iterator[Told]:
    """Runs, as they end."""
    asked = [(seed, choice) for seed in seeds]
    if jobs == 1:
        yield from map(_tell, asked)
        return
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=200) as pool:
        yield from pool.imap_unordered(_tell, asked, chunksize=2)


def summarise(found: Sequence[Told], seconds: float) -> dict[str, Any]:
    """Figures of many runs."""
    violating = sorted(told.seed for told in found if told.violations)
    kinds = Counter(kind for told in found for kind in {text.partition(":")[0] for text in told.violations})
    faults: Counter[str] = Counter()
    for told in found:
        faults.update(told.counts)
    return {
        "seeds": len(found),
        "seconds": round(seconds, 1),
        "seeds_per_minute": round(60 * len(found) / seconds, 1),
        "seconds_of_cpu": round(sum(told.seconds for told in found), 1),
        "slowest_seconds": round(max((told.seconds for told in found), default=0.0), 1),
        "virtual_hours": round(sum(told.virtual_seconds for told in found) / 3600, 1),
        "acknowledged": sum(told.acknowledged for told in found),
        "shown": sum(told.shown for told in found),
        "destroyed": sum(told.losses for told in found),
        "faults": dict(sorted(faults.items())),
        "violating": len(violating),
        "kinds": dict(kinds.most_common()),
        "violating_seeds": violating[:100],
    }


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - what the command is for


def _show(outcome: Outcome, command: str, history: Path | None) -> int:
    _say(outcome.mix.describe())
    for line in outcome.faults:
        _say(f"  {line}")
    _say(
        f"{outcome.acknowledged} records acknowledged, {outcome.shown} shown, {outcome.losses} partitions destroyed, "
        f"{outcome.isr_changes} ISR changes, {outcome.virtual_seconds:.0f} virtual seconds in {outcome.seconds:.1f} s"
    )
    if history is not None:
        kept = History()
        kept.events = outcome.events
        kept.write(history)
    for violation in outcome.violations:
        _say(f"VIOLATION {violation}")
    if outcome.violations:
        _say(f"replay: {command}")
    return 1 if outcome.violations else 0


def _run_many(seeds: range, jobs: int, choice: Choice, summary: Path | None, stop: bool) -> int:
    began = told_at = time.monotonic()
    found: list[Told] = []
    for told in outcomes(seeds, choice, jobs):
        found.append(told)
        for violation in told.violations[:3]:
            _say(f"seed {told.seed}: {violation[:400]}")
        if told.violations:
            _say(f"  replay: {choice.command(told.seed)}")
            if stop:
                break
        if time.monotonic() - told_at > PROGRESS_SECONDS:
            told_at = time.monotonic()
            failed = sum(bool(each.violations) for each in found)
            rate = 60 * len(found) / (told_at - began)
            _say(f"... {len(found)} of {len(seeds)} seeds, {rate:.0f} a minute, {failed} with violations")
    result = summarise(found, time.monotonic() - began)
    _say(json.dumps(result, indent=2))
    if summary is not None:
        summary.write_text(json.dumps(result, indent=2) + "\n")
    return 1 if result["violating"] else 0


def _fill_table(names: Sequence[str], given: range | None, jobs: int) -> int:
    """Switches safeguards off, one after another, and prints in how many seeds that is found, a row each; beside it the
    same seeds with the safeguard in place. 0 where each is found and nothing is wrong with it in place.
    """
    began = time.monotonic()
    wrong: list[str] = []
    _say("| safeguard | without it it does not hold that | found in | as | with it |\n|---|---|---|---|---|")
    for name in names:
        seeds = given or range(ABLATIONS[name].seeds)
        hits, false = (
            [told for told in outcomes(seeds, choice, jobs) if told.violations]
            for choice in (Choice(without=name), Choice(like=name))
        )
        kinds = Counter(kind for told in hits for kind in {text.partition(":")[0] for text in told.violations})
        shown = ", ".join(kind for kind, _ in kinds.most_common(3)) or "-"
        counts = f"{len(hits)} of {len(seeds)} | {shown} | {len(false)} of {len(seeds)}"
        _say(f"| `{name}` | {ABLATIONS[name].guards} | {counts} |")
        wrong += [] if hits else [f"not found: {name}"]
        wrong += [f"wrong with {name} in place: {Choice(like=name).command(told.seed)}" for told in false]
    _say("\n".join(["", *wrong, f"{len(names)} safeguards in {time.monotonic() - began:.0f} s, {len(wrong)} wrong"]))
    return 1 if wrong else 0


def _range(text: str) -> range:
    start, _, end = text.partition(":")
    return range(int(start), int(end)) if end else range(int(start))


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where nothing is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.wild", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay one run")
    parser.add_argument("--seeds", type=_range, help="FROM:TO, many runs; 100 unless given")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument("--without", choices=sorted(ABLATIONS), help="switch a safeguard off")
    parser.add_argument("--like", choices=sorted(ABLATIONS), help="the runs of --without, with the safeguard in place")
    parser.add_argument("--faults", help=f"these kinds of faults alone, by commas: {', '.join(FAULTS)}")
    parser.add_argument("--history", type=Path, help="write the history of --seed to this file")
    parser.add_argument("--summary", type=Path, help="write the summary of --seeds to this file")
    parser.add_argument("--stop", action="store_true", help="end with the first violation")
    parser.add_argument("--verbose", action="store_true", help="with --seed: print what brokers log")
    parser.add_argument("--ablations", action="store_true", help="fill the table: each safeguard switched off in turn")
    given = parser.parse_args(arguments)
    if given.ablations:
        names = [given.without] if given.without else list(ABLATIONS)
        return _fill_table(names, given.seeds, given.jobs)
    only = None if given.faults is None else frozenset(filter(None, given.faults.split(",")))
    choice = Choice(without=given.without, like=given.like, faults=only)
    if given.seed is not None:
        outcome = play(given.seed, choice, verbose=given.verbose)
        return _show(outcome, choice.command(given.seed), given.history)
    return _run_many(given.seeds or range(100), given.jobs, choice, given.summary, given.stop)
