"""What every format of a table can do: tell what is in it now, and let a change take effect at once or not at all."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from ..files import FILE_BYTES, DataFile, FileWriter, Partitioning
from ..places import Place
from ..records import ALWAYS_THERE
from ..state import TableState


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A table as it is at a version. `columns` are those that files have; derived partition columns are none."""

    version: int
    columns: pa.Schema
    state: TableState
    partitioning: Partitioning
    list_files: Callable[[], list[DataFile]]
    handle: Any = field(default=None, repr=False)
    """What the format knows the version by."""

    def files(self) -> list[DataFile]:
        """The files with the rows."""
        return self.list_files()


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Files to add and to remove, and the state that the table is in then."""

    state: TableState
    add: Sequence[DataFile] = ()
    remove: Sequence[DataFile] = ()
    is_rewrite: bool = False
    """Whether the rows stay the same: files are only put together."""


class LakeTable(Protocol):
    """A table at a place."""

    @property
    def name(self) -> str:
        """What to call it in messages."""

    @property
    def place(self) -> Place:
        """Where its files are."""

    def snapshot(self) -> Snapshot | None:
        """The table now; None if there is none."""

    def stored_columns(self, columns: pa.Schema, partitioning: Partitioning, /) -> pa.Schema:
        """Those of the columns that files have."""

    @property
    def data_directory(self) -> str:
        """Where new files go; empty for the table's own directory."""

    def create(self, columns: pa.Schema, partitioning: Partitioning, state: TableState) -> Snapshot:
        """Make the table."""

    def evolve(self, base: Snapshot, columns: pa.Schema) -> Snapshot:
        """Give the table more columns."""

    def commit(self, base: Snapshot, change: Change) -> Snapshot:
        """Let a change take effect; CommitConflict, and nothing has changed, if the table is no longer as in `base`."""

    def read(self, snapshot: Snapshot, files: Sequence[DataFile], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows of files, of these columns as the table has them."""

    def obstacles(self, snapshot: Snapshot) -> Sequence[str]:
        """What keeps records from being added to a table that somebody else has made, in words."""

    def sweep(self, older_than: float) -> int:
        """Remove files that no version of the table needs that readers may still use; how many were removed."""


def without_nulls(columns: pa.Schema) -> Iterator[str]:
    """The columns that must have values and that records may lack, in words."""
    for one in columns:
        if not one.nullable and one.name not in ALWAYS_THERE:
            yield f"column '{one.name}' may not be null, and a record may lack it"
        elif pa.types.is_struct(one.type):
            for inner in without_nulls(pa.schema(list(one.type))):
                yield inner.replace("column '", f"column '{one.name}.", 1)


def new_files(
    table: LakeTable,
    columns: pa.Schema,
    partitioning: Partitioning,
    *,
    file_bytes: int = FILE_BYTES,
    compression: str = "zstd",
) -> FileWriter:
    """A writer of new files of a table."""
    return FileWriter(
        table.place,
        table.stored_columns(columns, partitioning),
        partitioning,
        directory=table.data_directory,
        file_bytes=file_bytes,
        compression=compression,
    )
