"""The types a Protobuf schema can name: its own, those of its imports, and those that everyone has."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Final

from google.protobuf.descriptor_pb2 import FileDescriptorProto

from ..errors import InvalidSchemaError
from .proto_text import parse_proto

_GOOGLE: Final = "any api descriptor duration empty field_mask source_context struct timestamp type wrappers"
_COMMON: Final = "calendar_period color date datetime dayofweek decimal expr fraction interval latlng localized_text"
_COMMON_2: Final = "money month phone_number postal_address quaternion timeofday"
_MODULES: Final = {
    **{f"google/protobuf/{name}.proto": f"google.protobuf.{name}_pb2" for name in _GOOGLE.split()},
    **{f"google/type/{name}.proto": f"google.type.{name}_pb2" for name in f"{_COMMON} {_COMMON_2}".split()},
}
_CONFLUENT: Final = {
    "confluent/meta.proto": """
        syntax = "proto3";
        package confluent;
        import "google/protobuf/descriptor.proto";
        message Meta { string doc = 1; map<string, string> params = 2; repeated string tags = 3; }
        extend google.protobuf.FileOptions { Meta file_meta = 1088; }
        extend google.protobuf.MessageOptions { Meta message_meta = 1088; }
        extend google.protobuf.FieldOptions { Meta field_meta = 1088; }
        extend google.protobuf.EnumOptions { Meta enum_meta = 1088; }
        extend google.protobuf.EnumValueOptions { Meta enum_value_meta = 1088; }
        """,
    "confluent/type/decimal.proto": """
        syntax = "proto3";
        package confluent.type;
        message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }
        """,
}
_MESSAGE, _GROUP, _ENUM = 11, 10, 14


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A message or an enum, found by its full name."""

    name: str
    package: str
    descriptor: Any
    is_enum: bool

    @property
    def local(self) -> str:
        """The name without the package."""
        return self.name[len(self.package) + 1 :] if self.package else self.name

    @property
    def is_map(self) -> bool:
        return not self.is_enum and bool(self.descriptor.options.map_entry)


Types = Mapping[str, Known]


@cache
def builtin(path: str) -> Any | None:
    """A file that need not be registered to be imported; None if it is not such a one, or not installed."""
    if path in _CONFLUENT:
        return parse_proto(_CONFLUENT[path], path)
    if path not in _MODULES:
        return None
    try:
        descriptor = import_module(_MODULES[path]).DESCRIPTOR
    except ImportError:
        return None
    file = FileDescriptorProto()
    descriptor.CopyToProto(file)
    return file


def reachable(file: Any, dependencies: Mapping[str, Any]) -> list[Any]:
    """The files a file imports, also by way of others, each before those that import it."""
    types: dict[str, Any] = {}

    def visit(importer: Any, trail: tuple[str, ...]) -> None:
        for path in importer.dependency:
            imported = dependencies.get(path) or builtin(path)
            if imported is None:
                raise InvalidSchemaError(f"the import {path!r} is not among the references")
            if path in trail:
                raise InvalidSchemaError(f"{path!r} imports itself")
            if path not in types:
                visit(imported, (*trail, path))
                types[path] = imported

    visit(file, ())
    return list(types.values())


def collect(files: Sequence[Any]) -> dict[str, Known]:
    """Every type of these files by its full name."""
    types: dict[str, Known] = {}
    for file in files:
        for known in _types(file.package, file.package, file.message_type, file.enum_type):
            if known.name in types:
                raise InvalidSchemaError(f"{known.name} is defined twice")
            types[known.name] = known
    return types


def _types(package: str, scope: str, messages: Sequence[Any], enums: Sequence[Any]) -> Iterator[Known]:
    prefix = f"{scope}." if scope else ""
    for enum in enums:
        yield Known(name=prefix + enum.name, package=package, descriptor=enum, is_enum=True)
    for message in messages:
        yield Known(name=prefix + message.name, package=package, descriptor=message, is_enum=False)
        yield from _types(package, prefix + message.name, message.nested_type, message.enum_type)


def find(name: str, scope: str, types: Types) -> Known | None:
    """What a type's name means inside a scope: the innermost that fits, as in C++."""
    if name.startswith("."):
        return types.get(name[1:])
    while True:
        known = types.get(f"{scope}.{name}" if scope else name)
        if known is not None or not scope:
            return known
        scope = scope.rpartition(".")[0]


def resolved(file: Any, types: Types) -> Any:
    """A copy of a file in which types have their full names, and fields say whether they are messages or enums."""
    copy = FileDescriptorProto()
    copy.CopyFrom(file)
    for extension in copy.extension:
        _resolve_field(extension, copy.package, types)
    for message in copy.message_type:
        _resolve_message(message, f"{copy.package}.{message.name}".lstrip("."), types)
    for service in copy.service:
        for method in service.method:
            for side in ("input_type", "output_type"):
                setattr(method, side, _full(getattr(method, side), copy.package, types)[0])
    return copy


def _resolve_message(message: Any, scope: str, types: Types) -> None:
    for field in [*message.field, *message.extension]:
        _resolve_field(field, scope, types)
    for nested in message.nested_type:
        _resolve_message(nested, f"{scope}.{nested.name}", types)


def _resolve_field(field: Any, scope: str, types: Types) -> None:
    if field.extendee:
        field.extendee = _full(field.extendee, scope, types)[0]
    if field.type_name:
        field.type_name, known = _full(field.type_name, scope, types)
        if field.type != _GROUP:
            field.type = _ENUM if known.is_enum else _MESSAGE


def _full(name: str, scope: str, types: Types) -> tuple[str, Known]:
    known = find(name, scope, types)
    if known is None:
        raise InvalidSchemaError(f'"{name}" is not defined in {scope or "the file"} or its imports')
    return f".{known.name}", known
