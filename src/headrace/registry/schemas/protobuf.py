"""Protobuf as one of the registry's types: .proto text, or a descriptor in base64 as Python's clients send it."""

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError

from ..errors import InvalidSchemaError
from .model import Dependency, Parsed, Wording, sentence
from .proto_print import print_proto
from .proto_text import parse_proto
from .proto_types import Types, collect, reachable, resolved


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtoModel:
    """A file as written, with its names resolved, and every type it can name."""

    file: Any
    full: Any
    types: Types


class Protobuf:
    """Protobuf as one of the registry's types."""

    name = "PROTOBUF"

    def parse(self, text: str, dependencies: Sequence[Dependency], *, new: bool) -> Parsed:
        file, is_text = read(text, "default")
        *_, full = files = _with_imports(file, dependencies)
        if new:
            for known in collect([file]).values():
                _check(known)
        printed = print_proto(file)
        model = ProtoModel(file=file, full=full, types=collect(files))
        end = "\n" if text.endswith("\n") else ""
        shown = text.strip() + end if is_text else printed
        return Parsed(type=self.name, text=shown, identity=printed, model=model)

    def normalize(self, parsed: Parsed) -> str:
        return print_proto(parsed.model.full, sort=True)

    def show(self, parsed: Parsed, form: str) -> str:
        if form != "serialized":
            return parsed.text
        file = FileDescriptorProto()
        file.CopyFrom(parsed.model.full)
        _drop_unread_options(file)
        return base64.b64encode(file.SerializeToString()).decode()

    def meaning(self, parsed: Parsed) -> str:
        return parsed.identity

    def fields(self, parsed: Parsed) -> Sequence[str]:
        messages = parsed.model.full.message_type
        return [f.name for f in messages[0].field] if messages else []

    def unreadable(
        self,
        *,
        reader: Parsed,
        writer: Parsed,
        wording: Wording,
        lenient: bool = False,  # noqa: ARG002 - Protobuf has one set of rules
    ) -> list[str]:
        from .proto_compat import differences

        found = differences(original=writer.model, update=reader.model)
        return [f'{{errorType:"{d.kind}", description:"{wording(sentence(d))}"}}' for d in found]


def descriptors(text: str, dependencies: Sequence[Dependency]) -> FileDescriptorSet:
    """A schema's file, which is the last, behind all that it imports: what the types of its messages are made of."""
    files = _with_imports(read(text, "default")[0], dependencies)
    for file in files:
        _drop_unread_options(file)
    return FileDescriptorSet(file=files)


def _with_imports(file: Any, dependencies: Sequence[Dependency]) -> list[Any]:
    """The files that a file imports and itself, with the full names of types."""
    files = [*reachable(file, {d.name: read(d.text, d.name)[0] for d in dependencies}), file]
    types = collect(files)
    return [resolved(each, types) for each in files]


def read(text: str, name: str) -> tuple[Any, bool]:
    """The file in a schema's text, and whether it was .proto text."""
    file = _decoded(text)
    if file is None:
        return parse_proto(text, name), True
    file.name = name
    file.syntax = file.syntax or "proto2"
    file.ClearField("source_code_info")
    return file, False


def _decoded(text: str) -> Any | None:
    try:
        data = base64.b64decode(text, validate=True)
        file = FileDescriptorProto.FromString(data)
    except (binascii.Error, ValueError, DecodeError):
        return None
    return file if data and (file.message_type or file.enum_type or file.extension or file.name) else None


def _check(known: Any) -> None:
    """What protoc would refuse: numbers and names used twice, or used although reserved."""
    descriptor = known.descriptor
    if known.is_enum:
        if not descriptor.value:
            raise InvalidSchemaError(f"enum {known.name} has no values")
        if not descriptor.options.allow_alias:
            _distinct([v.number for v in descriptor.value], known.name)
        _distinct([v.name for v in descriptor.value], known.name)
        return
    _distinct([f.number for f in descriptor.field], known.name)
    _distinct([f.name for f in descriptor.field], known.name)
    for field in descriptor.field:
        if field.name in descriptor.reserved_name or any(
            r.start <= field.number < r.end for r in descriptor.reserved_range
        ):
            raise InvalidSchemaError(f"{known.name}.{field.name} = {field.number} is reserved")


def _distinct(items: Sequence[Any], where: str) -> None:
    seen = set()
    for item in items:
        if item in seen:
            raise InvalidSchemaError(f"{item} is used twice in {where}")
        seen.add(item)


def _drop_unread_options(message: Any) -> None:
    """Options whose meaning needs an extension that a reader may not have; they do not change how data is written."""
    for field, value in message.ListFields():
        if field.name == "uninterpreted_option":
            message.ClearField("uninterpreted_option")
        elif field.message_type is not None:
            for item in value if field.is_repeated else [value]:
                _drop_unread_options(item)
