"""`headrace produce`: send lines or files to a topic."""

import io
import itertools
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, cast

import typer

from headrace.client.admin import Admin
from headrace.client.errors import ClientError, ClusterUnreachable, UnknownTopic
from headrace.client.writer import OutgoingRecord, RecordWriter

from . import connecting
from .console import Failure, bad_input, examples, explain, note, say, say_json
from .options import DEFAULT_BOOTSTRAP, Bootstrap, ClientProperties, Json, delimiter, pairs, time_ms
from .progress import Advance, progress
from .records import Headers, Recipe, csv_records, json_records, paced, records_of, whole_file
from .registries import NONE, Encoder, EncoderById, RegistryUrl, require_registry
from .units import span_ms

_FLUSH_SECONDS: Final = 120.0
_SETTLE_SECONDS: Final = 5.0

EndedBy = Failure | ClientError | OSError | None
"""What ended the input before its end."""


class Acks(StrEnum):
    NONE = "0"
    LEADER = "1"
    ALL = "all"


class Format(StrEnum):
    LINES = "lines"
    CSV = "csv"
    JSON = "json"


class Compression(StrEnum):
    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


def register(app: typer.Typer) -> None:
    app.command(
        epilog=examples(
            "headrace produce orders < orders.txt",
            "headrace produce orders day1.csv day2.csv --compression zstd",
            "echo 'user-7:hello' | headrace produce greetings --key-separator :",
            "headrace produce orders orders.csv --format csv --key-column id",
            "headrace produce orders orders.csv --format csv --value-schema @order.avsc",
            """echo '{"id": 7}' | headrace produce orders --value-schema latest""",
            "headrace consume orders --json | headrace produce copy --format json",
            "echo 'time to go' | headrace produce reminders --deliver-after 90m",
            "headrace produce images cat.png --whole-file --key cat -H type=image/png",
        )
    )(produce)


def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Where to.")],
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="FILE", help="Files to read; standard input if none, or for `-`.")
    ] = None,
    whole: Annotated[bool, typer.Option("--whole-file", help="Each file is one record, not each line.")] = False,
    format_: Annotated[
        Format,
        typer.Option(
            "--format", help="lines; csv: rows become JSON, the first line names columns; json: as of consume --json."
        ),
    ] = Format.LINES,
    columns: Annotated[
        str | None, typer.Option("--columns", metavar="A,B", help="Columns of CSV that has no line with their names.")
    ] = None,
    key_column: Annotated[
        str | None, typer.Option("--key-column", metavar="NAME", help="The column of CSV that is the key.")
    ] = None,
    value_schema: Annotated[
        str | None,
        typer.Option(
            "--value-schema",
            metavar="SCHEMA",
            help="Encode JSON by it: latest (of TOPIC-value), SUBJECT, SUBJECT:VERSION, id:ID, @FILE; #MESSAGE behind.",
        ),
    ] = None,
    key_schema: Annotated[
        str | None, typer.Option("--key-schema", metavar="SCHEMA", help="The same for keys, and TOPIC-key.")
    ] = None,
    registry: RegistryUrl = None,
    separator: Annotated[
        str, typer.Option("--delimiter", help="What ends a record; \\\\n, \\\\t, \\\\0 and \\\\xHH work.")
    ] = "\\n",
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", "-K", help="Split each record into key and value here.")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="The key of every record.")] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header; may be repeated.")
    ] = None,
    partition: Annotated[int | None, typer.Option("--partition", "-p", min=0, help="All to this partition.")] = None,
    timestamp: Annotated[
        str | None, typer.Option("--timestamp", help="The records' time: ISO, milliseconds since 1970, or -10m.")
    ] = None,
    null_value: Annotated[
        str | None, typer.Option("--null-value", metavar="TOKEN", help="A value of this becomes null, a tombstone.")
    ] = None,
    acks: Annotated[
        Acks, typer.Option(help="Acknowledgements to wait for: 0, 1 (leader) or all (in-sync replicas).")
    ] = Acks.ALL,
    compression: Annotated[Compression, typer.Option("--compression", "-z")] = Compression.NONE,
    idempotent: Annotated[
        bool | None,
        typer.Option("--idempotent/--no-idempotent", help="Retries never duplicate; on when acks is all."),
    ] = None,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="Stop after this many records.")] = None,
    deliver_after: Annotated[
        str | None,
        typer.Option("--deliver-after", metavar="SPAN", help="Consumers get them after that: 90s, 10m, 2h, 7d."),
    ] = None,
    deliver_at: Annotated[
        str | None,
        typer.Option("--deliver-at", metavar="TIME", help="Consumers get them then: ISO, or milliseconds since 1970."),
    ] = None,
    create: Annotated[
        bool, typer.Option("--create", help="Make the topic, with the broker's defaults, if it is not there.")
    ] = False,
    rate: Annotated[float | None, typer.Option(min=0.001, help="At most this many records a second.")] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Send lines of standard input, or files, to a topic.

    Keys choose partitions as Kafka's Java client does. Stops reading at the first record that is refused or
    malformed, and says how many were delivered; those already sent by then are among them. The topic must be there,
    whatever the broker's auto.create.topics.enable says; --create makes it.

    With --value-schema or --key-schema each value or key is JSON, and encoded by a schema of the registry (Avro, JSON
    Schema, Protobuf) as serializers do it; @FILE registers a schema first. Cells of CSV become what the schema says,
    and strings without one.

    With --format json each line is a record as `headrace consume --json` prints it: value, and if they are there key,
    headers, timestamp and partition. A value with a value_schema_id (and value_message, for Protobuf) is encoded by
    that schema, and a key likewise; --registry none writes it as plain JSON.

    With --deliver-after or --deliver-at the records wait in TOPIC.headrace-delayed until then, and are moved into TOPIC
    by whichever gateway, or `headrace schedule run`, is running.
    """
    due_ms = _due(deliver_after, deliver_at)
    _refuse_mixtures(format_, whole, key, key_separator, columns, key_column)
    encoders = _encoders(topic, value_schema, key_schema, registry, bootstrap, properties)
    recipe = Recipe(
        key=None if key is None else key.encode(),
        key_separator=None if key_separator is None else delimiter(key_separator, "--key-separator"),
        null_value=None if null_value is None else null_value.encode(),
        headers=_headers(header),
        timestamp=0 if timestamp is None else time_ms(timestamp, "--timestamp", time.time_ns() // 1_000_000),
        encode_value=encoders[0],
        encode_key=encoders[1],
        encode_by_id=_encoder_by_id(format_, registry, bootstrap, properties),
    )
    source = RecordSource(
        files=_checked(files or []),
        whole=whole,
        format=format_,
        columns=tuple(name.strip() for name in columns.split(",")) if columns else (),
        key_column=key_column,
        delimiter=delimiter(separator, "--delimiter"),
        recipe=recipe,
    )
    settings = {**_delivery(acks, idempotent), "compression.type": compression.value}
    partitions = _require_topic(connecting.admin(bootstrap, properties), topic, partition, create)
    if partition is None:
        source = replace(source, partitions=partitions)
    later = None
    if due_ms is not None:
        later = Later(due_ms, partition)
        topic, partition = _lanes(connecting.admin(bootstrap, properties), topic), None
    writer = connecting.record_writer(bootstrap, properties, topic, partition, settings)
    started = time.monotonic()
    ended_by = _transfer(source, writer, count, rate, later)
    _summarize(writer, time.monotonic() - started, ended_by, json)


def _refuse_mixtures(
    format_: Format,
    whole: bool,
    key: str | None,
    key_separator: str | None,
    columns: str | None,
    key_column: str | None,
) -> None:
    if key is not None and key_separator is not None:
        raise bad_input("--key and --key-separator exclude each other; give one")
    if format_ is not Format.LINES and (whole or key_separator is not None):
        raise bad_input(f"--whole-file and --key-separator are not for --format {format_}")
    if format_ is not Format.CSV and (columns is not None or key_column is not None):
        raise bad_input("--columns and --key-column are for --format csv")
    if key_column is not None and key is not None:
        raise bad_input("--key and --key-column exclude each other; give one")


def _encoders(
    topic: str,
    value_schema: str | None,
    key_schema: str | None,
    registry: str | None,
    bootstrap: str,
    properties: list[str] | None,
) -> "tuple[Encoder | None, Encoder | None]":
    """What encodes values and keys; None for those that are sent as they are."""
    if value_schema is None and key_schema is None:
        return None, None
    from .registries import encoder

    client = require_registry(registry, bootstrap, properties)
    return (
        None if value_schema is None else encoder(client, value_schema, f"{topic}-value", "--value-schema"),
        None if key_schema is None else encoder(client, key_schema, f"{topic}-key", "--key-schema"),
    )


def _encoder_by_id(
    format_: Format, registry: str | None, bootstrap: str, properties: list[str] | None
) -> EncoderById | None:
    if format_ is not Format.JSON or registry == NONE:
        return None
    return EncoderById(lambda: require_registry(registry, bootstrap, properties))


@dataclass(frozen=True, slots=True)
class Later:
    """When records are to be delivered, and to which partition; None leaves it to their keys."""

    due_ms: int
    partition: int | None

    def delayed(self, record: OutgoingRecord) -> OutgoingRecord:
        """The record as it waits."""
        from headrace.client.delays.lanes import lane_for, with_delay

        asked = record.partition if self.partition is None else self.partition
        headers = with_delay(record.headers or (), self.due_ms, asked)
        lane = lane_for(self.due_ms - time.time_ns() // 1_000_000)
        return replace(record, headers=headers, partition=lane)


def _due(after: str | None, at: str | None) -> int | None:
    """When records are to be delivered; None for now."""
    from headrace.client.delays.lanes import checked_due

    if after is not None and at is not None:
        raise bad_input("--deliver-after and --deliver-at exclude each other; give one")
    now_ms = time.time_ns() // 1_000_000
    if after is None and at is None:
        return None
    asked = (
        now_ms + span_ms(after, "--deliver-after") if after is not None else time_ms(at or "", "--deliver-at", now_ms)
    )
    due_ms = checked_due(asked, now_ms)
    return due_ms if due_ms > now_ms else None


def _lanes(admin: Admin, topic: str) -> str:
    """Where the messages of a topic wait."""
    from headrace.client.delays.lanes import lanes_topic
    from headrace.client.delays.topics import make_lanes

    name = lanes_topic(topic)
    make_lanes(admin, topic, name)
    _numbers(admin, name, is_new=True)
    return name


def _transfer(
    source: "RecordSource", writer: RecordWriter, count: int | None, rate: float | None, later: Later | None
) -> EndedBy:
    """Send what there is to send; the error that ended it early, if one did."""
    shown = not source.is_interactive()
    with progress(f"to {writer.topic}", source.total_bytes(), of_bytes=True, shown=shown) as advance:

        def on_bytes(amount: int) -> None:
            advance(amount)
            writer.poll()

        records: Iterator[OutgoingRecord] = itertools.islice(source.records(on_bytes), count)
        if later is not None:
            records = map(later.delayed, records)
        return _send(writer, records if rate is None else paced(records, rate, time.monotonic, writer.poll))


def _headers(items: list[str] | None) -> Headers | None:
    """Headers in the order given; a name may stand twice."""
    return [(name, value.encode()) for item in items or () for name, value in pairs([item], "--header").items()] or None


def _checked(files: list[Path]) -> list[Path]:
    for path in files:
        if str(path) != "-" and not path.exists():
            raise bad_input(f"file '{path}' does not exist")
        if path.is_dir():
            raise bad_input(f"'{path}' is a directory; give the files in it")
    return files


def _delivery(acks: Acks, idempotent: bool | None) -> dict[str, Any]:
    if idempotent and acks is not Acks.ALL:
        raise bad_input(f"--idempotent needs --acks all, not {acks.value}")
    return {"acks": acks.value, "enable.idempotence": acks is Acks.ALL if idempotent is None else idempotent}


def _require_topic(admin: Admin, topic: str, partition: int | None, create: bool) -> int:
    """See that the topic is there, or make it where that was asked for; how many partitions it has."""
    if create:
        error = admin.create_topics([topic])[topic]
        if error is None:
            note(f"topic '{topic}' created")
        elif error.code != "TOPIC_ALREADY_EXISTS":
            raise error
    partitions = len(_numbers(admin, topic, is_new=create))
    if partition is not None and partition >= partitions:
        raise bad_input(f"--partition {partition}: topic '{topic}' has {partitions}, from 0 to {partitions - 1}")
    return partitions


def _numbers(admin: Admin, topic: str, *, is_new: bool) -> list[int]:
    """The topic's partitions; one that was just made may not be known to every broker yet."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    while True:
        try:
            return admin.partition_numbers(topic)
        except UnknownTopic:
            if not is_new or time.monotonic() > deadline:
                raise
        time.sleep(0.05)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSource:
    """Where records come from."""

    files: list[Path]
    whole: bool
    format: Format = Format.LINES
    columns: tuple[str, ...] = ()
    key_column: str | None = None
    delimiter: bytes
    recipe: Recipe
    partitions: int | None = None
    """How many the topic has, of which lines of JSON may name one; None where all records go to the same."""

    def total_bytes(self) -> int | None:
        """How much there is to read; None if that cannot be known."""
        if not self.files or any(not path.is_file() for path in self.files):
            return None
        return sum(path.stat().st_size for path in self.files)

    def is_interactive(self) -> bool:
        return not self.files and sys.stdin.isatty()

    def records(self, advance: Advance) -> Iterator[OutgoingRecord]:
        for path in self.files or [Path("-")]:
            with ExitStack() as stack:
                stream = sys.stdin.buffer if str(path) == "-" else stack.enter_context(path.open("rb"))
                yield from self._of(stream, "standard input" if str(path) == "-" else f"'{path}'", advance)

    def _of(self, stream: BinaryIO, name: str, advance: Advance) -> Iterator[OutgoingRecord]:
        if self.whole:
            return whole_file(cast(io.BufferedIOBase, stream), self.recipe, name, advance)
        readable = cast(io.BufferedReader, stream)
        if self.format is Format.CSV:
            return csv_records(readable, self.recipe, name, advance, columns=self.columns, key_column=self.key_column)
        if self.format is Format.JSON:
            return json_records(readable, self.recipe, name, advance, partitions=self.partitions)
        return records_of(readable, self.recipe, self.delimiter, name, advance)


def _send(writer: RecordWriter, records: Iterable[OutgoingRecord]) -> EndedBy:
    """Send until the input ends or a record is refused, and wait for the answers; the error that ended the input."""
    ended_by = None
    try:
        for record in records:
            if writer.failure is not None:
                break
            writer.write(record)
    except KeyboardInterrupt:
        writer.finish(5.0)
        raise
    except (Failure, ClientError, OSError) as error:
        ended_by = error
    if writer.failure is not None:
        writer.withdraw()
    unanswered = writer.finish(_FLUSH_SECONDS)
    if unanswered:
        writer.withdraw(in_flight=True)
        return ClusterUnreachable(f"{unanswered} records had no answer within {_FLUSH_SECONDS:.0f} s")
    return ended_by


def _summarize(writer: RecordWriter, seconds: float, ended_by: EndedBy, json: bool) -> None:
    failure = _failure(writer, ended_by)
    rate = writer.delivered / seconds if seconds > 0 else 0.0
    if json:
        say_json(
            {
                "topic": writer.topic,
                "delivered": writer.delivered,
                "failed": writer.failed,
                "bytes": writer.sent_bytes,
                "seconds": round(seconds, 3),
                "error": None if failure is None else failure.message,
            }
        )
    elif failure is None:
        size = f"{writer.sent_bytes / 1e6:.1f} MB" if writer.sent_bytes >= 100_000 else f"{writer.sent_bytes} bytes"
        say(f"{_counted(writer.delivered)} ({size}) to {writer.topic} in {seconds:.1f} s, {rate:,.0f} a second")
    if failure is not None:
        raise failure


def _failure(writer: RecordWriter, ended_by: EndedBy) -> Failure | None:
    """Why not all was delivered: a record was refused, or the input ended with an error."""
    reason = writer.failure or ended_by
    if reason is None:
        return None
    message, code = explain(reason)
    if writer.failure is None:
        return Failure(f"{message.rstrip('.')}; {_counted(writer.delivered)} before that delivered", code)
    also = f"; and {explain(ended_by)[0]}" if ended_by is not None else ""
    return Failure(
        f"{_counted(writer.failed)} refused by topic '{writer.topic}', {writer.delivered} delivered: {message}{also}",
        code,
    )


def _counted(records: int) -> str:
    return "1 record" if records == 1 else f"{records} records"
