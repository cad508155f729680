"""The simple assignor: who reads what, whoever came and left before."""

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from headrace.coordinator.groups.share.assignor import simple
from tests.support.coordinator.consumer_group import topic_id

A, B = topic_id("a"), topic_id("b")
Assigned = dict[str, dict[UUID, frozenset[int]]]
NAMES = [f"m{number}" for number in range(9)]


def _sizes(assigned: Assigned) -> list[int]:
    return sorted(sum(map(len, topics.values())) for topics in assigned.values())


def _readers(assigned: Assigned) -> list[int]:
    counts: dict[tuple[UUID, int], int] = {}
    for topics in assigned.values():
        for topic, indexes in topics.items():
            for index in indexes:
                counts[topic, index] = counts.get((topic, index), 0) + 1
    return sorted(counts.values())


def assigned_to(count: int, partitions: int, had: Assigned | None = None) -> Assigned:
    members = dict.fromkeys(NAMES[:count], frozenset({A}))
    return simple(members, had or {}, {A: frozenset(range(partitions))})


def test_one_member_reads_everything() -> None:
    assert assigned_to(1, 4) == {"m0": {A: frozenset({0, 1, 2, 3})}}


def test_members_read_as_many_partitions_each() -> None:
    assert _sizes(assigned_to(3, 8)) == [2, 3, 3]
    assert _readers(assigned_to(3, 8)) == [1] * 8


def test_where_there_are_more_members_than_partitions_these_are_shared() -> None:
    found = assigned_to(7, 3)
    assert _readers(found) == [3, 3, 3]
    assert _sizes(found) == [1, 1, 1, 1, 1, 2, 2]


def test_a_member_that_comes_takes_no_more_than_its_share() -> None:
    before = assigned_to(2, 8)
    after = assigned_to(3, 8, before)
    for member in ("m0", "m1"):
        assert after[member][A] <= before[member][A]


def test_members_with_other_subscriptions_share_each_topic() -> None:
    members = {"a": frozenset({A}), "b": frozenset({B}), "both": frozenset({A, B})}
    found = simple(members, {}, {A: frozenset(range(4)), B: frozenset(range(2))})
    assert {topic: len(indexes) for topic, indexes in found["both"].items()} == {A: 2, B: 1}
    assert len(found["a"][A]) == 2
    assert found["b"].keys() == {B}


def test_a_topic_that_is_not_there_is_left_out() -> None:
    assert simple({"a": frozenset({A})}, {}, {}) == {"a": {}}
    assert simple({}, {}, {}) == {}


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 7)), min_size=1, max_size=6), st.booleans())
def test_every_partition_has_as_many_readers_and_every_member_as_much_to_read(
    turns: list[tuple[int, int]], two_topics: bool
) -> None:
    had: Assigned = {}
    for count, partitions in turns:
        topics = {A: frozenset(range(partitions))}
        if two_topics:
            topics[B] = frozenset(range(3))
        members = dict.fromkeys(NAMES[-count:], frozenset(topics))
        had = simple(members, had, topics)
        total = sum(map(len, topics.values()))
        sizes, readers = _sizes(had), _readers(had)
        assert readers == [-(-count // total)] * total
        assert sizes[-1] - sizes[0] <= 1
        assert simple(members, had, topics) == had, "what is right stays as it is"
