"""Rows as Protobuf messages."""

import re
from collections.abc import Callable
from typing import Any, Final

from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.timestamp_pb2 import Timestamp
from pyspark.sql import types as t

from headrace.registry.schemas.proto_print import print_proto

from ..errors import OptionError
from ..options import FormatOptions
from ..protobuf_plan import is_repeated, reader_type
from .encoder import Encode, Misfit

Convert = Callable[[Any], Any]
"""A value that is not null, as the library takes it."""

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
    kind, path = field.dataType, f"{path}.{field.name}"
    one = made.field.add(name=field.name, number=number, label=FieldDescriptorProto.LABEL_OPTIONAL)
    if isinstance(kind, t.MapType):
        _make_map(made, file, one, kind, path)
        return
    if isinstance(kind, t.ArrayType):
        one.label = FieldDescriptorProto.LABEL_REPEATED
        kind = kind.elementType
    _make_type(made, file, one, kind, old, path)
    if one.type != FieldDescriptor.TYPE_MESSAGE and one.label == FieldDescriptorProto.LABEL_OPTIONAL:
        one.proto3_optional = True
        one.oneof_index = len(made.oneof_decl)
        made.oneof_decl.add(name=f"_{field.name}")


def _make_type(made: Any, file: Any, one: Any, kind: t.DataType, old: Any, path: str) -> None:
    if isinstance(kind, t.StructType):
        inner = made.nested_type.add(name=_inner_name(one.name))
        one.type, one.type_name = FieldDescriptor.TYPE_MESSAGE, inner.name
        _fill(inner, file, kind, old.message_type if old is not None else None, path)
    elif isinstance(kind, t.TimestampType):
        one.type, one.type_name = FieldDescriptor.TYPE_MESSAGE, ".google.protobuf.Timestamp"
        if _TIMESTAMP not in file.dependency:
            file.dependency.append(_TIMESTAMP)
    elif type(kind) in _MADE:
        one.type = _MADE[type(kind)]
    else:
        raise OptionError(f"{path} is {kind.simpleString()}, which Protobuf does not have; cast it")


def _make_map(made: Any, file: Any, one: Any, kind: t.MapType, path: str) -> None:
    entry = made.nested_type.add(name=f"{_inner_name(one.name)}Entry")
    entry.options.map_entry = True
    for number, (name, part) in enumerate((("key", kind.keyType), ("value", kind.valueType)), 1):
        field = entry.field.add(name=name, number=number, label=FieldDescriptorProto.LABEL_OPTIONAL)
        _make_type(made, file, field, part, None, f"{path}[]")
    one.label, one.type, one.type_name = FieldDescriptorProto.LABEL_REPEATED, FieldDescriptor.TYPE_MESSAGE, entry.name


def _inner_name(name: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in name.split("_")) or "Inner"


def protobuf_encode(descriptors: bytes, message_name: str, value: t.DataType) -> Encode:
    """What encodes a column with a message type; OptionError where it does not fit."""
    descriptor = reader_type(FormatOptions(format="protobuf", descriptors=descriptors, message_name=message_name))
    if not isinstance(value, t.StructType):
        raise OptionError(f"value is {value.simpleString()}, and must be a struct")
    convert, made = _message(descriptor, value, "value"), message_factory.GetMessageClass(descriptor)

    def encode(row: Any) -> bytes:
        try:
            message = made(**convert(row))
        except (ValueError, TypeError) as error:
            raise Misfit(f"value: {error}") from error
        if not message.IsInitialized():
            raise Misfit(f"the schema needs {', '.join(message.FindInitializationErrors())}")
        return bytes(message.SerializeToString())

    return encode


def _message(descriptor: Descriptor, kind: t.StructType, path: str) -> Convert:
    parts = []
    for one in kind.fields:
        field = descriptor.fields_by_name.get(one.name)
        if field is None:
            raise OptionError(f"the schema's {descriptor.full_name} has no field for {path}.{one.name}; leave it out")
        parts.append((one.name, _field(field, one.dataType, f"{path}.{one.name}")))

    def convert(value: Any) -> dict[str, Any]:
        return {name: make(value[name]) for name, make in parts if value[name] is not None}

    return convert


def _field(field: FieldDescriptor, kind: t.DataType, path: str) -> Convert:
    is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
    if is_map and isinstance(kind, t.MapType):
        key = _required(_value(field.message_type.fields_by_name["key"], kind.keyType, path), f"{path}[]")
        entry = _required(_value(field.message_type.fields_by_name["value"], kind.valueType, path), f"{path}[]")
        return lambda value: {key(name): entry(item) for name, item in _pairs(value)}
    if is_map or is_repeated(field) != isinstance(kind, t.ArrayType):
        raise _unfit(field, kind, path)
    if isinstance(kind, t.ArrayType):
        item = _required(_value(field, kind.elementType, f"{path}[]"), f"{path}[]")
        return lambda value: [item(one) for one in value]
    return _value(field, kind, path)


def _pairs(value: Any) -> Any:
    return value.items() if isinstance(value, dict) else value


def _required(convert: Convert, path: str) -> Convert:
    def required(value: Any) -> Any:
        if value is None:
            raise Misfit(f"{path} is null, which a list or map of Protobuf cannot have")
        return convert(value)

    return required


def _value(field: FieldDescriptor, kind: t.DataType, path: str) -> Convert:
    if field.enum_type is not None and isinstance(kind, t.StringType):
        return _symbol(field, path)
    if field.message_type is not None:
        if field.message_type.full_name == "google.protobuf.Timestamp" and isinstance(kind, t.TimestampType):
            return _timestamp
        if isinstance(kind, t.StructType):
            return _message(field.message_type, kind, path)
    elif isinstance(kind, _TAKEN.get(field.type, ())):
        return lambda value: value
    raise _unfit(field, kind, path)


def _symbol(field: FieldDescriptor, path: str) -> Convert:
    def convert(value: str) -> int:
        found = field.enum_type.values_by_name.get(value)
        if found is None:
            raise Misfit(f"{path} is {value!r}, which is no value of the schema's enum {field.enum_type.full_name}")
        return int(found.number)

    return convert


def _timestamp(value: Any) -> Any:
    found = Timestamp()
    found.FromDatetime(value)
    return {"seconds": found.seconds, "nanos": found.nanos}


def _unfit(field: FieldDescriptor, kind: t.DataType, path: str) -> OptionError:
    wanted = field.message_type or field.enum_type
    name = wanted.full_name if wanted is not None else f"another type for {field.full_name}"
    return OptionError(f"{path} is {kind.simpleString()}, and the schema has {name} there; cast it")
