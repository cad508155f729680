"""Several tables as one, such as a topic's archive and what came after it."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import pyarrow as pa

from .datasets import Table
from .errors import SqlError


class UnionTable:
    """The rows of all tables, one after the other, with the columns of the first.

    UnionTable([archived, headrace.sql.table("orders", start=ends_of_the_archive)])

    A table is whatever has `schema` and `scan(columns, predicate)`, or an Arrow dataset, or a table. A column that one
    lacks is null in its rows; one of another type is cast, and refused where that would lose something.
    """

    def __init__(self, tables: Sequence[Any]) -> None:
        if not tables:
            raise SqlError("a union needs at least one table")
        self._tables = [as_table(one) for one in tables]

    @property
    def schema(self) -> pa.Schema:
        """The columns of the first table."""
        return self._tables[0].schema

    def scan(self, columns: Collection[str], predicate: Any = None) -> Iterator[pa.RecordBatch]:
        """Batches of these columns of the rows that an Arrow expression holds for."""
        wanted = [name for name in self.schema.names if name in columns]
        schema = pa.schema([self.schema.field(name) for name in wanted])
        for table in self._tables:
            yield from _scanned(table, self.schema, schema, predicate)


def _scanned(table: Table, whole: pa.Schema, wanted: pa.Schema, predicate: Any) -> Iterator[pa.RecordBatch]:
    if table.schema.equals(whole):
        yield from table.scan(wanted.names, predicate)
        return
    # Its columns may have other types than the filter speaks of, so that it is applied to what they are cast to.
    needed = whole.names if predicate is not None else wanted.names
    for batch in table.scan([name for name in needed if name in table.schema.names]):
        rows = _fitted(batch, whole)
        kept = rows if predicate is None else rows.filter(predicate)
        yield kept.select(wanted.names)


def _fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    arrays = []
    for field in schema:
        if field.name not in batch.schema.names:
            arrays.append(pa.nulls(len(batch), field.type))
            continue
        try:
            arrays.append(batch.column(field.name).cast(field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise SqlError(f"column {field.name} of a union's table cannot be {field.type}: {error}") from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class _Scanned:
    """An Arrow dataset or table as a table to scan."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    @property
    def schema(self) -> pa.Schema:
        return self._dataset.schema

    def scan(self, columns: Collection[str], predicate: Any = None) -> Iterator[pa.RecordBatch]:
        names = [name for name in self.schema.names if name in columns]
        yield from self._dataset.scanner(columns=names, filter=predicate).to_reader()


def as_table(given: Any) -> Table:
    """What was given, as something to scan."""
    import pyarrow.dataset as ds

    if isinstance(given, pa.Table):
        return _Scanned(ds.dataset(given))
    if isinstance(given, ds.Dataset):
        return _Scanned(given)
    if hasattr(given, "schema") and hasattr(given, "scan"):
        table: Table = given
        return table
    raise SqlError(f"{type(given).__name__} is no table: it has no schema and scan, and is no Arrow table or dataset")
