"""Queries for programs and notebooks."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.client.columnar.api import LOCAL, Bound, resolved, setting_text

from .engine import Engine, EngineOptions
from .reading import KEEP, Begin, TopicTable

__all__ = ["query", "stream", "table"]


def query(
    sql: str,
    *,
    bootstrap: str = LOCAL,
    registry: str | Mapping[str, str] | None = None,
    read: Mapping[str, Mapping[str, str]] | None = None,
    tables: Mapping[str, Any] | None = None,
    files: Sequence[str | PathLike[str]] = (),
    bad_records: str = KEEP,
    **settings: Any,
) -> pa.Table:
    """The rows of a query over topics, as an Arrow table: for pandas, polars, or another query.

        query("SELECT status, count(*) FROM orders WHERE _timestamp > now() - INTERVAL 1 HOUR GROUP BY status")

    A topic is a table of its values' fields, and of `_key`, `_partition`, `_offset`, `_timestamp` and so on. The fields
    are those of the schema in `registry` (its URL), or of what `read` says of topics by name, with the options of the
    Spark source: `read={"orders": {"format": "json", "schema": "id BIGINT"}}`; else what some records look like.
    `tables` are further tables by name: Arrow tables and datasets, or a `UnionTable`. Files are read only in the
    directories of `files`. `bad_records` are kept with null for their fields and a reason in `_error`, `skip`ped, or
    `fail` the query. `settings` are Kafka's, with underscores for dots.
    """
    with stream(
        sql,
        bootstrap=bootstrap,
        registry=registry,
        read=read,
        tables=tables,
        files=files,
        bad_records=bad_records,
        **settings,
    ) as reader:
        return reader.read_all()


@contextmanager
def stream(
    sql: str,
    *,
    bootstrap: str = LOCAL,
    registry: str | Mapping[str, str] | None = None,
    read: Mapping[str, Mapping[str, str]] | None = None,
    tables: Mapping[str, Any] | None = None,
    files: Sequence[str | PathLike[str]] = (),
    bad_records: str = KEEP,
    **settings: Any,
) -> Iterator[pa.RecordBatchReader]:
    """The same as a stream of batches, for answers that do not fit into memory.

    with stream("SELECT * FROM orders") as batches:
        for batch in batches: ...
    """
    options = _options(bootstrap, registry, read, settings, files=[Path(one) for one in files], on_bad=bad_records)
    with Engine(options, tables, _warn) as engine:
        yield engine.query(sql)


def table(
    topic: str,
    *,
    bootstrap: str = LOCAL,
    registry: str | Mapping[str, str] | None = None,
    read: Mapping[str, str] | None = None,
    start: Bound = "earliest",
    bad_records: str = KEEP,
    **settings: Any,
) -> TopicTable:
    """The table of a topic as it is now, from `start` on: to be scanned, or for a `UnionTable`.

    `start` is `earliest`, an offset, a time, or an offset for each partition, such as where an archive ends.
    """
    options = _options(bootstrap, registry, {topic: read or {}}, settings, on_bad=bad_records, begin=_begin(start))
    with Engine(options) as engine:
        return engine.topic_table(topic)


def _begin(start: Bound) -> Begin:
    return lambda cluster, partitions: resolved(cluster, partitions, start, "start")


def _options(
    bootstrap: str,
    registry: str | Mapping[str, str] | None,
    read: Mapping[str, Mapping[str, str]] | None,
    settings: Mapping[str, Any],
    **more: Any,
) -> EngineOptions:
    client = {name.replace("_", "."): setting_text(value) for name, value in settings.items()}
    isolation = client.get("isolation.level", "read_committed")
    named = {"schema.registry.url": registry} if isinstance(registry, str) else dict(registry or {})
    return EngineOptions(
        client={**client, "bootstrap.servers": bootstrap},
        registry=named,
        declared=read or {},
        read_committed=isolation == "read_committed",
        **more,
    )


def _warn(message: str) -> None:
    import warnings

    warnings.warn(message, stacklevel=2)
