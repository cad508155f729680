"""Tables as Arrow datasets, by which DuckDB scans them: it says which columns a query needs and which rows."""

from collections.abc import Collection, Iterator
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.dataset as ds


class Table(Protocol):
    """What a query can read."""

    @property
    def schema(self) -> pa.Schema:
        """The columns."""

    def scan(self, columns: Collection[str], predicate: Any = None) -> Iterator[pa.RecordBatch]:
        """Batches of these columns, in the order of the schema, of the rows that an Arrow expression holds for."""


class TableScanner(ds.Scanner):  # type: ignore[misc]
    """One scan of a table."""

    def __init__(self, table: Table, columns: list[str], predicate: Any) -> None:
        self._table = table
        self._columns = columns
        self._predicate = predicate

    @property
    def projected_schema(self) -> pa.Schema:
        """The columns of the scan."""
        return pa.schema([self._table.schema.field(name) for name in self._columns])

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows, as they are read."""
        schema = self.projected_schema
        batches = self._table.scan(self._columns, self._predicate)
        return pa.RecordBatchReader.from_batches(schema, (one.select(self._columns) for one in batches))


class TableDataset(ds.Dataset):  # type: ignore[misc]
    """A table; `first` is the column that is read where rows are asked for and no column of them."""

    def __init__(self, table: Table, first: str | None = None) -> None:
        self._table = table
        names = table.schema.names
        self._names = names if first is None else [first, *(name for name in names if name != first)]

    @property
    def schema(self) -> pa.Schema:
        """The columns, that which costs least before the others."""
        return pa.schema([self._table.schema.field(name) for name in self._names])

    def scanner(self, columns: list[str] | None = None, filter: Any = None, **_: Any) -> TableScanner:
        """A scan of some columns."""
        return TableScanner(self._table, self._names if columns is None else list(columns), filter)
