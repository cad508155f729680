"""Plans for moving replicas: level, rack-aware, with the fewest moves, whatever the cluster looked like before."""

from collections import Counter
from collections.abc import Mapping
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headrace.client.errors import ClientError
from headrace.ops.moves import (
    Racks,
    Replicas,
    bounds,
    drained,
    placed_on,
    rebalanced,
    replicas_moved,
    shares,
)
from headrace.protocol.topic_partition import TopicPartition

Layout = Mapping[TopicPartition, Replicas]


class Cluster(NamedTuple):
    racks: Racks
    layout: Layout


@st.composite
def layouts(draw: st.DrawFn, racks: Racks, most_replicas: int, *, uniform: bool) -> Layout:
    brokers = sorted(racks)
    layout: dict[TopicPartition, Replicas] = {}
    factor = draw(st.integers(1, most_replicas))
    rng = Random(draw(st.integers(0, 1 << 32)))
    for topic in range(draw(st.integers(1, 4))):
        count = factor if uniform else draw(st.integers(1, most_replicas))
        some = draw(st.lists(st.sampled_from(brokers), min_size=count, unique=True)) if draw(st.booleans()) else brokers
        for index in range(draw(st.integers(1, 40))):
            layout[TopicPartition(f"t{topic}", index)] = tuple(rng.sample(some, count))
    return layout


@st.composite
def without_racks(draw: st.DrawFn, *, uniform: bool = False) -> Cluster:
    racks: Racks = dict.fromkeys(range(1, draw(st.integers(1, 7)) + 1))
    return Cluster(racks, draw(layouts(racks, min(len(racks), 4), uniform=uniform)))


@st.composite
def with_equal_racks(draw: st.DrawFn) -> Cluster:
    number, size = draw(st.integers(2, 4)), draw(st.integers(1, 3))
    racks = {broker: f"rack{broker % number}" for broker in range(1, number * size + 1)}
    return Cluster(racks, draw(layouts(racks, number, uniform=True)))


@st.composite
def with_any_racks(draw: st.DrawFn) -> Cluster:
    racks = {broker: draw(st.sampled_from("abc")) for broker in range(1, draw(st.integers(1, 7)) + 1)}
    return Cluster(racks, draw(layouts(racks, min(len(racks), 4), uniform=False)))


any_cluster = st.one_of(without_racks(), with_equal_racks(), with_any_racks())


def after(layout: Layout, plan: Layout) -> Layout:
    return {**layout, **plan}


def replica_counts(layout: Layout) -> Counter[int]:
    return Counter(broker for replicas in layout.values() for broker in replicas)


def leader_counts(layout: Layout) -> Counter[int]:
    return Counter(replicas[0] for replicas in layout.values())


def spread(replicas: Replicas, racks: Racks) -> int:
    named = None not in racks.values()
    return len({racks[r] if named else r for r in replicas})


def outside(counts: Counter[int], limits: Mapping[int, tuple[int, int]]) -> dict[int, int]:
    return {broker: counts[broker] for broker, (low, high) in limits.items() if not low <= counts[broker] <= high}


def replica_limits(cluster: Cluster) -> dict[int, tuple[int, int]]:
    return bounds(shares(map(len, cluster.layout.values()), cluster.racks))


def leader_limits(cluster: Cluster) -> dict[int, tuple[int, int]]:
    return bounds(dict.fromkeys(cluster.racks, len(cluster.layout) / len(cluster.racks)))


def check_kept(before: Layout, plan: Layout, racks: Racks) -> None:
    """What no plan may break."""
    for partition, replicas in plan.items():
        assert replicas != before[partition], "not a change"
        assert len(replicas) == len(before[partition])
        assert len(set(replicas)) == len(replicas)
        assert set(replicas) <= racks.keys()


@given(any_cluster)
def test_a_partition_keeps_its_replica_count_and_gains_all_the_racks_it_can_have(cluster: Cluster) -> None:
    plan = rebalanced(cluster.layout, cluster.racks)
    check_kept(cluster.layout, plan, cluster.racks)
    most = spread(tuple(cluster.racks), cluster.racks)
    for replicas in after(cluster.layout, plan).values():
        assert spread(replicas, cluster.racks) == min(len(replicas), most)


@given(st.one_of(without_racks(), with_equal_racks()))
def test_replicas_are_level(cluster: Cluster) -> None:
    level = after(cluster.layout, rebalanced(cluster.layout, cluster.racks))
    assert not outside(replica_counts(level), replica_limits(cluster))


@given(st.one_of(without_racks(uniform=True), with_equal_racks()))
def test_leaders_are_level(cluster: Cluster) -> None:
    level = after(cluster.layout, rebalanced(cluster.layout, cluster.racks))
    assert not outside(leader_counts(level), leader_limits(cluster))


@given(any_cluster)
def test_a_cluster_is_never_less_level_than_it_was(cluster: Cluster) -> None:
    def distance(layout: Layout) -> int:
        counts = replica_counts(layout)
        limits = replica_limits(cluster).items()
        return sum(max(counts[b] - high, low - counts[b], 0) for b, (low, high) in limits)

    most = spread(tuple(cluster.racks), cluster.racks)
    assume(all(spread(r, cluster.racks) == min(len(r), most) for r in cluster.layout.values()))
    level = after(cluster.layout, rebalanced(cluster.layout, cluster.racks))
    assert distance(level) <= distance(cluster.layout)


@given(without_racks())
def test_no_plan_could_do_with_fewer_moves(cluster: Cluster) -> None:
    """Each move takes one from who has too many, or gives one to who has too few: there are no others."""
    counts = replica_counts(cluster.layout)
    limits = replica_limits(cluster)
    surplus = sum(max(counts[broker] - high, 0) for broker, (_, high) in limits.items())
    shortage = sum(max(low - counts[broker], 0) for broker, (low, _) in limits.items())
    plan = rebalanced(cluster.layout, cluster.racks, leaders=False)
    assert replicas_moved(cluster.layout, plan) == max(surplus, shortage)


@given(st.one_of(without_racks(), with_equal_racks()))
def test_what_is_level_stays_as_it_is(cluster: Cluster) -> None:
    level = after(cluster.layout, rebalanced(cluster.layout, cluster.racks))
    assert rebalanced(level, cluster.racks) == {}


@given(without_racks(uniform=True), st.integers(1, 2))
def test_a_new_broker_gets_its_share_and_others_exchange_nothing(cluster: Cluster, added: int) -> None:
    level = after(cluster.layout, rebalanced(cluster.layout, cluster.racks))
    fresh = dict.fromkeys(range(100, 100 + added))
    grown = Cluster({**cluster.racks, **fresh}, level)
    plan = rebalanced(level, grown.racks)
    assert not outside(replica_counts(after(level, plan)), replica_limits(grown))
    assert not outside(leader_counts(after(level, plan)), leader_limits(grown))
    for partition, replicas in plan.items():
        assert set(replicas) - set(level[partition]) <= fresh.keys()


@given(any_cluster, st.data())
def test_partitions_that_may_not_move_do_not(cluster: Cluster, data: st.DataObject) -> None:
    frozen = data.draw(st.sets(st.sampled_from(sorted(cluster.layout))))
    assert not rebalanced(cluster.layout, cluster.racks, frozen).keys() & frozen


@given(any_cluster)
def test_a_partition_on_a_broker_that_is_gone_is_left_alone(cluster: Cluster) -> None:
    assume(len(cluster.racks) > 1)
    gone = max(cluster.racks)
    living = {broker: rack for broker, rack in cluster.racks.items() if broker != gone}
    for partition in rebalanced(cluster.layout, living):
        assert gone not in cluster.layout[partition]


@given(any_cluster, st.data())
def test_what_is_drained_is_empty_and_nothing_else_was_moved(cluster: Cluster, data: st.DataObject) -> None:
    leaving = data.draw(st.sets(st.sampled_from(sorted(cluster.racks)), min_size=1))
    staying = {broker: rack for broker, rack in cluster.racks.items() if broker not in leaving}
    affected = {p: r for p, r in cluster.layout.items() if not leaving.isdisjoint(r)}
    if any(len(replicas) > len(staying) for replicas in affected.values()):
        with pytest.raises(ClientError, match="too few"):
            drained(cluster.layout, cluster.racks, leaving)
        return
    plan = drained(cluster.layout, cluster.racks, leaving)
    check_kept(cluster.layout, plan, staying)
    assert plan.keys() == affected.keys()
    for partition, replicas in plan.items():
        assert set(cluster.layout[partition]) - leaving <= set(replicas), "one that could stay was moved"


@given(any_cluster, st.data())
def test_draining_keeps_racks_as_far_as_those_who_stay_have_them(cluster: Cluster, data: st.DataObject) -> None:
    level = after(cluster.layout, rebalanced(cluster.layout, cluster.racks))
    leaving = {data.draw(st.sampled_from(sorted(cluster.racks)))}
    staying = {broker: rack for broker, rack in cluster.racks.items() if broker not in leaving}
    assume(staying and all(len(replicas) <= len(staying) for replicas in level.values()))
    most = spread(tuple(staying), staying)
    for partition, replicas in drained(level, cluster.racks, leaving).items():
        kept = [r for r in level[partition] if r in staying]
        possible = min(most, spread(tuple(kept), staying) + len(replicas) - len(kept))
        assert spread(replicas, staying) == possible


@given(without_racks(uniform=True), st.data())
def test_who_stays_is_level_after_a_drain(cluster: Cluster, data: st.DataObject) -> None:
    level = after(cluster.layout, rebalanced(cluster.layout, cluster.racks))
    leaving = {data.draw(st.sampled_from(sorted(cluster.racks)))}
    staying = {broker: rack for broker, rack in cluster.racks.items() if broker not in leaving}
    assume(staying and all(len(replicas) <= len(staying) for replicas in level.values()))
    rest = Cluster(staying, after(level, drained(level, cluster.racks, leaving)))
    for counts, limits in (
        (replica_counts(rest.layout), replica_limits(rest)),
        (leader_counts(rest.layout), leader_limits(rest)),
    ):
        assert all(low - 1 <= counts[broker] <= high + 1 for broker, (low, high) in limits.items())


@given(any_cluster, st.data())
def test_a_topic_is_placed_on_the_brokers_that_were_chosen_alone(cluster: Cluster, data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.sampled_from(sorted(cluster.racks)), min_size=1, unique=True))
    factor = data.draw(st.none() | st.integers(1, len(chosen)))
    if factor is None and any(len(replicas) > len(chosen) for replicas in cluster.layout.values()):
        with pytest.raises(ClientError, match="too few"):
            placed_on(cluster.layout, cluster.racks, chosen, factor)
        return
    plan = placed_on(cluster.layout, cluster.racks, chosen, factor)
    for partition, replicas in after(cluster.layout, plan).items():
        assert len(replicas) == len(set(replicas)) == (factor or len(cluster.layout[partition]))
        assert set(replicas) <= set(chosen)
        kept = set(cluster.layout[partition]) & set(chosen)
        assert len(set(replicas) & kept) == min(len(kept), len(replicas)), "one that could stay was moved"


def test_a_rack_with_few_brokers_makes_each_of_them_hold_more() -> None:
    assert shares([2] * 12, {1: "a", 2: "b", 3: "b", 4: "b"}) == {1: 12.0, 2: 4.0, 3: 4.0, 4: 4.0}
    assert shares([3] * 12, {1: "a", 2: "b", 3: "b", 4: "b"}) == {1: 12.0, 2: 8.0, 3: 8.0, 4: 8.0}
    assert shares([2] * 12, {1: "a", 2: "a", 3: "b", 4: "c"}) == {1: 6.0, 2: 6.0, 3: 6.0, 4: 6.0}
    assert shares([1] * 12, {1: "a", 2: None, 3: "b"}) == {1: 4.0, 2: 4.0, 3: 4.0}


def test_a_cluster_of_ten_thousand_partitions_can_be_planned_for() -> None:
    layout = {TopicPartition("t", n): (1 + n % 3, 1 + (n + 1) % 3) for n in range(10_000)}
    racks: Racks = dict.fromkeys(range(1, 7))
    plan = rebalanced(layout, racks)
    counts = replica_counts(after(layout, plan))
    assert max(counts.values()) <= 1.1 * min(counts.values()) / 0.9
