"""Decisions, as functions of the state: the answer to a request, or the change that is proposed to the log.

A proposal reads everything the decision rests on. Nothing here changes the state, waits or writes.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from headrace.schema_log.names import EVERYTHING, beside, context_of, is_valid, join, scopes
from headrace.schema_log.records import Change, Delete, Json, Proposal, Reference, Register, Schema, SetConfig, SetMode
from headrace.schema_log.state import (
    RegistryState,
    Version,
    config_key,
    context_key,
    mode_key,
    referrers_key,
    subject_key,
)

from . import errors
from .compatibility import DEFAULT_LEVEL, LEVELS, held_against, objections
from .errors import InvalidSchemaError, RegistryError
from .parsing import Posted, SchemaParser

MODES: Final = ("READWRITE", "READONLY", "READONLY_OVERRIDE", "IMPORT")
MOST_SCHEMA: Final = 900_000
"""Bytes of a schema's text: with what is around it, it must fit into a message of the default size."""
_LATEST: Final = -1


def config_in_scope(state: RegistryState, subject: str) -> dict[str, Any]:
    """The settings that hold for a subject: each from the nearest scope that has it."""
    found: dict[str, Any] = {"compatibilityLevel": DEFAULT_LEVEL}
    for scope in reversed(scopes(subject)):
        found |= state.configs.get(scope, {})
    return found


def mode_in_scope(state: RegistryState, subject: str) -> str:
    """The mode that holds for a subject. READONLY_OVERRIDE over everything is what it says."""
    if state.modes.get(EVERYTHING) == "READONLY_OVERRIDE":
        return "READONLY_OVERRIDE"
    return next((state.modes[scope] for scope in scopes(subject) if scope in state.modes), "READWRITE")


def find_version(state: RegistryState, subject: str, version: int, *, deleted: bool = False) -> Version:
    """A version by its number, or the latest for -1; else the error that says which of the two is missing."""
    versions = state.versions(subject, deleted=deleted)
    if version == _LATEST and versions:
        return versions[-1]
    entry = state.subjects.get(subject, {}).get(version)
    if entry is not None and (deleted or not entry.deleted):
        return entry
    raise errors.version_not_found(version) if versions else errors.subject_not_found(subject)


def look_up(
    state: RegistryState, parser: SchemaParser, subject: str, posted: Posted, *, normalize: bool, deleted: bool
) -> Version:
    """The version of a subject that is this schema."""
    if not state.versions(subject, deleted=True):
        raise errors.subject_not_found(subject)
    schema, _ = _prepared(state, parser, subject, posted, normalize)
    found = _same(state.versions(subject, deleted=deleted), schema)
    if found is None:
        if not state.versions(subject, deleted=deleted):
            raise errors.subject_not_found(subject)
        raise errors.schema_not_found()
    return found


def register(
    state: RegistryState, parser: SchemaParser, subject: str, posted: Posted, *, normalize: bool
) -> Version | Proposal:
    """The version that is this schema already, or a proposal to make it the next one."""
    if not is_valid(subject):
        raise errors.invalid_subject(subject)
    if len(posted.text.encode("utf-8", "replace")) > MOST_SCHEMA:
        raise errors.schema_too_large(MOST_SCHEMA)
    config = config_in_scope(state, subject)
    schema, parsed = _prepared(state, parser, subject, posted, normalize or bool(config.get("normalize")))
    versions = state.versions(subject)
    known = _already(versions, schema, posted)
    if known is not None:
        return known
    mode = mode_in_scope(state, subject)
    _check_mode(subject, mode, posted)
    if mode == "IMPORT":
        _check_import(state, subject, posted, schema)
    else:
        _check_number(state, subject, posted)
        level = config["compatibilityLevel"]
        earlier = held_against(versions, level, config.get("compatibilityGroup"), schema)
        reasons = _objections(parser, state, schema, parsed, earlier, level)
        if reasons:
            raise errors.incompatible(subject, str(reasons))
    reads = [*_settings(subject), *(subject_key(beside(subject, r.subject)) for r in schema.references)]
    change = Register(subject=subject, schema=schema, id=posted.id, version=posted.version)
    return proposal(state, [subject_key(subject), *reads], change)


def test(
    state: RegistryState, parser: SchemaParser, subject: str, posted: Posted, version: int | None, *, normalize: bool
) -> list[str]:
    """What the subject's level objects to in a schema, against one version or against all that count."""
    config = config_in_scope(state, subject)
    versions = state.versions(subject)
    if version is not None:
        try:
            versions = [find_version(state, subject, version)]
        except RegistryError:
            if version != _LATEST:
                raise
            versions = []
    schema, parsed = _prepared(state, parser, subject, posted, normalize or bool(config.get("normalize")))
    level = config["compatibilityLevel"]
    earlier = held_against(versions, level, config.get("compatibilityGroup"), schema)
    return _objections(parser, state, schema, parsed, earlier, level)


def delete_version(state: RegistryState, subject: str, version: int, *, permanent: bool) -> tuple[int, Proposal]:
    """The number of the version that goes, and the proposal."""
    if not state.versions(subject, deleted=True):
        raise errors.subject_not_found(subject)
    entry = find_version(state, subject, version, deleted=True if version != _LATEST else permanent)
    if entry.deleted and not permanent:
        raise errors.version_soft_deleted(subject, entry.version)
    _check_writable(state, subject)
    if permanent and not entry.deleted:
        raise errors.version_not_soft_deleted(subject, entry.version)
    _check_unreferred(state, [entry], permanent=permanent)
    change = Delete(subject=subject, versions=(entry.version,), permanent=permanent)
    return entry.version, _deletion(state, subject, change)


def delete_subject(state: RegistryState, subject: str, *, permanent: bool) -> tuple[list[int], Proposal]:
    """The numbers of the versions that go, and the proposal."""
    everything = state.versions(subject, deleted=True)
    if not everything:
        raise errors.subject_not_found(subject)
    live = state.versions(subject)
    if not live and not permanent:
        raise errors.subject_soft_deleted(subject)
    _check_writable(state, subject)
    if live and permanent:
        raise errors.subject_not_soft_deleted(subject)
    going = everything if permanent else live
    _check_unreferred(state, going, permanent=permanent, beside_subject=subject)
    numbers = [entry.version for entry in going]
    change = Delete(subject=subject, versions=tuple(numbers), permanent=permanent)
    return numbers, _deletion(state, subject, change)


def set_config(state: RegistryState, scope: str, update: Json) -> tuple[Json, Proposal]:
    """The settings of a scope with an update laid over them: what is null is removed."""
    _check_settings(state, scope)
    level = update.get("compatibilityLevel")
    if level is not None and level not in LEVELS:
        raise errors.invalid_level(level)
    merged = {k: v for k, v in {**state.configs.get(scope, {}), **update}.items() if v is not None}
    reads = [config_key(scope), *(mode_key(s) for s in scopes(scope))]
    return merged, proposal(state, reads, SetConfig(scope=scope, config=merged))


def delete_config(state: RegistryState, scope: str) -> tuple[Json, Proposal]:
    """The settings that go, and the proposal."""
    _check_settings(state, scope)
    config = state.configs.get(scope)
    if config is None and scope != EVERYTHING:
        raise errors.subject_not_found(scope)
    gone = config or {"compatibilityLevel": DEFAULT_LEVEL}
    return gone, proposal(state, [config_key(scope)], SetConfig(scope=scope, config=None))


def set_mode(state: RegistryState, scope: str, mode: str, *, force: bool) -> Proposal:
    """A scope's new mode. IMPORT would mix ids with those given here, so it needs an empty scope, or force."""
    if mode not in MODES:
        raise errors.invalid_mode(mode)
    reads = [mode_key(scope)]
    if mode == "IMPORT" and mode_in_scope(state, scope) != "IMPORT" and not force:
        reads += [context_key(context) for context in [context_of(scope)]]
        if any(state.versions(subject) for subject in _in_scope(state, scope)):
            raise errors.not_permitted("Cannot import since found existing subjects")
    return proposal(state, reads, SetMode(scope=scope, mode=mode))


def delete_mode(state: RegistryState, scope: str) -> tuple[str, Proposal]:
    """The mode that goes, and the proposal."""
    mode = state.modes.get(scope)
    if mode is None:
        if scope != EVERYTHING:
            raise errors.subject_not_found(scope)
        mode = "READWRITE"
    return mode, proposal(state, [mode_key(scope)], SetMode(scope=scope, mode=None))


def _prepared(
    state: RegistryState, parser: SchemaParser, subject: str, posted: Posted, normalize: bool
) -> tuple[Schema, Any]:
    try:
        return parser.prepare(state, subject, posted, normalize=normalize)
    except InvalidSchemaError as error:
        raise errors.invalid_schema(str(error)) from error


def _objections(
    parser: SchemaParser, state: RegistryState, schema: Schema, parsed: Any, earlier: Sequence[Version], level: str
) -> list[str]:
    try:
        return objections(parser, state, schema, parsed, earlier, level)
    except InvalidSchemaError as error:
        raise errors.invalid_schema(str(error)) from error


def _same(versions: Sequence[Version], schema: Schema) -> Version | None:
    return next((entry for entry in reversed(versions) if entry.schema.key == schema.key), None)


def _already(versions: Sequence[Version], schema: Schema, posted: Posted) -> Version | None:
    for entry in reversed(versions):
        same = entry.schema.key == schema.key
        if same and posted.id in (None, entry.id) and posted.version in (None, entry.version):
            return entry
    return None


def _check_mode(subject: str, mode: str, posted: Posted) -> None:
    where = f"Subject {subject} in context {context_of(subject)}"
    if mode.startswith("READONLY"):
        raise errors.not_permitted(f"{where} is in read-only mode")
    if posted.id is not None and mode != "IMPORT":
        raise errors.not_permitted(f"{where} is not in import mode")
    if posted.id is None and mode == "IMPORT":
        raise errors.not_permitted(f"{where} is not in read-write mode")


def _check_import(state: RegistryState, subject: str, posted: Posted, schema: Schema) -> None:
    held = state.context(context_of(subject)).by_id.get(posted.id or 0)
    if held is not None and held.key != schema.key:
        raise errors.id_does_not_match(posted.id or 0)


def _check_number(state: RegistryState, subject: str, posted: Posted) -> None:
    following = max(state.subjects.get(subject, {}), default=0) + 1
    if posted.version not in (None, following):
        raise errors.invalid_schema("Version is not one more than previous version")


def _check_writable(state: RegistryState, subject: str) -> None:
    if mode_in_scope(state, subject).startswith("READONLY"):
        raise errors.not_permitted(f"Subject {subject} in context {context_of(subject)} is in read-only mode")


def _check_settings(state: RegistryState, scope: str) -> None:
    if mode_in_scope(state, scope).startswith("READONLY"):
        raise errors.not_permitted(f"Subject {scope or 'null'} in context {context_of(scope)} is in read-only mode")


def _check_unreferred(
    state: RegistryState, entries: Sequence[Version], *, permanent: bool, beside_subject: str | None = None
) -> None:
    for entry in entries:
        for subject, version in state.referrers.get((entry.subject, entry.version), ()):
            counts = permanent or not state.subjects[subject][version].deleted
            if counts and subject != beside_subject:
                raise errors.reference_exists(entry.subject, entry.version)


def _settings(subject: str) -> list[str]:
    return [key for scope in scopes(subject) for key in (config_key(scope), mode_key(scope))]


def _deletion(state: RegistryState, subject: str, change: Delete) -> Proposal:
    reads = [subject_key(subject), referrers_key(subject), *(mode_key(scope) for scope in scopes(subject))]
    return proposal(state, reads, change)


def proposal(state: RegistryState, reads: Sequence[str], change: Change) -> Proposal:
    """A change, with what the decision for it rests on."""
    return Proposal(basis=state.applied, reads=tuple(dict.fromkeys(reads)), change=change)


def _in_scope(state: RegistryState, scope: str) -> list[str]:
    if scope in state.subjects:
        return [scope]
    context = context_of(scope)
    whole = scope in (EVERYTHING, join(context, ""))
    return [subject for subject in state.subjects if context_of(subject) == context] if whole else []


def posted_of(body: Mapping[str, Any]) -> Posted:
    """A request's schema; RegistryError where a field cannot be what it is meant to be."""
    text = body.get("schema")
    if not isinstance(text, str) or not text.strip():
        raise errors.invalid_schema("Empty schema")
    return Posted(
        type=_typed(body, "schemaType", str) or "AVRO",
        text=text,
        references=tuple(_reference(value) for value in _typed(body, "references", list) or ()),
        metadata=_typed(body, "metadata", dict),
        rule_set=_typed(body, "ruleSet", dict),
        id=_whole(body, "id"),
        version=_whole(body, "version"),
    )


def _typed(body: Mapping[str, Any], name: str, kind: type) -> Any:
    value = body.get(name)
    if value is not None and not isinstance(value, kind):
        raise errors.unprocessable(f"{name} must be a {kind.__name__}")
    return value


def _whole(body: Mapping[str, Any], name: str) -> int | None:
    """A positive number; nothing, 0 and -1 mean that none is given."""
    value = body.get(name)
    if value in (None, 0, -1) and not isinstance(value, bool):
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= errors.MAX_ID:
        raise errors.unprocessable(f"{name} must be a whole number from 1 to {errors.MAX_ID}")
    return value


def _reference(value: Any) -> Reference:
    if not isinstance(value, dict):
        raise errors.unprocessable("a reference has a name, a subject and a version")
    name, subject, version = value.get("name"), value.get("subject"), value.get("version")
    if not isinstance(name, str) or not isinstance(subject, str):
        raise errors.unprocessable("a reference has a name, a subject and a version")
    if isinstance(version, bool) or not isinstance(version, int) or not (version == -1 or version > 0):
        raise errors.unprocessable(f"the reference {name!r} has no valid version")
    return Reference(name=name, subject=subject, version=version)
