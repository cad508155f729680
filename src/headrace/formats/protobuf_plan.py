"""A Protobuf message type as tables: the fields of each message by number, and the columns that they become.

Where the writer had another version of the type, its fields are matched by number: how a value is read is the writer's
word, where it goes the reader's. A field that would lose something on the way, or that the writer's type does not have
although its number is there, is REFUSED, and with it the messages in which it is set.

Spark's types are those of Spark's own `from_protobuf`: an enum is its name, a map is a map, google's Timestamp and
Duration are a timestamp and an interval, a message without fields is left out, and what the wire does not have is
null, but for a default that the schema declares.
"""

import struct
from typing import Any, Final, NamedTuple

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from . import types as t
from .arrow_types import arrow_type
from .errors import OptionError
from .layout import ROOT_SCOPE, ColumnLayout, ColumnNode, Form
from .options import FormatOptions

BOOL, INT32, UINT32, INT64, UINT64_WIDE, SINT32, SINT64, CLOSED_ENUM = range(8)
FIXED32, FLOAT, FIXED64 = range(8, 11)
STRING, BYTES, MESSAGE, TIME, REFUSED = range(11, 16)

NUMBER, CODE, NODE, LIST_NODE, LIST_SCOPE, INNER, ONEOF, REQUIRED, EXPLICIT, WIDTH = range(10)
"""Columns of `fields`: INNER is the message of a MESSAGE, or where the numbers of a CLOSED_ENUM start; EXPLICIT is
whether a zero on the wire is a value, as it is not for a field of proto3 that is not optional. The last name is how
many columns there are."""

_WELL_KNOWN: Final = ("any", "duration", "empty", "field_mask", "struct", "timestamp", "wrappers")
_NANOS_MESSAGES: Final = {"Timestamp": t.TimestampType(), "Duration": t.DayTimeIntervalType()}


class ProtobufPlan(NamedTuple):
    """What the loop needs to know of a message type."""

    spark_type: t.DataType
    layout: ColumnLayout
    fields: Any
    messages: Any
    """Where the fields of each message start among `fields`, and where they end."""
    numbers: Any
    """The numbers of closed enums: how many, then each."""
    message: Any
    """The class of the writer's message, which decides on what the loop finds odd."""
    refused: tuple["Refused", ...]


class Refused(NamedTuple):
    """A field that is not read: its number behind those of the fields that it is inside of, and why."""

    numbers: tuple[int, ...]
    reason: str


class _Scalar(NamedTuple):
    spark_type: t.DataType
    form: Form
    code: int


_SCALARS: Final = {
    FieldDescriptor.TYPE_BOOL: _Scalar(t.BooleanType(), Form.NUMBER, BOOL),
    FieldDescriptor.TYPE_INT32: _Scalar(t.IntegerType(), Form.NUMBER, INT32),
    FieldDescriptor.TYPE_UINT32: _Scalar(t.IntegerType(), Form.NUMBER, INT32),
    FieldDescriptor.TYPE_SINT32: _Scalar(t.IntegerType(), Form.NUMBER, SINT32),
    FieldDescriptor.TYPE_FIXED32: _Scalar(t.IntegerType(), Form.NUMBER, FIXED32),
    FieldDescriptor.TYPE_SFIXED32: _Scalar(t.IntegerType(), Form.NUMBER, FIXED32),
    FieldDescriptor.TYPE_INT64: _Scalar(t.LongType(), Form.NUMBER, INT64),
    FieldDescriptor.TYPE_UINT64: _Scalar(t.LongType(), Form.NUMBER, INT64),
    FieldDescriptor.TYPE_SINT64: _Scalar(t.LongType(), Form.NUMBER, SINT64),
    FieldDescriptor.TYPE_FIXED64: _Scalar(t.LongType(), Form.NUMBER, FIXED64),
    FieldDescriptor.TYPE_SFIXED64: _Scalar(t.LongType(), Form.NUMBER, FIXED64),
    FieldDescriptor.TYPE_FLOAT: _Scalar(t.FloatType(), Form.FLOAT_BITS, FLOAT),
    FieldDescriptor.TYPE_DOUBLE: _Scalar(t.DoubleType(), Form.FLOAT_BITS, FIXED64),
    FieldDescriptor.TYPE_STRING: _Scalar(t.StringType(), Form.BYTES, STRING),
    FieldDescriptor.TYPE_BYTES: _Scalar(t.BinaryType(), Form.BYTES, BYTES),
}
_UPCAST: Final = {
    FieldDescriptor.TYPE_UINT32: _Scalar(t.LongType(), Form.NUMBER, UINT32),
    FieldDescriptor.TYPE_UINT64: _Scalar(t.DecimalType(20, 0), Form.DECIMAL, UINT64_WIDE),
}


_INTEGERS: Final = {
    FieldDescriptor.TYPE_BOOL: (0, 1),
    FieldDescriptor.TYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_SINT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_SFIXED32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_ENUM: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.TYPE_FIXED32: (0, 2**32 - 1),
    FieldDescriptor.TYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_SINT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_SFIXED64: (-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.TYPE_FIXED64: (0, 2**64 - 1),
}
"""What the numbers of each type can be."""
_WIDE_UNSIGNED: Final = {FieldDescriptor.TYPE_UINT32: UINT32, FieldDescriptor.TYPE_FIXED32: FLOAT}
"""How numbers without a sign are read where there is room for 64 bits: as they are."""
_SPANS: Final = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
_KINDS: Final = {
    number: name.removeprefix("TYPE_").lower() for name, number in vars(FieldDescriptor).items() if name[:5] == "TYPE_"
}


def plan_of(options: FormatOptions, writer: Descriptor | None = None) -> ProtobufPlan:
    """The plan of the message type that the options name, for messages that have the writer's version of it."""
    descriptor = reader_type(options)
    writer = writer or descriptor
    planner = _Planner(options)
    root, spark_type = planner.struct(descriptor, writer, ROOT_SCOPE, None, descriptor.name)
    if not root.children:
        raise OptionError(f"messageName: {descriptor.full_name} has no fields that could become columns")
    fields = np.array([row for message in planner.messages for row in message], np.int64)
    ends = np.cumsum([len(message) for message in planner.messages])
    messages = np.stack([ends - [len(message) for message in planner.messages], ends], axis=1).astype(np.int64)
    numbers = np.array(planner.numbers or [0], np.int64)
    message = message_factory.GetMessageClass(writer)
    return ProtobufPlan(spark_type, planner.layout, fields, messages, numbers, message, tuple(planner.refused))


def reader_type(options: FormatOptions) -> Descriptor:
    """The message type that the options name."""
    files, name = _files(options.descriptors), options.message_name
    pool = pool_of(files)
    found = [full for file in files.values() for full in _names(file) if name in (full, full.rpartition(".")[2])]
    exact = [full for full in found if full == name] or found
    if not exact:
        known = sorted(full for file in files.values() for full in _names(file))
        raise OptionError(f"messageName={name} is not in the descriptor file, which has {', '.join(known) or 'none'}")
    if len(exact) > 1:
        raise OptionError(f"messageName={name} may be any of {', '.join(exact)}; give the package with it")
    return pool.FindMessageTypeByName(exact[0])


def pool_of(files: dict[str, Any]) -> Any:
    """A pool that has these files, by their names, and those that everyone has."""
    pool = descriptor_pool.DescriptorPool()
    added: set[str] = set()
    for file in files.values():
        _add(pool, files, file, added)
    return pool


def _files(descriptors: bytes) -> dict[str, Any]:
    parsed = descriptor_pb2.FileDescriptorSet()
    try:
        parsed.ParseFromString(descriptors)
    except DecodeError as error:
        raise OptionError(
            "descriptorFile: not a set of file descriptors, as 'protoc --include_imports --descriptor_set_out' makes it"
        ) from error
    return {file.name: file for file in parsed.file}


def _add(pool: Any, files: dict[str, Any], file: Any, added: set[str]) -> None:
    if file.name in added:
        return
    added.add(file.name)
    for name in file.dependency:
        needed = files.get(name) or _well_known(name)
        if needed is None:
            raise OptionError(
                f"descriptorFile: {file.name} imports {name}, which is missing; make it with --include_imports"
            )
        _add(pool, files, needed, added)
    try:
        pool.AddSerializedFile(file.SerializeToString())
    except TypeError as error:
        raise OptionError(f"descriptorFile: {file.name} cannot be read: {error}") from error


def _well_known(name: str) -> Any:
    stem = name.removeprefix("google/protobuf/").removesuffix(".proto")
    if stem not in _WELL_KNOWN:
        return None
    module = __import__(f"google.protobuf.{stem}_pb2", fromlist=["DESCRIPTOR"])
    copied = descriptor_pb2.FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(copied)
    return copied


def _names(file: Any) -> list[str]:
    prefix = f"{file.package}." if file.package else ""
    return [full for message in file.message_type for full in _names_below(message, prefix)]


def _names_below(message: Any, prefix: str) -> list[str]:
    if message.options.map_entry:
        return []
    full = f"{prefix}{message.name}"
    inner = [name for nested in message.nested_type for name in _names_below(nested, f"{full}.")]
    return [full, *inner]


class _Planner:
    def __init__(self, options: FormatOptions) -> None:
        self.layout = ColumnLayout()
        self.messages: list[list[list[int]]] = []
        self.numbers: list[int] = []
        self.refused: list[Refused] = []
        self._options = options
        self._inside: list[str] = []
        self._trail: list[int] = []

    def struct(
        self, descriptor: Descriptor, writer: Descriptor, scope: int, parent: ColumnNode | None, path: str
    ) -> tuple[ColumnNode, t.StructType]:
        """The node of a message, and its fields' rows in the tables."""
        node = self.layout.add(Form.STRUCT, scope, parent=parent)
        _, fields = self._message(descriptor, writer, scope, node, path, node.children)
        spark_type = t.StructType(fields)
        node.type = arrow_type(spark_type)
        return node, spark_type

    def _message(
        self,
        descriptor: Descriptor,
        writer: Descriptor,
        scope: int,
        parent: ColumnNode | None,
        path: str,
        children: list[ColumnNode],
    ) -> tuple[int, list[t.StructField]]:
        name = descriptor.full_name
        if name in self._inside:
            raise OptionError(
                f"messageName: {path} is a {name} inside a {name}; recursive messages cannot become columns"
            )
        self._inside.append(name)
        number = len(self.messages)
        self.messages.append([])
        fields = []
        for field in descriptor.fields:
            if _is_hollow(field.message_type):
                continue
            self._trail.append(field.number)
            written = writer.fields_by_number.get(field.number)
            child, spark_type, row = self._field(field, written, scope, parent, f"{path}.{field.name}")
            self._trail.pop()
            children.append(child)
            self.messages[number].append(row)
            fields.append(t.StructField(field.name, spark_type))
        self._inside.pop()
        return number, fields

    def _field(
        self, field: FieldDescriptor, written: FieldDescriptor | None, scope: int, parent: ColumnNode | None, path: str
    ) -> tuple[ColumnNode, t.DataType, list[int]]:
        explicit = field.has_presence or is_repeated(field) or _is_map_entry(field.containing_type)
        row = [field.number, MESSAGE, -1, -1, -1, 0, _oneof(field), int(is_required(field)), int(explicit)]
        reason = _objection(field, written)
        same = field if reason or written is None else written
        if not is_repeated(field):
            node, spark_type = self._value(field, same, scope, parent, path, row)
            node.default = self._default(field)
        else:
            node = self.layout.add(Form.MAP if is_map(field) else Form.LIST, scope, parent=parent)
            node.default = 0  # a list or map that has no entries is empty, not null
            row[LIST_NODE], row[LIST_SCOPE] = node.index, node.inner_scope
            make = self._map if is_map(field) else self._list
            spark_type = make(field, same, node, path, row)
            node.type = arrow_type(spark_type)
        if reason:
            row[CODE] = REFUSED
            self.refused.append(Refused(tuple(self._trail), f"{path}: {reason}"))
        return node, spark_type, row

    def _list(
        self, field: FieldDescriptor, written: FieldDescriptor, whole: ColumnNode, path: str, row: list[int]
    ) -> t.DataType:
        element, spark_type = self._value(field, written, whole.inner_scope, None, f"{path}[]", row)
        whole.children.append(element)
        return t.ArrayType(spark_type)

    def _map(
        self, field: FieldDescriptor, written: FieldDescriptor, whole: ColumnNode, path: str, row: list[int]
    ) -> t.DataType:
        entry, scope = written.message_type, whole.inner_scope
        row[INNER], fields = self._message(field.message_type, entry, scope, None, path, whole.children)
        for child, part in zip(whole.children, field.message_type.fields, strict=True):
            child.default = 0 if child.form is Form.STRUCT else _slot(part, part.default_value)
        return t.MapType(fields[0].data_type, fields[1].data_type)

    def _value(
        self,
        field: FieldDescriptor,
        written: FieldDescriptor,
        scope: int,
        parent: ColumnNode | None,
        path: str,
        row: list[int],
    ) -> tuple[ColumnNode, t.DataType]:
        if field.type == FieldDescriptor.TYPE_GROUP:
            raise OptionError(f"messageName: {path} is a group, which cannot be decoded")
        time_type = _time_type(field)
        if field.message_type is not None and time_type is None:
            row[INNER] = len(self.messages)
            node, spark_type = self.struct(field.message_type, written.message_type, scope, parent, path)
            row[NODE] = node.index
            return node, spark_type
        scalar = _Scalar(time_type, Form.NUMBER, TIME) if time_type else self._scalar(field)
        node = self.layout.add(scalar.form, scope, arrow_type(scalar.spark_type), parent)
        code = scalar.code if time_type else _reading(field, written, scalar)
        row[CODE], row[NODE] = scalar.code if code is None else code, node.index
        if code is None:
            row[CODE] = REFUSED
            self.refused.append(Refused(tuple(self._trail), f"{path}: {_cannot(field, written)}"))
        if field.enum_type is not None:
            self._enum(field.enum_type, node, row)
        return node, scalar.spark_type

    def _scalar(self, field: FieldDescriptor) -> _Scalar:
        if field.enum_type is not None:
            spark_type = t.IntegerType() if self._options.enums_as_ints else t.StringType()
            form = Form.NUMBER if self._options.enums_as_ints else Form.SYMBOL
            return _Scalar(spark_type, form, CLOSED_ENUM if field.enum_type.is_closed else INT32)
        upcast = _UPCAST.get(field.type) if self._options.upcast_unsigned else None
        return upcast or _SCALARS[field.type]

    def _enum(self, enum: Any, node: ColumnNode, row: list[int]) -> None:
        names = {number: enum.values_by_number[number].name for number in enum.values_by_number}
        node.name_them(names, f"UNKNOWN_ENUM_VALUE_{enum.name}_")
        row[INNER] = len(self.numbers)
        self.numbers += [len(names), *names]

    def _default(self, field: FieldDescriptor) -> int | bytes | None:
        given = field.has_default_value or (self._options.emit_defaults and not field.has_presence)
        return _slot(field, field.default_value) if given else None


def _objection(field: FieldDescriptor, written: FieldDescriptor | None) -> str:
    """Why a field cannot be read whatever its value is; empty if it can, or if its type decides."""
    if written is None:
        return f"the writer's message has no field {field.number}"
    if is_map(field) != is_map(written):
        return _cannot(field, written)
    if is_repeated(field) != is_repeated(written) and not _is_list_of_one(field, written):
        return _cannot(field, written)
    is_alike = (field.message_type is None) == (written.message_type is None) and (
        field.message_type is None or _time_type(field) in (None, _time_type(written))
    )
    is_group = written.type == FieldDescriptor.TYPE_GROUP
    return "" if is_alike and not is_group else _cannot(field, written)


def _is_list_of_one(field: FieldDescriptor, written: FieldDescriptor) -> bool:
    """Whether a field that had one value may have several: not numbers, of which a zero is not written."""
    return is_repeated(field) and (written.message_type is not None or written.type in _SPANS)


def _cannot(field: FieldDescriptor, written: FieldDescriptor) -> str:
    return f"the writer's {_shown(written)} cannot be read as {_shown(field)}"


def _shown(field: FieldDescriptor) -> str:
    if is_map(field):
        return "map"
    named = field.message_type or field.enum_type
    name = named.full_name if named else _KINDS[field.type]
    return f"repeated {name}" if is_repeated(field) else str(name)


def _reading(field: FieldDescriptor, written: FieldDescriptor, scalar: _Scalar) -> int | None:
    """How to read what the writer wrote for the reader's column; None where not every value would be right."""
    mine, theirs = field.type, written.type
    if mine == theirs or (mine in _SPANS and theirs in _SPANS):
        return scalar.code
    if mine not in _INTEGERS or theirs not in _INTEGERS:
        return None
    (low, high), (lowest, highest) = _INTEGERS[mine], _INTEGERS[theirs]
    if lowest < low or highest > high:
        return None
    if scalar.code == UINT64_WIDE:
        return UINT64_WIDE if theirs in (FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_BOOL) else None
    if field.enum_type is not None:
        return scalar.code if theirs == FieldDescriptor.TYPE_INT32 else None
    if isinstance(scalar.spark_type, t.LongType) and theirs in _WIDE_UNSIGNED:
        return _WIDE_UNSIGNED[theirs]
    return INT32 if theirs == FieldDescriptor.TYPE_ENUM else _SCALARS[theirs].code


def is_repeated(field: FieldDescriptor) -> bool:
    """Whether a field is a list, or a map."""
    return bool(field.is_repeated) if hasattr(field, "is_repeated") else field.label == FieldDescriptor.LABEL_REPEATED


def is_required(field: FieldDescriptor) -> bool:
    """Whether a message without the field is not whole."""
    return bool(field.is_required) if hasattr(field, "is_required") else field.label == FieldDescriptor.LABEL_REQUIRED


def is_map(field: FieldDescriptor) -> bool:
    """Whether a field is a map."""
    return field.message_type is not None and _is_map_entry(field.message_type)


def _is_map_entry(message: Descriptor) -> bool:
    return bool(message.GetOptions().map_entry)


def _is_hollow(message: Descriptor | None, inside: tuple[str, ...] = ()) -> bool:
    """Whether a message has no field at any depth that a value could be in."""
    if message is None or message.full_name in inside:
        return False
    parts = [part for part in message.fields if not _is_map_entry(message) or part.name == "value"]
    return all(
        part.message_type is not None and _is_hollow(part.message_type, (*inside, message.full_name)) for part in parts
    )


def _oneof(field: FieldDescriptor) -> int:
    group = field.containing_oneof
    return group.index if group is not None and len(group.fields) > 1 else -1


def _time_type(field: FieldDescriptor) -> t.DataType | None:
    message = field.message_type
    if message is None or [(part.name, part.number) for part in message.fields] != [("seconds", 1), ("nanos", 2)]:
        return None
    return _NANOS_MESSAGES.get(message.name)


def _slot(field: FieldDescriptor, value: Any) -> int | bytes:
    """A default as a slot has it."""
    if field.type == FieldDescriptor.TYPE_FLOAT:
        return int.from_bytes(struct.pack("<f", value), "little")
    if field.type == FieldDescriptor.TYPE_DOUBLE:
        return int.from_bytes(struct.pack("<d", value), "little", signed=True)
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    return (int(value) + 2**63) % 2**64 - 2**63
