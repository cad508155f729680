"""Schemas understood: the three types, references followed, and what was parsed once kept."""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headrace.schema_log.names import beside, context_of
from headrace.schema_log.records import Json, Reference, Schema
from headrace.schema_log.state import RegistryState, Version

from .errors import InvalidSchemaError
from .schemas.avro import Avro
from .schemas.json_schema import JsonSchema
from .schemas.model import Dependency, Parsed, SchemaType

_KEPT: Final = 2000
DEFAULT_TYPE: Final = "AVRO"


@dataclass(frozen=True, slots=True, kw_only=True)
class Posted:
    """A schema as a caller sent it. A version of -1 in a reference means the latest."""

    type: str = DEFAULT_TYPE
    text: str
    references: tuple[Reference, ...] = ()
    metadata: Json | None = None
    rule_set: Json | None = None
    id: int | None = None
    version: int | None = None


def all_types() -> dict[str, SchemaType]:
    """Every type by its name in the API."""
    from .schemas.protobuf import Protobuf

    types: list[SchemaType] = [JsonSchema(), Protobuf(), Avro()]
    return {kind.name: kind for kind in types}


class SchemaParser:
    """Parses schemas against a state. InvalidSchemaError for what is none."""

    def __init__(self, types: Mapping[str, SchemaType] | None = None) -> None:
        self.types = types or all_types()
        self._parsed: OrderedDict[tuple[str, str], Parsed] = OrderedDict()

    def prepare(self, state: RegistryState, subject: str, posted: Posted, *, normalize: bool) -> tuple[Schema, Parsed]:
        """A posted schema as it would be registered."""
        kind = self.types.get(posted.type)
        if kind is None:
            raise InvalidSchemaError(f"there is no schema type {posted.type!r}; types are {', '.join(self.types)}")
        references = tuple(_settled(state, subject, reference) for reference in posted.references)
        dependencies = dependencies_of(state, subject, references)
        parsed = _guarded(kind, posted.text, dependencies)
        if normalize:
            parsed = _guarded(kind, kind.normalize(parsed), dependencies)
        schema = Schema(
            type=posted.type,
            text=parsed.text,
            references=references,
            metadata=posted.metadata,
            rule_set=posted.rule_set,
            key=identity(posted, references, parsed),
        )
        return schema, parsed

    def parsed(self, state: RegistryState, subject: str, schema: Schema) -> Parsed:
        """A registered schema."""
        key = (context_of(subject), schema.key)
        found = self._parsed.get(key)
        if found is None:
            dependencies = dependencies_of(state, subject, schema.references)
            found = self._parsed[key] = self.types[schema.type].parse(schema.text, dependencies, new=False)
            if len(self._parsed) > _KEPT:
                self._parsed.popitem(last=False)
        return found

    def shown(self, state: RegistryState, subject: str, schema: Schema, form: str) -> str:
        """A registered schema's text in a form that is asked for by name."""
        if not form:
            return schema.text
        return self.types[schema.type].show(self.parsed(state, subject, schema), form)


def identity(posted: Posted, references: Sequence[Reference], parsed: Parsed) -> str:
    """The same for schemas that are the same, whatever their spelling."""
    refs = [[r.name, r.subject, r.version] for r in references]
    parts: list[Any] = [posted.type, parsed.identity, refs, posted.metadata, posted.rule_set]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode("utf-8", "replace")).hexdigest()


def guid(schema: Schema) -> str:
    """A schema's id outside any context: its identity in the form of a UUID."""
    k = schema.key
    return f"{k[:8]}-{k[8:12]}-{k[12:16]}-{k[16:20]}-{k[20:32]}"


def dependencies_of(state: RegistryState, subject: str, references: Sequence[Reference]) -> list[Dependency]:
    """What references stand for, also by way of others, each before those that refer to it."""
    dependencies: dict[str, Dependency] = {}
    visiting: set[tuple[str, int]] = set()

    def visit(parent: str, references: Sequence[Reference]) -> None:
        for reference in references:
            entry = _referenced(state, parent, reference)
            place = (entry.subject, entry.version)
            if reference.name not in dependencies and place not in visiting:
                visiting.add(place)
                visit(entry.subject, entry.schema.references)
                dependencies[reference.name] = Dependency(name=reference.name, text=entry.schema.text)

    visit(subject, references)
    return list(dependencies.values())


def _guarded(kind: SchemaType, text: str, dependencies: Sequence[Dependency]) -> Parsed:
    try:
        return kind.parse(text, dependencies, new=True)
    except RecursionError as error:
        raise InvalidSchemaError("nested too deeply") from error


def _settled(state: RegistryState, parent: str, reference: Reference) -> Reference:
    """A reference with the number of the version it means."""
    if reference.version != -1:
        return reference
    versions = state.versions(beside(parent, reference.subject))
    if not versions:
        raise InvalidSchemaError(f"no version of {reference.subject!r} to refer to")
    return Reference(name=reference.name, subject=reference.subject, version=versions[-1].version)


def _referenced(state: RegistryState, parent: str, reference: Reference) -> Version:
    entry = state.subjects.get(beside(parent, reference.subject), {}).get(reference.version)
    if entry is None:
        where = f"version {reference.version} of subject {reference.subject!r}"
        raise InvalidSchemaError(f"the reference {reference.name!r} has no schema: there is no {where}")
    return entry
