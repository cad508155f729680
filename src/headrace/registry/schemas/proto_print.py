"""Descriptors as .proto text: one spelling for each, with nothing left out but comments."""

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from .proto_text import GROUP, LABELS, MOST_ENUM, MOST_NUMBER, SCALARS

_SCALAR_NAMES: Final = {number: name for name, number in SCALARS.items()}
_LABEL_NAMES: Final = {number: name for name, number in LABELS.items()}
_STRING, _BYTES, _ENUM = 9, 12, 14
_EDITIONS: Final = {1000: "2023", 1001: "2024"}


def print_proto(file: Any, *, sort: bool = False) -> str:
    """The text of a FileDescriptorProto. Sorted: imports, options, fields and ranges in one order, messages as are."""
    return _Printer(file, sort).text()


class _Printer:
    def __init__(self, file: Any, sort: bool) -> None:
        self._file = file
        self._sort = sort

    def text(self) -> str:
        file = self._file
        blocks = [self._head(), self._imports(), list(self._options(file.options, ""))]
        blocks += [list(self._message(m, "")) for m in file.message_type if not self._is_group(m, file.extension)]
        blocks += [list(self._enum(e, "")) for e in file.enum_type]
        blocks += [list(self._extends(file.extension, file.message_type, ""))]
        blocks += [list(self._service(s)) for s in file.service]
        return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"

    def _head(self) -> list[str]:
        if self._file.syntax == "editions":
            lines = [f'edition = "{_EDITIONS.get(self._file.edition, "2023")}";']
        else:
            lines = [f'syntax = "{self._file.syntax or "proto2"}";']
        return [*lines, f"package {self._file.package};"] if self._file.package else lines

    def _imports(self) -> list[str]:
        public, weak = set(self._file.public_dependency), set(self._file.weak_dependency)
        lines = [
            f"import {'public ' if i in public else 'weak ' if i in weak else ''}{_quoted(name)};"
            for i, name in enumerate(self._file.dependency)
        ]
        return sorted(lines) if self._sort else lines

    def _is_group(self, message: Any, fields: Sequence[Any]) -> bool:
        return any(f.type == GROUP and f.type_name.rpartition(".")[2] == message.name for f in fields)

    def _message(self, message: Any, indent: str) -> Iterator[str]:
        yield f"{indent}message {message.name} {{"
        yield from self._body(message, indent + "  ")
        yield f"{indent}}}"

    def _body(self, message: Any, indent: str) -> Iterator[str]:
        yield from self._options(message.options, indent, skip=("map_entry",))
        yield from self._reserved(message, indent, MOST_NUMBER, 1)
        for spread in self._ordered(message.extension_range, lambda r: r.start):
            yield f"{indent}extensions {_range(spread.start, spread.end - 1, MOST_NUMBER)};"
        yield from self._fields(message, indent)
        hidden = {n.name for n in message.nested_type if n.options.map_entry}
        for nested in message.nested_type:
            groups = [*message.field, *message.extension]
            if nested.name not in hidden and not self._is_group(nested, groups):
                yield from self._message(nested, indent)
        for enum in message.enum_type:
            yield from self._enum(enum, indent)
        yield from self._extends(message.extension, message.nested_type, indent)

    def _fields(self, message: Any, indent: str) -> Iterator[str]:
        """In the order written, a oneof standing where its first field does."""
        printed: set[int] = set()
        for field in self._ordered(message.field, lambda f: f.number):
            if field.HasField("oneof_index") and not field.proto3_optional:
                if field.oneof_index not in printed:
                    printed.add(field.oneof_index)
                    yield from self._oneof(message, field.oneof_index, indent)
            else:
                yield from self._field(field, message.nested_type, indent, self._label(field))

    def _oneof(self, message: Any, index: int, indent: str) -> Iterator[str]:
        oneof = message.oneof_decl[index]
        yield f"{indent}oneof {oneof.name} {{"
        yield from self._options(oneof.options, indent + "  ")
        members = [f for f in message.field if f.HasField("oneof_index") and f.oneof_index == index]
        for field in self._ordered(members, lambda f: f.number):
            yield from self._field(field, message.nested_type, indent + "  ", "")
        yield f"{indent}}}"

    def _label(self, field: Any) -> str:
        name = _LABEL_NAMES[field.label or LABELS["optional"]]
        if name == "optional" and self._file.syntax != "proto2" and not field.proto3_optional:
            return ""
        return f"{name} "

    def _field(self, field: Any, nested: Sequence[Any], indent: str, label: str) -> Iterator[str]:
        entry = _map_entry(field, nested)
        options = self._field_options(field)
        if field.type == GROUP:
            group = next(n for n in nested if n.name == field.type_name.rpartition(".")[2])
            yield f"{indent}{label}group {group.name} = {field.number}{options} {{"
            yield from self._body(group, indent + "  ")
            yield f"{indent}}}"
        elif entry is not None:
            key, value = (_type(f) for f in sorted(entry.field, key=lambda f: f.number))
            yield f"{indent}map<{key}, {value}> {field.name} = {field.number}{options};"
        else:
            yield f"{indent}{label}{_type(field)} {field.name} = {field.number}{options};"

    def _field_options(self, field: Any) -> str:
        shown = []
        if field.HasField("default_value"):
            quoted = field.type in (_STRING, _BYTES)
            shown.append(f"default = {_quoted(field.default_value) if quoted else field.default_value}")
        if field.HasField("json_name") and field.json_name != json_name(field.name):
            shown.append(f"json_name = {_quoted(field.json_name)}")
        shown += [f"{name} = {value}" for name, value in self._pairs(field.options)]
        return f" [{', '.join(shown)}]" if shown else ""

    def _extends(self, extensions: Sequence[Any], nested: Sequence[Any], indent: str) -> Iterator[str]:
        for extendee in dict.fromkeys(e.extendee for e in extensions):
            yield f"{indent}extend {extendee} {{"
            for field in extensions:
                if field.extendee == extendee:
                    yield from self._field(field, nested, indent + "  ", self._label(field))
            yield f"{indent}}}"

    def _enum(self, enum: Any, indent: str) -> Iterator[str]:
        yield f"{indent}enum {enum.name} {{"
        yield from self._options(enum.options, indent + "  ")
        yield from self._reserved(enum, indent + "  ", MOST_ENUM, 0)
        for value in self._ordered(enum.value, lambda v: v.number):
            options = ", ".join(f"{name} = {shown}" for name, shown in self._pairs(value.options))
            yield f"{indent}  {value.name} = {value.number}{f' [{options}]' if options else ''};"
        yield f"{indent}}}"

    def _reserved(self, target: Any, indent: str, most: int, past_end: int) -> Iterator[str]:
        ranges = self._ordered(target.reserved_range, lambda r: r.start)
        if ranges:
            yield f"{indent}reserved {', '.join(_range(r.start, r.end - past_end, most) for r in ranges)};"
        names = self._ordered(target.reserved_name, str)
        if names:
            yield f"{indent}reserved {', '.join(map(_quoted, names))};"

    def _service(self, service: Any) -> Iterator[str]:
        yield f"service {service.name} {{"
        yield from self._options(service.options, "  ")
        for method in service.method:
            took = f"{'stream ' if method.client_streaming else ''}{method.input_type}"
            gave = f"{'stream ' if method.server_streaming else ''}{method.output_type}"
            options = list(self._options(method.options, "    "))
            yield f"  rpc {method.name} ({took}) returns ({gave}){' {' if options else ';'}"
            yield from options
            if options:
                yield "  }"
        yield "}"

    def _options(self, options: Any, indent: str, skip: Sequence[str] = ()) -> Iterator[str]:
        for name, value in self._pairs(options):
            if name not in skip:
                yield f"{indent}option {name} = {value};"

    def _pairs(self, options: Any) -> list[tuple[str, str]]:
        pairs = [
            (f.name, _option_value(f, value))
            for f, value in options.ListFields()
            if not f.is_extension and f.name not in ("uninterpreted_option", "features", "edition_defaults", "targets")
        ]
        for option in options.uninterpreted_option:
            name = ".".join(f"({p.name_part})" if p.is_extension else p.name_part for p in option.name)
            pairs.append((name, _uninterpreted(option)))
        return sorted(pairs) if self._sort else pairs

    def _ordered(self, items: Any, key: Any) -> list[Any]:
        return sorted(items, key=key) if self._sort else list(items)


def json_name(name: str) -> str:
    """The name protoc gives a field in JSON."""
    head, *rest = name.split("_")
    return head + "".join(part[:1].upper() + part[1:] for part in rest)


def _map_entry(field: Any, nested: Sequence[Any]) -> Any:
    simple = field.type_name.rpartition(".")[2]
    if field.label != LABELS["repeated"] or not simple:
        return None
    return next((n for n in nested if n.name == simple and n.options.map_entry), None)


def _type(field: Any) -> str:
    return field.type_name or _SCALAR_NAMES[field.type]


def _range(first: int, last: int, most: int) -> str:
    if first == last:
        return str(first)
    return f"{first} to {'max' if last >= most else last}"


def _option_value(field: Any, value: Any) -> str:
    if field.enum_type is not None:
        return str(field.enum_type.values_by_number[value].name)
    if isinstance(value, bool):
        return "true" if value else "false"
    return _quoted(value) if isinstance(value, str) else str(value)


def _uninterpreted(option: Any) -> str:
    if option.HasField("string_value"):
        return _quoted(option.string_value.decode("utf-8", "replace"))
    if option.HasField("aggregate_value"):
        return f"{{ {option.aggregate_value} }}"
    if option.HasField("identifier_value"):
        return str(option.identifier_value)
    for kind in ("positive_int_value", "negative_int_value", "double_value"):
        if option.HasField(kind):
            return str(getattr(option, kind))
    return "true"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
