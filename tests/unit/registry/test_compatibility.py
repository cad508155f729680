"""Published rules of compatibility, case by case, in both directions and by every level."""

import json
from typing import Any

import pytest

from headrace.registry import decisions
from headrace.registry.compatibility import LEVELS
from headrace.registry.errors import RegistryError
from headrace.registry.judging import Inline
from headrace.registry.parsing import Posted, SchemaParser
from headrace.schema_log.records import Proposal
from headrace.schema_log.state import RegistryState
from tests.support.registry import cases_avro, cases_json, cases_protobuf
from tests.support.registry.registering import now

LIBRARY = SchemaParser()
JUDGE = Inline(LIBRARY)


def proto(syntax: str, body: str) -> str:
    return f'syntax = "{syntax}"; {body}'


CASES = [
    *(("AVRO", name, json.dumps(a), json.dumps(b), back, forth) for name, a, b, back, forth in cases_avro.CASES),
    *(("JSON", name, json.dumps(a), json.dumps(b), back, forth) for name, a, b, back, forth in cases_json.CASES),
    *(
        ("PROTOBUF", name, proto(syntax, a), proto(syntax, b), back, forth)
        for syntax, cases in (("proto3", cases_protobuf.CASES), ("proto2", cases_protobuf.PROTO2))
        for name, a, b, back, forth in cases
    ),
]


def readable(kind: str, reader: str, writer: str) -> list[str]:
    types = LIBRARY.types[kind]
    parsed = [types.parse(text, [], new=True) for text in (reader, writer)]
    return types.unreadable(reader=parsed[0], writer=parsed[1], wording=str)


@pytest.mark.parametrize(
    ("kind", "old", "new", "backward", "forward"),
    [pytest.param(kind, *rest, id=f"{kind} {name}") for kind, name, *rest in CASES],
)
def test_a_change_is_judged_by_the_published_rule(kind: str, old: str, new: str, backward: bool, forward: bool) -> None:
    assert (not readable(kind, new, old)) == backward, readable(kind, new, old)
    assert (not readable(kind, old, new)) == forward, readable(kind, old, new)


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 200
    assert len({(kind, name) for kind, name, *_ in CASES}) == len(CASES)


@pytest.mark.parametrize(("kind", "text"), [(case[0], case[2]) for case in CASES])
def test_a_schema_is_compatible_with_itself_in_every_form(kind: str, text: str) -> None:
    types = LIBRARY.types[kind]
    parsed = types.parse(text, [], new=True)
    normal = types.normalize(parsed)
    again = types.parse(normal, [], new=True)
    assert types.normalize(again) == normal
    assert types.parse(parsed.identity, [], new=True).identity == parsed.identity
    for one, other in ((parsed, parsed), (parsed, again), (again, parsed)):
        assert types.unreadable(reader=one, writer=other, wording=str) == []


V1, V2, V3 = ("a",), ("a", "b?"), ("a", "b")


def avro(names: tuple[str, ...]) -> str:
    fields: list[Any] = [
        {"name": n.rstrip("?"), "type": "int", **({"default": 0} if n.endswith("?") else {})} for n in names
    ]
    return json.dumps({"type": "record", "name": "R", "fields": fields})


def accepted(level: str, *versions: tuple[str, ...]) -> list[bool]:
    """Whether each version is taken after those before it that were."""
    state = RegistryState()
    found = []
    _, proposal = decisions.set_config(state, "", {"compatibilityLevel": level})
    state.apply(0, proposal)
    for names in versions:
        try:
            decided = now(decisions.register(state, JUDGE, "s", Posted(text=avro(names)), normalize=False))
        except RegistryError:
            found.append(False)
        else:
            assert isinstance(decided, Proposal)
            found.append(state.apply(state.applied + 1, decided).accepted)
    return found


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("NONE", [True, True, True]),
        ("BACKWARD", [True, True, True]),
        ("BACKWARD_TRANSITIVE", [True, True, False]),
        ("FORWARD", [True, True, True]),
        ("FORWARD_TRANSITIVE", [True, True, True]),
        ("FULL", [True, True, True]),
        ("FULL_TRANSITIVE", [True, True, False]),
    ],
)
def test_transitive_levels_look_at_every_version(level: str, expected: list[bool]) -> None:
    assert level in LEVELS
    assert accepted(level, V1, V2, V3) == expected


@pytest.mark.parametrize(
    ("level", "adds_without_default", "removes_without_default"),
    [
        ("NONE", True, True),
        ("BACKWARD", False, True),
        ("FORWARD", True, False),
        ("FULL", False, False),
    ],
)
def test_each_level_asks_its_own_question(
    level: str, adds_without_default: bool, removes_without_default: bool
) -> None:
    assert accepted(level, V1, V3)[-1] == adds_without_default
    assert accepted(level, V3, V1)[-1] == removes_without_default


def test_a_subject_keeps_to_one_type() -> None:
    state = RegistryState()
    first = now(decisions.register(state, JUDGE, "s", Posted(text=avro(V1)), normalize=False))
    assert isinstance(first, Proposal)
    state.apply(0, first)
    with pytest.raises(RegistryError, match="different schema type"):
        now(decisions.register(state, JUDGE, "s", Posted(type="JSON", text="{}"), normalize=False))
