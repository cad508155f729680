"""Parquet files of tables: rows sorted into partitions of time, files of a good size, and what is known of each."""

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from .places import NewFile, Place
from .records import KEY, OFFSET, PARTITION, TIMESTAMP, VALUE

MIB: Final = 1 << 20
FILE_BYTES: Final = 128 * MIB
"""How large a file gets before the next one is begun, about."""
_GROUP_BYTES: Final = 32 * MIB
"""How many bytes of rows are collected for a row group."""
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_PLAIN: Final = frozenset({KEY, VALUE, OFFSET, TIMESTAMP})
"""Columns whose values seldom repeat: a dictionary of them would be tried in vain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionField:
    """One level of a table's partitions: `name` is computed from the column `source` by `transform`."""

    name: str
    source: str
    transform: str
    """`identity`, `day` or `hour`."""

    @property
    def is_derived(self) -> bool:
        """Whether the column is not one of the rows'."""
        return self.transform != "identity"

    @property
    def type(self) -> pa.DataType:
        """The type of a derived column."""
        return pa.date32() if self.transform == "day" else pa.int32()

    def of(self, batch: pa.RecordBatch) -> pa.Array:
        """The partition of each row."""
        column = batch.column(self.source)
        if self.transform == "day":
            return column.cast(pa.timestamp("us")).cast(pa.date32(), safe=False)
        return pc.hour(column).cast(pa.int32()) if self.transform == "hour" else column


Partitioning = tuple[PartitionField, ...]
_DAY: Final = PartitionField(name="_day", source=TIMESTAMP, transform="day")
_HOUR: Final = PartitionField(name="_hour", source=TIMESTAMP, transform="hour")
BY_TIME: Final[dict[str, Partitioning]] = {"none": (), "day": (_DAY,), "hour": (_DAY, _HOUR)}
"""Partitions by the time of records, UTC."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A file of a table. `name` is its path in it."""

    name: str
    rows: int
    size: int
    partition: Mapping[str, str | None] = field(default_factory=dict)
    spans: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """The first and the last offset of each partition of the topic that it has records of; empty if not known."""
    times: tuple[int, int] | None = None
    """The first and the last time of its records, in microseconds."""


@dataclass(slots=True)
class _Open:
    """A file that is being written."""

    name: str
    partition: Mapping[str, str | None]
    file: NewFile
    writer: pq.ParquetWriter
    rows: int = 0
    spans: dict[int, tuple[int, int]] = field(default_factory=dict)
    times: tuple[int, int] | None = None
    has_others: bool = False
    """Whether there are rows that are no records, as in a table that somebody else has made."""


class FileWriter:
    """Writes rows of one table to new files, which count for nothing until they are committed."""

    def __init__(
        self,
        place: Place,
        schema: pa.Schema,
        partitioning: Partitioning = (),
        *,
        directory: str = "",
        file_bytes: int = FILE_BYTES,
        compression: str = "zstd",
    ) -> None:
        self._place = place
        self._schema = schema
        self._partitioning = partitioning
        self._directory = directory
        self._file_bytes = file_bytes
        self._compression = compression
        self._waiting: list[pa.RecordBatch] = []
        self._size = 0
        self._open: dict[tuple[Any, ...], _Open] = {}
        self._done: list[DataFile] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """Take rows that have the columns of the schema, and those of the partitions."""
        if len(batch) == 0:
            return
        self._waiting.append(batch)
        self._size += batch.nbytes
        if self._size >= _GROUP_BYTES:
            self._flush()

    def finish(self) -> list[DataFile]:
        """The files that were written."""
        self._flush()
        for key in list(self._open):
            self._close(key)
        return self._done

    def discard(self) -> None:
        """Leave nothing behind."""
        for one in self._open.values():
            one.file.discard()
        for done in self._done:
            self._place.remove(done.name)
        self._open, self._done, self._waiting = {}, [], []

    def _flush(self) -> None:
        if not self._waiting:
            return
        table = pa.Table.from_batches(self._waiting).combine_chunks()
        self._waiting, self._size = [], 0
        for batch in table.to_batches():
            for values, rows in partitioned(batch, self._partitioning):
                self._append(values, rows)

    def _append(self, values: tuple[Any, ...], rows: pa.RecordBatch) -> None:
        one = self._open.get(values)
        if one is None:
            one = self._open[values] = self._begin(values)
        one.writer.write_batch(rows.select(self._schema.names), row_group_size=max(len(rows), 1))
        one.rows += len(rows)
        _note(one, rows)
        if one.file.sink.tell() >= self._file_bytes:
            self._close(values)

    def _begin(self, values: tuple[Any, ...]) -> _Open:
        partition = {one.name: as_text(value) for one, value in zip(self._partitioning, values, strict=True)}
        name = "/".join([*self._levels(partition), f"{uuid.uuid4().hex}.parquet"])
        file = self._place.begin(name)
        writer = pq.ParquetWriter(
            file.sink,
            self._schema,
            compression=self._compression,
            compression_level=1 if self._compression == "zstd" else None,
            use_dictionary=[one.name for one in self._schema if one.name not in _PLAIN],
            store_schema=True,
        )
        return _Open(name, partition, file, writer)

    def _levels(self, partition: Mapping[str, str | None]) -> Iterator[str]:
        if self._directory:
            yield self._directory
        for name, value in partition.items():
            yield f"{name}={_NULL if value is None else quote(value, safe=' ')}"

    def _close(self, values: tuple[Any, ...]) -> None:
        one = self._open.pop(values)
        one.writer.close()
        size = one.file.finish()
        self._done.append(
            DataFile(
                name=one.name,
                rows=one.rows,
                size=size,
                partition=one.partition,
                spans={} if one.has_others else one.spans,
                times=None if one.has_others else one.times,
            )
        )


def partitioned(batch: pa.RecordBatch, partitioning: Partitioning) -> Iterable[tuple[tuple[Any, ...], pa.RecordBatch]]:
    """The rows of each partition, in their order."""
    if not partitioning or len(batch) == 0:
        return [((), batch)] if len(batch) else []
    columns = [one.of(batch) for one in partitioning]
    names = [str(number) for number in range(len(columns))]
    distinct = pa.table(columns, names=names).group_by(names).aggregate([]).to_pylist()
    if len(distinct) == 1:
        return [(tuple(distinct[0].values()), batch)]
    return [(tuple(row.values()), batch.filter(_equal(columns, list(row.values())))) for row in distinct]


def _equal(columns: Sequence[pa.Array], values: Sequence[Any]) -> pa.Array:
    mask = None
    for column, value in zip(columns, values, strict=True):
        same = pc.is_null(column) if value is None else pc.equal(column, pa.scalar(value, column.type))
        mask = same if mask is None else pc.and_kleene(mask, same)
    return pc.fill_null(mask, False)


def as_text(value: object) -> str | None:
    """A partition's value, as directories and Delta have it."""
    if value is None:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    return value.isoformat() if isinstance(value, date) else str(value)


def _note(one: _Open, rows: pa.RecordBatch) -> None:
    names = rows.schema.names
    if OFFSET in names and rows.column(OFFSET).null_count:
        one.has_others = True
    if one.has_others:
        return
    if OFFSET in names and PARTITION in names:
        for partition, (first, last) in spans_of(rows).items():
            before = one.spans.get(partition, (first, last))
            one.spans[partition] = (min(first, before[0]), max(last, before[1]))
    if TIMESTAMP in names:
        found = pc.min_max(rows.column(TIMESTAMP).cast(pa.int64()))
        first, last = found["min"].as_py(), found["max"].as_py()
        if first is not None:
            known = one.times or (first, last)
            one.times = (min(first, known[0]), max(last, known[1]))


def spans_of(rows: pa.RecordBatch) -> dict[int, tuple[int, int]]:
    """The first and the last offset of each partition."""
    table = pa.table([rows.column(PARTITION), rows.column(OFFSET)], names=["p", "o"])
    found = table.group_by("p").aggregate([("o", "min"), ("o", "max")]).to_pylist()
    return {row["p"]: (row["o_min"], row["o_max"]) for row in found}
