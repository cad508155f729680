"""The registry's state from its log: the same for everyone, whoever wrote in whatever order."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.registry import decisions
from headrace.registry.errors import RegistryError
from headrace.registry.judging import Inline
from headrace.registry.parsing import Posted
from headrace.schema_log.names import context_of
from headrace.schema_log.records import Proposal, Reference, decode, encode
from headrace.schema_log.state import RegistryState
from tests.support.registry.registering import now

LIBRARY = Inline()
SUBJECTS = ("a", "b", ":.x:a")
WRITERS = 3


def text(number: int) -> str:
    fields = [{"name": f"f{number}", "type": "int", "default": 0}]
    return json.dumps({"type": "record", "name": f"R{number}", "fields": fields})


registrations = st.tuples(
    st.just("register"), st.sampled_from(SUBJECTS), st.integers(0, 5), st.sampled_from([None, "a", "b"])
)
deletions = st.tuples(st.just("delete"), st.sampled_from(SUBJECTS), st.integers(1, 4), st.booleans())
subject_deletions = st.tuples(st.just("delete subject"), st.sampled_from(SUBJECTS), st.none(), st.booleans())
levels = st.tuples(st.just("config"), st.sampled_from(("", *SUBJECTS)), st.sampled_from(["NONE", "FULL"]), st.none())
modes = st.tuples(
    st.just("mode"), st.sampled_from(("", *SUBJECTS)), st.sampled_from(["READONLY", "READWRITE"]), st.none()
)
requests = st.one_of(registrations, registrations, registrations, deletions, subject_deletions, levels, modes)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(0, WRITERS - 1), requests),
        st.tuples(st.just("read"), st.integers(0, WRITERS - 1), st.integers(1, 5)),
        st.tuples(st.just("again"), st.integers(0, WRITERS - 1), st.integers(0, 30)),
        st.tuples(st.just("garbage"), st.integers(0, WRITERS - 1), st.binary(max_size=20)),
    ),
    max_size=40,
)


def decide(state: RegistryState, request: Any) -> Proposal | None:
    kind, where, what, more = request
    try:
        if kind == "register":
            references = (Reference(name="Other", subject=more, version=1),) if more else ()
            posted = Posted(text=text(what), references=references)
            found = now(decisions.register(state, LIBRARY, where, posted, normalize=False))
            return found if isinstance(found, Proposal) else None
        if kind == "delete":
            return decisions.delete_version(state, where, what, permanent=more)[1]
        if kind == "delete subject":
            return decisions.delete_subject(state, where, permanent=more)[1]
        if kind == "config":
            return decisions.set_config(state, where, {"compatibilityLevel": what})[1]
        return decisions.set_mode(state, where, what, force=False)
    except RegistryError:
        return None


def observed(state: RegistryState) -> Any:
    return (state.subjects, state.contexts, state.configs, state.modes, state.referrers, state.applied, state.changes)


def replay(log: list[bytes], upto: int | None = None) -> RegistryState:
    state = RegistryState()
    for offset, record in enumerate(log[:upto]):
        state.apply(offset, decode(record))
    return state


def check(state: RegistryState) -> None:
    """What holds in every state."""
    for subject, entries in state.subjects.items():
        context = state.contexts[context_of(subject)]
        for number, entry in entries.items():
            assert entry.version == number
            assert context.by_id[entry.id].key == entry.schema.key
            assert (subject, number) in context.uses[entry.id]
            for reference in entry.schema.references:
                target = reference.subject if context_of(subject) == "." else f":.x:{reference.subject}"
                assert reference.version in state.subjects[target], "a reference that leads nowhere"
    for context in state.contexts.values():
        assert context.by_id.keys() == context.uses.keys()
        assert all(0 < schema_id < context.next_id for schema_id in context.by_id)


@settings(max_examples=150, deadline=None)
@given(steps)
def test_writers_that_lag_behind_each_other_leave_one_consistent_state(script: list[Any]) -> None:
    log: list[bytes] = []
    writers = [RegistryState() for _ in range(WRITERS)]
    given_ids: dict[tuple[str, int], str] = {}
    for step, which, what in script:
        writer = writers[which]
        if step == "ask":
            proposal = decide(writer, what)
            if proposal is not None:
                log.append(encode(proposal))
        elif step == "again" and log:
            log.append(log[what % len(log)])
        elif step == "garbage":
            log.append(what)
        else:
            amount = what if isinstance(what, int) else 1
            for offset in range(writer.applied + 1, min(writer.applied + 1 + amount, len(log))):
                outcome = writer.apply(offset, decode(log[offset]))
                check(writer)
                if outcome.version is not None:
                    key = (context_of(outcome.version.subject), outcome.version.id)
                    assert given_ids.setdefault(key, outcome.version.schema.key) == outcome.version.schema.key
    final = replay(log)
    check(final)
    for writer in writers:
        assert observed(writer) == observed(replay(log, writer.applied + 1))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, WRITERS - 1), st.integers(0, 9)), max_size=40))
def test_ids_are_dense_and_a_schema_has_one_whoever_registers_it(script: list[tuple[int, int]]) -> None:
    log: list[bytes] = []
    for which, number in script:
        stale = replay(log, max(0, len(log) - which))
        proposal = decide(stale, ("register", f"s{number}", number, None))
        if proposal is not None:
            log.append(encode(proposal))
    state = replay(log)
    ids = sorted(entry.id for entries in state.subjects.values() for entry in entries.values())
    assert ids == list(range(1, len(ids) + 1))


@given(st.binary(max_size=200))
def test_any_bytes_are_passed_over(record: bytes) -> None:
    state = RegistryState()
    state.apply(0, decode(record))
    assert state.applied == 0
