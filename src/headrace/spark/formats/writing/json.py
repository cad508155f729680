"""Rows as JSON documents."""

import base64
import json
import math
from collections.abc import Callable
from datetime import UTC
from typing import Any, Final

from pyspark.sql import types as t

from ..errors import OptionError
from .encoder import Encode, Misfit

Render = Callable[[Any], str]

_quoted: Final = json.JSONEncoder(ensure_ascii=False).encode
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
            one.name: _nullable(_made(one.dataType, f"{path}.{one.name}"), one.nullable) for one in kind.fields
        }
        required = [one.name for one in kind.fields if not one.nullable]
        return {"type": "object", "properties": properties} | ({"required": required} if required else {})
    if isinstance(kind, t.ArrayType):
        return {"type": "array", "items": _nullable(_made(kind.elementType, f"{path}[]"), kind.containsNull)}
    if isinstance(kind, t.MapType):
        more = _nullable(_made(kind.valueType, f"{path}[]"), kind.valueContainsNull)
        return {"type": "object", "additionalProperties": more}
    if type(kind) not in _MADE:
        raise OptionError(f"{path} is {kind.simpleString()}, which JSON does not have; cast it")
    return _MADE[type(kind)]


def _nullable(schema: dict[str, Any], is_nullable: bool) -> dict[str, Any]:
    return {"oneOf": [{"type": "null"}, schema]} if is_nullable else schema


def json_encode(text: str, value: t.DataType, *, is_checked: bool) -> Encode:
    """What encodes a column; where values are checked, each is held to the schema."""
    render = _rendering(value, "value")
    if not is_checked:
        return lambda row: render(row).encode()
    validator = _validator(text)
    _refuse_missing(json.loads(text), value)

    def encode(row: Any) -> bytes:
        document = render(row)
        error = next(validator.iter_errors(json.loads(document)), None)
        if error is not None:
            raise Misfit(f"{'.'.join(['value', *map(str, error.path)])}: {error.message}")
        return document.encode()

    return encode


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


def _rendering(kind: t.DataType, path: str) -> Render:
    """What writes values of a type that are not null."""
    if isinstance(kind, t.StructType):
        return _struct(kind, path)
    if isinstance(kind, t.ArrayType):
        item = _or_null(_rendering(kind.elementType, f"{path}[]"))
        return lambda value: "[" + ",".join(map(item, value)) + "]"
    if isinstance(kind, t.MapType):
        entry = _or_null(_rendering(kind.valueType, f"{path}[]"))
        return lambda value: "{" + ",".join(f"{_quoted(str(key))}:{entry(item)}" for key, item in _pairs(value)) + "}"
    if isinstance(kind, (t.FloatType, t.DoubleType)):
        return lambda value: _finite(value, path)
    render = _SCALARS.get(type(kind))
    if render is None:
        raise OptionError(f"{path} is {kind.simpleString()}, which JSON does not have; cast it")
    return render


def _struct(kind: t.StructType, path: str) -> Render:
    """Fields that are null are left out, as Spark's `to_json` does."""
    parts = [(one.name, f"{_quoted(one.name)}:", _rendering(one.dataType, f"{path}.{one.name}")) for one in kind.fields]

    def render(value: Any) -> str:
        return "{" + ",".join(head + make(value[name]) for name, head, make in parts if value[name] is not None) + "}"

    return render


def _pairs(value: Any) -> Any:
    return value.items() if isinstance(value, dict) else value


def _or_null(render: Render) -> Render:
    return lambda value: "null" if value is None else render(value)


def _finite(value: float, path: str) -> str:
    if not math.isfinite(value):
        raise Misfit(f"{path} is {value}, which JSON does not have")
    return repr(value)


_SCALARS: Final[dict[type[Any], Render]] = {
    t.BooleanType: lambda value: "true" if value else "false",
    t.ByteType: str,
    t.ShortType: str,
    t.IntegerType: str,
    t.LongType: str,
    t.DecimalType: lambda value: format(value, "f"),
    t.StringType: _quoted,
    t.BinaryType: lambda value: f'"{base64.b64encode(value).decode()}"',
    t.DateType: lambda value: f'"{value.isoformat()}"',
    t.TimestampType: lambda value: f'"{value.astimezone(UTC).isoformat().replace("+00:00", "Z")}"',
    t.TimestampNTZType: lambda value: f'"{value.isoformat()}"',
}
