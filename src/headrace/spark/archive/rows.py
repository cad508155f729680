"""Rows of a query into a table of a lake, each batch once: the table knows the last batch of each query that writes it.

Workers write files, the driver commits them together with the number of the batch. A batch that is run again finds its
number there, and adds nothing.
"""

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from headrace.lake.errors import CommitConflict, LakeError
from headrace.lake.evolution import Incompatible, merged_schema
from headrace.lake.files import DataFile
from headrace.lake.opening import Lake
from headrace.lake.state import TableState
from headrace.lake.tables.model import Change, LakeTable, Snapshot, new_files

ROW_COLUMNS: Final = pa.schema(
    [
        pa.field("_table", pa.string()),
        pa.field("_rule", pa.string()),
        pa.field("_row", pa.string()),
    ]
)
"""A row that failed a rule: of which table, which rule, and its columns as JSON."""
_RESULT: Final = pa.schema([pa.field("result", pa.binary())])
_TRIES: Final = 10


@dataclass(frozen=True, slots=True)
class WriteRows:
    """What runs on a worker: the rows of its part, into files."""

    lake: Lake
    table: str
    columns: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One row with what was written."""
        writer = new_files(self.lake.table(self.table), self.columns, ())
        try:
            for batch in batches:
                missing = [one for one in self.columns if one.name not in batch.schema.names]
                arrays = [batch.column(one.name) for one in self.columns if one not in missing]
                names = [one.name for one in self.columns if one not in missing]
                rows = pa.RecordBatch.from_arrays(arrays, names)
                for one in missing:
                    rows = rows.append_column(one, pa.nulls(len(batch), one.type))
                writer.write(rows.select(self.columns.names).cast(self.columns))
            files = writer.finish()
        except BaseException:
            writer.discard()
            raise
        yield pa.record_batch([pa.array([pickle.dumps(files)], pa.binary())], schema=_RESULT)


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeRows:
    """A table of a lake for rows that were set aside."""

    lake: Lake
    table: str

    @property
    def name(self) -> str:
        """What to call it in messages."""
        return f"{self.lake.path.rstrip('/')}/{self.table}"

    def add(self, rows: Any, writer: str, number: int) -> int:
        """Add a batch of a writer, unless the table has it; how many rows were added."""
        table = self.lake.table(self.table)
        base = self._opened(table)
        if _has(base, writer, number):
            return 0
        found = rows.mapInArrow(WriteRows(self.lake, self.table, base.columns), "result binary").collect()
        files = [one for row in found for one in pickle.loads(bytes(row[0]))]
        for _ in range(_TRIES):
            try:
                table.commit(base, Change(state=base.state.at_version(writer, number), add=files))
                return sum(one.rows for one in files)
            except CommitConflict:
                base = self._opened(table)
                if _has(base, writer, number):
                    _discard(table, files)
                    return 0
        _discard(table, files)
        raise LakeError(f"{self.name} was changed {_TRIES} times by others while a batch was to be added")

    def _opened(self, table: LakeTable) -> Snapshot:
        for _ in range(_TRIES):
            try:
                base = table.snapshot()
                if base is None:
                    return table.create(ROW_COLUMNS, (), TableState())
                columns = merged_schema(base.columns, ROW_COLUMNS)
                if not (base.state.topic or base.state.versions) and (words := table.obstacles(base)):
                    raise LakeError(f"{self.name} cannot have quarantined rows: {'; '.join(words)}")
                if base.partitioning:
                    raise LakeError(f"{self.name} is partitioned, which a table of quarantined rows cannot be")
                return base if columns.equals(base.columns) else table.evolve(base, columns)
            except CommitConflict:
                continue
            except Incompatible as error:
                raise LakeError(f"{self.name} cannot have quarantined rows: {error}") from error
        raise LakeError(f"{self.name} was changed {_TRIES} times by others while it was to be opened")


def _has(base: Snapshot, writer: str, number: int) -> bool:
    return base.state.versions.get(writer, -1) >= number


def _discard(table: LakeTable, files: Sequence[DataFile]) -> None:
    for file in files:
        table.place.remove(file.name)
