"""`headrace doctor`: is this machine fit to run a broker?"""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer

from ..console import ExitCode, examples, say, say_json
from ..options import Json

_COLORS: Final = {"ok": "green", "warn": "yellow", "fail": "red"}


def register(app: typer.Typer) -> None:
    app.command(
        epilog=examples(
            "headrace doctor --data /var/lib/headrace",
            "headrace doctor --store zookeeper://zk1:2181,zk2:2181,zk3:2181",
            "headrace doctor --json",
        )
    )(doctor)


def doctor(
    data: Annotated[Path, typer.Option("--data", help="The data directory to look at.")] = Path("data"),
    kafka_port: Annotated[int, typer.Option(min=1, max=65535, help="The port the broker is to have.")] = 9092,
    http_port: Annotated[int, typer.Option(min=1, max=65535, help="The port the gateway is to have.")] = 8080,
    store: Annotated[
        str | None, typer.Option("--store", metavar="zookeeper://H:P,H:P", help="The ZooKeeper servers to look at.")
    ] = None,
    json: Json = False,
) -> None:
    """Check this machine: limits, memory, disk, clock, ports, libraries, the data directory, and ZooKeeper if asked.

    Changes nothing. Exits with 1 if a check failed; warnings alone exit with 0.
    """
    from .data_directory import check_directory, check_port
    from .machine import Finding, Status, check_disk, check_machine
    from .zookeeper import check_store

    def findings() -> Iterator[Finding]:
        yield from check_machine()
        yield from check_disk(data)
        yield from check_directory(data)
        yield check_port("broker", kafka_port)
        yield check_port("gateway", http_port)
        if store is not None:
            yield from check_store(store)

    found = []
    for finding in findings():
        found.append(finding)
        if not json:
            status = typer.style(f"{finding.status:<5}", fg=_COLORS[finding.status])
            say(f"{status} {finding.check:<16} {finding.found}")
            if finding.advice:
                say(f"{'':<22} -> {finding.advice}")
    failed = any(finding.status is Status.FAIL for finding in found)
    if json:
        say_json({"ok": not failed, "checks": [asdict(finding) for finding in found]})
    if failed:
        raise typer.Exit(ExitCode.FAILED)
