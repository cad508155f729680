"""`headrace consume`: print the records of a topic."""

import sys
import time
from collections.abc import Mapping
from contextlib import closing
from enum import StrEnum
from typing import Annotated

import typer

from headrace.client.admin import Admin
from headrace.client.reader import RecordReader

from .console import bad_input, examples
from .options import DEFAULT_BOOTSTRAP, Bootstrap, ClientProperties, Json, bootstrap_list, delimiter, pairs
from .positions import END, parse_position, resolve
from .progress import progress
from .render import Render, renderer


class Isolation(StrEnum):
    COMMITTED = "read_committed"
    UNCOMMITTED = "read_uncommitted"


def register(app: typer.Typer) -> None:
    app.command(
        epilog=examples(
            "headrace consume orders",
            "headrace consume orders --follow --format key-value",
            "headrace consume orders --from -10m --json | jq .value",
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
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="Stop after this many records.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for new records; else stop at the end as it is now.")
    ] = False,
    format_: Annotated[
        str, typer.Option("--format", help="value, key-value, json, raw, hex, or a template with {fields}.")
    ] = "value",
    key_separator: Annotated[str, typer.Option("--key-separator", "-K", help="Between key and value.")] = "\\t",
    end: Annotated[str, typer.Option("--delimiter", help="After each record.")] = "\\n",
    null_value: Annotated[str, typer.Option("--null-value", metavar="TOKEN", help="What stands for null.")] = "null",
    isolation: Annotated[
        Isolation, typer.Option("--isolation", help="Whether records of open or aborted transactions count.")
    ] = Isolation.COMMITTED,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Print the records of a topic. Joins no group and commits nothing."""
    if follow and until is not None:
        raise bad_input("--follow has no end; leave out --until or --follow")
    render = renderer(
        "json" if json else format_,
        delimiter(key_separator, "--key-separator"),
        delimiter(end, "--delimiter"),
        null_value.encode(),
    )
    now = time.time_ns() // 1_000_000
    start = parse_position(from_, "--from", now)
    stop = END if until is None else parse_position(until, "--until", now)
    committed = isolation is Isolation.COMMITTED
    brokers, settings = bootstrap_list(bootstrap), pairs(properties, "--property")
    admin = Admin(brokers, settings)
    partitions = _chosen(admin.partition_numbers(topic), partition, topic)
    starts = resolve(admin, topic, partitions, start, committed)
    ends = None if follow else resolve(admin, topic, partitions, stop, committed)
    reader = RecordReader(brokers, topic, starts, ends, {"isolation.level": isolation.value, **settings})
    _print(reader, render, count, _expected(starts, ends, count))


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


def _print(reader: RecordReader, render: Render, count: int | None, expected: int | None) -> None:
    out = sys.stdout.buffer
    bulk = expected is not None and not sys.stdout.isatty()
    with closing(reader.messages()) as messages, progress("reading", expected, shown=bulk) as advance:
        left = count
        for message in messages:
            if message is None:
                out.flush()
                continue
            out.write(render(message))
            advance(1)
            if left is not None:
                left -= 1
                if left == 0:
                    break
    out.flush()
