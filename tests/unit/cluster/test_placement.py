from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.cluster.placement import check_assignments, in_order, place, place_with_absent, ring_position
from headrace.protocol.errors import CodedError, ErrorCode


def test_brokers_that_are_absent_fill_up_only_where_too_few_live() -> None:
    living: dict[int, str | None] = {0: "a", 1: "b"}
    placed = place_with_absent(living, [7, 9], partitions=3, replication_factor=3)
    assert [replicas[2] for replicas in placed] == [7, 9, 7]
    assert all(set(replicas[:2]) == {0, 1} for replicas in placed)
    assert place_with_absent(living, [7], partitions=2, replication_factor=2) == place(
        living, partitions=2, replication_factor=2
    )
    with pytest.raises(CodedError) as refused:
        place_with_absent(living, [7], partitions=1, replication_factor=4)
    assert refused.value.code is ErrorCode.invalid_replication_factor


def racks(brokers: int, number: int) -> dict[int, str | None]:
    return {broker: f"rack-{broker % number}" for broker in range(brokers)}


@given(brokers=st.integers(1, 12), factor=st.integers(1, 12), partitions=st.integers(1, 200), start=st.integers(0, 50))
def test_a_partition_has_different_brokers_and_leaders_take_turns(
    brokers: int, factor: int, partitions: int, start: int
) -> None:
    factor = min(factor, brokers)
    placed = place(dict.fromkeys(range(brokers)), partitions=partitions, replication_factor=factor, start=start)
    assert all(len(set(replicas)) == factor for replicas in placed)
    leaders = Counter(replicas[0] for replicas in placed)
    assert max(leaders.values()) - min(leaders.get(b, 0) for b in range(brokers)) <= 1


@settings(deadline=None)
@given(brokers=st.integers(2, 12), factor=st.integers(1, 5))
def test_replicas_are_even_within_a_tenth(brokers: int, factor: int) -> None:
    factor = min(factor, brokers)
    partitions = brokers * (brokers - 1) * 10
    placed = place(dict.fromkeys(range(brokers)), partitions=partitions, replication_factor=factor)
    held = Counter(broker for replicas in placed for broker in replicas)
    fair = partitions * factor / brokers
    assert all(abs(held[broker] - fair) <= fair / 10 for broker in range(brokers))


@settings(deadline=None)
@given(per_rack=st.integers(1, 5), number=st.integers(1, 5), factor=st.integers(1, 6), start=st.integers(0, 30))
def test_even_racks_share_replicas_evenly(per_rack: int, number: int, factor: int, start: int) -> None:
    brokers = racks(per_rack * number, number)
    factor = min(factor, len(brokers))
    partitions = len(brokers) * max(1, len(brokers) - 1) * 10
    placed = place(brokers, partitions=partitions, replication_factor=factor, start=start)
    for replicas in placed:
        assert len({brokers[broker] for broker in replicas}) == min(factor, number)
    held = Counter(broker for replicas in placed for broker in replicas)
    fair = partitions * factor / len(brokers)
    assert all(abs(held[broker] - fair) <= fair / 10 for broker in brokers)


@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4), factor=st.integers(1, 6))
def test_uneven_racks_still_hold_one_replica_each(sizes: list[int], factor: int) -> None:
    brokers: dict[int, str | None] = {}
    for rack, size in enumerate(sizes):
        brokers.update({len(brokers) + n: f"rack-{rack}" for n in range(size)})
    factor = min(factor, len(brokers))
    for replicas in place(brokers, partitions=40, replication_factor=factor):
        assert len(set(replicas)) == factor
        assert len({brokers[broker] for broker in replicas}) == min(factor, len(sizes))


def test_a_broker_without_a_rack_turns_racks_off() -> None:
    brokers: dict[int, str | None] = {1: "a", 2: "a", 3: None}
    assert {len(set(r)) for r in place(brokers, partitions=9, replication_factor=2)} == {2}


def test_the_followers_of_one_leader_are_spread() -> None:
    placed = place(dict.fromkeys(range(4)), partitions=24, replication_factor=2)
    assert Counter(r[1] for r in placed if r[0] == 0) == {1: 2, 2: 2, 3: 2}


def test_added_partitions_go_on_where_the_others_ended() -> None:
    brokers = racks(6, 3)
    whole = place(brokers, partitions=10, replication_factor=2, start=4)
    start = ring_position(brokers, whole[0][0])
    assert start == 4
    assert place(brokers, partitions=6, replication_factor=2, start=start, first_partition=4) == whole[4:]
    assert ring_position(brokers, 99) == 0


@pytest.mark.parametrize("factor", [-1, 0, 4])
def test_more_replicas_than_brokers_are_refused(factor: int) -> None:
    with pytest.raises(CodedError) as caught:
        place({1: None, 2: None, 3: None}, partitions=1, replication_factor=factor)
    assert caught.value.code is ErrorCode.invalid_replication_factor


def test_given_assignments_are_kept_as_they_are() -> None:
    assert check_assignments(in_order({1: [2, 1], 0: [1, 2]}), [1, 2, 3]) == [(1, 2), (2, 1)]
    with pytest.raises(CodedError):
        check_assignments([[1, 2], [1]], [1, 2, 3])
