"""Rows as Avro records."""

import io
import json
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import fastavro
from pyspark.sql import types as t

from headrace.registry.errors import InvalidSchemaError
from headrace.registry.schemas.avro import AvroModel, Enum, Fixed, Items, Node, Record, Union, branch_label

from ..avro_columns import logical_type, model_of, resolved
from ..errors import OptionError
from .encoder import Encode, Misfit

Convert = Callable[[Any], Any]
"""A value as fastavro takes it."""

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MADE: Final[dict[type[Any], Any]] = {
    t.BooleanType: "boolean",
    t.ByteType: "int",
    t.ShortType: "int",
    t.IntegerType: "int",
    t.LongType: "long",
    t.FloatType: "float",
    t.DoubleType: "double",
    t.StringType: "string",
    t.BinaryType: "bytes",
    t.DateType: {"type": "int", "logicalType": "date"},
    t.TimestampType: {"type": "long", "logicalType": "timestamp-micros"},
    t.TimestampNTZType: {"type": "long", "logicalType": "local-timestamp-micros"},
}
_TAKEN: Final[dict[str, tuple[type[Any], ...]]] = {
    "boolean": (t.BooleanType,),
    "int": (t.ByteType, t.ShortType, t.IntegerType),
    "long": (t.ByteType, t.ShortType, t.IntegerType, t.LongType),
    "float": (t.FloatType,),
    "double": (t.ByteType, t.ShortType, t.IntegerType, t.FloatType, t.DoubleType),
    "string": (t.StringType,),
    "bytes": (t.BinaryType,),
}
"""Which columns hold nothing that the type cannot."""
_LOGICAL: Final[dict[str, type[Any]]] = {
    "date": t.DateType,
    "timestamp-millis": t.TimestampType,
    "timestamp-micros": t.TimestampType,
    "local-timestamp-millis": t.TimestampNTZType,
    "local-timestamp-micros": t.TimestampNTZType,
}


def made_schema(value: t.StructType, name: str) -> str:
    """A schema for a column, its records named after the topic and their fields."""
    return json.dumps(_made(value, re.sub(r"^(?=\d)|\W", "_", name, flags=re.ASCII), set()))


def _made(kind: t.DataType, path: str, taken: set[str]) -> Any:
    """`path` names a record, with a line behind it where another has that name."""
    if isinstance(kind, t.StructType):
        while path in taken:
            path += "_"
        taken.add(path)
        return {"type": "record", "name": path, "fields": [_made_field(one, path, taken) for one in kind.fields]}
    if isinstance(kind, t.ArrayType):
        return {"type": "array", "items": _nullable(_made(kind.elementType, path, taken), kind.containsNull)}
    if isinstance(kind, t.MapType) and isinstance(kind.keyType, t.StringType):
        return {"type": "map", "values": _nullable(_made(kind.valueType, path, taken), kind.valueContainsNull)}
    if isinstance(kind, t.DecimalType):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if type(kind) not in _MADE:
        raise OptionError(f"{path} is {kind.simpleString()}, which Avro does not have; cast it")
    return _MADE[type(kind)]


def _made_field(one: t.StructField, path: str, taken: set[str]) -> dict[str, Any]:
    if not _NAME.fullmatch(one.name):
        raise OptionError(f"the column '{one.name}' has a name that Avro does not allow; rename it")
    kind = _nullable(_made(one.dataType, f"{path}_{one.name}", taken), one.nullable)
    return {"name": one.name, "type": kind, "default": None} if one.nullable else {"name": one.name, "type": kind}


def _nullable(kind: Any, is_nullable: bool) -> Any:
    return ["null", kind] if is_nullable else kind


def avro_encode(text: str, value: t.DataType) -> Encode:
    """What encodes a column with a schema; OptionError where it does not fit."""
    try:
        model = model_of(text)
    except InvalidSchemaError as error:
        raise OptionError(f"schema: not a valid Avro schema: {error}") from error
    convert = _Fitting(model).of(model.root, value, "value")
    parsed = fastavro.parse_schema(json.loads(text))
    write = fastavro.schemaless_writer

    def encode(row: Any) -> bytes:
        out = io.BytesIO()
        write(out, parsed, convert(row))
        return out.getvalue()

    return encode


class _Fitting:
    """Holds columns to a schema."""

    def __init__(self, model: AvroModel) -> None:
        self._names = model.names

    def of(self, node: Node, kind: t.DataType, path: str) -> Convert:
        """What converts values of a column, null among them; OptionError where they do not fit."""
        node = resolved(node, self._names)
        branches = [resolved(one, self._names) for one in node.branches] if isinstance(node, Union) else [node]
        some = [one for one in branches if one.kind != "null"]
        convert = self._some(some, kind, path)
        if len(some) < len(branches):
            return lambda value: None if value is None else convert(value)

        def required(value: Any) -> Any:
            if value is None:
                raise Misfit(f"{path} is null, which the schema does not allow")
            return convert(value)

        return required

    def _some(self, branches: list[Node], kind: t.DataType, path: str) -> Convert:
        if len(branches) == 1:
            return self._value(branches[0], kind, path)
        if not branches:
            return lambda value: value
        members = [f"member{number}" for number in range(len(branches))]
        if isinstance(kind, t.StructType) and kind.names == members:
            return self._member(branches, kind, path)
        for branch in branches:
            try:
                convert, label = self._value(branch, kind, path), branch_label(branch)
            except OptionError:
                continue
            return lambda value: (label, convert(value))
        raise OptionError(f"{path} is {kind.simpleString()}, and no branch of the schema's union takes that")

    def _member(self, branches: list[Node], kind: t.StructType, path: str) -> Convert:
        parts = [
            (one.name, branch_label(branch), self._value(branch, one.dataType, f"{path}.{one.name}"))
            for one, branch in zip(kind.fields, branches, strict=True)
        ]

        def convert(value: Any) -> Any:
            given = [(label, make(value[name])) for name, label, make in parts if value[name] is not None]
            if len(given) != 1:
                raise Misfit(f"{path} has {len(given)} members of the schema's union; it must have one")
            return given[0]

        return convert

    def _value(self, node: Node, kind: t.DataType, path: str) -> Convert:
        if isinstance(node, Record) and isinstance(kind, t.StructType):
            return self._record(node, kind, path)
        if isinstance(node, Items):
            return self._items(node, kind, path)
        return _scalar(node, kind, path)

    def _record(self, node: Record, kind: t.StructType, path: str) -> Convert:
        declared = {one.name: one for one in node.fields}
        given = {one.name: one for one in kind.fields}
        for name in given:
            if name not in declared:
                raise OptionError(f"the schema's record {node.name} has no field for {path}.{name}; leave it out")
        for name, one in declared.items():
            if name not in given and not one.has_default:
                raise OptionError(f"the schema needs {path}.{name}, which is not among the columns and has no default")
        parts = [(name, self.of(declared[name].type, given[name].dataType, f"{path}.{name}")) for name in given]
        return lambda value: {name: convert(value[name]) for name, convert in parts}

    def _items(self, node: Items, kind: t.DataType, path: str) -> Convert:
        if node.kind == "array" and isinstance(kind, t.ArrayType):
            convert = self.of(node.of, kind.elementType, f"{path}[]")
            return lambda value: [convert(item) for item in value]
        if node.kind == "map" and isinstance(kind, t.MapType) and isinstance(kind.keyType, t.StringType):
            entry = self.of(node.of, kind.valueType, f"{path}[]")
            return lambda value: {key: entry(item) for key, item in _pairs(value)}
        raise _unfit(node.kind, kind, path)


def _pairs(value: Any) -> Any:
    return value.items() if isinstance(value, dict) else value


def _unfit(wanted: str, kind: t.DataType, path: str) -> OptionError:
    return OptionError(f"{path} is {kind.simpleString()}, and the schema has {wanted} there; cast it")


def _scalar(node: Node, kind: t.DataType, path: str) -> Convert:
    logical = logical_type(node)
    if isinstance(node, Enum) and isinstance(kind, t.StringType):
        return _symbol(node, path)
    if logical == "decimal" and isinstance(kind, t.DecimalType):
        return _decimal(node, kind, path)
    if isinstance(node, Fixed) and isinstance(kind, t.BinaryType):
        return _fixed(node, path)
    if logical in _LOGICAL and isinstance(kind, _LOGICAL[logical]):
        return lambda value: value
    if not isinstance(kind, _TAKEN.get(node.kind, ())) or logical in _LOGICAL:
        raise _unfit(f"{node.kind} ({logical})" if logical else node.kind, kind, path)
    return float if node.kind == "double" and not isinstance(kind, t.DoubleType) else lambda value: value


def _symbol(node: Enum, path: str) -> Convert:
    def convert(value: Any) -> Any:
        if value not in node.symbols:
            raise Misfit(f"{path} is {value!r}, which is no symbol of the schema's enum {node.name}")
        return value

    return convert


def _fixed(node: Fixed, path: str) -> Convert:
    def convert(value: Any) -> Any:
        if len(value) != node.size:
            raise Misfit(f"{path} has {len(value)} bytes, and the schema's {node.name} has {node.size}")
        return bytes(value)

    return convert


def _decimal(node: Node, kind: t.DecimalType, path: str) -> Convert:
    precision, scale = node.extra.get("precision", 0), node.extra.get("scale", 0)
    if kind.scale != scale:
        raise _unfit(f"decimal({precision},{scale})", kind, path)
    limit = Decimal(10) ** (precision - scale)

    def convert(value: Decimal) -> Decimal:
        if abs(value) >= limit:
            raise Misfit(f"{path} is {value}, which has more than the schema's {precision} digits")
        return value

    return convert
