"""`headrace config`: the settings of topics, brokers and groups."""

from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from . import connecting
from .console import Failure, bad_input, examples, note, say, say_json, say_table
from .options import DEFAULT_BOOTSTRAP, Bootstrap, ClientProperties, Json, pairs
from .units import shown_setting, without_units

if TYPE_CHECKING:
    from headrace.ops.configs import ConfigEntry, ConfigKind

app = typer.Typer(
    help="See and change the settings of topics, brokers and groups.",
    epilog=examples("headrace config describe topic orders", "headrace config set topic orders retention.ms=7d"),
    no_args_is_help=True,
)


class ConfiguredKind(StrEnum):
    """What has settings."""

    TOPIC = "topic"
    BROKER = "broker"
    GROUP = "group"
    BROKER_LOGGER = "broker-logger"
    CLIENT_METRICS = "client-metrics"


ALL = "default"
"""How the settings of all brokers are asked for."""

KindOf = Annotated[
    ConfiguredKind, typer.Argument(metavar="KIND", help="topic, broker, group, broker-logger or client-metrics.")
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Its name; a broker's number, or `default` for all brokers.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Let the brokers check it, and change nothing.")]


@app.command(
    epilog=examples(
        "headrace config describe topic orders",
        "headrace config describe broker 1 --all",
        "headrace config describe broker default",
        "headrace config describe topic orders retention.ms cleanup.policy --docs",
    )
)
def describe(
    kind: KindOf,
    name: Name,
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[SETTING]...", help="Only these, also where they are the default.")
    ] = None,
    all_: Annotated[bool, typer.Option("--all", "-a", help="Also settings that have their default.")] = False,
    docs: Annotated[bool, typer.Option("--docs", help="Say what each one means.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Show settings, their values and where these come from; without --all only what is not the default."""
    with connecting.config_operations(bootstrap, properties) as operations:
        entries = operations.describe_configs(_number(kind), _resource(kind, name), settings or ())
    missing = sorted(set(settings or ()) - {entry.name for entry in entries})
    if missing:
        raise Failure(f"{kind} '{name}' has no setting {', '.join(missing)}; --all shows those it has")
    shown = entries if all_ or settings else [entry for entry in entries if not entry.is_default]
    if json:
        say_json({"kind": kind, "name": name, "settings": [asdict(entry) for entry in shown]})
    elif shown:
        _show(shown, docs)
    else:
        note("every setting has its default; --all shows them")


def _show(entries: "list[ConfigEntry]", docs: bool) -> None:
    say_table(
        ("SETTING", "VALUE", "SOURCE", *(["MEANING"] if docs else [])),
        [
            (
                entry.name,
                "********" if entry.is_sensitive else shown_setting(entry.name, entry.value),
                f"{entry.source}{', read-only' if entry.is_read_only else ''}",
                *([entry.documentation or ""] if docs else []),
            )
            for entry in entries
        ],
    )


@app.command(
    "set",
    epilog=examples(
        "headrace config set topic orders retention.ms=7d segment.bytes=100MiB",
        "headrace config set broker default log.retention.hours=2d",
        "headrace config set group billing consumer.session.timeout.ms=45s --dry-run",
    ),
)
def set_(
    kind: KindOf,
    name: Name,
    settings: Annotated[
        list[str], typer.Argument(metavar="NAME=VALUE...", help="Settings, also with units: retention.ms=7d.")
    ],
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Change settings; others stay as they are."""
    changes: dict[str, str | None] = {**without_units(pairs(settings, "setting"))}
    _alter(kind, name, changes, dry_run, bootstrap, properties, json)


@app.command(
    epilog=examples(
        "headrace config unset topic orders retention.ms",
        "headrace config unset broker 1 log.retention.ms --json",
    )
)
def unset(
    kind: KindOf,
    name: Name,
    settings: Annotated[list[str], typer.Argument(metavar="SETTING...", help="Settings, by name.")],
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Return settings to their default."""
    wrong = next((setting for setting in settings if "=" in setting), None)
    if wrong is not None:
        raise bad_input(f"'{wrong}' has a value; `headrace config set` takes values, unset only names")
    _alter(kind, name, dict.fromkeys(settings), dry_run, bootstrap, properties, json)


def _alter(
    kind: ConfiguredKind,
    name: str,
    changes: dict[str, str | None],
    dry_run: bool,
    bootstrap: str,
    properties: list[str] | None,
    json: bool,
) -> None:
    with connecting.config_operations(bootstrap, properties) as operations:
        operations.alter_configs(_number(kind), _resource(kind, name), changes, validate_only=dry_run)
    if json:
        say_json({"kind": kind, "name": name, "state": "valid" if dry_run else "altered", "settings": changes})
        return
    for setting, value in changes.items():
        what = "default" if value is None else shown_setting(setting, value)
        say(f"{kind} {name}: {setting} {'would be' if dry_run else 'is'} {what}")


def _number(kind: ConfiguredKind) -> "ConfigKind":
    from headrace.ops.configs import ConfigKind

    return ConfigKind[kind.name]


def _resource(kind: ConfiguredKind, name: str) -> str:
    return "" if kind in (ConfiguredKind.BROKER, ConfiguredKind.BROKER_LOGGER) and name == ALL else name
