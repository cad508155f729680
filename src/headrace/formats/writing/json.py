"""Columns as JSON documents."""

import base64
import json
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyarrow import compute

from .. import types as t
from ..errors import OptionError
from .pieces import (
    END_DAY,
    FIRST_DAY,
    MICROS_OF_DAY,
    Column,
    Part,
    Write,
    chosen,
    content,
    grouped,
    join,
    ragged,
    spread,
    texts,
    within_calendar,
)

_quoted: Final = json.JSONEncoder(ensure_ascii=False).encode
_NEEDS_ESCAPES: Final = r'["\\\x00-\x1f]'
_ESCAPED: Final = np.array([byte < 32 or byte in b'"\\' for byte in range(256)])
_TIME, _FRACTION, _END = len("2026-01-02"), len("2026-01-02 03:04:05"), len("2026-01-02 03:04:05.678901")
_TEXTS: Final = (t.StringType, t.BinaryType, t.DateType, t.TimestampType, t.TimestampNTZType)
_MADE: Final[dict[type[Any], dict[str, Any]]] = {
    t.BooleanType: {"type": "boolean"},
    t.ByteType: {"type": "integer", "connect.type": "int8"},
    t.ShortType: {"type": "integer", "connect.type": "int16"},
    t.IntegerType: {"type": "integer", "connect.type": "int32"},
    t.LongType: {"type": "integer", "connect.type": "int64"},
    t.FloatType: {"type": "number", "connect.type": "float32"},
    t.DoubleType: {"type": "number", "connect.type": "float64"},
    t.DecimalType: {"type": "number"},
    t.StringType: {"type": "string"},
    t.BinaryType: {"type": "string", "contentEncoding": "base64"},
    t.DateType: {"type": "string", "format": "date"},
    t.TimestampType: {"type": "string", "format": "date-time"},
    t.TimestampNTZType: {"type": "string"},
}


def made_schema(value: t.StructType, name: str) -> str:
    """A schema for a column, with the topic for its title."""
    body = {"$schema": "http://json-schema.org/draft-07/schema#", "title": name, **_made(value, "value")}
    return json.dumps(body, ensure_ascii=False)


def _made(kind: t.DataType, path: str) -> dict[str, Any]:
    if isinstance(kind, t.StructType):
        properties = {
            one.name: _nullable(_made(one.data_type, f"{path}.{one.name}"), one.nullable) for one in kind.fields
        }
        required = [one.name for one in kind.fields if not one.nullable]
        return {"type": "object", "properties": properties} | ({"required": required} if required else {})
    if isinstance(kind, t.ArrayType):
        return {"type": "array", "items": _nullable(_made(kind.element_type, f"{path}[]"), kind.contains_null)}
    if isinstance(kind, t.MapType):
        more = _nullable(_made(kind.value_type, f"{path}[]"), kind.value_contains_null)
        return {"type": "object", "additionalProperties": more}
    if type(kind) not in _MADE:
        raise OptionError(f"{path} is {kind.simple_string()}, which JSON does not have; cast it")
    return _MADE[type(kind)]


def _nullable(schema: dict[str, Any], is_nullable: bool) -> dict[str, Any]:
    return {"oneOf": [{"type": "null"}, schema]} if is_nullable else schema


def json_write(text: str, value: t.DataType, *, is_checked: bool) -> Write:
    """What encodes a column; where values are checked, each is held to the schema."""
    write = _writing(value, "value")
    if not is_checked:
        return write
    validator = _validator(text)
    _refuse_missing(json.loads(text), value)

    def checked(column: Column) -> list[Part]:
        documents = join(write(column), len(column.values))
        for row, document in zip(column.rows, documents, strict=True):
            if row not in column.faults:
                error = next(validator.iter_errors(json.loads(document.as_py())), None)
                if error is not None:
                    column.faults[int(row)] = f"{'.'.join(['value', *map(str, error.path)])}: {error.message}"
        return [documents]

    return checked


def _validator(text: str) -> Any:
    from jsonschema import SchemaError
    from jsonschema.validators import validator_for

    try:
        schema = json.loads(text)
        kind = validator_for(schema)
        kind.check_schema(schema)
    except (ValueError, SchemaError) as error:
        raise OptionError(f"schema: not a valid JSON Schema: {str(error).splitlines()[0]}") from error
    return kind(schema)


def _refuse_missing(schema: Any, value: t.DataType) -> None:
    names = value.names if isinstance(value, t.StructType) else []
    for name in schema.get("required", ()) if isinstance(schema, dict) else ():
        if name not in names:
            raise OptionError(f"the schema needs value.{name}, which is not among the columns")


def _writing(kind: t.DataType, path: str) -> Write:
    """What writes values of a type."""
    if isinstance(kind, t.StructType):
        return _struct(kind, path)
    if isinstance(kind, t.ArrayType):
        item = _or_null(_writing(kind.element_type, f"{path}[]"))
        return lambda column: [b"[", _separated(item, column), b"]"]
    if isinstance(kind, t.MapType):
        entry = _entry(_key(kind.key_type, path), _or_null(_writing(kind.value_type, f"{path}[]")))
        return lambda column: [b"{", _separated(entry, column), b"}"]
    write = _SCALARS.get(type(kind))
    if write is None:
        raise OptionError(f"{path} is {kind.simple_string()}, which JSON does not have; cast it")
    return lambda column: write(column, path)


def _struct(kind: t.StructType, path: str) -> Write:
    """Fields that are null are left out, as Spark's `to_json` does."""
    fields = [(_quoted(one.name).encode(), _writing(one.data_type, f"{path}.{one.name}")) for one in kind.fields]

    def write(column: Column) -> list[Part]:
        parts: list[Part] = [b"{"]
        is_behind = np.zeros(len(column.values), np.int8)
        for place, (name, write) in enumerate(fields):
            one = column.field(place)
            valid = one.valid
            parts += [_head(name, np.where(valid, 1 + is_behind, 0)), *spread(one, write)]
            is_behind |= valid
        return [*parts, b"}"]

    return write


def _head(name: bytes, which: Any) -> Part:
    """The name of a field: not there, the first of its object, or a further one."""
    heads = (b"", name + b":", b"," + name + b":")
    first = int(which[0]) if len(which) else 0
    return heads[first] if (which == first).all() else chosen(heads, which)


def _separated(item: Write, column: Column) -> pa.Array:
    items, counts = column.elements()
    commas = np.ones(len(items.values), np.int8)
    commas[(np.cumsum(counts) - counts)[counts > 0]] = 0
    return grouped([chosen([b"", b","], commas), *item(items)], counts)


def _or_null(write: Write) -> Write:
    def nullable(column: Column) -> list[Part]:
        nulls = [chosen([b"null", b""], column.valid)] if column.values.null_count else []
        return [*nulls, *spread(column, write)]

    return nullable


def _entry(key: Write, item: Write) -> Write:
    return lambda column: [*key(column.field(0)), b":", *item(column.field(1))]


def _key(kind: t.DataType, path: str) -> Write:
    """Names are texts: those of numbers and truth values have quotes around them."""
    if isinstance(kind, t.StructType | t.ArrayType):
        raise OptionError(f"{path} has keys of {kind.simple_string()}, which JSON does not have; cast them")
    write = _writing(kind, path)
    return write if isinstance(kind, _TEXTS) else lambda column: [b'"', *write(column), b'"']


def _one_by_one(render: Callable[[Any], str], values: pa.Array) -> pa.Array:
    return pa.array([render(value).encode() for value in values.to_pylist()], pa.binary())


def _rewritten(pieces: pa.Array, bad: Any, render: Callable[[Any], str], values: pa.Array) -> pa.Array:
    """The pieces, with those that are bad made one by one."""
    if not bad.any():
        return pieces
    mask = pa.array(bad)
    return compute.replace_with_mask(pieces, mask, _one_by_one(render, values.filter(mask)))


def _printed(values: pa.Array) -> pa.Array:
    return values.cast(pa.string()).cast(pa.binary())


def _text(column: Column, path: str) -> list[Part]:
    data = texts(column, path)
    if not _ESCAPED[content(data)].any():
        return [b'"', data, b'"']
    bad = compute.match_substring_regex(data, _NEEDS_ESCAPES).to_numpy(zero_copy_only=False)
    escaped = _rewritten(data, bad, lambda value: _quoted(value.decode(errors="replace"))[1:-1], data)
    return [b'"', escaped, b'"']


def _number(column: Column, path: str) -> list[Part]:
    """Numbers that are whole have a point, too."""
    values = column.values.cast(pa.float64())
    numbers = values.to_numpy()
    column.refuse(~np.isfinite(numbers), lambda value: f"{path} is {value}, which JSON does not have")
    shown = _printed(values)
    if not (numbers == np.trunc(numbers)).any():
        return [shown]
    whole = compute.match_substring_regex(shown, r"^-?[0-9]+$").to_numpy(zero_copy_only=False)
    return [shown, chosen([b"", b".0"], whole)]


def _decimal(column: Column, _: str) -> list[Part]:
    shown = _printed(column.values)
    has_exponent = compute.match_substring(shown, "E").to_numpy(zero_copy_only=False)
    return [_rewritten(shown, has_exponent, lambda value: format(value, "f"), column.values)]


def _day(column: Column, path: str) -> list[Part]:
    within_calendar(column, 1, path)
    return [b'"', _printed(column.values), b'"']


def _moment(column: Column, path: str) -> Part:
    """As ISO 8601 has it, with a fraction if there is one."""
    within_calendar(column, MICROS_OF_DAY, path)
    numbers = np.clip(column.numbers, FIRST_DAY * MICROS_OF_DAY, END_DAY * MICROS_OF_DAY - 1)
    shown = _printed(pa.array(numbers).cast(pa.timestamp("us")))
    data = content(shown).reshape(-1, _END).copy()
    data[:, _TIME] = ord("T")
    return ragged(data, (np.arange(_END) < _FRACTION) | (numbers % 1_000_000 != 0)[:, None])


def _boolean(column: Column, _: str) -> list[Part]:
    return [chosen([b"false", b"true"], column.values.to_numpy(zero_copy_only=False))]


def _integer(column: Column, _: str) -> list[Part]:
    return [_printed(column.values)]


def _bytes(column: Column, _: str) -> list[Part]:
    return [b'"', _one_by_one(lambda value: base64.b64encode(value).decode(), column.values), b'"']


_SCALARS: Final[dict[type[Any], Callable[[Column, str], list[Part]]]] = {
    t.BooleanType: _boolean,
    t.ByteType: _integer,
    t.ShortType: _integer,
    t.IntegerType: _integer,
    t.LongType: _integer,
    t.FloatType: _number,
    t.DoubleType: _number,
    t.DecimalType: _decimal,
    t.StringType: _text,
    t.BinaryType: _bytes,
    t.DateType: _day,
    t.TimestampType: lambda column, path: [b'"', _moment(column, path), b'Z"'],
    t.TimestampNTZType: lambda column, path: [b'"', _moment(column, path), b'"'],
}
