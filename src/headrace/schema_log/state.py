"""The registry's state: what replaying the log from its beginning comes to.

Invariants:
- The state is a function of the log alone. Ids are given at replay, in the order of accepted registrations: dense and
  unique in a context, and never given twice, also not after a permanent deletion.
- A proposal is accepted if nothing its author had read was touched after the author's basis. Every accepted change
  touches something its proposal reads, so that the same record appended twice takes effect once.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from .names import beside, context_of
from .records import Associate, Change, Delete, Dissociate, Json, Proposal, Register, Schema, SetConfig, SetMode

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A schema's place in a subject."""

    subject: str
    version: int
    id: int
    schema: Schema
    deleted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a proposal. A void one says nothing about why: judging again does."""

    accepted: bool
    version: Version | None = None


VOID = Outcome(accepted=False)
DONE = Outcome(accepted=True)


@dataclass(slots=True)
class SchemaContext:
    """The ids of one context."""

    next_id: int = 1
    by_id: dict[int, Schema] = field(default_factory=dict)
    by_key: dict[str, int] = field(default_factory=dict)
    uses: dict[int, set[tuple[str, int]]] = field(default_factory=dict)


def subject_key(subject: str) -> str:
    """Touched by every change to a subject's versions."""
    return f"s:{subject}"


def referrers_key(subject: str) -> str:
    """Touched when a version of the subject is referred to."""
    return f"r:{subject}"


def config_key(scope: str) -> str:
    return f"c:{scope}"


def mode_key(scope: str) -> str:
    return f"m:{scope}"


def resource_key(resource: str) -> str:
    return f"x:{resource}"


def context_key(context: str) -> str:
    """Touched by every change to any subject of a context."""
    return f"a:{context}"


class RegistryState:
    """What is registered. Only `apply` changes it."""

    def __init__(self) -> None:
        self.applied = -1
        self.changes = 0
        self.contexts: dict[str, SchemaContext] = {}
        self.subjects: dict[str, dict[int, Version]] = {}
        self.configs: dict[str, Json] = {}
        self.modes: dict[str, str] = {}
        self.referrers: dict[tuple[str, int], set[tuple[str, int]]] = {}
        self.associations: dict[str, dict[str, Json]] = {}
        """Links by the id of their resource, then by their type."""
        self._touched: dict[str, int] = {}

    def apply(self, offset: int, proposal: Proposal | None) -> Outcome:
        """Take the record at an offset into account; what became of it."""
        self.applied = offset
        if proposal is None or not self._still_holds(proposal):
            return VOID
        outcome = self._change(proposal.change)
        if outcome.accepted:
            self.changes += 1
            for key in _touches(proposal.change):
                self._touched[key] = offset
        return outcome

    def versions(self, subject: str, *, deleted: bool = False) -> list[Version]:
        """A subject's versions in order; those that are deleted softly only if asked for."""
        entries = self.subjects.get(subject, {})
        return [entries[number] for number in sorted(entries) if deleted or not entries[number].deleted]

    def context(self, name: str) -> SchemaContext:
        return self.contexts.get(name) or SchemaContext()

    def _still_holds(self, proposal: Proposal) -> bool:
        return all(self._touched.get(key, -1) <= proposal.basis for key in proposal.reads)

    def _change(self, change: Change) -> Outcome:
        match change:
            case Register():
                return self._register(change)
            case Delete():
                return self._delete(change)
            case SetConfig():
                _set(self.configs, change.scope, change.config)
            case SetMode():
                _set(self.modes, change.scope, change.mode)
            case Associate():
                links = self.associations.setdefault(change.resource, {})
                links.update({str(link["associationType"]): link for link in change.links})
            case Dissociate():
                self._dissociate(change)
        return DONE

    def _dissociate(self, change: Dissociate) -> None:
        links = self.associations.pop(change.resource, {})
        kept = {kind: link for kind, link in links.items() if change.kinds and kind not in change.kinds}
        if kept:
            self.associations[change.resource] = kept

    def _register(self, change: Register) -> Outcome:
        context = self.contexts.setdefault(context_of(change.subject), SchemaContext())
        held = context.by_id.get(change.id) if change.id is not None else None
        if held is not None and held.key != change.schema.key:
            return VOID
        entries = self.subjects.setdefault(change.subject, {})
        number = change.version or max(entries, default=0) + 1
        if number in entries:
            self._forget(entries.pop(number))
        known = context.by_key.get(change.schema.key)
        schema_id = change.id or known or context.next_id
        context.next_id = max(context.next_id, schema_id + 1)
        context.by_key.setdefault(change.schema.key, schema_id)
        schema = context.by_id.setdefault(schema_id, change.schema)
        entry = Version(subject=change.subject, version=number, id=schema_id, schema=schema)
        context.uses.setdefault(schema_id, set()).add((change.subject, number))
        self._supersede(entries, entry)
        entries[number] = entry
        for target in _targets(entry):
            self.referrers.setdefault(target, set()).add((change.subject, number))
        return Outcome(accepted=True, version=entry)

    def _supersede(self, entries: dict[int, Version], entry: Version) -> None:
        """A schema registered again after a soft deletion replaces its hidden version, unless that is referred to."""
        for number, old in list(entries.items()):
            hidden = old.deleted and old.id == entry.id and number < entry.version
            if hidden and (old.subject, number) not in self.referrers:
                self._forget(entries.pop(number))

    def _delete(self, change: Delete) -> Outcome:
        entries = self.subjects.get(change.subject, {})
        if any(number not in entries for number in change.versions):
            return VOID
        for number in change.versions:
            if change.permanent:
                self._forget(entries.pop(number))
            else:
                entries[number] = replace(entries[number], deleted=True)
        if not entries:
            del self.subjects[change.subject]
            self.configs.pop(change.subject, None)
            self.modes.pop(change.subject, None)
        return DONE

    def _forget(self, entry: Version) -> None:
        """A version goes; with the last use of an id goes what it stood for, but never the id's number."""
        version = (entry.subject, entry.version)
        context = self.contexts[context_of(entry.subject)]
        uses = context.uses[entry.id]
        uses.discard(version)
        if not uses:
            del context.uses[entry.id], context.by_id[entry.id]
            if context.by_key.get(entry.schema.key) == entry.id:
                del context.by_key[entry.schema.key]
        for target in _targets(entry):
            self.referrers[target].discard(version)
            if not self.referrers[target]:
                del self.referrers[target]


def _set(settings: dict[str, _T], scope: str, value: _T | None) -> None:
    if value is None:
        settings.pop(scope, None)
    else:
        settings[scope] = value


def _targets(entry: Version) -> Iterable[tuple[str, int]]:
    return [(beside(entry.subject, reference.subject), reference.version) for reference in entry.schema.references]


def _touches(change: Change) -> Iterable[str]:
    match change:
        case Register():
            referred = [referrers_key(beside(change.subject, r.subject)) for r in change.schema.references]
            return [subject_key(change.subject), context_key(context_of(change.subject)), *referred]
        case Delete():
            settings = [config_key(change.subject), mode_key(change.subject)] if change.permanent else []
            return [subject_key(change.subject), context_key(context_of(change.subject)), *settings]
        case SetConfig():
            return [config_key(change.scope)]
        case SetMode():
            return [mode_key(change.scope)]
        case Associate() | Dissociate():
            return [resource_key(change.resource)]
