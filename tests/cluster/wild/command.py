"""Runs seeds, one or many, and prints what they found."""

import argparse
import json
import multiprocessing
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.checker.history import History

from .ablations import ABLATIONS, without
from .mix import FAULTS, draw
from .run import Outcome, run

PROGRESS_SECONDS = 20.0


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


def play(
    seed: int, safeguards: Sequence[str] = (), only: frozenset[str] | None = None, verbose: bool = False
) -> Outcome:
    """One run, with safeguards switched off."""
    mix = draw(seed, only=only)
    with without(*safeguards):
        return run(mix, verbose=verbose)


def _tell(asked: tuple[int, tuple[str, ...], frozenset[str] | None]) -> Told:
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


def command_for(seed: int, safeguards: Sequence[str] = (), only: frozenset[str] | None = None) -> str:
    """How to see a run again."""
    parts = [f"python -m tests.cluster.wild --seed {seed}", *(f"--without {name}" for name in safeguards)]
    if only is not None:
        parts.append(f"--faults {','.join(sorted(only))!r}")
    return " ".join(parts)


def kind_of(violation: str) -> str:
    return violation.partition(":")[0]


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


def _outcomes(asked: list[tuple[int, tuple[str, ...], frozenset[str] | None]], jobs: int) -> Iterator[Told]:
    if jobs == 1:
        yield from map(_tell, asked)
        return
    context = multiprocessing.get_context("fork")
    with context.Pool(jobs, maxtasksperchild=200) as pool:
        yield from pool.imap_unordered(_tell, asked, chunksize=2)


def _run_many(
    seeds: range, jobs: int, safeguards: tuple[str, ...], only: frozenset[str] | None, summary: Path | None, stop: bool
) -> int:
    began = told_at = time.monotonic()
    found: list[Told] = []
    for told in _outcomes([(seed, safeguards, only) for seed in seeds], jobs):
        found.append(told)
        for violation in told.violations[:3]:
            _say(f"seed {told.seed}: {violation[:400]}")
        if told.violations:
            _say(f"  replay: {command_for(told.seed, safeguards, only)}")
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


def summarise(found: Sequence[Told], seconds: float) -> dict[str, object]:
    """Figures of many runs."""
    violating = sorted(told.seed for told in found if told.violations)
    kinds = Counter(kind for told in found for kind in {kind_of(violation) for violation in told.violations})
    faults: Counter[str] = Counter()
    for told in found:
        faults.update(told.counts)
    return {
        "seeds": len(found),
        "seconds": round(seconds, 1),
        "seeds_per_minute": round(60 * len(found) / seconds, 1),
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


def _range(text: str) -> range:
    start, _, end = text.partition(":")
    return range(int(start), int(end)) if end else range(int(start))


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where nothing is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.wild", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay one run")
    parser.add_argument("--seeds", type=_range, help="FROM:TO, many runs")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument(
        "--without", action="append", default=[], choices=sorted(ABLATIONS), help="switch a safeguard off"
    )
    parser.add_argument("--faults", help=f"these kinds of faults alone, by commas: {', '.join(FAULTS)}")
    parser.add_argument("--history", type=Path, help="write the history of --seed to this file")
    parser.add_argument("--summary", type=Path, help="write the summary of --seeds to this file")
    parser.add_argument("--stop", action="store_true", help="end with the first violation")
    parser.add_argument("--verbose", action="store_true", help="with --seed: print what brokers log")
    given = parser.parse_args(arguments)
    safeguards = tuple(given.without)
    only = None if given.faults is None else frozenset(filter(None, given.faults.split(",")))
    if given.seed is not None:
        outcome = play(given.seed, safeguards, only, given.verbose)
        return _show(outcome, command_for(given.seed, safeguards, only), given.history)
    return _run_many(given.seeds or range(100), given.jobs, safeguards, only, given.summary, given.stop)
