"""`headrace up`: a broker and its gateway, in the foreground."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .console import ExitCode, Failure, bad_input, examples, say, say_json
from .options import Json, Set, pairs

if TYPE_CHECKING:
    from .supervisor import Supervisor

Arguments = tuple[str, ...]


def register(app: typer.Typer) -> None:
    app.command(
        epilog=examples(
            "headrace up", "headrace up --kafka-port 19092 --http-port 18080 --data /tmp/demo --set num.partitions=3"
        )
    )(up)


def up(
    brokers: Annotated[int, typer.Option(min=1, help="How many brokers.")] = 1,
    kafka_port: Annotated[int, typer.Option(min=0, max=65535, help="The broker's port; 0 takes a free one.")] = 9092,
    http_port: Annotated[int, typer.Option(min=0, max=65535, help="The gateway's port; 0 takes a free one.")] = 8080,
    data: Annotated[Path, typer.Option("--data", help="Where everything is kept.")] = Path("data"),
    config: Annotated[Path | None, typer.Option("--config", help="Settings, as in Kafka's server.properties.")] = None,
    set_: Set = None,
    json: Json = False,
) -> None:
    """Start a broker and its gateway on this machine; Ctrl-C stops both.

    Both listen on 127.0.0.1. One line on stdout tells when they serve.
    """
    if brokers > 1:
        raise bad_input(f"--brokers {brokers}: clusters are not available yet; start one broker with `headrace up`")
    if kafka_port and kafka_port == http_port:
        raise bad_input(f"--kafka-port and --http-port are both {kafka_port}; give each its own")
    broker = _broker_arguments(kafka_port, data, config, set_)
    import asyncio

    from .supervisor import Supervisor

    asyncio.run(_run(Supervisor(), broker, kafka_port, http_port, json))


def _broker_arguments(port: int, data: Path, config: Path | None, set_: list[str] | None) -> Arguments:
    given = pairs(set_, "--set")
    for name, option in (("listeners", "--kafka-port"), ("log.dirs", "--data")):
        if name in given:
            raise bad_input(f"--set {name}: use {option} with `headrace up`, or `headrace broker` for full control")
    arguments = ["broker", "--id", given.pop("node.id", "1"), "--listen", f"127.0.0.1:{port}", "--data", str(data)]
    if config is not None:
        arguments += ["--config", str(config)]
    for name, value in given.items():
        arguments += ["--set", f"{name}={value}"]
    return tuple(arguments)


async def _run(supervisor: "Supervisor", broker: Arguments, kafka_port: int, http_port: int, json: bool) -> None:
    async with supervisor:
        kafka = await supervisor.start(*broker)
        if kafka_port or await supervisor.all_ready():
            address = kafka.ready_value("kafka") or f"127.0.0.1:{kafka_port}"
            http = await supervisor.start("gateway", "--bootstrap", address, "--http", f"127.0.0.1:{http_port}")
            if await supervisor.all_ready():
                _announce(kafka.ready_value("kafka"), http.ready_value("http"), json)
                await supervisor.finished()
    if supervisor.failure:
        raise Failure(supervisor.failure, ExitCode(supervisor.exit_code))
    if supervisor.exit_code:
        raise typer.Exit(supervisor.exit_code)


def _announce(kafka: str, http: str, json: bool) -> None:
    if json:
        say_json({"ready": True, "kafka": kafka, "http": http})
    else:
        say(f"headrace ready kafka={kafka} http={http}")
