"""`headrace broker`: one broker in this process."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from headrace.net.address import Address

from .console import ExitCode, Failure, bad_input, examples, say, say_json
from .lean import lean_imports
from .listening import exit_with, friendly_bind, stop_with_stdin, survive_hangup
from .logs import FormatOption, LevelOption, LogFormat, LogLevel, configure_logs
from .options import AllowAnonymous, Json, Set, listeners, pairs
from .service_manager import ServiceManager

if TYPE_CHECKING:
    from headrace.config import BrokerConfig


SQLITE: Final = "sqlite"
ADD_SCRAM_VARIABLE: Final = "HEADRACE_ADD_SCRAM"
ZOOKEEPER_VARIABLE: Final = "HEADRACE_ZOOKEEPER_AUTH"
AddScram = Annotated[
    list[str] | None,
    typer.Option(
        "--add-scram",
        metavar="MECHANISM=[name=USER,password=...]",
        help="A first user, made if the cluster has none, as Kafka's `kafka-storage format` takes it. What others can "
        f"see in the list of processes is better given in {ADD_SCRAM_VARIABLE}, or in --config.",
    ),
]
_ZOOKEEPER: Final = "zookeeper://"


def register(app: typer.Typer) -> None:
    app.command(
        epilog=examples(
            "headrace broker --listen 127.0.0.1:9092 --data ./data",
            "headrace broker --listen SASL_SSL://0.0.0.0:9093 --listen 127.0.0.1:9092 --config server.properties",
            "headrace broker --config server.properties --set log.retention.hours=24",
            "HEADRACE_ADD_SCRAM='SCRAM-SHA-512=[name=admin,password=...]' headrace broker --config sasl.properties",
            "headrace broker --id 1 --listen 10.0.0.1:9092 --store zookeeper://zk1:2181,zk2:2181,zk3:2181/orders "
            "--data /var/lib/headrace --rack eu-1a --allow-anonymous",
        )
    )(broker)


def broker(
    id_: Annotated[
        int | None, typer.Option("--id", min=0, help="The broker's number in its cluster.", show_default="1")
    ] = None,
    listen: Annotated[
        list[str] | None,
        typer.Option(
            "--listen",
            metavar="[NAME://]HOST:PORT",
            help="Where to serve; may be repeated. A name is a protocol (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL), or "
            "has one in listener.security.protocol.map.",
            show_default="127.0.0.1:9092",
        ),
    ] = None,
    data: Annotated[Path | None, typer.Option("--data", help="Where its logs live.", show_default="./data")] = None,
    rack: Annotated[str | None, typer.Option("--rack", help="Where this broker stands, for placing replicas.")] = None,
    config: Annotated[Path | None, typer.Option("--config", help="Settings, as in Kafka's server.properties.")] = None,
    set_: Set = None,
    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            metavar="sqlite|zookeeper://H:P,H:P/PATH",
            help="Where the cluster's state is kept: with the broker, which is then alone, or in ZooKeeper.",
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            "--metrics",
            metavar="HOST:PORT|auto|off",
            help="Where to serve /metrics, /healthz and /readyz; auto is 127.0.0.1 and the port of --listen + 552.",
            show_default="auto",
        ),
    ] = None,
    add_scram: AddScram = None,
    allow_anonymous: AllowAnonymous = False,
    log_format: FormatOption = LogFormat.TEXT,
    log_level: LevelOption = LogLevel.INFO,
    json: Json = False,
    with_stdin: Annotated[bool, typer.Option("--stop-with-stdin", hidden=True)] = False,
) -> None:
    """Run one broker in the foreground until SIGTERM or Ctrl-C.

    What --set gives comes before the other options, and these before the file. SIGHUP has the file read again: dynamic
    settings change at once, and the log says what did, what needs a restart, and what was refused.
    """
    flags = broker_flags(id_, listen, data, rack, store, metrics, allow_anonymous=allow_anonymous)
    flags |= first_users(add_scram)
    overrides = {**secrets(), **flags, **pairs(set_, "--set")}
    with lean_imports():
        settings = read_config(config, overrides)
        _refuse_two_stores(store, settings)
        survive_hangup()
        from headrace.server.broker import run_broker

    configure_logs(log_format, log_level, node=None if settings.lone else settings.node_id)
    if with_stdin:
        stop_with_stdin()

    manager = ServiceManager()

    def ready(bootstrap: str) -> None:
        manager.ready(f"broker {settings.node_id} serves at {bootstrap}")
        if json:
            say_json({"ready": True, "kafka": bootstrap})
        else:
            say(f"headrace ready kafka={bootstrap}")

    with friendly_start(settings), friendly_bind(lambda error: _address(settings, error), "--listen"):
        code = run_broker(settings, ready, manager.stopping, _rereading(config, overrides))
    exit_with(code)


def secrets() -> dict[str, str]:
    """What the environment gives, as a list of processes does not show it."""
    login = os.environ.get(ZOOKEEPER_VARIABLE, "")
    return {"headrace.zookeeper.auth": login} if login else {}


def first_users(given: list[str] | None) -> dict[str, str]:
    """The first users of the cluster as a setting: those of the options, else those that the environment names."""
    text = ";".join(given or ()) or os.environ.get(ADD_SCRAM_VARIABLE, "")
    return {"headrace.add.scram": text} if text else {}


def broker_flags(
    id_: int | None,
    listen: Sequence[str] | None,
    data: Path | None,
    rack: str | None,
    store: str | None,
    metrics: str | None = None,
    *,
    allow_anonymous: bool = False,
) -> dict[str, str]:
    """What the options of a broker are as settings; those that were not given are left out."""
    flags = {
        "node.id": None if id_ is None else str(id_),
        "listeners": listeners(listen, "--listen"),
        "headrace.allow.anonymous.listeners": "true" if allow_anonymous else None,
        "log.dirs": None if data is None else str(data),
        "broker.rack": rack,
        "zookeeper.connect": _servers(store),
        "headrace.metrics.listener": metrics,
    }
    return {name: value for name, value in flags.items() if value is not None}


def _address(settings: "BrokerConfig", error: OSError) -> Address:
    """The one that could not be had."""
    named = next(
        (listener for listener in settings.listeners if str(listener) in getattr(error, "__notes__", ())), None
    )
    listener = named or settings.listener
    return Address(listener.host, listener.port)


def _servers(store: str | None) -> str | None:
    """The value of `zookeeper.connect`; None where the broker keeps the state itself."""
    if store in (None, SQLITE):
        return None
    assert store is not None
    if not store.startswith(_ZOOKEEPER):
        raise bad_input(f"--store '{store}' is neither sqlite nor zookeeper://HOST:PORT,HOST:PORT/PATH")
    return store.removeprefix(_ZOOKEEPER).removesuffix("/")


def _refuse_two_stores(store: str | None, settings: "BrokerConfig") -> None:
    if store == SQLITE and not settings.lone:
        raise bad_input("--store sqlite, but zookeeper.connect is set; keep one of the two")


def read_config(file: Path | None, overrides: Mapping[str, str]) -> "BrokerConfig":
    """The settings of a broker; a usage failure names the one that is wrong."""
    from headrace.config import BrokerConfig, ConfigError

    try:
        settings = BrokerConfig.parse(overrides) if file is None else BrokerConfig.from_file(file, overrides=overrides)
        _ = settings.advertised_listeners  # a wildcard without an address for clients is found here
        settings.refuse_open_listeners()
    except ConfigError as error:
        raise bad_input(str(error)) from error
    return settings


def _rereading(file: Path | None, overrides: Mapping[str, str]) -> "Callable[[], BrokerConfig] | None":
    """What reads the settings again, where they come from a file: the options still go before it."""
    from headrace.config import BrokerConfig

    return None if file is None else lambda: BrokerConfig.from_file(file, overrides=overrides)


@contextmanager
def friendly_start(settings: "BrokerConfig") -> Iterator[None]:
    """Turn what can be wrong with a data directory, or with the store, into words."""
    from headrace.cluster.feature_level import UnsupportedLevel
    from headrace.cluster.membership import IdInUse
    from headrace.cluster.store import StoreError
    from headrace.config import ConfigError
    from headrace.server.descriptors import TooFewDescriptors
    from headrace.storage.disk import DirectoryLocked, StorageError
    from headrace.storage.manager import WrongDirectory

    data = settings["log.dirs"]
    try:
        yield
    except ConfigError as error:
        raise bad_input(str(error)) from error
    except DirectoryLocked as error:
        raise Failure(f"data directory '{data}' is in use by another broker; stop that one or choose --data") from error
    except WrongDirectory as error:
        options = "--id" if settings.lone else "--id and --store"
        raise Failure(f"wrong data directory: {error}; choose --data, or {options} to match") from error
    except (IdInUse, TooFewDescriptors, UnsupportedLevel) as error:
        raise Failure(str(error)) from error
    except (StorageError, StoreError) as error:
        if isinstance(error, StoreError) and not settings.lone:
            raise Failure(f"--store: {error}", ExitCode.UNREACHABLE) from error
        raise Failure(f"data directory '{data}' cannot be used: {error}; choose another with --data") from error
