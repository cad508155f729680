"""Rows as tables of SQL have them: the fields of values as columns of their own, and what else a record has beside
them. Every engine that reads topics as tables gets its columns here, so that a query means the same to all of them.

A topic is a table of the fields of its values, or of the column `value` where these have none; then come `_key`,
`_topic`, `_partition`, `_offset`, `_timestamp`, `_headers`, `_tombstone`, and `_error` where anything is decoded. The
underscore keeps them apart from fields, and from words of SQL, such as OFFSET. Engines do not tell upper from lower
case: a field that another one hides so gets a number, and a column of the record is given one more underscore where a
field has its name.
"""

from collections.abc import Collection
from functools import cached_property
from typing import Final, NamedTuple, Protocol

import pyarrow as pa

from headrace.client.columnar.model import SCHEMA_WITH_HEADERS

from . import types as t
from .arrow_types import arrow_field
from .bad_records import BAD
from .decoder import ValueDecoder

RECORD: Final = t.StructType(
    [
        t.StructField("key", t.BinaryType()),
        t.StructField("value", t.BinaryType()),
        t.StructField("topic", t.StringType()),
        t.StructField("partition", t.IntegerType()),
        t.StructField("offset", t.LongType()),
        t.StructField("timestamp", t.TimestampType()),
        t.StructField("timestampType", t.IntegerType()),
        t.StructField(
            "headers",
            t.ArrayType(t.StructType([t.StructField("key", t.StringType()), t.StructField("value", t.BinaryType())])),
        ),
    ]
)
"""A record, as the columnar client reads it."""

TOMBSTONE: Final = "tombstone"
ERROR: Final = "error"
FIELD: Final = "field"
_BESIDE: Final = ("key", "topic", "partition", "offset", "timestamp", "headers", TOMBSTONE, ERROR)
_VALUE: Final = "value"
_NAMELESS: Final = "field"


class RecordDecoder(Protocol):
    """Turns batches of records into rows."""

    @property
    def needs_headers(self) -> bool:
        """Whether batches must have headers, whatever is asked for."""

    def spark_schema(self, base: t.StructType) -> t.StructType:
        """The schema of rows, given that of records."""

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a batch."""


class FlatColumn(NamedTuple):
    """A column, and where it comes from."""

    name: str
    source: str
    """A column of the record, TOMBSTONE, ERROR, or FIELD."""
    place: int
    """Of a field, among the fields."""
    type: t.DataType


class FlatDecoder:
    """Decodes to the columns of a table; without a decoder of values, to the record's own."""

    needs_headers = True

    def __init__(self, decoder: ValueDecoder | None) -> None:
        self._decoder = decoder

    @cached_property
    def columns(self) -> tuple[FlatColumn, ...]:
        """The columns of the table."""
        record = RECORD if self._decoder is None else self._decoder.spark_schema(RECORD)
        kinds = {one.name: one.data_type for one in record.fields}
        value, has_errors = kinds["value"], BAD in kinds
        kinds |= {TOMBSTONE: t.BooleanType(), ERROR: t.StringType()}
        if isinstance(value, t.StructType):
            names = _fields(value.names)
            fields = [FlatColumn(name, FIELD, place, value.fields[place].data_type) for place, name in enumerate(names)]
        else:
            names = [_VALUE]
            fields = [FlatColumn(_VALUE, _VALUE, 0, value)]
        kept = [source for source in _BESIDE if source != ERROR or has_errors]
        return (*fields, *(FlatColumn(_beside(source, names), source, 0, kinds[source]) for source in kept))

    @property
    def _leaves_out(self) -> bool:
        """Whether bad records are written elsewhere, and left out."""
        return self._decoder is not None and all(one.source != ERROR for one in self.columns)

    @cached_property
    def schema(self) -> t.StructType:
        """The schema of rows; every column may be null."""
        return t.StructType(t.StructField(one.name, one.type) for one in self.columns)

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        """The same, as Arrow has it."""
        return pa.schema([arrow_field(one) for one in self.schema.fields])

    def spark_schema(self, base: t.StructType) -> t.StructType:  # noqa: ARG002 - it is the same for all records
        """The schema of rows, given that of records."""
        return self.schema

    def record_column(self, name: str) -> str | None:
        """The column of the record that a column shows as it is."""
        for one in self.columns:
            if one.name == name:
                return one.source if one.source in SCHEMA_WITH_HEADERS.names else None
        return None

    def needs_decoding(self, names: Collection[str]) -> bool:
        """Whether any of these columns is decoded."""
        return any(self._is_decoded(one) for one in self.columns if one.name in names)

    def _is_decoded(self, column: FlatColumn) -> bool:
        if column.source in SCHEMA_WITH_HEADERS.names:
            own = SCHEMA_WITH_HEADERS.field(column.source).type
            return bool(arrow_field(t.StructField(column.name, column.type)).type != own)
        return column.source in (FIELD, ERROR)

    def needs_record_headers(self, names: Collection[str]) -> bool:
        """Whether any of these columns shows headers."""
        return any(one.source == "headers" for one in self.columns if one.name in names)

    def decode(self, batch: pa.RecordBatch, names: Collection[str] | None = None) -> pa.RecordBatch:
        """The rows of a batch: all columns, or those of `names` in the order of the table."""
        wanted = [one for one in self.columns if names is None or one.name in names]
        decoded = batch
        if self._decoder is not None and (self._leaves_out or any(self._is_decoded(one) for one in wanted)):
            decoded = self._decoder.decode(batch)
        fields = decoded.column("value").flatten() if any(one.source == FIELD for one in wanted) else []
        arrays = [self._array(one, batch, decoded, fields) for one in wanted]
        schema = pa.schema([self.arrow_schema.field(one.name) for one in wanted])
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _array(
        self, column: FlatColumn, batch: pa.RecordBatch, decoded: pa.RecordBatch, fields: list[pa.Array]
    ) -> pa.Array:
        match column.source:
            case "field":
                return fields[column.place]
            case "tombstone":
                return (decoded if self._leaves_out else batch).column("value").is_null()
            case "error":
                return decoded.column(BAD).flatten()[0]
        return decoded.column(column.source)


def _fields(given: list[str]) -> list[str]:
    """The names of fields, no two of which differ in nothing but their case."""
    taken: set[str] = {name.lower() for name in given}
    seen: set[str] = set()
    names = []
    for name in given:
        free = name or _NAMELESS
        number = 0
        while free.lower() in seen or (number and free.lower() in taken):
            number += 1
            free = f"{name or _NAMELESS}_{number}"
        seen.add(free.lower())
        names.append(free)
    return names


def _beside(source: str, fields: list[str]) -> str:
    """The name of a column of the record, which no field has."""
    taken = {name.lower() for name in fields}
    name = f"_{source}"
    while name.lower() in taken:
        name = f"_{name}"
    return name
