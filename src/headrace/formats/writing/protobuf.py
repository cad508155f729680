"""Columns as Protobuf messages."""

import re
from typing import Any, Final

import numpy as np
import pyarrow as pa
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from pyarrow import compute

from headrace.registry.schemas.proto_print import print_proto

from .. import types as t
from ..errors import OptionError
from ..options import FormatOptions
from ..protobuf_plan import is_map, is_repeated, is_required, reader_type
from .pieces import (
    MICROS_OF_DAY,
    Column,
    Part,
    Write,
    fixed,
    folded,
    grouped,
    join,
    sizes,
    spread,
    texts,
    varints,
    within_calendar,
)

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TIMESTAMP: Final = "google/protobuf/timestamp.proto"
_MADE: Final[dict[type[Any], int]] = {
    t.BooleanType: FieldDescriptor.TYPE_BOOL,
    t.ByteType: FieldDescriptor.TYPE_INT32,
    t.ShortType: FieldDescriptor.TYPE_INT32,
    t.IntegerType: FieldDescriptor.TYPE_INT32,
    t.LongType: FieldDescriptor.TYPE_INT64,
    t.FloatType: FieldDescriptor.TYPE_FLOAT,
    t.DoubleType: FieldDescriptor.TYPE_DOUBLE,
    t.StringType: FieldDescriptor.TYPE_STRING,
    t.BinaryType: FieldDescriptor.TYPE_BYTES,
}
_SMALL: Final = (t.ByteType, t.ShortType, t.IntegerType)
_TAKEN: Final[dict[int, tuple[type[Any], ...]]] = {
    FieldDescriptor.TYPE_BOOL: (t.BooleanType,),
    FieldDescriptor.TYPE_INT32: _SMALL,
    FieldDescriptor.TYPE_SINT32: _SMALL,
    FieldDescriptor.TYPE_SFIXED32: _SMALL,
    FieldDescriptor.TYPE_INT64: (*_SMALL, t.LongType),
    FieldDescriptor.TYPE_SINT64: (*_SMALL, t.LongType),
    FieldDescriptor.TYPE_SFIXED64: (*_SMALL, t.LongType),
    FieldDescriptor.TYPE_UINT32: (*_SMALL, t.LongType),
    FieldDescriptor.TYPE_FIXED32: (*_SMALL, t.LongType),
    FieldDescriptor.TYPE_UINT64: (*_SMALL, t.LongType),
    FieldDescriptor.TYPE_FIXED64: (*_SMALL, t.LongType),
    FieldDescriptor.TYPE_FLOAT: (t.FloatType,),
    FieldDescriptor.TYPE_DOUBLE: (*_SMALL, t.FloatType, t.DoubleType),
    FieldDescriptor.TYPE_STRING: (t.StringType,),
    FieldDescriptor.TYPE_BYTES: (t.BinaryType,),
}
"""Which columns a type takes; numbers without a sign are held to their range one by one."""
_SPAN, _GROUP, _GROUP_END = 2, 3, 4
_SPANS: Final = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
_FLOATS: Final = {FieldDescriptor.TYPE_FLOAT: pa.float32(), FieldDescriptor.TYPE_DOUBLE: pa.float64()}
_FIXED: Final = {
    FieldDescriptor.TYPE_FLOAT: 4,
    FieldDescriptor.TYPE_FIXED32: 4,
    FieldDescriptor.TYPE_SFIXED32: 4,
    FieldDescriptor.TYPE_DOUBLE: 8,
    FieldDescriptor.TYPE_FIXED64: 8,
    FieldDescriptor.TYPE_SFIXED64: 8,
}
"""How many bytes a value always has."""
_UNSIGNED: Final = {
    FieldDescriptor.TYPE_UINT32: 2**32 - 1,
    FieldDescriptor.TYPE_FIXED32: 2**32 - 1,
    FieldDescriptor.TYPE_UINT64: 2**63 - 1,
    FieldDescriptor.TYPE_FIXED64: 2**63 - 1,
}
"""The most that a column of 64 bits with a sign can have of each."""


def made_schema(value: t.StructType, name: str, before: Descriptor | None = None) -> str:
    """A schema for a column, its message named after the topic. Fields that the version before has keep their numbers;
    those of fields that are gone are not given again. All are optional, so that a zero is told from nothing.
    """
    file = FileDescriptorProto(name="default", syntax="proto3")
    _fill(file.message_type.add(name=re.sub(r"^(?=\d)|\W", "_", name, flags=re.ASCII)), file, value, before, "value")
    return str(print_proto(file))


def _fill(made: Any, file: Any, kind: t.StructType, before: Descriptor | None, path: str) -> None:
    known = {one.name: one for one in before.fields} if before is not None else {}
    reserved = DescriptorProto()
    if before is not None:
        before.CopyToProto(reserved)
        made.reserved_range.extend(reserved.reserved_range)
    for name, one in known.items():
        if name not in kind.names:
            made.reserved_range.add(start=one.number, end=one.number + 1)
    used = {one.number for one in known.values()} | {one.end - 1 for one in made.reserved_range}
    for field in kind.fields:
        if not _NAME.fullmatch(field.name):
            raise OptionError(f"the column '{field.name}' has a name that Protobuf does not allow; rename it")
        old = known.get(field.name)
        number = old.number if old is not None else max(used, default=0) + 1
        used.add(number)
        _add_field(made, file, field, number, old, path)


def _add_field(made: Any, file: Any, field: t.StructField, number: int, old: Any, path: str) -> None:
    kind, path = field.data_type, f"{path}.{field.name}"
    one = made.field.add(name=field.name, number=number, label=FieldDescriptorProto.LABEL_OPTIONAL)
    if isinstance(kind, t.MapType):
        _make_map(made, file, one, kind, old, path)
        return
    if isinstance(kind, t.ArrayType):
        one.label = FieldDescriptorProto.LABEL_REPEATED
        kind = kind.element_type
    _make_type(made, file, one, kind, old, path, _inner_name(one.name))
    if one.type != FieldDescriptor.TYPE_MESSAGE and one.label == FieldDescriptorProto.LABEL_OPTIONAL:
        one.proto3_optional = True
        one.oneof_index = len(made.oneof_decl)
        made.oneof_decl.add(name=f"_{field.name}")


def _make_type(made: Any, file: Any, one: Any, kind: t.DataType, old: Any, path: str, name: str) -> None:
    """`name` is for a message, with a line behind it where another has that name; it keeps the one it had."""
    if isinstance(kind, t.StructType):
        before = old.message_type if old is not None else None
        name = before.name if before is not None else name
        while name in [other.name for other in made.nested_type]:
            name += "_"
        inner = made.nested_type.add(name=name)
        one.type, one.type_name = FieldDescriptor.TYPE_MESSAGE, inner.name
        _fill(inner, file, kind, before, path)
    elif isinstance(kind, t.TimestampType):
        one.type, one.type_name = FieldDescriptor.TYPE_MESSAGE, ".google.protobuf.Timestamp"
        if _TIMESTAMP not in file.dependency:
            file.dependency.append(_TIMESTAMP)
    elif type(kind) in _MADE:
        one.type = _MADE[type(kind)]
    else:
        raise OptionError(f"{path} is {kind.simple_string()}, which Protobuf does not have; cast it")


def _make_map(made: Any, file: Any, one: Any, kind: t.MapType, old: Any, path: str) -> None:
    known = old.message_type.fields_by_name if old is not None and is_map(old) else {}
    entry = made.nested_type.add(name=f"{_inner_name(one.name)}Entry")
    entry.options.map_entry = True
    for number, (name, part) in enumerate((("key", kind.key_type), ("value", kind.value_type)), 1):
        field = entry.field.add(name=name, number=number, label=FieldDescriptorProto.LABEL_OPTIONAL)
        _make_type(made, file, field, part, known.get(name), f"{path}[]", f"{_inner_name(one.name)}{name.title()}")
    one.label, one.type, one.type_name = FieldDescriptorProto.LABEL_REPEATED, FieldDescriptor.TYPE_MESSAGE, entry.name


def _inner_name(name: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in name.split("_")) or "Inner"


def protobuf_write(descriptors: bytes, message_name: str, value: t.DataType) -> Write:
    """What encodes a column with a message type; OptionError where it does not fit."""
    descriptor = reader_type(FormatOptions(format="protobuf", descriptors=descriptors, message_name=message_name))
    if not isinstance(value, t.StructType):
        raise OptionError(f"value is {value.simple_string()}, and must be a struct")
    return _message(descriptor, value, "value")


def _message(descriptor: Descriptor, kind: t.StructType, path: str) -> Write:
    fields = []
    for place, one in enumerate(kind.fields):
        field = descriptor.fields_by_name.get(one.name)
        if field is None:
            raise OptionError(f"the schema's {descriptor.full_name} has no field for {path}.{one.name}; leave it out")
        fields.append((field, place, _field(field, one.data_type, f"{path}.{one.name}")))
    fields.sort(key=lambda each: each[0].number)
    needed = [one.name for one in descriptor.fields if is_required(one)]
    oneofs = [
        [kind.names.index(one.name) for one in each.fields if one.name in kind.names] for each in descriptor.oneofs
    ]

    def write(column: Column) -> list[Part]:
        columns = [column.field(index) for index in range(len(kind.fields))]
        for name in needed:
            given = columns[kind.names.index(name)].valid if name in kind.names else np.zeros(len(column.values), bool)
            _need(column, given, f"{path}.{name}")
        for places in oneofs:
            _keep_last(columns, sorted(places))
        return [part for _, index, one in fields for part in one(columns[index])]

    return write


def _need(column: Column, given: Any, path: str) -> None:
    column.refuse(~given, f"the schema needs {path}")


def _keep_last(columns: list[Column], indexes: list[int]) -> None:
    """Of several columns that are members of one oneof, the last that is given is written."""
    if len(indexes) > 1:
        is_set = np.zeros(len(columns[indexes[0]].values), bool)
        for index in reversed(indexes):
            values, valid = columns[index].values, columns[index].valid
            nothing = pa.scalar(None, values.type)
            columns[index] = columns[index]._replace(values=compute.if_else(pa.array(is_set), nothing, values))
            is_set |= valid


def _field(field: FieldDescriptor, kind: t.DataType, path: str) -> Write:
    """What writes a field with its tag, where it is not null."""
    if is_map(field) and isinstance(kind, t.MapType):
        key, item = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
        parts = (_element(key, kind.key_type, path), _element(item, kind.value_type, path))
        entry = _sized(lambda column: [*parts[0](column.field(0)), *parts[1](column.field(1))])
        return lambda column: spread(column, _repeated(_behind(_tag(field.number, _SPAN), entry)))
    if is_map(field) or is_repeated(field) != isinstance(kind, t.ArrayType):
        raise _unfit(field, kind, path)
    if isinstance(kind, t.ArrayType):
        if _is_packed(field):
            items = _sized(_repeated(_required(_value(field, kind.element_type, f"{path}[]"), path)))
            return lambda column: _tagged(_tag(field.number, _SPAN), column, items, b"\0")
        element = _element(field, kind.element_type, path)
        return lambda column: spread(column, _repeated(element))
    zero = None if field.has_presence else b"\0" * _FIXED.get(field.type, 1)
    write, tag = _value(field, kind, path), _tag_of(field)
    return lambda column: _tagged(tag, column, write, zero)


def _element(field: FieldDescriptor, kind: t.DataType, path: str) -> Write:
    """With its tag, as an element or part of an entry."""
    return _required(_behind(_tag_of(field), _value(field, kind, f"{path}[]")), path)


def _required(write: Write, path: str) -> Write:
    def required(column: Column) -> list[Part]:
        column.refuse(~column.valid, f"{path}[] is null, which a list or map of Protobuf cannot have")
        return spread(column, write)

    return required


def _behind(head: bytes, write: Write) -> Write:
    return lambda column: [head, *write(column)]


def _repeated(write: Write) -> Write:
    def repeated(column: Column) -> list[Part]:
        items, counts = column.elements()
        return [grouped(write(items), counts)]

    return repeated


def _sized(write: Write) -> Write:
    """Behind how many bytes it is."""

    def sized(column: Column) -> list[Part]:
        return _blob(join(write(column), len(column.values)))

    return sized


def _blob(data: pa.Array) -> list[Part]:
    return [varints(sizes(data)), data]


def _tagged(tag: bytes, column: Column, write: Write, zero: bytes | None) -> list[Part]:
    """Values behind their tag, without those that are null or whose bytes are `zero`, which stand for nothing."""
    valid, given = column.valid, column.given()
    pieces = write(given)
    if zero is not None:
        whole = join(pieces, len(given.values))
        kept = compute.not_equal(whole, pa.scalar(zero, pa.binary()))
        valid[valid] = kept.to_numpy(zero_copy_only=False)
        pieces = [whole.filter(kept)]
    return [tag, *pieces] if valid.all() else [grouped([tag, *pieces], valid)]


def _tag(number: int, wire_type: int) -> bytes:
    return bytes(varints(np.array([number << 3 | wire_type], np.int64))[0].as_py())


def _tag_of(field: FieldDescriptor) -> bytes:
    if field.type == FieldDescriptor.TYPE_GROUP:
        return _tag(field.number, _GROUP)
    span = field.message_type is not None or field.type in _SPANS
    return _tag(field.number, _SPAN if span else {8: 1, 4: 5, 1: 0}[_FIXED.get(field.type, 1)])


def _is_packed(field: FieldDescriptor) -> bool:
    """Whether the library writes the numbers of a list behind one tag, which depends on syntax, options and edition."""
    if field.message_type is not None or field.type in _SPANS:
        return False
    some = field.enum_type.values[0].number if field.enum_type is not None else 1
    data = message_factory.GetMessageClass(field.containing_type)(**{field.name: [some]}).SerializePartialToString()
    return bool(data.startswith(_tag(field.number, _SPAN)))


def _value(field: FieldDescriptor, kind: t.DataType, path: str) -> Write:
    """What writes values without a tag."""
    if field.enum_type is not None and isinstance(kind, t.StringType):
        return _symbol(field, path)
    if field.message_type is not None:
        if field.message_type.full_name == "google.protobuf.Timestamp" and isinstance(kind, t.TimestampType):
            return _sized(lambda column: _timestamp(column, path))
        if isinstance(kind, t.StructType):
            message = _message(field.message_type, kind, path)
            if field.type != FieldDescriptor.TYPE_GROUP:
                return _sized(message)
            end = _tag(field.number, _GROUP_END)
            return lambda column: [*message(column), end]
    elif isinstance(kind, _TAKEN.get(field.type, ())):
        return _scalar(field.type, path)
    raise _unfit(field, kind, path)


def _scalar(kind: int, path: str) -> Write:
    if kind == FieldDescriptor.TYPE_STRING:
        return lambda column: _blob(texts(column, path))
    if kind == FieldDescriptor.TYPE_BYTES:
        return lambda column: _blob(column.values.cast(pa.binary()))
    if kind in _FLOATS:
        return lambda column: [fixed(column.values.cast(_FLOATS[kind]).to_numpy())]
    if kind in (FieldDescriptor.TYPE_SINT32, FieldDescriptor.TYPE_SINT64):
        return lambda column: [folded(column.numbers)]

    def write(column: Column) -> list[Part]:
        numbers = column.numbers
        if kind in _UNSIGNED:
            bad = (numbers < 0) | (numbers > _UNSIGNED[kind])
            column.refuse(bad, lambda value: f"{path} is {value}, which is out of the range of the schema's type")
        size = _FIXED.get(kind)
        return [varints(numbers) if size is None else fixed(numbers.astype(f"i{size}"))]

    return write


def _symbol(field: FieldDescriptor, path: str) -> Write:
    symbols = pa.array(list(field.enum_type.values_by_name), pa.binary())
    numbers = np.array([one.number for one in field.enum_type.values_by_name.values()], np.int64)

    def write(column: Column) -> list[Part]:
        found = compute.index_in(texts(column, path), symbols)
        column.refuse(
            found.is_null().to_numpy(zero_copy_only=False),
            lambda value: f"{path} is {value!r}, which is no value of the schema's enum {field.enum_type.full_name}",
        )
        return [varints(numbers[found.fill_null(0).to_numpy()])]

    return write


def _timestamp(column: Column, path: str) -> list[Part]:
    within_calendar(column, MICROS_OF_DAY, path)
    seconds, micros = np.divmod(column.numbers, 1_000_000)
    parts: list[Part] = []
    for number, some in ((1, seconds), (2, micros * 1000)):
        parts += _tagged(
            _tag(number, 0), column._replace(values=pa.array(some)), lambda one: [varints(one.numbers)], b"\0"
        )
    return parts


def _unfit(field: FieldDescriptor, kind: t.DataType, path: str) -> OptionError:
    wanted = field.message_type or field.enum_type
    name = wanted.full_name if wanted is not None else f"another type for {field.full_name}"
    return OptionError(f"{path} is {kind.simple_string()}, and the schema has {name} there; cast it")
