"""Changes to a Protobuf schema after which old data reads wrongly: Confluent's rules, which follow Protobuf's own.

Fields are compared by number, wherever they stand. Types may change within a group that is written alike. Fields may be
added and removed unless they are required; moving several into one oneof loses all but one. Only breaking changes are
reported.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from .model import Difference
from .proto_text import LABELS
from .proto_types import Known, Types, find
from .protobuf import ProtoModel

_GROUPS: Final = {
    3: "number",
    4: "number",
    5: "number",
    8: "number",
    13: "number",
    14: "number",
    17: "signed",
    18: "signed",
    9: "string or bytes",
    12: "string or bytes",
    7: "fixed32",
    15: "fixed32",
    6: "fixed64",
    16: "fixed64",
    2: "float",
    1: "double",
}
"""Field types by how they are written; types of one group read each other's data."""
_REQUIRED: Final = LABELS["required"]


def differences(*, original: ProtoModel, update: ProtoModel) -> list[Difference]:
    """What stops data of the original from being read with the update."""
    return list(_Comparison(original, update).files())


class _Comparison:
    def __init__(self, original: ProtoModel, update: ProtoModel) -> None:
        self._original = original
        self._update = update
        self._open: set[tuple[str, str]] = set()

    def files(self) -> Iterator[Difference]:
        old, new = self._original.full, self._update.full
        if old.package != new.package:
            yield Difference(kind="PACKAGE_CHANGED", path="#/")
        yield from self._messages(old.message_type, new.message_type, old.package, new.package, "#")

    def _messages(
        self, olds: Sequence[Any], news: Sequence[Any], old_scope: str, new_scope: str, path: str
    ) -> Iterator[Difference]:
        by_name = {m.name: m for m in news if not m.options.map_entry}
        for message in olds:
            if message.options.map_entry:
                continue
            where = f"{path}/{message.name}"
            if message.name not in by_name:
                yield Difference(kind="MESSAGE_REMOVED", path=where)
            else:
                pair = (_join(old_scope, message.name), _join(new_scope, message.name))
                yield from self._message(message, by_name[message.name], *pair, where)

    def _message(self, old: Any, new: Any, old_name: str, new_name: str, path: str) -> Iterator[Difference]:
        """Each pair once on the way down: a message that contains itself is compared where it was met first."""
        if (old_name, new_name) in self._open:
            return
        self._open.add((old_name, new_name))
        yield from _moved_into_oneofs(old, new, path)
        yield from self._fields(old, new, path)
        yield from self._messages(old.nested_type, new.nested_type, old_name, new_name, path)
        self._open.discard((old_name, new_name))

    def _fields(self, old: Any, new: Any, path: str) -> Iterator[Difference]:
        before, after = {f.number: f for f in old.field}, {f.number: f for f in new.field}
        gone = _deleted_oneofs(old, new)
        for number in sorted(before.keys() | after.keys()):
            if number not in after:
                yield from _removed(old, before[number], gone, path)
            elif number not in before:
                if after[number].label == _REQUIRED:
                    yield Difference(kind="REQUIRED_FIELD_ADDED", path=f"{path}/{number}")
            else:
                yield from self._field(before[number], after[number], _place(new, after[number], path))

    def _field(self, old: Any, new: Any, path: str) -> Iterator[Difference]:
        was, now = _target(old, self._original.types), _target(new, self._update.types)
        kind, new_kind = _kind(was), _kind(now)
        if kind != new_kind:
            yield Difference(kind="FIELD_KIND_CHANGED", path=path)
        elif kind == "scalar":
            yield from self._scalars(old, new, path)
        elif was is not None and now is not None:
            if kind == "map":
                for a, b in zip(was.descriptor.field, now.descriptor.field, strict=True):
                    yield from self._field(a, b, path)
            else:
                yield from self._named(was, now, path)

    def _scalars(self, old: Any, new: Any, path: str) -> Iterator[Difference]:
        group = _GROUPS[old.type]
        if group != _GROUPS[new.type]:
            yield Difference(kind="FIELD_SCALAR_KIND_CHANGED", path=path)
            return
        was = _label(old, self._original.full.syntax)
        now = _label(new, self._update.full.syntax)
        if was and now and was != now and group != "string or bytes":
            yield Difference(kind="FIELD_NUMERIC_LABEL_CHANGED", path=path)

    def _named(self, was: Known, now: Known, path: str) -> Iterator[Difference]:
        if was.local != now.local:
            yield Difference(kind="FIELD_NAMED_TYPE_CHANGED", path=path)
            return
        found = list(self._message(was.descriptor, now.descriptor, was.name, now.name, path))
        yield from found
        if found:
            yield Difference(kind="FIELD_NAMED_TYPE_CHANGED", path=path)


def _join(scope: str, name: str) -> str:
    return f"{scope}.{name}" if scope else name


def _target(field: Any, types: Types) -> Known | None:
    return find(field.type_name, "", types) if field.type_name else None


def _kind(known: Known | None) -> str:
    if known is None or known.is_enum:
        return "scalar"
    return "map" if known.is_map else "message"


def _label(field: Any, syntax: str) -> int:
    """The label as written; 0 where none was."""
    if field.HasField("oneof_index") and not field.proto3_optional:
        return 0
    if field.label == LABELS["optional"] and syntax != "proto2" and not field.proto3_optional:
        return 0
    return int(field.label)


def _oneof(message: Any, field: Any) -> str | None:
    if not field.HasField("oneof_index") or field.proto3_optional:
        return None
    return str(message.oneof_decl[field.oneof_index].name)


def _place(message: Any, field: Any, path: str) -> str:
    oneof = _oneof(message, field)
    return f"{path}/{oneof}/{field.number}" if oneof else f"{path}/{field.number}"


def _deleted_oneofs(old: Any, new: Any) -> set[str]:
    """Oneofs that went as a whole, with every field: that is a removal of fields like any other."""
    left = {f.number for f in new.field}
    members: dict[str, list[int]] = {}
    for field in old.field:
        oneof = _oneof(old, field)
        if oneof is not None:
            members.setdefault(oneof, []).append(field.number)
    kept = {_oneof(new, f) for f in new.field}
    return {name for name, numbers in members.items() if name not in kept and not left.intersection(numbers)}


def _removed(old: Any, field: Any, gone: set[str], path: str) -> Iterator[Difference]:
    oneof = _oneof(old, field)
    if oneof is not None and oneof not in gone:
        yield Difference(kind="ONEOF_FIELD_REMOVED", path=f"{path}/{oneof}/{field.number}")
    elif oneof is None and field.label == _REQUIRED:
        yield Difference(kind="REQUIRED_FIELD_REMOVED", path=f"{path}/{field.number}")


def _moved_into_oneofs(old: Any, new: Any, path: str) -> Iterator[Difference]:
    """Fields that could be set together and now exclude each other. Fields that are new were never set at all."""
    before = {f.number: f for f in old.field}
    origins: dict[str, dict[str, bool]] = {}
    for field in new.field:
        oneof = _oneof(new, field)
        if oneof is not None and field.number in before:
            origin = _oneof(old, before[field.number])
            key = f"oneof {origin}" if origin else f"field {field.number}"
            origins.setdefault(oneof, {})[key] = origin is None
    for oneof, groups in origins.items():
        if len(groups) > 1:
            several = sum(groups.values()) > 1
            kind = "MULTIPLE_FIELDS_MOVED_TO_ONEOF" if several else "FIELD_MOVED_TO_EXISTING_ONEOF"
            yield Difference(kind=kind, path=f"{path}/{oneof}")
