"""What is told from numbers that were seen over time."""

from math import inf, isclose

from headrace.server.monitoring.disk_trend import DiskTrend
from headrace.server.monitoring.gc_pauses import GcPauses
from headrace.server.monitoring.group_lag import EndHistory, Lag, LagReport
from headrace.server.monitoring.loop_delay import LoopDelay
from headrace.server.monitoring.request_times import FAST_NS, RequestTimes


def test_a_disk_that_fills_evenly_is_full_when_its_line_says() -> None:
    trend = DiskTrend()
    for number in range(10):
        trend.note(number * 10.0, 10_000 - number * 100)
    assert isclose(trend.full_in(), 9_100 / 10)


def test_a_disk_that_does_not_fill_is_never_full() -> None:
    trend = DiskTrend()
    assert trend.full_in() == inf
    for number in range(10):
        trend.note(number * 10.0, 10_000 + number % 2)
    trend.note(100.0, 20_000)
    assert trend.full_in() == inf


def test_seconds_behind_are_told_from_when_the_end_passed_the_offset() -> None:
    history = EndHistory()
    for number in range(11):
        history.note(100.0 + number, number * 10)
    assert history.seconds_behind(110.0, 100) == 0
    assert isclose(history.seconds_behind(110.0, 55), 4.5)
    assert isclose(history.seconds_behind(113.0, 55), 7.5)


def test_seconds_behind_are_a_lower_bound_where_the_first_look_came_too_late() -> None:
    history = EndHistory()
    history.note(100.0, 50)
    history.note(105.0, 60)
    assert history.seconds_behind(110.0, 3) == 10.0


def test_old_ends_are_remembered_ever_further_apart() -> None:
    history = EndHistory()
    for number in range(100_000):
        history.note(float(number), number)
    assert len(history._ends) <= 33
    assert abs(history.seconds_behind(100_000.0, 99_000) - 1_000) < 100
    assert history.seconds_behind(100_000.0, 10) > 50_000


def test_a_partition_that_was_made_anew_has_no_past() -> None:
    history = EndHistory()
    history.note(100.0, 1_000)
    history.note(200.0, 10)
    history.note(210.0, 20)
    assert history.seconds_behind(220.0, 15) == 15.0


def test_partitions_of_groups_beyond_the_limit_are_in_the_sums_alone() -> None:
    report = LagReport()
    for partition in range(5):
        report.add(Lag("g", "t", partition, 10, float(partition)), most=2)
    assert [lag.partition for lag in report.lags] == [0, 1]
    assert report.left_out == 3
    assert (report.groups["g"].records, report.groups["g"].seconds) == (50, 4.0)


def test_the_delay_of_the_loop_is_told_as_the_99th_of_a_hundred() -> None:
    delay = LoopDelay()
    assert delay.p99_seconds == 0
    for number in range(200):
        delay.note(number * 1_000_000)
    delay.note(-5)
    assert isclose(delay.p99_seconds, 0.197)
    assert delay.delays.count == 201


def test_pauses_are_counted_by_generation_while_it_listens() -> None:
    import gc

    pauses = GcPauses()
    pauses.listen()
    gc.collect(1)
    pauses.close()
    gc.collect(1)
    assert pauses.pauses[1].count == 1


def test_requests_of_quick_turns_and_of_others_are_counted_together() -> None:
    times = RequestTimes()
    produce = times.of("Produce")
    assert times.all() == []
    produce.fast += 10
    produce.served(2, 2 * FAST_NS, 1_000_000)
    produce.sent(2, FAST_NS)
    assert times.all() == [produce]
    assert produce.requests == 12
    counted = {phase: histogram.count + others for phase, histogram, others, _ in produce.phases()}
    assert counted == {"queue": 12, "local": 12, "remote": 0, "send": 12}
    assert produce.local.sum_ns == 2 * FAST_NS
