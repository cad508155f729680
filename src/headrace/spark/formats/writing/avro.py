"""Rows as Avro records: a function for each place of the schema, which is chosen when the query is planned."""

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Context, Decimal
from struct import Struct
from typing import Any, Final

from pyspark.sql import types as t

from headrace.registry.errors import InvalidSchemaError
from headrace.registry.schemas.avro import AvroModel, Enum, Fixed, Items, Node, Record, Union

from ..avro_columns import is_default_of, logical_type, model_of, resolved
from ..errors import OptionError
from .encoder import Encode, Misfit

Write = Callable[[bytearray, Any], None]
"""Adds the bytes of a value, which is not null unless the schema allows it."""

_ARITHMETIC: Final = Context(prec=80)
_EPOCH: Final = datetime(1970, 1, 1)
_EPOCH_DAY: Final = _EPOCH.toordinal()
_FLOAT, _DOUBLE = Struct("<f"), Struct("<d")

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
    write = _Fitting(model).of(model.root, value, "value")

    def encode(row: Any) -> bytes:
        out = bytearray()
        write(out, row)
        return bytes(out)

    return encode


class _Fitting:
    """Holds columns to a schema."""

    def __init__(self, model: AvroModel) -> None:
        self._names = model.names

    def of(self, node: Node, kind: t.DataType, path: str) -> Write:
        """What writes values of a column, null among them; OptionError where they do not fit."""
        node = resolved(node, self._names)
        if isinstance(node, Union):
            return self._union([resolved(one, self._names) for one in node.branches], kind, path)
        write = self._value(node, kind, path)

        def required(out: bytearray, value: Any) -> None:
            if value is None:
                raise _null(path)
            write(out, value)

        return required

    def _union(self, branches: list[Node], kind: t.DataType, path: str) -> Write:
        nothing = next((_varint(number) for number, one in enumerate(branches) if one.kind == "null"), None)
        some = [(_varint(number), one) for number, one in enumerate(branches) if one.kind != "null"]
        members = [f"member{number}" for number in range(len(some))]
        if isinstance(kind, t.StructType) and kind.names == members and len(some) > 1:
            write = self._member(some, kind, path)
        else:
            write = self._branch(some, kind, path)

        def chosen(out: bytearray, value: Any) -> None:
            if value is not None:
                write(out, value)
            elif nothing is None:
                raise _null(path)
            else:
                out += nothing

        return chosen

    def _branch(self, some: list[tuple[bytes, Node]], kind: t.DataType, path: str) -> Write:
        """The only branch beside null, or the first of several that takes the column."""
        refusal = OptionError(f"{path} is {kind.simpleString()}, and no branch of the schema's union takes that")
        for head, branch in some:
            try:
                return _behind(head, self._value(branch, kind, path))
            except OptionError as error:
                refusal = error if len(some) == 1 else refusal
        raise refusal

    def _member(self, some: list[tuple[bytes, Node]], kind: t.StructType, path: str) -> Write:
        parts = [
            (one.name, _behind(head, self._value(branch, one.dataType, f"{path}.{one.name}")))
            for one, (head, branch) in zip(kind.fields, some, strict=True)
        ]

        def write(out: bytearray, value: Any) -> None:
            given = [(part, value[name]) for name, part in parts if value[name] is not None]
            if len(given) != 1:
                raise Misfit(f"{path} has {len(given)} members of the schema's union; it must have one")
            given[0][0](out, given[0][1])

        return write

    def _value(self, node: Node, kind: t.DataType, path: str) -> Write:
        if isinstance(node, Record) and isinstance(kind, t.StructType):
            return self._record(node, kind, path)
        if isinstance(node, Items):
            return self._items(node, kind, path)
        return _scalar(node, kind, path)

    def _record(self, node: Record, kind: t.StructType, path: str) -> Write:
        given = {one.name: one.dataType for one in kind.fields}
        declared = [one.name for one in node.fields]
        for name in given:
            if name not in declared:
                raise OptionError(f"the schema's record {node.name} has no field for {path}.{name}; leave it out")
        parts: list[tuple[str, Write | bytes]] = []
        for one in node.fields:
            if one.name in given:
                parts.append((one.name, self.of(one.type, given[one.name], f"{path}.{one.name}")))
            elif one.has_default and is_default_of(one.default, one.type, self._names):
                parts.append((one.name, self._default(one.type, one.default)))
            else:
                raise OptionError(
                    f"the schema needs {path}.{one.name}, which is not among the columns and has no default"
                )

        def write(out: bytearray, value: Any) -> None:
            for name, part in parts:
                if isinstance(part, bytes):
                    out += part
                else:
                    part(out, value[name])

        return write

    def _items(self, node: Items, kind: t.DataType, path: str) -> Write:
        if node.kind == "array" and isinstance(kind, t.ArrayType):
            item = self.of(node.of, kind.elementType, f"{path}[]")

            def write_list(out: bytearray, value: Any) -> None:
                _write_count(out, value)
                for one in value:
                    item(out, one)
                out.append(0) if value else None

            return write_list
        if node.kind == "map" and isinstance(kind, t.MapType) and isinstance(kind.keyType, t.StringType):
            entry = self.of(node.of, kind.valueType, f"{path}[]")

            def write_map(out: bytearray, value: Any) -> None:
                _write_count(out, value)
                for key, one in value.items() if isinstance(value, dict) else value:
                    _write_text(out, key)
                    entry(out, one)
                out.append(0) if value else None

            return write_map
        raise _unfit(node.kind, kind, path)

    def _default(self, node: Node, value: Any) -> bytes:
        """The bytes of a default, which is JSON of the type."""
        node = resolved(node, self._names)
        if isinstance(node, Union):
            fitting = (n for n, one in enumerate(node.branches) if is_default_of(value, one, self._names))
            number = next(fitting)
            return _varint(number) + self._default(node.branches[number], value)
        if isinstance(node, Record):
            parts = [(one.type, value.get(one.name, one.default)) for one in node.fields]
            return b"".join(self._default(*part) for part in parts)
        if isinstance(node, Items):
            entries = value.items() if node.kind == "map" else ((None, one) for one in value)
            made = [(_text(key) if key is not None else b"") + self._default(node.of, one) for key, one in entries]
            return _varint(len(made)) + b"".join(made) + b"\0" if made else b"\0"
        return _default_scalar(node, value)


def _default_scalar(node: Node, value: Any) -> bytes:
    if isinstance(node, Enum):
        return _varint(node.symbols.index(value))
    if isinstance(node, Fixed):
        return bytes(value.encode("latin-1"))
    match node.kind:
        case "null":
            return b""
        case "boolean":
            return b"\1" if value else b"\0"
        case "int" | "long":
            return _varint(int(value))
        case "float":
            return _FLOAT.pack(float(value))
        case "double":
            return _DOUBLE.pack(float(value))
        case "bytes":
            return _varint(len(value)) + bytes(value.encode("latin-1"))
    return _text(value)


def _null(path: str) -> Misfit:
    return Misfit(f"{path} is null, which the schema does not allow")


def _unfit(wanted: str, kind: t.DataType, path: str) -> OptionError:
    return OptionError(f"{path} is {kind.simpleString()}, and the schema has {wanted} there; cast it")


def _behind(head: bytes, write: Write) -> Write:
    def headed(out: bytearray, value: Any) -> None:
        out += head
        write(out, value)

    return headed


def _varint(number: int) -> bytes:
    out = bytearray()
    _write_long(out, number)
    return bytes(out)


def _text(value: str) -> bytes:
    out = bytearray()
    _write_text(out, value)
    return bytes(out)


def _write_long(out: bytearray, value: int) -> None:
    bits = (value << 1) ^ (value >> 63)
    while bits > 127:
        out.append(bits & 127 | 128)
        bits >>= 7
    out.append(bits)


def _write_count(out: bytearray, value: Any) -> None:
    _write_long(out, len(value))


def _write_bytes(out: bytearray, value: bytes) -> None:
    _write_long(out, len(value))
    out += value


def _write_text(out: bytearray, value: str) -> None:
    _write_bytes(out, value.encode())


def _write_boolean(out: bytearray, value: bool) -> None:
    out.append(1 if value else 0)


def _write_float(out: bytearray, value: float) -> None:
    out += _FLOAT.pack(value)


def _write_double(out: bytearray, value: float) -> None:
    out += _DOUBLE.pack(value)


def _write_date(out: bytearray, value: Any) -> None:
    _write_long(out, value.toordinal() - _EPOCH_DAY)


def _micros(value: datetime) -> int:
    """Microseconds since the epoch, of an instant or of what a clock shows."""
    plain = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
    gone = plain - _EPOCH
    return (gone.days * 86_400 + gone.seconds) * 1_000_000 + gone.microseconds


def _write_micros(out: bytearray, value: Any) -> None:
    _write_long(out, _micros(value))


def _write_millis(out: bytearray, value: Any) -> None:
    _write_long(out, _micros(value) // 1000)


_WRITERS: Final[dict[str, Write]] = {
    "boolean": _write_boolean,
    "int": _write_long,
    "long": _write_long,
    "float": _write_float,
    "double": _write_double,
    "string": _write_text,
    "bytes": _write_bytes,
}


def _scalar(node: Node, kind: t.DataType, path: str) -> Write:
    logical = logical_type(node)
    if isinstance(node, Enum) and isinstance(kind, t.StringType):
        return _symbol(node, path)
    if logical == "decimal" and isinstance(kind, t.DecimalType):
        return _decimal(node, kind, path)
    if isinstance(node, Fixed) and isinstance(kind, t.BinaryType):
        return _fixed(node, path)
    if logical in _LOGICAL and isinstance(kind, _LOGICAL[logical]):
        return _write_date if logical == "date" else _write_millis if logical.endswith("millis") else _write_micros
    if not isinstance(kind, _TAKEN.get(node.kind, ())) or logical in _LOGICAL:
        raise _unfit(f"{node.kind} ({logical})" if logical else node.kind, kind, path)
    return _WRITERS[node.kind]


def _symbol(node: Enum, path: str) -> Write:
    numbers = {symbol: _varint(number) for number, symbol in enumerate(node.symbols)}

    def write(out: bytearray, value: str) -> None:
        if value not in numbers:
            raise Misfit(f"{path} is {value!r}, which is no symbol of the schema's enum {node.name}")
        out += numbers[value]

    return write


def _fixed(node: Fixed, path: str) -> Write:
    def write(out: bytearray, value: bytes) -> None:
        if len(value) != node.size:
            raise Misfit(f"{path} has {len(value)} bytes, and the schema's {node.name} has {node.size}")
        out += value

    return write


def _decimal(node: Node, kind: t.DecimalType, path: str) -> Write:
    precision, scale = node.extra.get("precision", 0), node.extra.get("scale", 0)
    if kind.scale != scale:
        raise _unfit(f"decimal({precision},{scale})", kind, path)
    limit = 10**precision

    def write(out: bytearray, value: Decimal) -> None:
        number = int(_ARITHMETIC.scaleb(value, scale))
        size = node.size if isinstance(node, Fixed) else number.bit_length() // 8 + 1
        if abs(number) >= limit or number.bit_length() >= size * 8:
            raise Misfit(f"{path} is {value}, which has more than the schema's {precision} digits")
        data = number.to_bytes(size, "big", signed=True)
        out += data if isinstance(node, Fixed) else _varint(size) + data

    return write
