"""What the values of a topic are, judged by some of them: JSON with these fields, text, or bytes."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headrace.formats import types as t

_MOST_DIGITS: Final = 38
_MOST_FIELDS: Final = 1000
_FIELDS_OF_A_MAP: Final = 100
"""An object with more fields, all of one type, is taken for a map: its keys are data."""
_DEEPEST: Final = 20
_MOST_BYTES: Final = 8 << 20
_ENOUGH: Final = 0.9
"""The part of the values that must be objects of JSON; the others are bad records then."""
_LONG: Final = range(-(2**63), 2**63)
_HEAD: Final = 5
"""Bytes of a value before it where it carries the id of its schema: a zero and the id."""
_CONTROLS: Final = frozenset(range(32)) - frozenset(b"\t\n\r")


@dataclass(frozen=True, slots=True)
class Inferred:
    """What keys and values seem to be, as options of the source."""

    format: str
    key_format: str
    schema: str = ""
    values: int = 0
    """How many were looked at."""
    is_framed: bool = False
    """Whether values may carry the ids of schemas."""

    @property
    def options(self) -> dict[str, str]:
        """The options that decode them so."""
        found = {"format": self.format, "keyFormat": self.key_format}
        return {**found, "schema": self.schema} if self.schema else found


def inferred(keys: Iterable[bytes | None], values: Iterable[bytes | None]) -> Inferred:
    """What keys and values seem to be; bytes where there are none to judge by."""
    some_keys = [key for key in keys if key is not None]
    some = list(_some(value for value in values if value is not None))
    key_format = "string" if some_keys and all(map(_is_text, some_keys)) else "raw"
    struct = _document_type(some)
    if struct is not None:
        return Inferred("json", key_format, json.dumps(struct.json_value(), ensure_ascii=False), len(some))
    is_text = bool(some) and all(map(_is_text, some))
    is_framed = bool(some) and all(len(value) > _HEAD and not value[0] for value in some)
    return Inferred("string" if is_text else "raw", key_format, values=len(some), is_framed=is_framed)


def _some(values: Iterable[bytes]) -> Iterable[bytes]:
    left = _MOST_BYTES
    for value in values:
        left -= len(value)
        if left < 0:
            return
        yield value


def _is_text(data: bytes) -> bool:
    """Whether bytes are text, and none of the numbers that happen to be UTF-8, too."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return not any(byte in _CONTROLS for byte in data)


def _document_type(values: Sequence[bytes]) -> t.StructType | None:
    """The type of documents, None where most values are none."""
    documents = [found for found in map(_document, values) if found is not None]
    if not documents or len(documents) < _ENOUGH * len(values):
        return None
    found: t.DataType | None = None
    for one in documents:
        found = merged(found, type_of(one))
    settled = _settled(found, is_whole=True)
    if not isinstance(settled, t.StructType) or not 0 < len(settled.fields) <= _MOST_FIELDS:
        return None
    return settled


def _document(data: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(data.decode())
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def type_of(value: Any, depth: int = 0) -> t.DataType | None:
    """The type of a value of JSON, None of null."""
    if value is None:
        return None
    if isinstance(value, bool):
        return t.BooleanType()
    if isinstance(value, int):
        return _integer_type(value)
    if isinstance(value, float):
        return t.DoubleType()
    if isinstance(value, str) or depth >= _DEEPEST:
        return t.StringType()
    if isinstance(value, list):
        element: t.DataType | None = None
        for one in value:
            element = merged(element, type_of(one, depth + 1))
        return t.ArrayType(t.NullType() if element is None else element)
    fields = {name: type_of(one, depth + 1) for name, one in value.items()}
    return t.StructType(t.StructField(name, kind or t.NullType()) for name, kind in fields.items())


def _integer_type(value: int) -> t.DataType:
    if value in _LONG:
        return t.LongType()
    return t.DecimalType(_MOST_DIGITS, 0) if abs(value) < 10**_MOST_DIGITS else t.DoubleType()


def merged(one: t.DataType | None, other: t.DataType | None) -> t.DataType | None:
    """The type of what may be of either; STRING, which has any value as it is written, where they have nothing in
    common.
    """
    if one is None or isinstance(one, t.NullType):
        return one if other is None else other
    if other is None or isinstance(other, t.NullType) or one == other:
        return one
    if isinstance(one, t.NumericType) and isinstance(other, t.NumericType):
        return t.DoubleType() if t.DoubleType() in (one, other) else t.DecimalType(_MOST_DIGITS, 0)
    if isinstance(one, t.ArrayType) and isinstance(other, t.ArrayType):
        return t.ArrayType(merged(one.element_type, other.element_type) or t.NullType())
    if isinstance(one, t.StructType) and isinstance(other, t.StructType):
        fields = {field.name: field.data_type for field in one.fields}
        for field in other.fields:
            fields[field.name] = merged(fields.get(field.name), field.data_type) or t.NullType()
        return t.StructType(t.StructField(name, kind) for name, kind in fields.items())
    return t.StringType()


def _settled(kind: t.DataType | None, *, is_whole: bool = False) -> t.DataType:
    """The type that a column has: STRING for what was always null or empty, and for objects that engines cannot have,
    which are those with fields that differ in nothing but their case.
    """
    if kind is None or isinstance(kind, t.NullType):
        return t.StringType()
    if isinstance(kind, t.ArrayType):
        return t.ArrayType(_settled(kind.element_type))
    if not isinstance(kind, t.StructType):
        return kind
    fields = [t.StructField(field.name, _settled(field.data_type)) for field in kind.fields]
    if is_whole:
        return t.StructType(fields)
    types = {field.data_type for field in fields}
    if len(fields) > _FIELDS_OF_A_MAP:
        return t.MapType(t.StringType(), types.pop()) if len(types) == 1 else t.StringType()
    names = {name.lower() for name in kind.names}
    return t.StructType(fields) if fields and len(names) == len(fields) and "" not in names else t.StringType()
