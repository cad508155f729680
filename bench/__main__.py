"""`python -m bench`: every work in turns with its ceiling, then one table."""

import argparse
import subprocess
import sys
from pathlib import Path

from rich.console import Console

from headrace.server import compiled

from . import (
    acls,
    client,
    columnar,
    commits,
    delays,
    failover,
    fetch,
    groups,
    hostile,
    http,
    image,
    json_formats,
    kernels,
    latency,
    logins,
    machine,
    metrics,
    node,
    produce,
    profiling,
    queues,
    quotas,
    recovery,
    reload,
    replicated,
    report,
    sdk,
    sql,
    start,
    tls,
    transactions,
)
from .model import BenchError, Row, Sample, Skipped, Work, rows_of
from .setting import Setting, a_setting
from .spark import works as spark

_WIDTH = 170
"""Columns of the table where there is no terminal."""
_BUSY_PERCENT = 10


def all_works() -> list[Work]:
    return [
        *produce.works(),
        *fetch.works(),
        *tls.works(),
        *logins.works(),
        *latency.works(),
        *hostile.works(),
        *commits.works(),
        *reload.works(),
        *groups.works(),
        *queues.works(),
        *delays.works(),
        *http.works(),
        *client.works(),
        *sdk.works(),
        *transactions.works(),
        *start.works(),
        *metrics.works(),
        *acls.works(),
        *quotas.works(),
        *node.works(),
        *replicated.works(),
        *failover.works(),
        *recovery.works(),
        *image.works(),
        *kernels.works(),
        *json_formats.works(),
        *columnar.works(),
        *sql.works(),
        *spark.works(),
    ]


def rows_or_word(work: Work, setting: Setting, console: Console) -> list[Row]:
    """The rows of a work; none, and a word about it, where it cannot be done here."""
    try:
        return sample(work, setting, console)
    except Skipped as reason:
        console.print(f"{work.title}: skipped, {reason}", style="yellow", markup=False)
        return []


def sample(work: Work, setting: Setting, console: Console) -> list[Row]:
    """A work's rounds: ceiling, broker, broker, ceiling, and so on: who comes second finds the disk busier."""
    brokers: list[Sample] = []
    ceilings: list[Sample] = []
    rounds = min(work.rounds or setting.rounds, setting.rounds)
    for number in range(rounds):
        console.print(f"{work.title}: round {number + 1} of {rounds}", style="dim")
        if work.ceiling is not None and number % 2 == 0:
            ceilings.append(work.ceiling(setting))
        brokers.append(work.broker(setting))
        if work.ceiling is not None and number % 2:
            ceilings.append(work.ceiling(setting))
    return rows_of(work, brokers, ceilings)


def parse(works: list[Work]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round of one second each")
    parser.add_argument(
        "--only", action="append", metavar="NAME", help=f"only these: {', '.join(work.name for work in works)}"
    )
    parser.add_argument("--json", action="store_true", help="everything measured, as JSON on stdout")
    parser.add_argument("--profile", action="store_true", help="the broker under a profiler, no ceilings, no table")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each work [3]")
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds of each round [2]")
    parser.add_argument("--dir", type=Path, help="where to write [the system's temporary directory]")
    return parser.parse_args()


def chosen(works: list[Work], names: list[str] | None) -> list[Work]:
    """The works that were asked for; a name also stands for those that begin with it."""
    if names is None:
        return works
    for name in names:
        if not any(work.name.startswith(name) for work in works):
            raise BenchError(f"there is no work {name!r}; there are {', '.join(work.name for work in works)}")
    return [
        work
        for work in works
        if any(work.name == name or (work.name.startswith(name) and not _is_a_name(works, name)) for name in names)
    ]


def _is_a_name(works: list[Work], name: str) -> bool:
    return any(work.name == name for work in works)


def busy_percent(console: Console) -> float:
    """What other work takes of the machine right now; says so when it is much."""
    busy = machine.busy_percent(1.0)
    if busy > _BUSY_PERCENT:
        console.print(f"the machine is {busy:.0f} % busy with other work: expect noise", style="yellow")
    return busy


def compile_kernels() -> None:
    """What a broker compiles in the background after its first start on a machine: rounds end before it has that."""
    if compiled.load():
        return
    try:
        subprocess.run(compiled.BUILD, check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        raise BenchError(f"what brokers compile could not be compiled: {error.stderr}") from error


def main() -> int:
    works = all_works()
    options = parse(works)
    rounds, seconds = (1, 1.0) if options.quick else (options.rounds, options.seconds)
    console = Console(stderr=options.json, width=None if sys.stdout.isatty() else _WIDTH)
    before = busy_percent(console)
    machine.pin_client()
    try:
        works = chosen(works, options.only)
        compile_kernels()
        with a_setting(seconds, rounds, options.dir) as setting:
            if machine.is_on_memory(setting.root):
                console.print(
                    f"{setting.root} is not on a disk: syncing costs nothing there; see --dir", style="yellow"
                )
            if options.profile:
                for work in works:
                    profiling.profile(work, setting)
                return 0
            rows = [row for work in works for row in rows_or_word(work, setting, console)]
    except (BenchError, OSError) as error:
        console.print(f"stopped: {error}", style="red", markup=False)
        return 1
    except KeyboardInterrupt:
        return 130
    if options.json:
        print(report.as_json(rows))
    else:
        report.show(rows, console)
    if options.write:
        console.print(f"wrote {report.write(rows, rounds, seconds, (before, busy_percent(console)))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
