"""`headrace consume`: print the records of a topic."""

import sys
import time
from collections.abc import Mapping
from contextlib import closing
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from headrace.client.group_reader import GroupReader
from headrace.client.reader import RecordReader

from . import connecting
from .client_options import resolve_target
from .console import bad_input, examples, is_terminal
from .options import DEFAULT_BOOTSTRAP, Bootstrap, ClientProperties, Json, delimiter
from .positions import END, parse_position, resolve
from .progress import progress
from .registries import RegistryDecoder, RegistryUrl, find_registry
from .render import Render, renderer

if TYPE_CHECKING:
    from headrace.client.registry import SchemaRegistry

_COMMIT_SECONDS: Final = 1.0


class Isolation(StrEnum):
    COMMITTED = "read_committed"
    UNCOMMITTED = "read_uncommitted"


def register(app: typer.Typer) -> None:
    app.command(
        epilog=examples(
            "headrace consume orders",
            "headrace consume orders --follow --format key-value",
            "headrace consume orders --group billing --follow",
            "headrace consume orders --from -10m --json | jq .value",
            "headrace consume orders --registry http://127.0.0.1:8080 --format csv --columns _key,id,total",
            "headrace consume orders --from end --follow --format '{partition}:{offset} {key} {value}'",
        )
    )(consume)


def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="What to read.")],
    from_: Annotated[
        str,
        typer.Option(
            "--from", help="beginning, end, an offset, the last N of each partition (-10), a time, or -10m ago."
        ),
    ] = "beginning",
    until: Annotated[
        str | None, typer.Option("--until", help="Where to stop (itself not shown), as for --from.")
    ] = None,
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, help="Only this one; may be repeated.")
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            metavar="GROUP",
            help="Read as a member of this group, and commit; --from (beginning, end) is where a new one starts.",
        ),
    ] = None,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="Stop after this many records.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for new records; else stop at the end as it is now.")
    ] = False,
    format_: Annotated[
        str, typer.Option("--format", help="value, key-value, json, csv, raw, hex, or a template with {fields}.")
    ] = "value",
    key_separator: Annotated[str, typer.Option("--key-separator", "-K", help="Between key and value.")] = "\\t",
    end: Annotated[str, typer.Option("--delimiter", help="After each record.")] = "\\n",
    null_value: Annotated[str, typer.Option("--null-value", metavar="TOKEN", help="What stands for null.")] = "null",
    columns: Annotated[
        str | None,
        typer.Option(
            "--columns",
            metavar="A,B",
            help="Columns of CSV: fields, _key, _partition, _offset, _timestamp; else those of the first record.",
        ),
    ] = None,
    registry: RegistryUrl = None,
    isolation: Annotated[
        Isolation, typer.Option("--isolation", help="Whether records of open or aborted transactions count.")
    ] = Isolation.COMMITTED,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Print the records of a topic. Without --group it joins no group and commits nothing.

    Keys and values that were written with a schema (Avro, JSON Schema, Protobuf) are shown as JSON, but for raw and
    hex; --registry none leaves them as they are. On a terminal, bytes that are not text are escaped, but for raw.
    """
    if follow and until is not None:
        raise bad_input("--follow has no end; leave out --until or --follow")
    render = renderer(
        "json" if json else format_,
        delimiter(key_separator, "--key-separator"),
        delimiter(end, "--delimiter"),
        null_value.encode(),
        decode=_decoder(registry, bootstrap, properties),
        columns=[name.strip() for name in columns.split(",")] if columns else (),
        is_terminal=is_terminal(),
    )
    level = {"isolation.level": isolation.value}
    if group is not None:
        reset = _reset(from_, until, partition)
        connecting.admin(bootstrap, properties).partition_numbers(topic)
        member = connecting.group_reader(
            bootstrap, properties, topic, group, follow=follow, **level, **{"auto.offset.reset": reset}
        )
        _print(member, render, count, count)
        return
    now = time.time_ns() // 1_000_000
    start = parse_position(from_, "--from", now)
    stop = END if until is None else parse_position(until, "--until", now)
    committed = isolation is Isolation.COMMITTED
    admin = connecting.admin(bootstrap, properties)
    partitions = _chosen(admin.partition_numbers(topic), partition, topic)
    starts = resolve(admin, topic, partitions, start, committed)
    ends = None if follow else resolve(admin, topic, partitions, stop, committed)
    reader = connecting.record_reader(bootstrap, properties, topic, starts, ends, **level)
    _print(reader, render, count, _expected(starts, ends, count))


def _decoder(registry: str | None, bootstrap: str, properties: list[str] | None) -> RegistryDecoder:
    def find() -> "SchemaRegistry | None":
        admin = connecting.admin(bootstrap, properties)
        return find_registry(registry, bootstrap, properties, admin.cluster_id)

    return RegistryDecoder(find, is_named=registry is not None or bool(resolve_target(bootstrap, properties).registry))


def _reset(from_: str, until: str | None, partition: list[int] | None) -> str:
    """Where a group begins that has committed nothing."""
    if until is not None or partition:
        raise bad_input("--group reads what the group gives it, to the end; leave out --until and --partition")
    resets = {"beginning": "earliest", "earliest": "earliest", "end": "latest", "latest": "latest"}
    if from_ not in resets:
        raise bad_input(
            f"--from {from_}: with --group it is beginning or end, for a group that has committed nothing; "
            "`headrace group reset` moves one that has"
        )
    return resets[from_]


def _chosen(all_: list[int], wanted: list[int] | None, topic: str) -> list[int]:
    for partition in wanted or ():
        if partition not in all_:
            raise bad_input(f"--partition {partition}: topic '{topic}' has {len(all_)}, from 0 to {len(all_) - 1}")
    return sorted(set(wanted)) if wanted else all_


def _expected(starts: Mapping[int, int], ends: Mapping[int, int] | None, count: int | None) -> int | None:
    if ends is None:
        return count
    total = sum(max(0, ends[p] - starts[p]) for p in starts)
    return total if count is None else min(total, count)


def _print(reader: RecordReader | GroupReader, render: Render, count: int | None, expected: int | None) -> None:
    out = sys.stdout.buffer
    bulk = expected is not None and not sys.stdout.isatty()
    with closing(reader.messages()) as messages, progress("reading", expected, shown=bulk) as advance:
        left, committed = count, time.monotonic()
        for message in messages:
            if message is None:
                out.flush()
                reader.commit()
                continue
            out.write(render(message))
            reader.done(message)
            advance(1)
            if time.monotonic() - committed > _COMMIT_SECONDS:
                out.flush()
                reader.commit()
                committed = time.monotonic()
            if left is not None:
                left -= 1
                if left == 0:
                    break
        out.flush()
        reader.commit()
