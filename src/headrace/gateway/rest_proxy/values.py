"""Keys and values between JSON and the bytes of records: as they stand, or by a schema of this gateway's registry.

Values of a JSON Schema are written as they came, byte for byte, once they have been held to it. Work with schemas is
done beside the event loop.
"""

import asyncio
import json
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Callable, Sequence
from struct import Struct as Packing
from typing import Any, Final

from msgspec import UNSET, Raw, UnsetType

from headrace.client.aio.client import Client
from headrace.client.registry import NotRegistered, RegisteredSchema, SchemaReference
from headrace.registry.answers import uses
from headrace.registry.api.common import by_id
from headrace.registry.api.rights import Action
from headrace.registry.decisions import find_version
from headrace.registry.errors import RegistryError, denied, schema_denied
from headrace.registry.parsing import Posted
from headrace.registry.serde import Codec, Serde, Undecodable, Unencodable, framed_id
from headrace.registry.service import Registry
from headrace.schema_log.names import context_of, normalized
from headrace.schema_log.state import RegistryState, Version
from headrace.web.problem import Problem

from ..messages import decode_base64, is_json
from ..subject_rights import SubjectRights
from .failures import Refusal
from .media import ValueFormat

_HEAD: Final = Packing(">bI")
_MOST_KEPT: Final = 500
"""Schemas that are kept ready."""
_LATEST: Final = -1
_INVALID_SCHEMA: Final = 42205
_UNSERIALIZABLE: Final = 42207
_NOT_CONVERTED: Final = 42203
_NOT_REGISTERED: Final = 40801

JsonValue = Raw | UnsetType
"""A key or value in a body; nothing and null are none."""


def given(value: JsonValue) -> bytes | None:
    """The JSON that a body gives for a key or value; None where it gives none."""
    raw = b"null" if value is UNSET else bytes(value)
    return None if raw == b"null" else raw


class UnshownError(Exception):
    """The value at an index is not of the format that it is to be shown in."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(reason)
        self.index = index
        self.reason = reason


class RegistryView:
    """What a registry's state says now, to who reads schemas from it."""

    def __init__(self, state: RegistryState) -> None:
        self._state = state

    def schema(self, schema_id: int, subject: str = "") -> RegisteredSchema | None:
        """The schema of an id, None where there is none."""
        try:
            return registered_schema(by_id(self._state, schema_id, subject))
        except RegistryError:
            return None

    def version(self, subject: str, version: int) -> RegisteredSchema:
        """A version of a subject; `NotRegistered` where there is none."""
        try:
            return registered_schema(find_version(self._state, subject, version, deleted=True))
        except RegistryError as error:
            raise NotRegistered(error.message, str(error.code)) from error


def registered_schema(entry: Version) -> RegisteredSchema:
    """A version as programs that use schemas have it."""
    schema = entry.schema
    return RegisteredSchema(
        text=schema.text,
        type=schema.type,
        references=tuple(SchemaReference(each.name, each.subject, each.version) for each in schema.references),
        id=entry.id,
        subject=entry.subject,
        version=entry.version,
    )


class Values:
    """Keys and values of all formats."""

    def __init__(self, registry: Registry | None, rights: SubjectRights | None = None) -> None:
        self._registry = registry
        self._rights = rights
        self._codecs: OrderedDict[int, Codec] = OrderedDict()
        self._posted: dict[tuple[str, Posted], RegisteredSchema] = {}
        self._posted_at = -1

    # Which schema

    async def registered(self, client: Client, subject: str, posted: Posted) -> RegisteredSchema:
        """The schema as a version of its subject, which it becomes if it is none; `Refusal` where it cannot be, or the
        user of the client may not have it be."""
        registry = self._required()
        subject = normalized(subject)
        if self._rights is not None and not await self._rights.client_may(client, Action.WRITE, subject):
            raise _refused(denied(Action.WRITE.value, subject))
        if self._posted_at != registry.state.changes or len(self._posted) >= _MOST_KEPT:
            self._posted.clear()
            self._posted_at = registry.state.changes
        found = self._posted.get((subject, posted))
        if found is None:
            found = self._posted[subject, posted] = await self._register(registry, subject, posted)
        return found

    def is_registered(self, subject: str, posted: Posted) -> bool:
        """Whether nothing would have to be registered: what was is remembered."""
        return self._posted_at == self._required().state.changes and (normalized(subject), posted) in self._posted

    async def _register(self, registry: Registry, subject: str, posted: Posted) -> RegisteredSchema:
        try:
            return registered_schema(await registry.registered(subject, posted))
        except RegistryError as error:
            what = f"format = {posted.type}, subject = {subject}: {error.message}"
            if error.code == 42201:
                raise Refusal(422, _INVALID_SCHEMA, f"Invalid schema. {what}") from error
            raise Refusal(408, _NOT_REGISTERED, f"Error when registering schema. {what}") from error

    async def of_id(self, client: Client, schema_id: int, subject: str | None) -> RegisteredSchema:
        """The schema of an id, as a version of a subject where one is named; `Refusal` 422 where it is none, 403 where
        the user of the client may read no subject that has it."""
        subject = None if subject is None else normalized(subject)

        def find(state: RegistryState) -> Version:
            found = by_id(state, schema_id, "")
            if subject is None:
                return found
            for entry in state.versions(subject):
                if entry.id == schema_id:
                    return entry
            raise RegistryError(404, 40403, f"schema {schema_id} is no version of subject '{subject}'")

        if subject is not None:
            await self._require_read(client, subject)
        found = await self._found(find, f"schema_id = {schema_id}")
        if subject is None and self._rights is not None:
            state = self._required().state
            entries = uses(state, context_of(found.subject), schema_id, deleted=True)
            readable = await self._rights.client_reads(client, {entry.subject for entry in entries})
            if not readable:
                raise _refused(schema_denied(schema_id))
            found = registered_schema(next(entry for entry in entries if entry.subject in readable))
        return found

    async def of_version(self, client: Client, subject: str, version: int = _LATEST) -> RegisteredSchema:
        """A version of a subject, or its latest one; `Refusal` 403 where the user of the client may not read it."""
        subject = normalized(subject)
        await self._require_read(client, subject)
        what = f"subject = {subject}, version = {'latest' if version == _LATEST else version}"
        return await self._found(lambda state: find_version(state, subject, version), what)

    async def _found(self, find: Callable[[RegistryState], Version], what: str) -> RegisteredSchema:
        try:
            return registered_schema(await self._required().read(find))
        except RegistryError as error:
            status, number = (422, _UNSERIALIZABLE) if error.status == 404 else (408, _NOT_REGISTERED)
            raise Refusal(status, number, f"Error when fetching schema. {what}: {error.message}") from error

    async def _require_read(self, client: Client, subject: str) -> None:
        """`Refusal` 403 unless the user of a client may read a subject."""
        if self._rights is not None and not await self._rights.client_may(client, Action.READ, subject):
            raise _refused(denied(Action.READ.value, subject))

    def _required(self) -> Registry:
        if self._registry is None:
            raise Refusal(422, _UNSERIALIZABLE, "this gateway serves no schema registry, which that format needs")
        return self._registry

    # To bytes

    async def encoded(
        self, form: ValueFormat, schema: RegisteredSchema | None, values: Sequence[JsonValue], what: str
    ) -> list[bytes | None]:
        """Bytes of keys or values; `Refusal` 422 that says which one does not fit. `what` they are is for people."""
        raws = [given(value) for value in values]
        if not any(raws):
            return raws
        if schema is not None:
            return await asyncio.to_thread(self._encoded, schema, raws, what)
        encode = _PLAIN[form]
        return [None if raw is None else encode(raw, f"{what} {index}") for index, raw in enumerate(raws)]

    def _encoded(self, schema: RegisteredSchema, raws: Sequence[bytes | None], what: str) -> list[bytes | None]:
        codec, head = self._codec(schema), _HEAD.pack(0, schema.id)
        found: list[bytes | None] = []
        for index, raw in enumerate(raws):
            if raw is None:
                found.append(None)
                continue
            try:
                encoded = codec.encode(json.loads(raw))
            except (Unencodable, RecursionError, ValueError) as error:
                detail = f"Conversion of JSON to Object failed: {what} {index}: {str(error) or 'nested too deeply'}"
                raise Refusal(422, _NOT_CONVERTED, detail) from None
            found.append(head + (raw if schema.type == "JSON" else encoded))
        return found

    # To JSON

    async def shown(self, form: ValueFormat, data: Sequence[bytes | None], *, is_key: bool = False) -> list[Any]:
        """Values for a body; `UnshownError` where one is not of the format.

        A key that no schema's id stands before is base64.
        """
        if form is ValueFormat.BINARY:
            return [None if each is None else b64encode(each).decode() for each in data]
        if form is ValueFormat.JSON:
            return [_json(index, each) for index, each in enumerate(data)]
        if not any(data):
            return [None] * len(data)
        return await asyncio.to_thread(self._shown, form, data, is_key=is_key)

    def _shown(self, form: ValueFormat, data: Sequence[bytes | None], *, is_key: bool) -> list[Any]:
        found = []
        for index, each in enumerate(data):
            try:
                found.append(None if each is None else self._decoded(form, each, is_key=is_key))
            except (Undecodable, Problem, RecursionError) as error:
                raise UnshownError(index, str(error)) from None
        return found

    def _decoded(self, form: ValueFormat, data: bytes, *, is_key: bool) -> Any:
        schema_id = framed_id(data)
        schema = None if schema_id is None else RegistryView(self._required().state).schema(schema_id)
        if schema is None or schema.type != form.schema_type:
            if is_key:
                return b64encode(data).decode()
            raise Undecodable("no schema's id stands before it" if schema is None else f"its schema is {schema.type}")
        body = data[_HEAD.size :]
        value = self._codec(schema).decode(body)
        return Raw(body) if schema.type == "JSON" and is_json(body) else value

    def _codec(self, schema: RegisteredSchema) -> Codec:
        codec = self._codecs.get(schema.id)
        if codec is None:
            try:
                codec = Serde(RegistryView(self._required().state), bounded=True).codec(schema)
            except Undecodable as error:
                raise Refusal(422, _INVALID_SCHEMA, f"Invalid schema: {error}") from error
            self._codecs[schema.id] = codec
            while len(self._codecs) > _MOST_KEPT:
                self._codecs.popitem(last=False)
        return codec


def _refused(error: RegistryError) -> Refusal:
    return Refusal(error.status, error.code, error.message)


def _as_base64(raw: bytes, what: str) -> bytes:
    if raw[:1] == b'"' and b"\\" not in raw:
        try:
            return decode_base64(raw[1:-1], what)
        except Problem:
            pass
    raise Refusal(422, 422, f"{what} is not base64")


def _as_text(raw: bytes, what: str) -> bytes:
    if raw[:1] != b'"':
        raise Refusal(422, 422, f"{what} is no string")
    try:
        return str(json.loads(raw)).encode()
    except UnicodeEncodeError:
        raise Refusal(422, 422, f"{what} is no text: half of a surrogate pair stands in it") from None


_PLAIN: Final[dict[ValueFormat, Callable[[bytes, str], bytes]]] = {
    ValueFormat.BINARY: _as_base64,
    ValueFormat.JSON: lambda raw, _what: raw,
    ValueFormat.STRING: _as_text,
}


def _json(index: int, data: bytes | None) -> Any:
    if data is None:
        return None
    if not is_json(data):
        raise UnshownError(index, "it is not JSON")
    return Raw(bytes(data))
