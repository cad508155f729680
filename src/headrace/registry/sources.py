"""Schemas of the state with all that they refer to: what is asked of who judges them."""

from collections.abc import Sequence

from headrace.schema_log.names import beside
from headrace.schema_log.records import Reference, Schema
from headrace.schema_log.state import RegistryState, Version

from .errors import InvalidSchemaError
from .parsing import Source
from .schemas.model import Dependency


def source_of(state: RegistryState, subject: str, schema: Schema) -> Source:
    """A registered schema; the subject says in which context its references are. What it refers to may be gone, where
    it was imported: then it does not parse."""
    try:
        return Source(schema.type, schema.text, dependencies_of(state, subject, schema.references))
    except InvalidSchemaError:
        return Source(schema.type, schema.text)


def settled(state: RegistryState, parent: str, reference: Reference) -> Reference:
    """A reference with the number of the version it means."""
    if reference.version != -1:
        return reference
    versions = state.versions(beside(parent, reference.subject))
    if not versions:
        raise InvalidSchemaError(f"no version of {reference.subject!r} to refer to")
    return Reference(name=reference.name, subject=reference.subject, version=versions[-1].version)


def dependencies_of(state: RegistryState, subject: str, references: Sequence[Reference]) -> tuple[Dependency, ...]:
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
    return tuple(dependencies.values())


def _referenced(state: RegistryState, parent: str, reference: Reference) -> Version:
    entry = state.subjects.get(beside(parent, reference.subject), {}).get(reference.version)
    if entry is None:
        where = f"version {reference.version} of subject {reference.subject!r}"
        raise InvalidSchemaError(f"the reference {reference.name!r} has no schema: there is no {where}")
    return entry
