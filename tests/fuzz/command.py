"""Runs rounds in processes of their own, watches them, and says how a failure is seen again."""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from itertools import count
from pathlib import Path
from random import Random
from typing import Final

TARGETS: Final = {"records": 10, "heads": 10, "columnar": 10, "avro": 4, "protobuf": 5, "json": 4, "text": 1}
"""What is fuzzed, a module each, and how often it has its turn, so that each gets about as many cases."""
BUILDS: Final = ("checked", "native")
_TURNS: Final = [name for name, turns in TARGETS.items() for _ in range(turns)]
_HANGS_AFTER: Final = 300.0
"""Seconds without a round: one takes some ten milliseconds, compiling a minute on a busy machine."""
_PROGRESS: Final = 20.0
_NATIVE_SHARE: Final = 0.2


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - what the command is for


def replay(build: str, target: str, seed: int) -> str:
    """How to see a round again."""
    return f"python -m tests.fuzz --build {build} --only {target} --seed {seed}"


def play(target: str, seed: int) -> int:
    """One round in this process: how many cases it had."""
    from .memory import MEMORY

    random = Random(f"{target} {seed}")
    MEMORY.clear(random)
    cases: int = import_module(f".{target}", __package__).run(random)
    return cases


def _work(only: Sequence[str], seeds: range) -> int:
    """What a process does: say which round it begins, and then how many cases it had."""
    turns = [name for name in _TURNS if name in only]
    for seed in seeds:
        target = turns[seed % len(turns)]
        _say(json.dumps({"target": target, "seed": seed}))
        try:
            cases = play(target, seed)
        except Exception as error:
            _say(json.dumps({"failed": f"{type(error).__name__}: {error}"[:2000]}))
        else:
            _say(json.dumps({"cases": cases}))
    return 0


@dataclass(slots=True)
class _Worker:
    build: str
    process: "subprocess.Popen[bytes]"
    target: str = ""
    seed: int = 0
    heard: float = field(default_factory=time.monotonic)
    unread: bytes = b""

    def lines(self) -> list[bytes]:
        """What it has said meanwhile."""
        assert self.process.stdout is not None
        while more := self.process.stdout.read(1 << 16):
            self.unread += more
            self.heard = time.monotonic()
        *whole, self.unread = self.unread.split(b"\n")
        return whole


@dataclass(slots=True)
class Found:
    """What came of many rounds."""

    cases: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def total(self) -> int:
        return sum(self.cases.values())


_ROUNDS_OF_A_PROCESS: Final = 100_000


class _Run:
    """Processes of one build until there are enough cases."""

    def __init__(self, build: str, only: Sequence[str], jobs: int, first_seed: int) -> None:
        self._build = build
        self._only = only
        self._jobs = jobs
        self._starts = (first_seed + n * _ROUNDS_OF_A_PROCESS for n in count())
        self._workers: list[_Worker] = []

    def until(self, found: Found, cases: int, deadline: float) -> None:
        """Add to what was found until there are so many cases, or it is too late."""
        self._workers = [self._started() for _ in range(self._jobs)]
        told = time.monotonic()
        try:
            while found.total < cases and time.monotonic() < deadline and len(found.failures) < 20:
                for line in self._lines():
                    self._note(found, *line)
                if time.monotonic() > told + _PROGRESS:
                    told = time.monotonic()
                    _say(f"... {self._build}: {found.total:,} cases, {len(found.failures)} failures")
        finally:
            for worker in self._workers:
                worker.process.kill()
                worker.process.wait()

    def _started(self, first: int | None = None) -> _Worker:
        first = next(self._starts) if first is None else first
        only = [word for name in self._only for word in ("--only", name)]
        command = [sys.executable, "-m", "tests.fuzz", "--work", f"{first}:{first + _ROUNDS_OF_A_PROCESS}", *only]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment(self._build))
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        return _Worker(self._build, process)

    def _lines(self) -> Iterator[tuple[_Worker, str | bytes]]:
        time.sleep(0.02)
        for worker in list(self._workers):
            has_ended = worker.process.poll() is not None
            for line in worker.lines():
                yield worker, line
            if has_ended:
                yield worker, json.dumps({"ended": worker.process.returncode})
            elif time.monotonic() > worker.heard + _HANGS_AFTER:
                worker.process.kill()
                worker.process.wait()
                yield worker, json.dumps({"ended": None})

    def _note(self, found: Found, worker: _Worker, line: str | bytes) -> None:
        said = json.loads(line)
        if "target" in said:
            worker.target, worker.seed = said["target"], said["seed"]
        elif "cases" in said:
            found.cases[worker.target] = found.cases.get(worker.target, 0) + said["cases"]
        elif "failed" in said:
            self._fail(found, worker, said["failed"])
        else:
            self._fail(found, worker, _end(said["ended"]))
            self._workers.remove(worker)
            self._workers.append(self._started(worker.seed + 1))

    def _fail(self, found: Found, worker: _Worker, reason: str) -> None:
        command = replay(worker.build, worker.target, worker.seed)
        found.failures.append(f"{reason}\n  replay: {command}")
        _say(f"FAILED {found.failures[-1]}")


def _end(code: int | None) -> str:
    if code is None:
        return f"no round ended in {_HANGS_AFTER:.0f} s: it hangs"
    return f"the process ended with {signal.Signals(-code).name if code < 0 else code}"


def environment(build: str) -> dict[str, str]:
    """Of a process that has this build of the loops."""
    return {**os.environ, "HEADRACE_CHECKED_LOOPS": "1" if build == "checked" else "0"}


def fuzz(
    builds: Sequence[str], only: Sequence[str], *, cases: int, seconds: float, jobs: int, first_seed: int = 0
) -> Found:
    """So many cases, or as many as this time allows; of two builds the native one gets the lesser share."""
    found, began = Found(), time.monotonic()
    for build in builds:
        share = 1.0 if len(builds) == 1 else _NATIVE_SHARE if build == "native" else 1 - _NATIVE_SHARE
        begun = time.monotonic()
        _Run(build, only, jobs, first_seed).until(found, found.total + int(cases * share), begun + seconds * share)
    found.seconds = time.monotonic() - began
    return found


def _range(text: str) -> range:
    start, _, end = text.partition(":")
    return range(int(start), int(end))


def _replayed(given: argparse.Namespace, builds: Sequence[str], only: Sequence[str]) -> int:
    if os.environ.get("HEADRACE_CHECKED_LOOPS") != environment(builds[0])["HEADRACE_CHECKED_LOOPS"]:
        os.execve(sys.executable, [sys.executable, "-m", "tests.fuzz", *sys.argv[1:]], environment(builds[0]))
    _say(f"{play(only[0], given.seed)} cases, nothing wrong")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where nothing is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000, help="how many [100000]")
    parser.add_argument("--seconds", type=float, default=3600.0, help="the most that it may take [3600]")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument("--only", action="append", choices=list(TARGETS), help="this alone; may be given again")
    parser.add_argument("--build", choices=BUILDS, help="this build alone")
    parser.add_argument("--from", type=int, default=0, dest="first_seed", help="the first seed")
    parser.add_argument("--seed", type=int, help="replay one round")
    parser.add_argument("--summary", type=Path, help="write what was found to this file, as JSON")
    parser.add_argument("--work", type=_range, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    only = given.only or list(TARGETS)
    builds = [given.build] if given.build else BUILDS
    if given.work is not None:
        return _work(only, given.work)
    if given.seed is not None:
        return _replayed(given, builds, only)
    found = fuzz(builds, only, cases=given.cases, seconds=given.seconds, jobs=given.jobs, first_seed=given.first_seed)
    minutes = found.seconds / 60
    _say(f"{found.total:,} cases in {minutes:.1f} minutes ({found.total / minutes:,.0f} a minute): {found.cases}")
    _say(f"{len(found.failures)} failures")
    if given.summary is not None:
        given.summary.write_text(json.dumps({"cases": found.cases, "failures": found.failures}, indent=2) + "\n")
    return 1 if found.failures or not found.total else 0
