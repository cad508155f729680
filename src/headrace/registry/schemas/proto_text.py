"""A parser for .proto files, proto2, proto3 and editions, into the descriptors that Protobuf itself uses.

What a schema's meaning needs is kept: messages, enums, oneofs, maps, groups, extensions, reserved names and numbers,
services, options. Comments are not. Type names stay as written; `proto_types` resolves them.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from google.protobuf.descriptor_pb2 import (
    FieldDescriptorProto,
    FileDescriptorProto,
)

from .proto_tokens import Tokens

SCALARS: Final = {
    "double": 1,
    "float": 2,
    "int64": 3,
    "uint64": 4,
    "int32": 5,
    "fixed64": 6,
    "fixed32": 7,
    "bool": 8,
    "string": 9,
    "bytes": 12,
    "uint32": 13,
    "sfixed32": 15,
    "sfixed64": 16,
    "sint32": 17,
    "sint64": 18,
}
LABELS: Final = {"optional": 1, "required": 2, "repeated": 3}
GROUP: Final = 10
MOST_NUMBER: Final = (1 << 29) - 1
MOST_ENUM: Final = (1 << 31) - 1
_EDITIONS: Final = {"2023": 1000, "2024": 1001}
_DEEPEST: Final = 64


def parse_proto(text: str, name: str) -> Any:
    """The FileDescriptorProto of a .proto file; InvalidSchemaError with the line where it is not one."""
    return _Parser(text, name).file()


class _Parser:
    def __init__(self, text: str, name: str) -> None:
        self._tokens = Tokens(text)
        self._file = FileDescriptorProto(name=name)
        self._depth = 0

    def file(self) -> Any:
        self._syntax()
        statements: Mapping[str, Callable[[], None]] = {
            "package": self._package,
            "import": self._import,
            "option": lambda: self._option(self._file.options),
            "message": lambda: self._message(self._file.message_type.add()),
            "enum": lambda: self._enum(self._file.enum_type.add()),
            "extend": lambda: self._extend(self._file.extension, self._file.message_type),
            "service": self._service,
        }
        while self._tokens.kind != "end":
            if self._tokens.take(";"):
                continue
            statement = statements.get(self._tokens.value)
            if statement is None:
                self._tokens.fail(f"unexpected {self._tokens.value!r}")
            self._tokens.advance()
            statement()
        return self._file

    @property
    def _is_proto3(self) -> bool:
        return bool(self._file.syntax == "proto3")

    def _syntax(self) -> None:
        if self._tokens.value == "syntax":
            self._tokens.advance()
            self._tokens.expect("=")
            self._file.syntax = self._tokens.text()
            if self._file.syntax not in ("proto2", "proto3"):
                self._tokens.fail(f"no such syntax: {self._file.syntax!r}")
            self._tokens.expect(";")
        elif self._tokens.value == "edition":
            self._tokens.advance()
            self._tokens.expect("=")
            edition = self._tokens.text()
            if edition not in _EDITIONS:
                self._tokens.fail(f"no such edition: {edition!r}")
            self._file.syntax, self._file.edition = "editions", _EDITIONS[edition]
            self._tokens.expect(";")
        else:
            self._file.syntax = "proto2"

    def _package(self) -> None:
        if self._file.package:
            self._tokens.fail("a second package")
        self._file.package = self._tokens.dotted()
        self._tokens.expect(";")

    def _import(self) -> None:
        index = len(self._file.dependency)
        if self._tokens.take("public"):
            self._file.public_dependency.append(index)
        elif self._tokens.take("weak"):
            self._file.weak_dependency.append(index)
        self._file.dependency.append(self._tokens.text())
        self._tokens.expect(";")

    def _message(self, message: Any) -> None:
        message.name = self._tokens.name()
        self._body(message)

    def _body(self, message: Any) -> None:
        self._depth += 1
        if self._depth > _DEEPEST:
            self._tokens.fail(f"messages nested more than {_DEEPEST} deep")
        self._tokens.expect("{")
        while not self._tokens.take("}"):
            self._member(message)
        _name_optionals(message)
        self._depth -= 1

    def _member(self, message: Any) -> None:
        statements: Mapping[str, Callable[[], None]] = {
            "message": lambda: self._message(message.nested_type.add()),
            "enum": lambda: self._enum(message.enum_type.add()),
            "extend": lambda: self._extend(message.extension, message.nested_type),
            "option": lambda: self._option(message.options),
            "oneof": lambda: self._oneof(message),
            "reserved": lambda: self._reserved(message, MOST_NUMBER, 1),
            "extensions": lambda: self._extensions(message),
            ";": lambda: None,
        }
        word = self._tokens.value
        statement = statements.get(word)
        if statement is None:
            self._field(message.field.add(), message.nested_type)
            return
        self._tokens.advance()
        if word not in (";",) and word != "option" and self._tokens.value in ("=", "."):
            self._tokens.fail(f"{word!r} cannot be used as a type here")
        statement()

    def _field(self, field: Any, nested: Any) -> None:
        label = LABELS.get(self._tokens.value)
        if label is not None:
            self._tokens.advance()
        elif self._file.syntax == "proto2" and self._tokens.value not in ("map", "group"):
            self._tokens.fail("a field in proto2 needs optional, required or repeated")
        if self._is_proto3 and label == LABELS["required"]:
            self._tokens.fail("proto3 has no required fields")
        field.label = label or LABELS["optional"]
        if self._is_proto3 and label == LABELS["optional"]:
            field.proto3_optional = True
        self._field_rest(field, nested)

    def _field_rest(self, field: Any, nested: Any) -> None:
        word = self._tokens.dotted()
        if word == "map" and self._tokens.take("<"):
            self._map(field, nested)
        elif word == "group":
            self._group(field, nested)
            return
        else:
            _set_type(field, word)
            field.name = self._tokens.name()
        self._number(field)
        self._field_options(field)
        self._tokens.expect(";")

    def _number(self, field: Any) -> None:
        self._tokens.expect("=")
        number = self._tokens.integer()
        if not 1 <= number <= MOST_NUMBER or 19000 <= number <= 19999:
            self._tokens.fail(f"a field cannot have the number {number}")
        field.number = number

    def _map(self, field: Any, nested: Any) -> None:
        key = self._tokens.dotted()
        if key not in SCALARS or key in ("float", "double", "bytes"):
            self._tokens.fail(f"a map cannot have keys of type {key!r}")
        self._tokens.expect(",")
        value = self._tokens.dotted()
        self._tokens.expect(">")
        field.name = self._tokens.name()
        field.label = LABELS["repeated"]
        field.type_name = map_entry_name(field.name)
        entry = nested.add(name=field.type_name)
        entry.options.map_entry = True
        for number, (name, word) in enumerate((("key", key), ("value", value)), 1):
            _set_type(entry.field.add(name=name, number=number, label=LABELS["optional"]), word)

    def _group(self, field: Any, nested: Any) -> None:
        name = self._tokens.name()
        field.name, field.type, field.type_name = name.lower(), GROUP, name
        self._number(field)
        self._field_options(field)
        self._body(nested.add(name=name))

    def _field_options(self, field: Any) -> None:
        if not self._tokens.take("["):
            return
        while True:
            name = self._option_name()
            self._tokens.expect("=")
            if name == [("default", False)]:
                field.default_value = str(self._constant())
            elif name == [("json_name", False)]:
                field.json_name = self._tokens.text()
            else:
                _set_option(field.options, name, self._constant())
            if self._tokens.take("]"):
                return
            self._tokens.expect(",")

    def _oneof(self, message: Any) -> None:
        index = len(message.oneof_decl)
        oneof = message.oneof_decl.add(name=self._tokens.name())
        self._tokens.expect("{")
        while not self._tokens.take("}"):
            if self._tokens.take("option"):
                self._option(oneof.options)
            elif not self._tokens.take(";"):
                field = message.field.add(label=LABELS["optional"], oneof_index=index)
                self._field_rest(field, message.nested_type)

    def _reserved(self, target: Any, most: int, past_end: int) -> None:
        """Numbers and names not to be used again; ends of messages' ranges are exclusive in descriptors."""
        while True:
            if self._tokens.kind == "text":
                target.reserved_name.append(self._tokens.text())
            elif self._tokens.kind == "name":
                target.reserved_name.append(self._tokens.name())
            else:
                first, last = self._range(most)
                target.reserved_range.add(start=first, end=last + past_end)
            if not self._tokens.take(","):
                self._tokens.expect(";")
                return

    def _range(self, most: int) -> tuple[int, int]:
        first = self._tokens.integer()
        if not self._tokens.take("to"):
            return first, first
        return first, most if self._tokens.take("max") else self._tokens.integer()

    def _extensions(self, message: Any) -> None:
        while True:
            first, last = self._range(MOST_NUMBER)
            message.extension_range.add(start=first, end=last + 1)
            if not self._tokens.take(","):
                break
        self._field_options(FieldDescriptorProto())
        self._tokens.expect(";")

    def _extend(self, extensions: Any, nested: Any) -> None:
        extended = self._tokens.dotted()
        self._tokens.expect("{")
        while not self._tokens.take("}"):
            if not self._tokens.take(";"):
                self._field(extensions.add(extendee=extended), nested)

    def _enum(self, enum: Any) -> None:
        enum.name = self._tokens.name()
        self._tokens.expect("{")
        while not self._tokens.take("}"):
            if self._tokens.take(";"):
                continue
            word = self._tokens.name()
            if word == "option" and self._tokens.value != "=":
                self._option(enum.options)
            elif word == "reserved" and self._tokens.value != "=":
                self._reserved(enum, MOST_ENUM, 0)
            else:
                self._enum_value(enum.value.add(name=word))

    def _enum_value(self, value: Any) -> None:
        self._tokens.expect("=")
        value.number = self._tokens.integer()
        if self._tokens.take("["):
            while True:
                name = self._option_name()
                self._tokens.expect("=")
                _set_option(value.options, name, self._constant())
                if self._tokens.take("]"):
                    break
                self._tokens.expect(",")
        self._tokens.expect(";")

    def _service(self) -> None:
        service = self._file.service.add(name=self._tokens.name())
        self._tokens.expect("{")
        while not self._tokens.take("}"):
            if self._tokens.take("option"):
                self._option(service.options)
            elif self._tokens.take("rpc"):
                self._method(service.method.add(name=self._tokens.name()))
            elif not self._tokens.take(";"):
                self._tokens.fail(f"unexpected {self._tokens.value!r} in a service")

    def _method(self, method: Any) -> None:
        method.client_streaming, method.input_type = self._parameter()
        self._tokens.expect("returns")
        method.server_streaming, method.output_type = self._parameter()
        if self._tokens.take(";"):
            return
        self._tokens.expect("{")
        while not self._tokens.take("}"):
            if self._tokens.take("option"):
                self._option(method.options)
            else:
                self._tokens.expect(";")

    def _parameter(self) -> tuple[bool, str]:
        self._tokens.expect("(")
        word = self._tokens.dotted()
        streaming = word == "stream" and self._tokens.value != ")"
        word = self._tokens.dotted() if streaming else word
        self._tokens.expect(")")
        return streaming, word

    def _option(self, options: Any) -> None:
        name = self._option_name()
        self._tokens.expect("=")
        _set_option(options, name, self._constant())
        self._tokens.expect(";")

    def _option_name(self) -> list[tuple[str, bool]]:
        parts: list[tuple[str, bool]] = []
        while True:
            if self._tokens.take("("):
                parts.append((self._tokens.dotted(), True))
                self._tokens.expect(")")
            else:
                parts.append((self._tokens.name(), False))
            if not self._tokens.take("."):
                return parts

    def _constant(self) -> Any:
        """A value of an option: text, a number's or a name's spelling, or the spelling of everything between braces."""
        if self._tokens.kind == "text":
            return _Quoted(self._tokens.text())
        if self._tokens.take("{"):
            return _Aggregate(self._between_braces())
        sign = "-" if self._tokens.take("-") else ""
        self._tokens.take("+")
        if self._tokens.kind not in ("number", "name"):
            self._tokens.fail(f"expected a value, found {self._tokens.value or 'the end'!r}")
        return sign + (self._tokens.dotted() if self._tokens.kind == "name" else self._tokens.advance())

    def _between_braces(self) -> str:
        depth = 1
        words: list[str] = []
        while True:
            if self._tokens.kind == "end":
                self._tokens.fail("a brace that is not closed")
            depth += {"{": 1, "}": -1}.get(self._tokens.value, 0) if self._tokens.kind == "symbol" else 0
            if not depth:
                self._tokens.advance()
                return " ".join(words)
            words.append(self._tokens.advance())


class _Quoted(str):
    """A value that was written as a string."""


class _Aggregate(str):
    """A value that was written between braces."""


def map_entry_name(field: str) -> str:
    """The name protoc gives to the message behind a map field."""
    return "".join(part[:1].upper() + part[1:] for part in field.split("_")) + "Entry"


def _set_type(field: Any, word: str) -> None:
    if word in SCALARS:
        field.type = SCALARS[word]
    else:
        field.type_name = word


def _name_optionals(message: Any) -> None:
    """Each optional field of proto3 is alone in a oneof of its own, after those that were written."""
    for field in message.field:
        if field.proto3_optional:
            field.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{field.name}")


def _set_option(options: Any, name: list[tuple[str, bool]], value: Any) -> None:
    """Options that descriptors have a field for are set there; all others are kept as they were written."""
    if len(name) == 1 and not name[0][1] and _set_known(options, name[0][0], value):
        return
    option = options.uninterpreted_option.add()
    for part, is_extension in name:
        option.name.add(name_part=part, is_extension=is_extension)
    if isinstance(value, _Quoted):
        option.string_value = value.encode("utf-8", "replace")
    elif isinstance(value, _Aggregate):
        option.aggregate_value = value
    else:
        option.identifier_value = value


def _set_known(options: Any, name: str, value: str) -> bool:
    field = options.DESCRIPTOR.fields_by_name.get(name)
    if field is None or isinstance(value, _Aggregate):
        return False
    try:
        if field.enum_type is not None:
            number = field.enum_type.values_by_name[value].number
            setattr(options, name, number)
        elif field.type == SCALARS["bool"] and value in ("true", "false"):
            setattr(options, name, value == "true")
        elif field.type == SCALARS["string"] and isinstance(value, _Quoted):
            setattr(options, name, str(value))
        else:
            return False
    except (KeyError, TypeError, ValueError):
        return False
    return True
