"""Batches whose values are encoded, as a task hands them to the writer."""

import json
import math
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import compute

from headrace.client.columnar.model import HEADERS
from headrace.client.errors import ClientError
from headrace.kernels.varints import varint

from .. import types as t
from ..arrow_types import arrow_type
from .options import EncodingOptions
from .pieces import Column, Write, join, spread


class Agreed(NamedTuple):
    """A schema that the registry has and the column fits."""

    schema_id: int
    text: str
    """With all that it refers to in it, as far as the type can."""
    descriptors: bytes
    """Of Protobuf, in place of the text."""
    message_name: str
    indexes: tuple[int, ...]
    """Of Protobuf: which message of the schema it is."""
    is_checked: bool
    """Of JSON Schema: whether each value is held to the schema, which it need not be where that was made for it."""
    value: Any
    """The column's type."""


class Encoded(NamedTuple):
    """The rows with their values in bytes, and as dead letters those that cannot be written."""

    rows: pa.RecordBatch
    letters: pa.RecordBatch | None


class ValueEncoder:
    """Encodes the column `value` of batches. A null stays null: it is a tombstone."""

    def __init__(self, options: EncodingOptions, agreed: Agreed) -> None:
        self._options = options
        self._agreed = agreed

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_agreed": self._agreed}

    @property
    def dead_letter_topic(self) -> str:
        """The dead letter topic; empty if there is none."""
        return self._options.dead_letter_topic

    @cached_property
    def _write(self) -> Write:
        return write_of(self._options.format, self._agreed)

    @cached_property
    def _head(self) -> bytes:
        head = b"\0" + self._agreed.schema_id.to_bytes(4, "big")
        return head + _indexes(self._agreed.indexes) if self._options.format == "protobuf" else head

    def encode(self, batch: pa.RecordBatch) -> Encoded:
        """The batch with its values in bytes. Without a dead letter topic a bad row is a ClientError."""
        place = batch.schema.get_field_index("value")
        column, errors = self._values(batch.column(place))
        rows = batch.set_column(place, "value", column)
        if not errors:
            return Encoded(rows, None)
        if not self.dead_letter_topic:
            reason = next(iter(errors.values()))
            raise ClientError(
                f"a row cannot be written with schema id {self._agreed.schema_id} of subject {self._options.subject}: "
                f"{reason}; set deadLetterTopic to go on without such rows"
            )
        good = pa.array([row not in errors for row in range(len(rows))])
        return Encoded(rows.filter(good), self._dead_letters(batch, errors))

    def _values(self, values: pa.Array) -> tuple[pa.Array, dict[int, str]]:
        faults: dict[int, str] = {}
        parts = spread(Column(values, np.arange(len(values)), faults), self._write)
        made = join([self._head, *parts], len(values))
        return compute.if_else(values.is_valid(), made, None), dict(sorted(faults.items()))

    def _dead_letters(self, batch: pa.RecordBatch, errors: dict[int, str]) -> pa.RecordBatch:
        """Bad rows as records: the value as JSON, and why it was not written as a further header."""
        rows = batch.take(pa.array(list(errors), pa.int64()))
        names = rows.schema.names
        topics = rows.column("topic").to_pylist() if "topic" in names else [self._options.topic] * len(rows)
        kept = rows.column("headers").to_pylist() if "headers" in names else [None] * len(rows)
        headers = [
            [
                *(own or ()),
                {"key": "headrace.error", "value": f"value: {error}".encode()},
                {"key": "headrace.topic", "value": str(topic).encode()},
            ]
            for own, error, topic in zip(kept, errors.values(), topics, strict=True)
        ]
        columns = {
            "value": self._shown_rows(rows.column("value")),
            "headers": pa.array(headers, HEADERS),
        }
        if "key" in names:
            columns["key"] = rows.column("key")
        return pa.RecordBatch.from_pydict(columns)

    def _shown_rows(self, values: pa.Array) -> pa.Array:
        return pa.array([self._shown_row(values.slice(row, 1)) for row in range(len(values))], pa.binary())

    def _shown_row(self, value: pa.Array) -> bytes:
        try:
            return json.dumps(_finite(value[0].as_py()), default=_shown, ensure_ascii=False).encode()
        except (ValueError, OverflowError):
            # A string that is not UTF-8 is shown with the bytes that it has, a time beyond Python's as a number.
            from .json import json_write

            kind = _timeless(self._agreed.value)
            column = Column(value.cast(arrow_type(kind)), np.arange(1), {})
            return bytes(join(json_write("", kind, is_checked=False)(column), 1)[0].as_py())


def write_of(chosen: str, agreed: Agreed) -> Write:
    """What encodes values of the column; OptionError where it does not fit the schema."""
    if chosen == "avro":
        from .avro import avro_write

        return avro_write(agreed.text, agreed.value)
    if chosen == "protobuf":
        from .protobuf import protobuf_write

        return protobuf_write(agreed.descriptors, agreed.message_name, agreed.value)
    from .json import json_write

    return json_write(agreed.text, agreed.value, is_checked=agreed.is_checked)


def _indexes(indexes: tuple[int, ...]) -> bytes:
    """As serializers write them: a zero for the first message, else how many there are and each, folded as varints."""
    return b"\0" if indexes == (0,) else b"".join(varint(number) for number in (len(indexes), *indexes))


def _timeless(kind: t.DataType) -> t.DataType:
    """The type with numbers in place of days and moments: days and microseconds since 1970."""
    if isinstance(kind, t.StructType):
        return t.StructType([t.StructField(one.name, _timeless(one.data_type), one.nullable) for one in kind.fields])
    if isinstance(kind, t.ArrayType):
        return t.ArrayType(_timeless(kind.element_type), kind.contains_null)
    if isinstance(kind, t.MapType):
        return t.MapType(_timeless(kind.key_type), _timeless(kind.value_type), kind.value_contains_null)
    if isinstance(kind, t.DateType):
        return t.IntegerType()
    return t.LongType() if isinstance(kind, t.TimestampType | t.TimestampNTZType) else kind


def _finite(value: Any) -> Any:
    """The value with texts in place of numbers that JSON does not have."""
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _shown(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else str(value)
