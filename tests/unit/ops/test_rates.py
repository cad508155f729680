from typing import Any

from headrace.health import HealthReport, ProblemCode, Severity, problem
from headrace.ops.overview import BrokerView, ClusterView, PartitionView
from headrace.ops.rates import LAG_SECONDS, Dashboard, RateModel
from headrace.ops.samples import BrokerReading, ClusterSample, GroupReading
from headrace.protocol.topic_partition import TopicPartition

ORDERS = TopicPartition("orders", 0)
PAYMENTS = TopicPartition("payments", 0)


def broker(number: int, *, alive: bool = True) -> BrokerView:
    return BrokerView(id=number, host="10.0.0.1", port=9090 + number, is_alive=alive)


def partition(where: TopicPartition, leader: int | None = 1, isr: tuple[int, ...] = (1, 2)) -> PartitionView:
    return PartitionView(
        topic=where.topic, partition=where.partition, leader=leader, leader_epoch=0, replicas=(1, 2), isr=isr
    )


def view(*partitions: PartitionView, brokers: tuple[BrokerView, ...] = (broker(1), broker(2))) -> ClusterView:
    return ClusterView(cluster_id="c", controller=1, brokers=brokers, partitions=partitions)


WELL = view(partition(ORDERS), partition(PAYMENTS))


def health(number: int, *codes: ProblemCode, **numbers: float) -> HealthReport:
    return HealthReport(
        broker_id=number,
        cluster_id="c",
        version="1",
        uptime_seconds=1.0,
        ready=not codes,
        problems=tuple(problem(code, "here", "it is so") for code in codes),
        numbers=numbers,
    )


def sample(at: float, seen: ClusterView | None = WELL, reason: str = "", **readings: dict[str, Any]) -> ClusterSample:
    """Readings by `b1=dict(...)`; brokers that are not named say nothing new."""
    found = {int(name[1:]): BrokerReading(**{"at": at, **values}) for name, values in readings.items()}
    return ClusterSample(at=at, view=seen, reason=reason, brokers=found)


def after(*samples: ClusterSample) -> Dashboard:
    model = RateModel()
    return [model.add(each) for each in samples][-1]


def group(committed: int, members: int = 1, state: str = "Stable") -> GroupReading:
    return GroupReading(group="billing", state=state, members=members, committed={ORDERS: committed})


def test_the_rate_of_a_topic_is_the_change_of_its_ends() -> None:
    seen = after(sample(10, b1={"ends": {ORDERS: 100, PAYMENTS: 7}}), sample(12, b1={"ends": {ORDERS: 500}}))
    assert {t.name: t.messages_in for t in seen.topics} == {"orders": 200.0, "payments": None}
    assert [b.messages_in for b in seen.brokers] == [200.0, None]


def test_partitions_that_are_read_in_turns_have_rates_over_their_own_times() -> None:
    seen = after(
        sample(10, b1={"ends": {ORDERS: 0}}),
        sample(12, b1={"ends": {PAYMENTS: 0}}),
        sample(14, b1={"ends": {ORDERS: 400}}),
        sample(16, b1={"ends": {PAYMENTS: 40}}),
    )
    assert {t.name: t.messages_in for t in seen.topics} == {"orders": 100.0, "payments": 10.0}


def test_counters_of_health_reports_are_preferred_to_what_logs_tell() -> None:
    first = {"health": health(1, bytes_in_total=0, bytes_out_total=50, messages_in_total=0), "sizes": {ORDERS: 0}}
    second = {"health": health(1, bytes_in_total=900, bytes_out_total=70, messages_in_total=4), "sizes": {ORDERS: 7}}
    row = after(sample(10, b1=first), sample(12, b1=second)).brokers[0]
    assert (row.bytes_in, row.bytes_out, row.messages_in) == (450.0, 10.0, 2.0)


def test_a_counter_that_begins_anew_has_no_rate_until_the_next_reading() -> None:
    counts = [health(1, bytes_in_total=n) for n in (1000, 10, 30)]
    samples = [sample(10 + n, b1={"health": report}) for n, report in enumerate(counts)]
    assert after(*samples[:2]).brokers[0].bytes_in is None
    assert after(*samples).brokers[0].bytes_in == 20.0


def test_sizes_of_logs_tell_bytes_in_and_the_size_of_one_copy() -> None:
    seen = after(
        sample(10, b1={"sizes": {ORDERS: 1000, PAYMENTS: 5}}, b2={"sizes": {ORDERS: 990}}),
        sample(15, b1={"sizes": {ORDERS: 2000, PAYMENTS: 5}}, b2={"sizes": {ORDERS: 1990}}),
    )
    assert {t.name: (t.bytes, t.bytes_in) for t in seen.topics} == {"orders": (2000, 200.0), "payments": (5, 0.0)}
    assert seen.brokers[0].bytes_in == 200.0


def test_a_broker_that_does_not_answer_is_critical_with_its_reason_and_shows_no_old_rates() -> None:
    down = {"reason": "10.0.0.1:9091: connection refused"}
    seen = after(sample(10, b1={"ends": {ORDERS: 1}}), sample(11, b1={"ends": {ORDERS: 2}}), sample(12, b1=down))
    row = seen.brokers[0]
    assert (row.severity, row.is_reached) == (Severity.CRITICAL, False)
    assert row.problem == "does not answer: 10.0.0.1:9091: connection refused"
    assert (row.messages_in, seen.topics[0].messages_in) == (None, None)
    assert (seen.severity, seen.headline) == (Severity.CRITICAL, "broker 1 does not answer")


def test_what_a_broker_reports_is_in_its_row_and_in_the_headline() -> None:
    seen = after(sample(10, b1={"health": health(1, ProblemCode.LOG_DIR_FULL, ProblemCode.UNDER_REPLICATED)}, b2={}))
    assert seen.brokers[0].problem == "disk full: it is so; partitions under-replicated: it is so"
    assert seen.headline == "broker 1 disk full"


def test_partitions_in_trouble_are_counted_once() -> None:
    seen = after(sample(10, view(partition(ORDERS, isr=(1,)), partition(PAYMENTS, leader=None, isr=()))))
    assert (seen.severity, seen.headline) == (Severity.CRITICAL, "1 offline; 1 under-replicated")
    assert [(t.under_replicated, t.offline) for t in seen.topics] == [(1, 0), (0, 1)]


def test_a_broker_that_left_the_view_but_answers_is_told_apart_from_one_that_is_dead() -> None:
    gone = view(partition(ORDERS), brokers=(broker(1), broker(2, alive=False)))
    assert after(sample(10, gone, b1={}, b2={})).brokers[1].problem == "answers, but is not registered in the cluster"


def test_an_unreachable_cluster_keeps_what_was_known_and_says_why() -> None:
    seen = after(sample(10, b1={}, b2={}), sample(12, reason="no broker answers"))
    assert (seen.severity, seen.headline, len(seen.brokers)) == (Severity.CRITICAL, "no broker answers", 2)


def test_a_cluster_that_was_never_reached_has_only_the_reason() -> None:
    seen = after(sample(10, None, reason="no broker answers"))
    assert (seen.severity, seen.headline, seen.brokers) == (Severity.CRITICAL, "no broker answers", ())


def test_lag_is_the_distance_to_the_ends_and_its_change_is_taken_over_a_while() -> None:
    model = RateModel()
    for second in range(40):
        end = 1000 * second  # committed every five seconds, which the change should not show
        reading = {"ends": {ORDERS: end}, "groups": (group(900 * (second - second % 5)),)}
        seen = model.add(sample(second, b1=reading))
    row = seen.groups[0]
    assert row.lag == 39_000 - 31_500
    assert row.lag_change is not None
    assert 0 < row.lag_change < 500
    assert (row.severity, row.problem) == (Severity.WARNING, "falls behind")
    assert len(model._groups["billing"].lags) <= LAG_SECONDS + 2


def test_a_group_without_members_whose_records_wait_is_pointed_at() -> None:
    seen = after(sample(10, b1={"ends": {ORDERS: 10}, "groups": (group(4, members=0, state="Empty"),)}))
    assert (seen.groups[0].lag, seen.groups[0].problem) == (6, "records wait, and it has no members")


def test_a_commit_ahead_of_the_end_that_was_read_is_no_negative_lag() -> None:
    assert after(sample(10, b1={"ends": {ORDERS: 10}, "groups": (group(12),)})).groups[0].lag == 0


def test_what_is_read_without_a_commit_is_lag_from_the_start_of_the_log() -> None:
    reading = GroupReading(group="billing", state="Stable", members=1, assigned=frozenset({ORDERS, PAYMENTS}))
    first = sample(10, b1={"ends": {ORDERS: 10}, "groups": (reading,)})
    row = after(first).groups[0]
    assert (row.lag, row.uncommitted) == (None, 2)
    row = after(first, sample(12, b1={"starts": {ORDERS: 4}})).groups[0]
    assert (row.lag, row.uncommitted) == (6, 2)


def test_partitions_without_a_commit_count_where_the_group_has_committed_another_of_the_topic() -> None:
    seen = view(partition(ORDERS), partition(TopicPartition("orders", 1)), partition(PAYMENTS))
    first = sample(10, seen, b1={"ends": {ORDERS: 10, ("orders", 1): 9, PAYMENTS: 5}, "groups": (group(4, members=0),)})
    row = after(first, sample(12, None, b1={"starts": {("orders", 1): 2}})).groups[0]
    assert (row.lag, row.uncommitted) == (6 + 7, 1)


def test_a_group_is_gone_when_its_coordinator_no_longer_lists_it() -> None:
    first = sample(10, b1={"groups": (group(1),), "listed": frozenset({"billing"})})
    assert after(first, sample(12, b2={"listed": frozenset()})).groups
    assert not after(first, sample(12, b1={"listed": frozenset()})).groups
    moved = sample(12, b2={"groups": (group(1),)})
    assert after(first, moved, sample(14, b1={"listed": frozenset()})).groups[0].coordinator == 2


def test_a_deleted_topic_is_forgotten() -> None:
    model = RateModel()
    model.add(sample(10, b1={"ends": {ORDERS: 5}, "sizes": {ORDERS: 5}}))
    model.add(sample(12, view(partition(PAYMENTS))))
    assert not model.partitions_of("orders")
    assert ORDERS not in model._ends


def test_details_have_each_partition() -> None:
    model = RateModel()
    model.add(sample(10, b1={"ends": {ORDERS: 5}, "groups": (group(2),)}))
    model.add(sample(11, b1={"ends": {ORDERS: 8}, "sizes": {ORDERS: 80}}))
    (row,) = model.partitions_of("orders")
    assert (row.end, row.bytes, row.messages_in, row.leader) == (8, 80, 3.0, 1)
    assert [(p.topic, p.committed, p.end, p.lag) for p in model.progress_of("billing")] == [("orders", 2, 8, 6)]
    assert model.progress_of("nobody") == []


def test_the_loop_delay_is_shown_in_milliseconds() -> None:
    reading = {"health": health(1, loop_delay_p99_seconds=0.012)}
    assert after(sample(10, b1=reading)).brokers[0].loop_delay_ms == 12.0
