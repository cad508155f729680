"""Topics as Arrow tables in one call: for pandas, polars, DuckDB, and whatever else takes Arrow.

from headrace.client.columnar import read_arrow, write_arrow

write_arrow(pa.table({"key": ["a", "b"], "value": ["1", "2"]}), "orders")
frame = read_arrow("orders").to_pandas()
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa

from headrace.config.names import nearest, shown

from ..errors import ClientError
from .cluster import Cluster, shared_cluster
from .model import EARLIEST, LATEST, SCHEMA, SCHEMA_WITH_HEADERS, Range, TopicPartition
from .reader import read_ranges
from .rows import batches_of
from .writer import Writer

Bound = str | int | datetime | Mapping[int, int]
"""Where to begin or end: `earliest`, `latest`, an offset, a time, or an offset for each partition."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
LOCAL: Final = "127.0.0.1:9092"
_INVALID: Final = "_INVALID_ARG"
_WORDS: Final = {"earliest": EARLIEST, "latest": LATEST}


def read_arrow(
    topic: str | Sequence[str],
    *,
    bootstrap: str = LOCAL,
    start: Bound = "earliest",
    end: Bound = "latest",
    partitions: Iterable[int] | None = None,
    columns: Sequence[str] | None = None,
    headers: bool = False,
    **settings: Any,
) -> pa.Table:
    """The records of one or more topics as a table, one partition after the other, each in its order.

        read_arrow("orders", start=datetime(2026, 1, 1), columns=["key", "value"]).to_pandas()

    `start` and `end` (which is not included) are `earliest`, `latest`, an offset, a time (of the first record that is
    not earlier), or offsets by partition. `latest` is where a partition ends when this is called. Without `columns`
    all come; `headers` only when they are asked for. `settings` are Kafka's, with underscores for dots:
    `security_protocol="SASL_SSL"`, `isolation_level="read_committed"`.
    """
    cluster = cluster_of(bootstrap, settings)
    ranges = _ranges(cluster, topic, start, end, partitions)
    schema = _schema(columns, headers)
    by_partition: dict[TopicPartition, list[pa.RecordBatch]] = {
        TopicPartition(r.topic, r.partition): [] for r in ranges
    }
    for batch in _batches(cluster, ranges, with_headers=_wants_headers(columns, headers)):
        topic_partition = TopicPartition(batch["topic"][0].as_py(), batch["partition"][0].as_py())
        by_partition[topic_partition].append(batch.select(schema.names))
    return pa.Table.from_batches([batch for batches in by_partition.values() for batch in batches], schema)


def scan_arrow(
    topic: str | Sequence[str],
    *,
    bootstrap: str = LOCAL,
    start: Bound = "earliest",
    end: Bound = "latest",
    partitions: Iterable[int] | None = None,
    columns: Sequence[str] | None = None,
    headers: bool = False,
    **settings: Any,
) -> pa.RecordBatchReader:
    """The same as a stream of batches, for what does not fit into memory; those of a partition come in their order.

    stream = scan_arrow("orders")
    duckdb.sql("SELECT partition, count(*) FROM stream GROUP BY partition")
    """
    cluster = cluster_of(bootstrap, settings)
    ranges = _ranges(cluster, topic, start, end, partitions)
    schema = _schema(columns, headers)
    batches = _batches(cluster, ranges, with_headers=_wants_headers(columns, headers))
    return pa.RecordBatchReader.from_batches(schema, (batch.select(schema.names) for batch in batches))


def write_arrow(
    rows: Any,
    topic: str | None = None,
    *,
    bootstrap: str = LOCAL,
    key: str | None = "key",
    value: str = "value",
    **settings: Any,
) -> dict[TopicPartition, int]:
    """Write rows, and return how many each partition got once all are acknowledged.

        write_arrow(frame, "orders", key="order_id", value="json", compression_type="zstd")

    `rows` are a pyarrow Table, RecordBatch or RecordBatchReader, a DataFrame of pandas or polars, or anything else
    that gives an Arrow stream. The columns named by `key` and `value` (binary or strings) make the records; columns
    `timestamp`, `headers`, `partition` and, without the argument, `topic` count where they are there; others are left
    out. A row goes to the partition it names, or to its key's as every Kafka client chooses it, or to any.
    `settings` are Kafka's, with underscores for dots; with `transactional_id` all rows become visible at once.
    """
    with Writer(cluster_of(bootstrap, settings)) as writer:
        if writer.is_transactional:
            writer.begin()
        for batch in batches_of(rows):
            writer.write(_renamed(batch, key, value), topic)
        if writer.is_transactional:
            writer.commit()
        else:
            writer.flush()
        return writer.written


def cluster_of(bootstrap: str, settings: Mapping[str, Any]) -> Cluster:
    named = {name.replace("_", "."): setting_text(value) for name, value in settings.items()}
    return shared_cluster({"bootstrap.servers": bootstrap, **named})


def setting_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _batches(cluster: Cluster, ranges: list[Range], *, with_headers: bool) -> Iterator[pa.RecordBatch]:
    return read_ranges(cluster, ranges, with_headers=with_headers, read_committed=_is_committed(cluster))


def _is_committed(cluster: Cluster) -> bool:
    return bool(cluster.settings["isolation.level"] == "read_committed")


def _wants_headers(columns: Sequence[str] | None, headers: bool) -> bool:
    return headers or (columns is not None and "headers" in columns)


def _schema(columns: Sequence[str] | None, headers: bool) -> pa.Schema:
    whole = SCHEMA_WITH_HEADERS if _wants_headers(columns, headers) else SCHEMA
    if columns is None:
        return whole
    for name in columns:
        if name not in whole.names:
            raise ClientError(
                f"records have no column '{shown(name)}', they have {', '.join(SCHEMA_WITH_HEADERS.names)}"
                f"{nearest(name, SCHEMA_WITH_HEADERS.names)}",
                _INVALID,
            )
    return pa.schema([whole.field(name) for name in columns])


def _ranges(
    cluster: Cluster, topic: str | Sequence[str], start: Bound, end: Bound, partitions: Iterable[int] | None
) -> list[Range]:
    """What to read, with both ends known."""
    topics = [topic] if isinstance(topic, str) else list(topic)
    chosen = None if partitions is None else list(partitions)
    topic_partitions = [
        TopicPartition(name, number)
        for name, count in cluster.partitions(topics).items()
        for number in (range(count) if chosen is None else chosen)
    ]
    ends = resolved(cluster, topic_partitions, end, "end")
    starts = resolved(cluster, topic_partitions, start, "start")
    return [Range(*where, starts[where], max(starts[where], ends[where])) for where in topic_partitions]


def resolved(cluster: Cluster, partitions: list[TopicPartition], bound: Bound, name: str) -> dict[TopicPartition, int]:
    """An offset for each partition; a time after the last record stands for the end."""
    if isinstance(bound, Mapping):
        missing = [
            topic_partition.partition for topic_partition in partitions if topic_partition.partition not in bound
        ]
        if missing:
            raise ClientError(f"{name} has no offset for partition {missing[0]}; name the partitions to read", _INVALID)
        return {topic_partition: _offset(bound[topic_partition.partition], name) for topic_partition in partitions}
    if isinstance(bound, int) and not isinstance(bound, bool):
        return dict.fromkeys(partitions, _offset(bound, name))
    resolved = cluster.offsets(
        dict.fromkeys(partitions, _offset_query(bound, name)), read_committed=_is_committed(cluster)
    )
    late = [topic_partition for topic_partition, offset in resolved.items() if offset is None]
    ends = cluster.offsets(dict.fromkeys(late, LATEST), read_committed=_is_committed(cluster))
    return {
        topic_partition: (ends[topic_partition] if offset is None else offset) or 0
        for topic_partition, offset in resolved.items()
    }


def _offset(number: int, name: str) -> int:
    """Kafka's -1 and -2 are for the wire; here they would silently read nothing."""
    if number < 0:
        raise ClientError(f"{name} is an offset from 0 on, not {number}; write 'earliest' or 'latest'", _INVALID)
    return int(number)


def _offset_query(bound: Bound, name: str) -> int:
    if isinstance(bound, datetime):
        # Rounded up: a record of the millisecond that a time lies within is earlier than the time.
        return -((_EPOCH - bound.astimezone(UTC)) // timedelta(milliseconds=1))
    if isinstance(bound, str) and bound in _WORDS:
        return _WORDS[bound]
    raise ClientError(
        f"{name} is earliest, latest, an offset, a datetime, or a dictionary of offsets by partition, "
        f"not {shown(repr(bound))}",
        _INVALID,
    )


def _renamed(rows: pa.RecordBatch, key: str | None, value: str) -> pa.RecordBatch:
    """The columns that count, by the names a topic has for them."""
    names = rows.schema.names
    if value not in names:
        raise ClientError(
            f"rows have no column '{shown(value)}' for the value, they have {', '.join(names)}; name it with value=",
            _INVALID,
        )
    chosen = {"value": rows.column(value)}
    if key is not None and key in names:
        chosen["key"] = rows.column(key)
    elif key not in (None, "key"):
        raise ClientError(
            f"rows have no column '{shown(str(key))}' for the key, they have {', '.join(names)}", _INVALID
        )
    for name in ("timestamp", "headers", "partition", "topic"):
        if name in names and name not in (key, value):
            chosen[name] = rows.column(name)
    return pa.record_batch(chosen)
