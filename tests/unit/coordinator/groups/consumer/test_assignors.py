"""The broker's assignors: every partition once, even shares, few moves, the same answer to the same question."""

from collections.abc import Mapping
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.coordinator.groups.consumer.assignors import (
    ASSIGNORS,
    AssignedMember,
    Assignment,
    TopicShape,
    range_,
    uniform,
)

pytestmark = pytest.mark.slow


TOPICS = [UUID(int=number) for number in (7, 3, 11, 5)]
RACKS = ("a", "b", "c")
Members = dict[str, AssignedMember]
Topics = dict[UUID, TopicShape]


def assigned(partitions: Mapping[UUID, set[int]]) -> Assignment:
    return {topic: frozenset(indexes) for topic, indexes in partitions.items() if indexes}


def pairs(assignment: Assignment) -> set[tuple[UUID, int]]:
    return {(topic, index) for topic, indexes in assignment.items() for index in indexes}


def size(assignment: Assignment) -> int:
    return sum(map(len, assignment.values()))


@st.composite
def groups(draw: st.DrawFn, *, same: bool | None = None) -> tuple[Members, Topics]:
    """A group with any history: what members hold may overlap, be too much, or be gone."""
    topics = {
        topic: TopicShape(
            partitions=(count := draw(st.integers(1, 9))),
            racks=draw(st.one_of(st.just(()), st.just([frozenset({RACKS[n % 3]}) for n in range(count)]))),
        )
        for topic in draw(st.lists(st.sampled_from(TOPICS), min_size=1, unique=True))
    }
    some = st.frozensets(st.sampled_from(sorted(topics)))
    common = draw(some) if (same if same is not None else draw(st.booleans())) else None
    held = st.dictionaries(st.sampled_from(TOPICS), st.sets(st.integers(0, 11)))
    members = {
        f"m{number}": AssignedMember(
            topics=draw(some) if common is None else common,
            assigned=assigned(draw(held)),
            instance_id=draw(st.sampled_from([None, f"i{9 - number}"])),
            rack=draw(st.sampled_from([None, *RACKS])),
        )
        for number in range(draw(st.integers(1, 6)))
    }
    return members, topics


def again(members: Members, result: Mapping[str, Assignment]) -> Members:
    return {
        member_id: AssignedMember(
            topics=member.topics, assigned=result[member_id], instance_id=member.instance_id, rack=member.rack
        )
        for member_id, member in members.items()
    }


@pytest.mark.parametrize("name", ASSIGNORS)
@given(group=groups())
def test_every_partition_goes_to_one_subscriber(name: str, group: tuple[Members, Topics]) -> None:
    members, topics = group
    result = ASSIGNORS[name](members, topics)
    assert result.keys() == members.keys()
    given_out = [(pair, member_id) for member_id, one in result.items() for pair in pairs(one)]
    for (topic, index), member_id in given_out:
        assert topic in members[member_id].topics
        assert index < topics[topic].partitions
    wanted = {
        (topic, index)
        for member in members.values()
        for topic in member.topics
        for index in range(topics[topic].partitions)
    }
    assert len(given_out) == len(wanted)
    assert {pair for pair, _ in given_out} == wanted


@pytest.mark.parametrize("name", ASSIGNORS)
@given(group=groups())
def test_the_order_of_the_arguments_does_not_matter(name: str, group: tuple[Members, Topics]) -> None:
    members, topics = group
    backwards = dict(reversed(members.items())), dict(reversed(topics.items()))
    assert ASSIGNORS[name](members, topics) == ASSIGNORS[name](*backwards)


@given(group=groups(same=True))
def test_uniform_gives_equal_subscribers_equal_shares(group: tuple[Members, Topics]) -> None:
    counts = [size(one) for one in uniform(*group).values()]
    assert max(counts) - min(counts) <= 1


@given(group=groups())
def test_uniform_leaves_nothing_that_one_move_would_make_more_even(group: tuple[Members, Topics]) -> None:
    members, topics = group
    result = uniform(members, topics)
    for giver in members:
        for topic in result[giver]:
            for receiver in members:
                if topic in members[receiver].topics:
                    assert size(result[giver]) - size(result[receiver]) <= 1


@pytest.mark.parametrize("name", ASSIGNORS)
@given(group=groups())
def test_nothing_moves_when_nothing_changed(name: str, group: tuple[Members, Topics]) -> None:
    members, topics = group
    result = ASSIGNORS[name](members, topics)
    assert ASSIGNORS[name](again(members, result), topics) == result


@given(group=groups(same=True))
def test_uniform_moves_no_more_than_a_newcomers_share(group: tuple[Members, Topics]) -> None:
    members, topics = group
    before = uniform(members, topics)
    newcomer = AssignedMember(topics=next(iter(members.values())).topics)
    after = uniform({**again(members, before), "new": newcomer}, topics)
    moved = sum(len(pairs(before[member_id]) - pairs(after[member_id])) for member_id in members)
    assert moved == size(after["new"])


@given(group=groups(same=True))
def test_uniform_moves_only_what_a_member_that_left_had(group: tuple[Members, Topics]) -> None:
    members, topics = group
    before = uniform(members, topics)
    staying = dict(list(again(members, before).items())[1:])
    if staying:
        after = uniform(staying, topics)
        assert all(pairs(before[member_id]) <= pairs(after[member_id]) for member_id in staying)


def test_uniform_gives_a_member_the_partitions_in_its_rack() -> None:
    topics = {TOPICS[0]: TopicShape(partitions=9, racks=[frozenset({RACKS[n % 3]}) for n in range(9)])}
    members = {f"m{rack}": AssignedMember(topics=frozenset(topics), rack=rack) for rack in RACKS}
    result = uniform(members, topics)
    assert [sorted(result[f"m{rack}"][TOPICS[0]]) for rack in RACKS] == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]


def test_uniform_spreads_each_topic() -> None:
    topics = {topic: TopicShape(partitions=3) for topic in TOPICS[:2]}
    result = uniform({f"m{n}": AssignedMember(topics=frozenset(topics)) for n in range(3)}, topics)
    assert all(len(one[topic]) == 1 for one in result.values() for topic in topics)


def test_range_cuts_topics_of_one_size_alike() -> None:
    topics = {topic: TopicShape(partitions=5) for topic in TOPICS}
    result = range_({f"m{n}": AssignedMember(topics=frozenset(topics)) for n in range(2)}, topics)
    assert set(result["m0"].values()) == {frozenset({0, 1, 2})}
    assert set(result["m1"].values()) == {frozenset({3, 4})}


def test_range_puts_static_members_first_so_that_they_keep_their_place() -> None:
    topics = {TOPICS[0]: TopicShape(partitions=2)}
    subscribed = frozenset(topics)
    for static_id in ("a", "z"):
        members = {
            "m": AssignedMember(topics=subscribed),
            static_id: AssignedMember(topics=subscribed, instance_id="i"),
        }
        assert range_(members, topics)[static_id] == {TOPICS[0]: frozenset({0})}


def test_no_members_get_nothing() -> None:
    assert uniform({}, {}) == range_({}, {}) == {}
