"""`headrace node`: one supervisor per machine, one broker per core."""

import os
import socket
from pathlib import Path
from typing import Annotated

import typer

from ..broker import broker_flags, read_config, secrets
from ..console import examples
from ..lean import lean_imports
from ..logs import FormatOption, LevelOption, LogFormat, LogLevel
from ..options import AllowAnonymous, Json, Set, listeners, pairs
from .plan import MOST_WORKERS, plan_workers


def register(app: typer.Typer) -> None:
    app.command(
        epilog=examples(
            "headrace node --workers 4 --id 101 --listen 10.0.0.1:9092 "
            "--store zookeeper://zk1:2181,zk2:2181,zk3:2181/orders --data /var/lib/headrace --allow-anonymous",
            "headrace node --config /etc/headrace/server.properties",
            "headrace cluster restart --node /var/lib/headrace",
        )
    )(node)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def node(
    workers: Annotated[
        int | None,
        typer.Option(min=1, max=MOST_WORKERS, help="How many brokers.", show_default="one for each core"),
    ] = None,
    id_: Annotated[
        int | None,
        typer.Option("--id", min=0, help="The number of the first broker; the others follow.", show_default="1"),
    ] = None,
    listen: Annotated[
        list[str] | None,
        typer.Option(
            "--listen",
            metavar="[NAME://]HOST:PORT",
            help="Where the first broker serves; the others at the ports that follow. May be repeated.",
            show_default="127.0.0.1:9092",
        ),
    ] = None,
    advertise: Annotated[
        list[str] | None,
        typer.Option(
            "--advertise",
            metavar="[NAME://]HOST:PORT",
            help="Where clients find the first broker, if not where it listens; the others at the ports that follow. "
            "May be repeated.",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", help="Where their logs live, each in a directory of its own.", show_default="./data"),
    ] = None,
    rack: Annotated[
        str | None,
        typer.Option("--rack", help="The rack of all of them.", show_default="the name of this machine"),
    ] = None,
    config: Annotated[Path | None, typer.Option("--config", help="Settings, as in Kafka's server.properties.")] = None,
    set_: Set = None,
    store: Annotated[
        str | None,
        typer.Option("--store", metavar="zookeeper://H:P,H:P/PATH", help="Where the cluster's state is kept."),
    ] = None,
    control: Annotated[
        Path | None,
        typer.Option("--control", help="The socket for `headrace cluster restart`.", show_default="DATA/node.sock"),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            "--metrics",
            metavar="HOST:PORT|auto|off",
            help="Where the first broker serves /metrics, /healthz and /readyz; the others at the ports that follow.",
            show_default="auto",
        ),
    ] = None,
    allow_anonymous: AllowAnonymous = False,
    log_format: FormatOption = LogFormat.TEXT,
    log_level: LevelOption = LogLevel.INFO,
    json: Json = False,
) -> None:
    """Run the brokers of this machine in the foreground, one for each core, until SIGTERM or Ctrl-C.

    A broker is one process on one core, so a machine of eight cores runs eight. All have the machine as their rack:
    replicas of a partition are on different machines. One that dies is started again, after 1 s, then 2 s, up to 30 s.
    With ports and numbers that follow each other, leave room: --id 101, 201, … for machine 1, 2, …

    For systemd it is a service of Type=notify: ready when all brokers are.
    """
    flags = broker_flags(id_, listen, data, rack, store, metrics, allow_anonymous=allow_anonymous)
    overrides = {**flags, **pairs(set_, "--set")}
    if (advertised := listeners(advertise, "--advertise")) is not None:
        overrides["advertised.listeners"] = advertised
    with lean_imports():
        first = read_config(config, {**secrets(), **overrides})  # the brokers read them, too
    planned = plan_workers(first, workers or _cores(), socket.gethostname())
    theirs = {*planned[0].settings, "node.id", "broker.id"}
    common = [
        *([] if config is None else ["--config", str(config)]),
        *(f"--set={name}={value}" for name, value in overrides.items() if name not in theirs),
        *("--log-format", log_format.value, "--log-level", log_level.value),
    ]
    directory = Path(first["log.dirs"])
    directory.mkdir(parents=True, exist_ok=True)
    from .control import SOCKET_NAME
    from .running import run_node

    run_node(planned, common, control or directory / SOCKET_NAME, json=json)
