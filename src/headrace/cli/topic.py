"""`headrace topic`: make, list, describe, change and delete topics."""

import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

import typer

from headrace.client.admin import Admin, PartitionDescription, TopicDescription
from headrace.client.errors import ClientError
from headrace.ops.overview import PartitionView
from headrace.protocol.topic_partition import TopicPartition

from . import connecting
from .console import ExitCode, Failure, bad, bad_input, examples, note, say, say_json, say_table
from .options import DEFAULT_BOOTSTRAP, Bootstrap, ClientProperties, Json, pairs
from .units import without_units
from .watching import DEFAULT_INTERVAL, Interval, Watch, watching

app = typer.Typer(
    help="Make, list, describe, change and delete topics.",
    epilog=examples("headrace topic create orders --partitions 3", "headrace topic describe orders"),
    no_args_is_help=True,
)

Names = Annotated[list[str], typer.Argument(metavar="NAME", help="Topics, by name.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The topic.")]
Config = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        "-c",
        metavar="NAME=VALUE",
        help="A setting of the topic, also with a unit: retention.ms=7d; may be repeated.",
    ),
]


@app.command(
    epilog=examples(
        "headrace topic create orders payments --partitions 6",
        "headrace topic create audit --config retention.ms=7d --config segment.bytes=100MiB --if-not-exists",
    )
)
def create(
    names: Names,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", "-p", min=1, help="How many partitions; the broker's default if absent."),
    ] = None,
    replication_factor: Annotated[
        int | None, typer.Option("--replication-factor", "-r", min=1, help="How many copies of each partition.")
    ] = None,
    config: Config = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="A topic that is there already is no failure.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Make topics."""
    configs = without_units(pairs(config, "--config"))
    results = connecting.admin(bootstrap, properties).create_topics(
        _distinct(names), partitions, replication_factor, configs
    )
    states = {name: _created(error, if_not_exists) for name, error in results.items()}
    _report_each(states, results, json)


def _created(error: ClientError | None, if_not_exists: bool) -> str:
    if error is None:
        return "created"
    return "exists" if if_not_exists and error.code == "TOPIC_ALREADY_EXISTS" else "failed"


@app.command(epilog=examples("headrace topic delete orders", "headrace topic delete orders payments --yes"))
def delete(
    names: Names,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Delete topics and every record in them."""
    names = _distinct(names)
    if not yes:
        _confirm(names)
    results = connecting.admin(bootstrap, properties).delete_topics(names)
    _report_each({name: "deleted" if error is None else "failed" for name, error in results.items()}, results, json)


def _confirm(names: list[str]) -> None:
    if not sys.stdin.isatty():
        raise bad_input(f"deleting {', '.join(names)} needs --yes, as there is no terminal to ask on")
    what = f"topic '{names[0]}'" if len(names) == 1 else f"{len(names)} topics ({', '.join(names)})"
    if not typer.confirm(f"Delete {what} and all records in it?", err=True):
        raise Failure("nothing was deleted")


@app.command(
    epilog=examples(
        "headrace topic trim orders --partition 0 --before 1500 --yes",
        "headrace topic trim orders --partition 0 --before end --yes",
    )
)
def trim(
    name: Name,
    partition: Annotated[int, typer.Option("--partition", "-p", min=0, help="The partition.")],
    before: Annotated[
        str, typer.Option("--before", metavar="OFFSET|end", help="The first offset to keep; `end` keeps none.")
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Delete a partition's records before an offset.

    Consumers that stand before it go on there, as their auto.offset.reset says: so one gets past records that it cannot
    read.
    """
    if before != "end" and not (before.isascii() and before.isdigit()):
        raise bad_input(f"--before '{before}' is neither an offset nor `end`")
    admin = connecting.admin(bootstrap, properties)
    if not yes:
        _confirm_trim(admin, name, partition, before)
    offset = -1 if before == "end" else int(before)
    start = admin.delete_records(name, {partition: offset})[partition]
    if json:
        say_json({"topic": name, "partition": partition, "start_offset": start})
    else:
        say(f"{name}: partition {partition} begins at offset {start}")


def _confirm_trim(admin: Admin, name: str, partition: int, before: str) -> None:
    if not sys.stdin.isatty():
        raise bad_input(f"deleting records of {name} needs --yes, as there is no terminal to ask on")
    start = admin.start_offsets(name, [partition])[partition]
    if not typer.confirm(f"Delete the records of '{name}' partition {partition} from {start} to {before}?", err=True):
        raise Failure("nothing was deleted")


def _report_each(states: Mapping[str, str], results: Mapping[str, ClientError | None], json: bool) -> None:
    failures = [name for name, state in states.items() if state == "failed"]
    if json:
        say_json([_outcome(name, state, results[name]) for name, state in states.items()])
    else:
        for name, state in states.items():
            if state != "failed":
                say(f"{name}: {state}")
    for name in failures:
        error = results[name]
        note(f"headrace: topic '{name}': {error.message if error else 'no answer'}")
    if failures:
        raise typer.Exit(ExitCode.FAILED)


def _outcome(name: str, state: str, error: ClientError | None) -> dict[str, str]:
    if state != "failed" or error is None:
        return {"topic": name, "state": state}
    return {"topic": name, "state": state, "error": error.message, "code": error.code}


def _distinct(names: list[str]) -> list[str]:
    return list(dict.fromkeys(names))


@app.command("list", epilog=examples("headrace topic list", "headrace topic list --internal --json"))
def list_(
    internal: Annotated[bool, typer.Option("--internal", help="Also the broker's own topics.")] = False,
    watch: Watch = False,
    interval: Interval = DEFAULT_INTERVAL,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """List topics with their number of partitions."""
    admin = connecting.admin(bootstrap, properties)

    def show() -> None:
        topics = [t for t in admin.list_topics() if internal or not t.internal]
        if json:
            say_json([asdict(t) for t in topics])
        elif topics:
            rows = [(t.name, t.partitions, t.replication_factor) for t in topics]
            say_table(("TOPIC", "PARTITIONS", "REPLICAS"), rows)
        else:
            note("no topics yet; make one with `headrace topic create NAME`")

    watching(show, watch, interval, json=json)


@app.command(
    epilog=examples(
        "headrace topic describe orders",
        "headrace topic describe orders --watch",
        "headrace topic describe orders --json",
    )
)
def describe(
    names: Names,
    watch: Watch = False,
    interval: Interval = DEFAULT_INTERVAL,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Show partitions, their leaders and offsets, and the settings a topic has of its own."""
    admin = connecting.admin(bootstrap, properties)

    def show() -> None:
        topics = [admin.describe_topic(name) for name in _distinct(names)]
        views = _views(bootstrap, properties, [topic.name for topic in topics])
        if json:
            say_json([_values(topic, views) for topic in topics])
            return
        for position, topic in enumerate(topics):
            if position:
                say("")
            _show(topic, views)

    watching(show, watch, interval, json=json)


Views = Mapping[TopicPartition, PartitionView]


def _views(bootstrap: str, properties: list[str] | None, topics: list[str]) -> Views:
    """What the client library does not tell of partitions; nothing where the cluster does not tell it either."""
    try:
        with connecting.operations(bootstrap, properties) as operations:
            return {view.key: view for view in operations.partitions(topics)}
    except ClientError:
        return {}


def _values(topic: TopicDescription, views: Views) -> dict[str, Any]:
    values = {**asdict(topic), "replication_factor": topic.replication_factor}
    for partition in values["partitions"]:
        view = views.get(TopicPartition(topic.name, partition["partition"]))
        if view is not None:
            partition |= {"leader_epoch": view.leader_epoch, "offline": view.offline, "elr": view.elr}
    return values


def _show(topic: TopicDescription, views: Views) -> None:
    say(f"topic      {topic.name}")
    if topic.topic_id:
        say(f"id         {topic.topic_id}")
    say(f"settings   {', '.join(f'{k}={v}' for k, v in topic.configs.items()) or '(all default)'}")
    say_table(
        ("PARTITION", "LEADER", "EPOCH", "REPLICAS", "IN SYNC", "START", "END", "RECORDS", ""),
        [
            (
                p.partition,
                bad("none") if p.leader is None else p.leader,
                _or_dash(
                    None if (view := views.get(TopicPartition(topic.name, p.partition))) is None else view.leader_epoch
                ),
                ",".join(map(str, p.replicas)),
                _in_sync(p),
                _or_dash(p.start_offset),
                _or_dash(p.end_offset),
                _or_dash(_span(p.start_offset, p.end_offset)),
                _remark(p, view),
            )
            for p in topic.partitions
        ],
    )


def _remark(partition: PartitionDescription, view: PartitionView | None) -> str:
    """What is wrong with a partition, if anything is."""
    if view is None:
        return bad("offline") if partition.leader is None else ""
    found = [str(view.problem)] if view.problem is not None else []
    if view.offline:
        found.append(f"not alive: {','.join(map(str, view.offline))}")
    if view.elr:
        found.append(f"may lead: {','.join(map(str, view.elr))}")
    return bad("; ".join(found)) if found else ""


def _in_sync(partition: PartitionDescription) -> str:
    shown = ",".join(map(str, partition.isr))
    return shown if len(partition.isr) == len(partition.replicas) else bad(shown)


def _span(start: int | None, end: int | None) -> int | None:
    return None if start is None or end is None else end - start


def _or_dash(value: int | None) -> str:
    return "-" if value is None else str(value)


@app.command(
    epilog=examples(
        "headrace topic alter orders --partitions 12",
        "headrace topic alter orders --config retention.ms=1h --delete-config cleanup.policy",
    )
)
def alter(
    name: Name,
    partitions: Annotated[int | None, typer.Option("--partitions", "-p", min=1, help="Grow to this many.")] = None,
    config: Config = None,
    delete_config: Annotated[
        list[str] | None, typer.Option("--delete-config", metavar="NAME", help="Return a setting to its default.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Grow a topic or change its settings."""
    changes = without_units(pairs(config, "--config"))
    removed = _distinct(delete_config or [])
    if partitions is None and not changes and not removed:
        raise bad_input("nothing to change; give --partitions, --config or --delete-config")
    both = sorted(set(changes) & set(removed))
    if both:
        raise bad_input(f"'{both[0]}' is in both --config and --delete-config; keep one")
    admin = connecting.admin(bootstrap, properties)
    if changes or removed:
        admin.alter_configs(name, changes, removed)
    if partitions is not None:
        admin.create_partitions(name, partitions)
    if json:
        say_json({"topic": name, "state": "altered", "partitions": partitions, "set": changes, "deleted": removed})
    else:
        say(f"{name}: altered")
