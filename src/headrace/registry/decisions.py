"""Decisions, as functions of the state: the answer to a request, or the change that is proposed to the log.

A proposal reads everything the decision rests on. Nothing here changes the state or writes; only the judge of schemas
takes time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from headrace.schema_log.names import EVERYTHING, beside, context_of, is_valid, join, scopes
from headrace.schema_log.records import Change, Delete, Json, Proposal, Register, Schema, SetConfig, SetMode
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
from .compatibility import DEFAULT_LEVEL, LEVELS, POLICIES, held_against, reserved_fields
from .contracts import check_rules, completed, has_defaults, without_version
from .errors import InvalidSchemaError
from .judging import Judge
from .parsing import TYPES, Comparison, Posted, Prepared, Source, key_of
from .sources import dependencies_of, settled, source_of

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


def aliased(state: RegistryState, subject: str) -> str:
    """The subject that a name stands for: itself, unless its settings say that it is another one's alias."""
    alias = state.configs.get(subject, {}).get("alias")
    return beside(subject, alias) if alias else subject


def find_version(state: RegistryState, subject: str, version: int, *, deleted: bool = False) -> Version:
    """A version by its number, or the latest for -1; else the error that says which of the two is missing."""
    versions = state.versions(subject, deleted=deleted)
    if version == _LATEST and versions:
        return versions[-1]
    entry = state.subjects.get(subject, {}).get(version)
    if entry is not None and (deleted or not entry.deleted):
        return entry
    raise errors.version_not_found(version) if versions else errors.subject_not_found(subject)


async def look_up(
    state: RegistryState, judge: Judge, subject: str, posted: Posted, *, normalize: bool, deleted: bool
) -> Version:
    """The version of a subject that is this schema; one without metadata and rules is also looked for with those that
    it would be given."""
    if not state.versions(subject, deleted=True):
        raise errors.subject_not_found(subject)
    history = _History.of(state, subject, deleted=deleted)
    config = config_in_scope(state, subject)
    live = state.versions(subject)
    full = completed(posted, config, live[-1].schema, None) if live else posted
    candidate = await _understood(state, judge, subject, posted, normalize or bool(config.get("normalize")))
    found = await history.same(judge, candidate)
    if found is None and (full.metadata, full.rule_set) != (posted.metadata, posted.rule_set):
        found = await history.same(judge, candidate.carrying(full))
    if found is None:
        raise errors.schema_not_found() if history.versions else errors.subject_not_found(subject)
    return found


async def register(
    state: RegistryState, judge: Judge, subject: str, posted: Posted, *, normalize: bool
) -> Version | Proposal:
    """The version that is this schema already, or a proposal to make it the next one.

    Everything is taken from the state before the judge is asked, who takes time: the proposal rests on what was read.
    """
    if not is_valid(subject):
        raise errors.invalid_subject(subject)
    if len(posted.text.encode("utf-8", "replace")) > MOST_SCHEMA:
        raise errors.schema_too_large(MOST_SCHEMA)
    check_rules(posted.rule_set)
    basis, config, mode = state.applied, config_in_scope(state, subject), mode_in_scope(state, subject)
    history = _History.of(state, subject)
    number = max(state.subjects.get(subject, {}), default=0) + 1
    by_id = state.context(context_of(subject)).by_id.get(posted.id or 0)
    next_id = state.context(context_of(subject)).next_id
    latest = history.versions[-1].schema if history.versions else None
    posted = _with_text(posted, latest)
    full = posted if mode == "IMPORT" else completed(posted, config, latest, number)
    normalize = normalize or bool(config.get("normalize"))
    candidate = await _understood(state, judge, subject, posted, normalize, strict=mode != "IMPORT")
    if not has_defaults(config):
        known = await history.same(judge, candidate, posted)
        if known is not None:
            return known
    _check_mode(subject, mode, posted)
    final = candidate.carrying(full)
    if mode == "IMPORT":
        if by_id is not None and by_id.key != final.schema.key:
            raise errors.id_does_not_match(posted.id or 0)
    else:
        known = await history.same(judge, final, posted)
        if known is not None:
            return known
        if posted.version not in (None, -1, number):
            raise errors.invalid_schema("Version is not one more than previous version")
        reasons = await _objections(judge, final, history, config)
        if reasons:
            raise errors.incompatible(subject, str(reasons))
    if posted.id is None and next_id > errors.MAX_ID:
        raise errors.not_permitted(f"No id is left in context {context_of(subject)}")
    referred = [subject_key(beside(subject, r.subject)) for r in final.schema.references]
    reads = dict.fromkeys([subject_key(subject), *_settings(subject), *referred])
    version = None if posted.version == -1 else posted.version
    change = Register(subject=subject, schema=final.schema, id=posted.id, version=version)
    return Proposal(basis=basis, reads=tuple(reads), change=change)


async def test(
    state: RegistryState, judge: Judge, subject: str, posted: Posted, version: int | None, *, normalize: bool
) -> list[str]:
    """What the subject's level objects to in a schema, against one version or against all that count."""
    config = config_in_scope(state, subject)
    history = _History.of(state, subject)
    if version is not None:
        history = history.only(version)
    latest = history.versions[-1].schema if history.versions else None
    posted = _with_text(posted, latest)
    candidate = await _understood(state, judge, subject, posted, normalize or bool(config.get("normalize")))
    return await _objections(judge, candidate, history, config)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A posted schema that was understood."""

    schema: Schema
    source: Source
    prepared: Prepared

    def carrying(self, posted: Posted) -> "_Candidate":
        """The same with other metadata and rules."""
        key = key_of(posted, self.schema.references, self.prepared.identity)
        schema = replace(self.schema, metadata=posted.metadata, rule_set=posted.rule_set, key=key)
        return replace(self, schema=schema)


@dataclass(frozen=True, slots=True)
class _History:
    """The versions of a subject as they were when a decision began. `sources` are those that refer to others."""

    versions: list[Version]
    sources: dict[int, Source]

    @classmethod
    def of(cls, state: RegistryState, subject: str, *, deleted: bool = False) -> "_History":
        versions = state.versions(subject, deleted=deleted)
        return cls(versions, {e.version: source_of(state, subject, e.schema) for e in versions if e.schema.references})

    def source(self, entry: Version) -> Source:
        return self.sources.get(entry.version) or Source(entry.schema.type, entry.schema.text)

    def only(self, version: int) -> "_History":
        """One of them, or the latest for -1, which may be none."""
        chosen = [e for e in self.versions if e.version == version] if version != _LATEST else self.versions[-1:]
        if not chosen and version != _LATEST:
            raise errors.version_not_found(version)
        return _History(chosen, self.sources)

    async def same(self, judge: Judge, candidate: _Candidate, posted: Posted | None = None) -> Version | None:
        """The newest version that is a schema. One that is `posted` with an id or a version has these."""
        for entry in reversed(self.versions):
            if posted is None or (posted.id in (None, entry.id) and posted.version in (None, _LATEST, entry.version)):
                if entry.schema.key == candidate.schema.key:
                    return entry
                if _could_mean(entry.schema, candidate.schema) and (
                    await judge.meaning(self.source(entry)) == candidate.prepared.meaning
                ):
                    return entry
        return None


def _could_mean(known: Schema, wanted: Schema) -> bool:
    """Whether two schemas may differ in nothing but the order of keys in their texts; references may be written out in
    the one that is asked for, and the version that one of them notes does not count."""
    if known.references == wanted.references:
        may = known.type == "PROTOBUF" or len(known.text) == len(wanted.text)
    else:
        may = not wanted.references
    return (
        may
        and known.type == wanted.type
        and (known.rule_set or None) == (wanted.rule_set or None)
        and without_version(known.metadata) == without_version(wanted.metadata)
    )


def _with_text(posted: Posted, latest: Schema | None) -> Posted:
    """A schema without a text has that of the latest version: only its metadata or rules are new."""
    if posted.text.strip():
        return posted
    if latest is None:
        raise errors.empty_schema()
    return replace(posted, type=latest.type, text=latest.text, references=latest.references)


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
        raise errors.invalid_level()
    policy = update.get("compatibilityPolicy")
    if policy is not None and policy not in POLICIES:
        raise errors.unprocessable(f"compatibilityPolicy is one of {', '.join(POLICIES)}, not {policy!r}")
    if update.get("validateRules") is False:
        raise errors.unprocessable("validateRules: rules are always checked")
    check_rules(update.get("defaultRuleSet"))
    check_rules(update.get("overrideRuleSet"))
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
        raise errors.invalid_mode()
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


async def _understood(
    state: RegistryState, judge: Judge, subject: str, posted: Posted, normalize: bool, *, strict: bool = True
) -> _Candidate:
    if posted.type not in TYPES:
        raise errors.invalid_schema(f"there is no schema type {posted.type!r}; types are {', '.join(TYPES)}")
    if not posted.text.strip():
        raise errors.empty_schema()
    try:
        references = tuple(settled(state, subject, reference) for reference in posted.references)
        source = Source(posted.type, posted.text, dependencies_of(state, subject, references))
        prepared = await judge.prepare(source, normalize=normalize, strict=strict)
    except InvalidSchemaError as error:
        raise errors.invalid_schema(str(error)) from error
    schema = Schema(
        type=posted.type,
        text=prepared.text,
        references=references,
        metadata=posted.metadata,
        rule_set=posted.rule_set,
        key=key_of(posted, references, prepared.identity),
    )
    return _Candidate(schema, replace(source, text=prepared.text), prepared)


async def _objections(judge: Judge, candidate: _Candidate, history: _History, config: Json) -> list[str]:
    """Why the schema is refused by these settings; empty if it is not. The first version objected to is told about."""
    if config.get("validateFields"):
        reasons = reserved_fields(candidate.schema, candidate.prepared.fields, history.versions)
        if reasons:
            return reasons
    level = config["compatibilityLevel"]
    for version in held_against(history.versions, level, config.get("compatibilityGroup"), candidate.schema):
        found = await _against(judge, candidate, version, history.source(version), config)
        if found:
            where = [f"{{oldSchemaVersion: {version.version}}}", f"{{oldSchema: '{version.schema.text}'}}"]
            return [*found, *where, f"{{compatibility: '{level}'}}"]
    return []


async def _against(judge: Judge, candidate: _Candidate, version: Version, source: Source, config: Json) -> list[str]:
    level = LEVELS[config["compatibilityLevel"]]
    if version.schema.type != candidate.schema.type:
        return [f"Incompatible because of different schema type: {version.schema.type} became {candidate.schema.type}"]
    lenient = config.get("compatibilityPolicy") == "LENIENT"
    comparison = Comparison(candidate.source, source, level.backward, level.forward, lenient)
    try:
        return await judge.objections(comparison)
    except InvalidSchemaError as error:
        raise errors.invalid_schema(str(error)) from error


def _check_mode(subject: str, mode: str, posted: Posted) -> None:
    where = f"Subject {subject} in context {context_of(subject)}"
    if mode.startswith("READONLY"):
        raise errors.not_permitted(f"{where} is in read-only mode")
    if posted.id is not None and mode != "IMPORT":
        raise errors.not_permitted(f"{where} is not in import mode")
    if posted.id is None and mode == "IMPORT":
        raise errors.not_permitted(f"{where} is not in read-write mode")


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
