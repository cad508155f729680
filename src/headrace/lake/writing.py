"""The rows of one topic on their way into files: what a worker does with its part of a batch.

A worker is told what the table has (`TableTask`), writes files, and tells which (`TopicResult`). It commits nothing.
Where values have fields that the table does not have yet it writes nothing and says which columns it needs: the table
gets them first, and then the batch is tried again. So no field is lost, whenever it comes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .errors import LakeError
from .evolution import Incompatible, conformed, fits, merged_schema, plain_field
from .files import FILE_BYTES, DataFile, FileWriter, Partitioning, spans_of
from .opening import Lake
from .records import BAD_COLUMNS, DELETED, KEY, OFFSET, PARTITION, RESERVED, STAGING, TABLE_COLUMNS, VALUE, to_table
from .state import Intervals
from .tables.model import new_files

_ROWS: Final = 65_536
_BYTES: Final = 32 << 20


@dataclass(frozen=True, slots=True)
class ValueGroup:
    """Values of one type, and which rows they are of."""

    rows: Any
    values: pa.Array
    origin: str = ""
    """What to call them in a message, such as the id of their schema."""


@dataclass(frozen=True, slots=True)
class DecodedValues:
    """The values of a batch, by type, and why some rows have none."""

    groups: Sequence[ValueGroup]
    errors: Mapping[int, str]


class TableDecoder(Protocol):
    """Decodes values to columns; made where a batch is planned, used in workers."""

    def decode(self, values: pa.Array) -> DecodedValues:
        """The values of records. Rows that are null are in no group, and no errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableTask:
    """What a worker must know of a table to write rows of its topic."""

    topic: str
    lake: Lake
    columns: pa.Schema
    partitioning: Partitioning
    covered: Mapping[int, Intervals]
    bad_covered: Mapping[int, Intervals]
    decoder: TableDecoder | None = None
    is_keyed: bool = False
    file_bytes: int = FILE_BYTES
    compression: str = "zstd"

    @property
    def fields(self) -> list[pa.Field]:
        """The columns that are the value's."""
        return [one for one in self.columns if one.name not in TABLE_COLUMNS.names]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResult:
    """What a worker did with the rows of a topic. With `needs` it has written nothing."""

    topic: str
    files: Sequence[DataFile] = ()
    bad_files: Sequence[DataFile] = ()
    spans: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    rows: int = 0
    bad: int = 0
    error: str = ""
    """Why the first of the bad records is one."""
    needs: pa.Schema | None = None


class TopicWriter:
    """Writes rows of a topic."""

    def __init__(self, task: TableTask) -> None:
        self._task = task
        table = task.lake.table(task.topic)
        self._columns = task.columns
        if task.is_keyed:
            self._columns = task.columns.append(pa.field(DELETED, pa.bool_()))
            self._writer = FileWriter(table.place, self._columns, (), directory=STAGING, compression=task.compression)
        else:
            self._writer = new_files(
                table, task.columns, task.partitioning, file_bytes=task.file_bytes, compression=task.compression
            )
        self._bad_writer: FileWriter | None = None
        self._waiting: list[pa.RecordBatch] = []
        self._size = 0
        self._spans: dict[int, tuple[int, int]] = {}
        self._rows = self._bad = 0
        self._error = ""
        self._needs: pa.Schema | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Take records of the topic, with the columns that the client reads."""
        if len(batch) == 0:
            return
        self._waiting.append(to_table(batch))
        self._size += batch.nbytes
        if self._size >= _BYTES or sum(map(len, self._waiting)) >= _ROWS:
            self._flush()

    def finish(self) -> TopicResult:
        """What has become of them."""
        self._flush()
        if self._needs is not None:
            self.discard()
            return TopicResult(topic=self._task.topic, needs=self._needs, spans=self._spans)
        return TopicResult(
            topic=self._task.topic,
            files=self._writer.finish(),
            bad_files=[] if self._bad_writer is None else self._bad_writer.finish(),
            spans=self._spans,
            rows=self._rows,
            bad=self._bad,
            error=self._error,
        )

    def discard(self) -> None:
        """Leave no file behind."""
        self._writer.discard()
        if self._bad_writer is not None:
            self._bad_writer.discard()

    def _flush(self) -> None:
        if not self._waiting:
            return
        table = pa.Table.from_batches(self._waiting).combine_chunks()
        self._waiting, self._size = [], 0
        for batch in table.to_batches():
            self._take(batch)

    def _take(self, batch: pa.RecordBatch) -> None:
        spans = spans_of(batch)
        for partition, (first, last) in spans.items():
            before = self._spans.get(partition, (first, last))
            self._spans[partition] = (min(first, before[0]), max(last, before[1]))
        errors = self._missing_keys(batch)
        fields = self._decoded(batch, errors)
        if self._needs is not None:
            return
        good = np.ones(len(batch), np.bool_)
        good[list(errors)] = False
        kept = good & _new_rows(batch, self._task.covered, spans)
        if errors:
            self._write_bad(batch, errors, ~good & _new_rows(batch, self._task.bad_covered, spans))
        if kept.any():
            self._write_good(batch, fields, kept)

    def _missing_keys(self, batch: pa.RecordBatch) -> dict[int, str]:
        keys = batch.column(KEY)
        if not self._task.is_keyed or not keys.null_count:
            return {}
        rows = np.flatnonzero(pc.is_null(keys).to_numpy(zero_copy_only=False))
        return dict.fromkeys(rows.tolist(), "the record has no key, and the table has one row for each key")

    def _decoded(self, batch: pa.RecordBatch, errors: dict[int, str]) -> list[pa.Array]:
        """The columns of the value's fields; rows that have none of them are null, and in `errors` if they are bad."""
        task = self._task
        if task.decoder is None:
            return [pa.nulls(len(batch), one.type) for one in task.fields]
        decoded = task.decoder.decode(batch.column(VALUE))
        errors.update(decoded.errors)
        kind = pa.struct(task.fields)
        pieces, places, begin = [pa.nulls(1, kind)], np.zeros(len(batch), np.int64), 1
        for group in decoded.groups:
            values = self._conformed(group, kind, errors)
            if values is not None:
                pieces.append(values)
                places[group.rows] = begin + np.arange(len(values))
                begin += len(values)
        if len(pieces) == 2 and begin == len(batch) + 1 and places[0] == 1 and not errors:
            return list(pieces[1].flatten())
        return list(pa.concat_arrays(pieces).take(pa.array(places)).flatten())

    def _conformed(self, group: ValueGroup, kind: pa.StructType, errors: dict[int, str]) -> pa.Array | None:
        values = group.values
        if not pa.types.is_struct(values.type):
            values = pa.StructArray.from_arrays([values], fields=[pa.field("value", values.type)])
        try:
            taken = [one.name for one in values.type if one.name in RESERVED]
            if taken:
                raise Incompatible(f"field '{taken[0]}' has the name of a column of records")
            if fits(kind, values.type):
                return conformed(values, kind)
            self._needs = merged_schema(self._needs or self._task.columns, pa.schema(list(values.type)))
        except Incompatible as error:
            words = f"{group.origin}: {error}" if group.origin else str(error)
            errors.update(dict.fromkeys([int(row) for row in group.rows], words))
        except pa.ArrowInvalid as error:
            errors.update(dict.fromkeys([int(row) for row in group.rows], str(error)))
        return None

    def _write_bad(self, batch: pa.RecordBatch, errors: Mapping[int, str], mask: Any) -> None:
        self._error = self._error or errors[min(errors)]
        rows = [row for row in sorted(errors) if mask[row]]
        if not rows:
            return
        if self._bad_writer is None:
            table = self._task.lake.bad_table(self._task.topic)
            self._bad_writer = new_files(table, BAD_COLUMNS, (), compression=self._task.compression)
        taken = batch.take(pa.array(rows, pa.int64()))
        words = pa.array([errors[row] for row in rows], pa.string())
        self._bad_writer.write(pa.RecordBatch.from_arrays([*taken.columns, words], schema=BAD_COLUMNS))
        self._bad += len(rows)

    def _write_good(self, batch: pa.RecordBatch, fields: Sequence[pa.Array], kept: Any) -> None:
        by_name = dict(zip((one.name for one in self._task.fields), fields, strict=True))
        if self._task.is_keyed:
            by_name[DELETED] = pc.is_null(batch.column(VALUE))
        arrays = [
            by_name[one.name] if one.name in by_name else _as(batch.column(one.name), one.type) for one in self._columns
        ]
        rows = pa.RecordBatch.from_arrays(arrays, schema=self._columns)
        if not kept.all():
            rows = rows.filter(pa.array(kept))
        if self._task.is_keyed:
            rows = last_of_keys(rows)
        self._writer.write(rows)
        self._rows += len(rows)


def _as(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return column if column.type.equals(kind) else conformed(column, kind)


def _new_rows(batch: pa.RecordBatch, covered: Mapping[int, Intervals], spans: Mapping[int, tuple[int, int]]) -> Any:
    """Which rows are of offsets that a table does not have."""
    new = np.ones(len(batch), np.bool_)
    touched = {
        partition: [(a, b) for a, b in covered.get(partition, ()) if a <= last and b > first]
        for partition, (first, last) in spans.items()
    }
    if not any(touched.values()):
        return new
    partitions, offsets = batch.column(PARTITION).to_numpy(), batch.column(OFFSET).to_numpy()
    for partition, intervals in touched.items():
        for start, end in intervals:
            new &= ~((partitions == partition) & (offsets >= start) & (offsets < end))
    return new


def last_of_keys(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The last row of each key, in their order."""
    numbered = pa.table([rows.column(KEY), pa.array(np.arange(len(rows)))], names=["key", "row"])
    last = numbered.group_by("key").aggregate([("row", "max")]).column("row_max").combine_chunks()
    if len(last) == len(rows):
        return rows
    return rows.take(last.take(pc.sort_indices(last)))


class LakeWriter:
    """Writes records of several topics, each to its table; one in a worker for each part of a batch."""

    def __init__(self, tasks: Mapping[str, TableTask]) -> None:
        self._tasks = tasks
        self._writers: dict[str, TopicWriter] = {}

    def write(self, batch: pa.RecordBatch) -> None:
        """Take records as the client reads them; those of topics without a task are left out."""
        if len(batch) == 0:
            return
        topics = batch.column("topic")
        names = pc.unique(topics).to_pylist()
        for topic in names:
            if topic in self._tasks:
                rows = batch if len(names) == 1 else batch.filter(pc.equal(topics, topic))
                self._writer(topic).write(rows)

    def finish(self) -> list[TopicResult]:
        """What has become of each topic's records."""
        return [writer.finish() for writer in self._writers.values()]

    def discard(self) -> None:
        """Leave no file behind."""
        for writer in self._writers.values():
            writer.discard()

    def _writer(self, topic: str) -> TopicWriter:
        if topic not in self._writers:
            self._writers[topic] = TopicWriter(self._tasks[topic])
        return self._writers[topic]


def require_record_columns(columns: pa.Schema, *, keeps_bytes: bool, name: str) -> pa.Schema:
    """The columns of a table that is there already, with those of records; LakeError if they cannot be there."""
    wanted = [one for one in TABLE_COLUMNS if keeps_bytes or one.name != VALUE or VALUE in columns.names]
    try:
        return merged_schema(columns, pa.schema([plain_field(one) for one in wanted]))
    except Incompatible as error:
        raise LakeError(f"{name} cannot have records: {error}") from error
