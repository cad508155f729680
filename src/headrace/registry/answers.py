"""How versions, schemas and settings look in answers."""

from typing import Any

from headrace.schema_log.names import beside, context_of
from headrace.schema_log.records import Json, Schema
from headrace.schema_log.state import RegistryState, Version

from .parsing import guid


def described(schema: Schema, text: str) -> dict[str, Any]:
    """A schema's fields. The type is left out where it is Avro, and what is empty everywhere, as clients expect."""
    fields: dict[str, Any] = {}
    if schema.type != "AVRO":
        fields["schemaType"] = schema.type
    if schema.references:
        fields["references"] = [{"name": r.name, "subject": r.subject, "version": r.version} for r in schema.references]
    if schema.metadata:
        fields["metadata"] = schema.metadata
    if schema.rule_set:
        fields["ruleSet"] = schema.rule_set
    fields["schema"] = text
    return fields


def version(entry: Version, text: str | None = None) -> dict[str, Any]:
    """A version in full."""
    found = {"subject": entry.subject, "version": entry.version, "id": entry.id, "guid": guid(entry.schema)}
    found |= described(entry.schema, entry.schema.text if text is None else text)
    return found | {"deleted": True} if entry.deleted else found


def registered(entry: Version) -> dict[str, Any]:
    """The answer to a registration."""
    found = version(entry)
    del found["subject"]
    return found


def config_read(config: Json) -> dict[str, Any]:
    return dict(config)


def config_written(config: Json) -> dict[str, Any]:
    """The same, with the name that requests have for the level."""
    found = dict(config)
    if "compatibilityLevel" in found:
        found = {"compatibility": found.pop("compatibilityLevel"), **found}
    return found


def referrers(state: RegistryState, entry: Version, *, deleted: bool) -> list[int]:
    """The ids of schemas that refer to a version."""
    places = state.referrers.get((entry.subject, entry.version), ())
    entries = [state.subjects[subject][number] for subject, number in places]
    return sorted({e.id for e in entries if deleted or not e.deleted})


def uses(state: RegistryState, context: str, schema_id: int, *, deleted: bool) -> list[Version]:
    """The versions with a schema id."""
    places = state.context(context).uses.get(schema_id, ())
    entries = [state.subjects[subject][number] for subject, number in sorted(places)]
    return [entry for entry in entries if deleted or not entry.deleted]


def qualified(entry: Version) -> list[dict[str, Any]]:
    """References with their contexts, for callers who read them outside the context of the schema."""
    return [
        {"name": r.name, "subject": beside(entry.subject, r.subject), "version": r.version}
        for r in entry.schema.references
    ]


def aliases(state: RegistryState, prefix: str) -> dict[str, list[str]]:
    """The other names of subjects, of those names that begin with a prefix."""
    found: dict[str, list[str]] = {}
    for name, config in sorted(state.configs.items()):
        if config.get("alias") and name.startswith(prefix):
            found.setdefault(beside(name, config["alias"]), []).append(name)
    return found


def context_for(state: RegistryState, subject: str | None, schema_id: int) -> str:
    """Where an id is to be looked for: the context of the subject that is named, else the default one; where that
    context does not have it, the first that has it under a subject of that plain name."""
    if not subject:
        return "."
    wanted = context_of(subject)
    if schema_id in state.context(wanted).by_id:
        return wanted
    for name, context in state.contexts.items():
        if any(place.rpartition(":")[2] == subject for place, _ in context.uses.get(schema_id, ())):
            return name
    return wanted
