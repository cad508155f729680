"""Protobuf message types for tests, and what Spark makes of a message, read off the library's own objects."""

from datetime import UTC, datetime, timedelta
from typing import Any

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import FieldDescriptor

Proto = descriptor_pb2.FieldDescriptorProto
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def field(
    name: str, number: int, kind: int, *, repeated: bool = False, of: str = "", oneof: int | None = None, **more: Any
) -> Any:
    """One field of a message."""
    label = Proto.LABEL_REPEATED if repeated else more.pop("label", Proto.LABEL_OPTIONAL)
    made = Proto(name=name, number=number, type=kind, label=label, type_name=of or None, **more)
    if oneof is not None:
        made.oneof_index = oneof
    return made


def message(name: str, *fields: Any, nested: tuple[Any, ...] = (), enums: tuple[Any, ...] = (), oneofs: int = 0) -> Any:
    """One message type."""
    made = descriptor_pb2.DescriptorProto(name=name, field=fields, nested_type=nested, enum_type=enums)
    for place in range(oneofs):
        made.oneof_decl.add(name=f"choice{place}")
    return made


def enum(name: str, **values: int) -> Any:
    """One enum."""
    made = descriptor_pb2.EnumDescriptorProto(name=name)
    for key, number in values.items():
        made.value.add(name=key, number=number)
    return made


def entry(name: str, key: Any, value: Any) -> Any:
    """The hidden message of a map field."""
    made = message(name, key, value)
    made.options.map_entry = True
    return made


def file(*messages: Any, syntax: str = "proto3", enums: tuple[Any, ...] = (), package: str = "shop") -> Any:
    """One file of message types."""
    return descriptor_pb2.FileDescriptorProto(
        name=f"{package}.proto",
        package=package,
        syntax=syntax if syntax != "proto2" else None,
        message_type=messages,
        enum_type=enums,
        dependency=["google/protobuf/timestamp.proto", "google/protobuf/duration.proto"],
    )


def descriptor_set(*files: Any) -> bytes:
    """What protoc writes."""
    return descriptor_pb2.FileDescriptorSet(file=files).SerializeToString()  # type: ignore[no-any-return]


ORDER = file(
    message(
        "Order",
        field("id", 1, Proto.TYPE_INT64),
        field("small", 2, Proto.TYPE_SINT32),
        field("unsigned", 3, Proto.TYPE_UINT32),
        field("huge", 4, Proto.TYPE_UINT64),
        field("price", 5, Proto.TYPE_DOUBLE),
        field("weight", 6, Proto.TYPE_FLOAT),
        field("paid", 7, Proto.TYPE_BOOL),
        field("name", 8, Proto.TYPE_STRING),
        field("raw", 9, Proto.TYPE_BYTES),
        field("state", 10, Proto.TYPE_ENUM, of=".shop.State"),
        field("where", 11, Proto.TYPE_MESSAGE, of=".shop.Place"),
        field("lines", 12, Proto.TYPE_MESSAGE, of=".shop.Line", repeated=True),
        field("tags", 13, Proto.TYPE_STRING, repeated=True),
        field("numbers", 14, Proto.TYPE_INT32, repeated=True),
        field("rates", 15, Proto.TYPE_DOUBLE, repeated=True),
        field("stock", 16, Proto.TYPE_MESSAGE, of=".shop.Order.StockEntry", repeated=True),
        field("places", 17, Proto.TYPE_MESSAGE, of=".shop.Order.PlacesEntry", repeated=True),
        field("at", 18, Proto.TYPE_MESSAGE, of=".google.protobuf.Timestamp"),
        field("took", 19, Proto.TYPE_MESSAGE, of=".google.protobuf.Duration"),
        field("card", 20, Proto.TYPE_STRING, oneof=0),
        field("account", 21, Proto.TYPE_INT32, oneof=0),
        field("shop", 22, Proto.TYPE_MESSAGE, of=".shop.Place", oneof=0),
        field("fixed", 23, Proto.TYPE_SFIXED64),
        field("fixed32", 24, Proto.TYPE_FIXED32),
        field("states", 25, Proto.TYPE_ENUM, of=".shop.State", repeated=True),
        field("note", 26, Proto.TYPE_STRING, oneof=1, proto3_optional=True),
        field("sevens", 27, Proto.TYPE_SINT64),
        nested=(
            entry("StockEntry", field("key", 1, Proto.TYPE_STRING), field("value", 2, Proto.TYPE_INT32)),
            entry(
                "PlacesEntry",
                field("key", 1, Proto.TYPE_INT32),
                field("value", 2, Proto.TYPE_MESSAGE, of=".shop.Place"),
            ),
        ),
        oneofs=2,
    ),
    message("Place", field("city", 1, Proto.TYPE_STRING), field("zip", 2, Proto.TYPE_INT32)),
    message(
        "Line",
        field("item", 1, Proto.TYPE_STRING),
        field("count", 2, Proto.TYPE_INT32),
        field("codes", 3, Proto.TYPE_INT64, repeated=True),
        field("from", 4, Proto.TYPE_MESSAGE, of=".shop.Place"),
    ),
    enums=(enum("State", NEW=0, PAID=1, SENT=5),),
)


def shown(value: Any) -> dict[str, Any]:
    """A message as Spark shows it: null for what is absent, an empty list or map for none."""
    return {part.name: _field(value, part) for part in value.DESCRIPTOR.fields}


def _field(value: Any, part: FieldDescriptor) -> Any:
    found = getattr(value, part.name)
    if part.message_type is not None and part.message_type.GetOptions().map_entry:
        item = part.message_type.fields_by_name["value"]
        return [(key, _one(found[key], item)) for key in found]
    if part.is_repeated:
        return [_one(item, part) for item in found]
    present = part.name in {listed.name for listed, _ in value.ListFields()}
    return _one(found, part) if present or part.has_default_value else None


def _one(value: Any, part: FieldDescriptor) -> Any:
    if part.message_type and part.message_type.name == "Timestamp":
        return _EPOCH + timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
    if part.message_type and part.message_type.name == "Duration":
        return timedelta(seconds=value.seconds, microseconds=int(value.nanos / 1000))
    if part.message_type is not None:
        return shown(value)
    if part.enum_type is not None:
        known = part.enum_type.values_by_number.get(value)
        return known.name if known else f"UNKNOWN_ENUM_VALUE_{part.enum_type.name}_{value}"
    if part.type in (part.TYPE_UINT32, part.TYPE_FIXED32):
        return (value + 2**31) % 2**32 - 2**31
    if part.type in (part.TYPE_UINT64, part.TYPE_FIXED64):
        return (value + 2**63) % 2**64 - 2**63
    return value
