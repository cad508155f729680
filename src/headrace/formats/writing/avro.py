"""Columns as Avro records: a function for each place of the schema, which is chosen when the query is planned."""

import json
import re
from struct import Struct
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyarrow import compute

from headrace.kernels.varints import varint
from headrace.registry.errors import InvalidSchemaError
from headrace.registry.schemas.avro import AvroModel, Enum, Fixed, Items, Node, Record, Union

from .. import types as t
from ..avro_columns import is_default_of, logical_type, model_of, resolved
from ..errors import OptionError
from .pieces import Column, Part, Write, chosen, fixed, folded, grouped, ragged, sizes, spread, texts

_FLOAT, _DOUBLE = Struct("<f"), Struct("<d")
_WIDE: Final = 16
"""Bytes of a decimal in Arrow."""

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
        return {"type": "array", "items": _nullable(_made(kind.element_type, path, taken), kind.contains_null)}
    if isinstance(kind, t.MapType) and isinstance(kind.key_type, t.StringType):
        return {"type": "map", "values": _nullable(_made(kind.value_type, path, taken), kind.value_contains_null)}
    if isinstance(kind, t.DecimalType):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if type(kind) not in _MADE:
        raise OptionError(f"{path} is {kind.simple_string()}, which Avro does not have; cast it")
    return _MADE[type(kind)]


def _made_field(one: t.StructField, path: str, taken: set[str]) -> dict[str, Any]:
    if not _NAME.fullmatch(one.name):
        raise OptionError(f"the column '{one.name}' has a name that Avro does not allow; rename it")
    kind = _nullable(_made(one.data_type, f"{path}_{one.name}", taken), one.nullable)
    return {"name": one.name, "type": kind, "default": None} if one.nullable else {"name": one.name, "type": kind}


def _nullable(kind: Any, is_nullable: bool) -> Any:
    return ["null", kind] if is_nullable else kind


def avro_write(text: str, value: t.DataType) -> Write:
    """What encodes a column with a schema; OptionError where it does not fit."""
    try:
        model = model_of(text)
    except InvalidSchemaError as error:
        raise OptionError(f"schema: not a valid Avro schema: {error}") from error
    return _Fitting(model).of(model.root, value, "value")


class _Fitting:
    """Holds columns to a schema."""

    def __init__(self, model: AvroModel) -> None:
        self._names = model.names

    def of(self, node: Node, kind: t.DataType, path: str) -> Write:
        """What writes values of a column, null among them; OptionError where they do not fit."""
        node = resolved(node, self._names)
        if isinstance(node, Union):
            return self._union([resolved(one, self._names) for one in node.branches], kind, path)
        return _required(self._value(node, kind, path), path)

    def _union(self, branches: list[Node], kind: t.DataType, path: str) -> Write:
        nothing = next((varint(number) for number, one in enumerate(branches) if one.kind == "null"), None)
        some = [(varint(number), one) for number, one in enumerate(branches) if one.kind != "null"]
        members = [f"member{number}" for number in range(len(some))]
        if isinstance(kind, t.StructType) and kind.names == members and len(some) > 1:
            head, write = b"", self._member(some, kind, path)
        else:
            head, write = self._branch(some, kind, path)
        if nothing is None:
            return _required(_behind(head, write), path)
        return lambda column: [_heads(column, head, nothing), *spread(column, write)]

    def _branch(self, some: list[tuple[bytes, Node]], kind: t.DataType, path: str) -> tuple[bytes, Write]:
        """The only branch beside null, or the first of several that takes the column."""
        refusal = OptionError(f"{path} is {kind.simple_string()}, and no branch of the schema's union takes that")
        for head, branch in some:
            try:
                return head, self._value(branch, kind, path)
            except OptionError as error:
                refusal = error if len(some) == 1 else refusal
        raise refusal

    def _member(self, some: list[tuple[bytes, Node]], kind: t.StructType, path: str) -> Write:
        branches = [
            (head, self._value(branch, one.data_type, f"{path}.{one.name}"))
            for one, (head, branch) in zip(kind.fields, some, strict=True)
        ]

        def write(column: Column) -> list[Part]:
            members = [column.field(place) for place in range(len(branches))]
            given = sum(member.valid.astype(int) for member in members)
            column.refuse(given > 1, f"{path} has several members of the schema's union; it must have one")
            column.refuse(given < 1, f"{path} has no member of the schema's union; it must have one")
            parts: list[Part] = []
            for member, (head, write) in zip(members, branches, strict=True):
                parts += [_heads(member, head, b""), *spread(member, write)]
            return parts

        return write

    def _value(self, node: Node, kind: t.DataType, path: str) -> Write:
        if isinstance(node, Record) and isinstance(kind, t.StructType):
            return self._record(node, kind, path)
        if isinstance(node, Items):
            return self._items(node, kind, path)
        return _scalar(node, kind, path)

    def _record(self, node: Record, kind: t.StructType, path: str) -> Write:
        given = {one.name: (index, one.data_type) for index, one in enumerate(kind.fields)}
        declared = [one.name for one in node.fields]
        for name in given:
            if name not in declared:
                raise OptionError(f"the schema's record {node.name} has no field for {path}.{name}; leave it out")
        fields: list[tuple[int, Write] | bytes] = []
        for one in node.fields:
            if one.name in given:
                index, kind_of_field = given[one.name]
                fields.append((index, self.of(one.type, kind_of_field, f"{path}.{one.name}")))
            elif one.has_default and is_default_of(one.default, one.type, self._names):
                fields.append(self._default(one.type, one.default))
            else:
                raise OptionError(
                    f"the schema needs {path}.{one.name}, which is not among the columns and has no default"
                )

        def write(column: Column) -> list[Part]:
            parts: list[Part] = []
            for one in fields:
                parts += [one] if isinstance(one, bytes) else one[1](column.field(one[0]))
            return parts

        return write

    def _items(self, node: Items, kind: t.DataType, path: str) -> Write:
        if node.kind == "array" and isinstance(kind, t.ArrayType):
            return _block(self.of(node.of, kind.element_type, f"{path}[]"))
        if node.kind == "map" and isinstance(kind, t.MapType) and isinstance(kind.key_type, t.StringType):
            entry = self.of(node.of, kind.value_type, f"{path}[]")
            return _block(lambda column: [*_blob(texts(column.field(0), path)), *entry(column.field(1))])
        raise _unfit(node.kind, kind, path)

    def _default(self, node: Node, value: Any) -> bytes:
        """The bytes of a default, which is JSON of the type."""
        node = resolved(node, self._names)
        if isinstance(node, Union):
            fitting = (n for n, one in enumerate(node.branches) if is_default_of(value, one, self._names))
            number = next(fitting)
            return varint(number) + self._default(node.branches[number], value)
        if isinstance(node, Record):
            parts = [(one.type, value.get(one.name, one.default)) for one in node.fields]
            return b"".join(self._default(*part) for part in parts)
        if isinstance(node, Items):
            entries = value.items() if node.kind == "map" else ((None, one) for one in value)
            made = [(_text(key) if key is not None else b"") + self._default(node.of, one) for key, one in entries]
            return varint(len(made)) + b"".join(made) + b"\0" if made else b"\0"
        return _default_scalar(node, value)


def _default_scalar(node: Node, value: Any) -> bytes:
    if isinstance(node, Enum):
        return varint(node.symbols.index(value))
    if isinstance(node, Fixed):
        return bytes(value.encode("latin-1"))
    match node.kind:
        case "null":
            return b""
        case "boolean":
            return b"\1" if value else b"\0"
        case "int" | "long":
            return varint(int(value))
        case "float":
            return _FLOAT.pack(float(value))
        case "double":
            return _DOUBLE.pack(float(value))
        case "bytes":
            return varint(len(value)) + bytes(value.encode("latin-1"))
    return _text(value)


def _unfit(wanted: str, kind: t.DataType, path: str) -> OptionError:
    return OptionError(f"{path} is {kind.simple_string()}, and the schema has {wanted} there; cast it")


def _required(write: Write, path: str) -> Write:
    def required(column: Column) -> list[Part]:
        if column.values.null_count:
            column.refuse(~column.valid, f"{path} is null, which the schema does not allow")
        return spread(column, write)

    return required


def _behind(head: bytes, write: Write) -> Write:
    return lambda column: [head, *write(column)]


def _heads(column: Column, some: bytes, nothing: bytes) -> Part:
    return chosen([nothing, some], column.valid) if column.values.null_count else some


def _block(item: Write) -> Write:
    """The items of lists or maps: how many there are, those, and a zero; only that if there are none."""

    def write(column: Column) -> list[Part]:
        items, counts = column.elements()
        return [folded(counts.astype(np.int64)), grouped(item(items), counts), chosen([b"", b"\0"], counts > 0)]

    return write


def _blob(data: pa.Array) -> list[Part]:
    return [folded(sizes(data)), data]


def _text(value: str) -> bytes:
    data = value.encode()
    return varint(len(data)) + data


def _scalar(node: Node, kind: t.DataType, path: str) -> Write:
    logical = logical_type(node)
    if isinstance(node, Enum) and isinstance(kind, t.StringType):
        return _symbol(node, path)
    if logical == "decimal" and isinstance(kind, t.DecimalType):
        return _decimal(node, kind, path)
    if isinstance(node, Fixed) and isinstance(kind, t.BinaryType):
        return _fixed(node, path)
    if logical in _LOGICAL and isinstance(kind, _LOGICAL[logical]):
        unit = 1000 if logical.endswith("millis") else 1
        return lambda column: [folded(column.numbers // unit)]
    if not isinstance(kind, _TAKEN.get(node.kind, ())) or logical in _LOGICAL:
        raise _unfit(f"{node.kind} ({logical})" if logical else node.kind, kind, path)
    return _plain(node.kind, path)


def _plain(kind: str, path: str) -> Write:
    match kind:
        case "boolean":
            return lambda column: [fixed(column.values.cast(pa.uint8()).to_numpy())]
        case "int" | "long":
            return lambda column: [folded(column.numbers)]
        case "float":
            return lambda column: [fixed(column.values.to_numpy())]
        case "double":
            return lambda column: [fixed(column.values.cast(pa.float64()).to_numpy())]
        case "string":
            return lambda column: _blob(texts(column, path))
    return lambda column: _blob(column.values.cast(pa.binary()))


def _symbol(node: Enum, path: str) -> Write:
    numbers = [varint(number) for number in range(len(node.symbols))]
    symbols = pa.array(node.symbols, pa.binary())

    def write(column: Column) -> list[Part]:
        found = compute.index_in(texts(column, path), symbols)
        column.refuse(
            found.is_null().to_numpy(zero_copy_only=False),
            lambda value: f"{path} is {value!r}, which is no symbol of the schema's enum {node.name}",
        )
        return [chosen(numbers, found.fill_null(0).to_numpy())]

    return write


def _fixed(node: Fixed, path: str) -> Write:
    def write(column: Column) -> list[Part]:
        data = column.values.cast(pa.binary())
        column.refuse(
            sizes(data) != node.size,
            lambda value: f"{path} has {len(value)} bytes, and the schema's {node.name} has {node.size}",
        )
        return [data]

    return write


def _decimal(node: Node, kind: t.DecimalType, path: str) -> Write:
    precision, scale = node.extra.get("precision", 0), node.extra.get("scale", 0)
    if kind.scale != scale:
        raise _unfit(f"decimal({precision},{scale})", kind, path)
    limit = 10**precision if not isinstance(node, Fixed) else min(10**precision, 1 << max(node.size * 8 - 1, 0))

    def write(column: Column) -> list[Part]:
        first, count = column.values.offset * _WIDE, len(column.values) * _WIDE
        data = np.frombuffer(column.values.buffers()[1] or b"", np.uint8)[first : first + count].reshape(-1, _WIDE)
        low, high = _magnitudes(data)
        column.refuse(
            _at_least(low, high, limit),
            lambda value: f"{path} is {value}, which has more than the schema's {precision} digits",
        )
        if isinstance(node, Fixed):
            filler = np.repeat(data[:, -1:] >> 7, max(node.size - _WIDE, 0), axis=1) * np.uint8(255)
            return [fixed(np.hstack([filler, data[:, ::-1]])[:, -node.size :].copy())]
        size, most = np.ones(len(data), np.int64), 1
        while (longer := _at_least(low, high, 1 << 8 * most - 1)).any():
            size, most = size + longer, most + 1
        return [folded(size), ragged(data[:, most - 1 :: -1], np.arange(most, 0, -1) <= size[:, None])]

    return write


def _magnitudes(data: Any) -> tuple[Any, Any]:
    """The lower and the upper halves of numbers of 128 bits, without their signs."""
    halves = data.view(np.uint64)
    low, high = halves[:, 0], halves[:, 1]
    negative = high >> np.uint64(63) != 0
    return np.where(negative, -low, low), np.where(negative, ~high + (low == 0), high)


def _at_least(low: Any, high: Any, number: int) -> Any:
    if number >> 128:
        return np.zeros(len(low), bool)
    upper = np.uint64(number >> 64)
    return (high > upper) | (high == upper) & (low >= np.uint64(number & 2**64 - 1))
