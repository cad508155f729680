"""Schemas understood: the three types, and what was parsed once kept. Knows texts, not the registry's state."""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headrace.schema_log.records import Json, Reference, Schema

from .errors import InvalidSchemaError
from .schemas.avro import Avro
from .schemas.json_schema import JsonSchema
from .schemas.model import Dependency, Parsed, SchemaType

_MOST_KEPT: Final = 4 << 20
"""Characters of texts whose schemas are kept as they were parsed."""
DEFAULT_TYPE: Final = "AVRO"


@dataclass(frozen=True, slots=True, kw_only=True)
class Posted:
    """A schema as a caller sent it. A version of -1 in a reference means the latest; as the version of the schema it
    asks that the schema notes which version it is."""

    type: str = DEFAULT_TYPE
    text: str
    references: tuple[Reference, ...] = ()
    metadata: Json | None = None
    rule_set: Json | None = None
    id: int | None = None
    version: int | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """A schema's text with what it refers to, each before those that refer to it."""

    type: str
    text: str
    dependencies: tuple[Dependency, ...] = ()


@dataclass(frozen=True, slots=True)
class Prepared:
    """A new schema that was understood. `identity` is the same for spellings that differ in nothing that is shown,
    `meaning` also where keys of JSON stand in another order or references are written out."""

    text: str
    identity: str
    meaning: str
    fields: tuple[str, ...]
    """Names at the top: of a record's fields, an object's properties, the first message's fields."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two schemas of one type, and what must be readable: old data with the new one, new data with the old one."""

    new: Source
    old: Source
    backward: bool
    forward: bool
    lenient: bool = False


def all_types() -> dict[str, SchemaType]:
    """Every type by its name in the API."""
    from .schemas.protobuf import Protobuf

    types: list[SchemaType] = [JsonSchema(), Protobuf(), Avro()]
    return {kind.name: kind for kind in types}


TYPES: Final = ("JSON", "PROTOBUF", "AVRO")


class SchemaParser:
    """Parses and compares schemas. InvalidSchemaError for what is none."""

    def __init__(self, types: Mapping[str, SchemaType] | None = None) -> None:
        self.types = types or all_types()
        self._parsed: OrderedDict[Source, Parsed] = OrderedDict()
        self._kept = 0

    def prepare(self, source: Source, *, normalize: bool, strict: bool = True) -> Prepared:
        """A posted schema as it would be registered; held to rules that older ones may have escaped if it is strict."""
        kind = self.types[source.type]
        parsed = _guarded(kind, source.text, source.dependencies, strict)
        if normalize:
            parsed = _guarded(kind, kind.normalize(parsed), source.dependencies, strict)
        _require_utf8(parsed.text)
        return Prepared(
            text=parsed.text,
            identity=parsed.identity,
            meaning=digest(kind.meaning(parsed)),
            fields=tuple(kind.fields(parsed)),
        )

    def meaning(self, source: Source) -> str:
        """The same for schemas that say the same."""
        return digest(self.types[source.type].meaning(self._known(source)))

    def shown(self, source: Source, form: str) -> str:
        """A registered schema's text in a form that is asked for by name."""
        return self.types[source.type].show(self._known(source), form)

    def objections(self, comparison: Comparison) -> list[str]:
        """What cannot be read; empty if all can."""
        kind = self.types[comparison.new.type]
        new, old = self._known(comparison.new), self._known(comparison.old)
        found: list[str] = []
        try:
            if comparison.backward:
                found += kind.unreadable(
                    reader=new, writer=old, wording=_words("new", "old"), lenient=comparison.lenient
                )
            if comparison.forward:
                found += kind.unreadable(
                    reader=old, writer=new, wording=_words("old", "new"), lenient=comparison.lenient
                )
        except RecursionError as error:
            raise InvalidSchemaError("nested too deeply to be compared") from error
        return list(dict.fromkeys(found))

    def _known(self, source: Source) -> Parsed:
        found = self._parsed.get(source)
        if found is None:
            found = _guarded(self.types[source.type], source.text, source.dependencies, strict=False)
            self._parsed[source] = found
            self._kept += _size(source)
            while self._kept > _MOST_KEPT:
                self._kept -= _size(self._parsed.popitem(last=False)[0])
        else:
            self._parsed.move_to_end(source)
        return found

    def forget(self) -> None:
        """Keep nothing of what was parsed."""
        self._parsed.clear()
        self._kept = 0


def _size(source: Source) -> int:
    return 1000 + len(source.text) + sum(len(each.text) for each in source.dependencies)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def key_of(posted: Posted, references: Sequence[Reference], identity: str) -> str:
    """A schema's identity: of its text, its references, its metadata and its rules."""
    refs = [[r.name, r.subject, r.version] for r in references]
    parts: list[Any] = [posted.type, identity, refs, posted.metadata, posted.rule_set]
    return digest(json.dumps(parts, sort_keys=True))


def guid(schema: Schema) -> str:
    """A schema's id outside any context: its identity in the form of a UUID."""
    k = schema.key
    return f"{k[:8]}-{k[8:12]}-{k[12:16]}-{k[16:20]}-{k[20:32]}"


def _guarded(kind: SchemaType, text: str, dependencies: Sequence[Dependency], strict: bool) -> Parsed:
    try:
        return kind.parse(text, dependencies, new=strict)
    except RecursionError as error:
        raise InvalidSchemaError("nested too deeply") from error


def _require_utf8(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidSchemaError("half of a surrogate pair is no character") from error


def _words(reader: str, writer: str) -> Callable[[str], str]:
    return lambda sentence: sentence.replace("%new", reader).replace("%old", writer)
