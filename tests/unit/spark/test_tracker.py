"""What a streaming query reads next, as logs grow, shrink, appear and vanish."""

import logging
from typing import Any

import pytest

from headrace.client.columnar.model import EARLIEST, LATEST, Range, TopicPartition, UnknownTopic
from headrace.config.setting import ConfigError
from headrace.spark.source.data_loss import DataLost
from headrace.spark.source.offsets import Offsets
from headrace.spark.source.options import AtEnd, AtOffsets, AtTime, SourceOptions, Topics, TriggerLimits, parse
from headrace.spark.source.sizes import Sample, Sizes
from headrace.spark.source.tracker import Tracker
from tests.support.spark.logs import FakeClock, FakeLog, FakeLogs

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
ALL = None


class Query:
    """A tracker with its logs and its clock, driven the way Spark drives it."""

    def __init__(self, topics: dict[str, list[FakeLog]], **options: Any) -> None:
        self.logs = FakeLogs(topics)
        self.clock = FakeClock()
        self.samples = 0
        self.options = SourceOptions(client={}, **{"subscription": Topics(tuple(topics)), **options})
        self.tracker = self.restart()

    def restart(self) -> Tracker:
        sizes = Sizes(self._sample, self.clock)
        self.tracker = Tracker(self.options, self.logs, sizes, clock=self.clock, sleep=self.clock.sleep)
        return self.tracker

    def later(self, start: Offsets, trigger: TriggerLimits | None = ALL, seconds: float = 1.0) -> Offsets:
        self.clock.now += seconds
        return self.tracker.latest(start, trigger)

    def _sample(self, wanted: Range) -> Sample:
        self.samples += 1
        return Sample(wanted.end - wanted.start, 10 * (wanted.end - wanted.start))


def test_a_new_query_starts_at_the_end_and_the_start_stays_the_same() -> None:
    query = Query({"t": [FakeLog(2, 7), FakeLog(0, 3)]})
    assert query.tracker.initial() == {A: 7, B: 3}
    query.logs.by_topic["t"][0].latest = 99
    assert query.tracker.initial() == {A: 7, B: 3}


def test_a_query_can_start_at_offsets_and_at_times() -> None:
    topics = {"t": [FakeLog(2, 7, times={5: 50}), FakeLog(0, 3, times={1: 90})]}
    assert Query(topics, starting=AtOffsets({A: 4, B: LATEST})).tracker.initial() == {A: 4, B: 3}
    assert Query(topics, starting=AtTime(50)).tracker.initial() == {A: 5, B: 1}


def test_a_query_goes_no_further_than_its_stop_however_far_the_logs_go() -> None:
    query = Query({"t": [FakeLog(2, 7), FakeLog(0, 3)]}, starting=AtEnd(EARLIEST), stop_at={A: 5, B: 9})
    assert query.later(query.tracker.initial()) == {A: 5, B: 3} == query.tracker.seen
    query.logs.by_topic["t"][1].latest = 99
    assert query.later({A: 5, B: 3}) == {A: 5, B: 9}
    query.restart().stop_at_present_end()
    assert query.later({A: 2, B: 0}) == {A: 5, B: 9}
    assert query.tracker.ranges({A: 2, B: 0}, {A: 5, B: 9}) == [Range("t", 0, 2, 5), Range("t", 1, 0, 9)]


@pytest.mark.parametrize("offset", [1, 8])
def test_a_start_that_the_log_does_not_have_is_told_before_it_is_written_down(offset: int) -> None:
    wrong = AtOffsets({A: offset, B: 3})
    topics = {"t": [FakeLog(2, 7), FakeLog(0, 3)]}
    with pytest.raises(DataLost, match=f"startingOffsets has {offset} for t-0, but the log has 2 up to 7"):
        Query(topics, starting=wrong).tracker.initial()
    assert Query(topics, starting=wrong, fail_on_data_loss=False).tracker.initial() == {A: 2, B: 3}


def test_a_time_that_no_record_has_reached_is_an_error_or_the_end() -> None:
    topics = {"t": [FakeLog(0, 7)]}
    with pytest.raises(ConfigError, match="no record of t-0 is as late as 5000 ms"):
        Query(topics, starting=AtTime(5000)).tracker.initial()
    assert Query(topics, starting=AtTime(5000), latest_if_no_match=True).tracker.initial() == {A: 7}


def test_offsets_must_name_every_partition_and_no_other() -> None:
    topics = {"t": [FakeLog(0, 7), FakeLog(0, 7)]}
    with pytest.raises(ConfigError, match=r"startingOffsets must name every partition.*lacks t-1"):
        Query(topics, starting=AtOffsets({A: 1})).tracker.initial()
    with pytest.raises(ConfigError, match="names u-0, which the query does not read"):
        Query(topics, starting=AtOffsets({A: 1, B: 1, TopicPartition("u", 0): 1})).tracker.initial()


def test_a_topic_that_is_not_there_stops_a_new_query() -> None:
    query = Query({}, subscription=Topics(("missing",)))
    with pytest.raises(UnknownTopic, match="missing"):
        query.tracker.initial()


def test_a_micro_batch_takes_all_there_is() -> None:
    query = Query({"t": [FakeLog(0, 7)]})
    assert query.later({A: 2}) == {A: 7}
    assert query.tracker.ranges({A: 2}, {A: 7}) == [Range("t", 0, 2, 7)]


def test_committed_reads_end_where_transactions_are_open() -> None:
    query = Query({"t": [FakeLog(0, 7, stable=4)]}, read_committed=True)
    assert query.later({A: 0}) == {A: 4}


def test_a_query_that_has_read_past_an_open_transaction_waits_for_it_when_it_changes_to_committed_reads() -> None:
    query = Query({"t": [FakeLog(0, 9, stable=4)]}, read_committed=True)
    assert query.later({A: 7}) == {A: 7}
    assert query.tracker.ranges({A: 3}, {A: 7}) == [Range(*A, 3, 7)]
    query.logs.by_topic["t"][0].stable = 9
    assert query.later({A: 7}) == {A: 9}
    query.logs.by_topic["t"][0].latest = query.logs.by_topic["t"][0].stable = 5
    with pytest.raises(DataLost, match="went back from offset 7 to 5"):
        query.later({A: 7})


def test_a_trigger_limits_records_in_proportion() -> None:
    query = Query({"t": [FakeLog(0, 900), FakeLog(0, 100)]})
    assert query.later({A: 0, B: 0}, TriggerLimits(max_records=100)) == {A: 90, B: 10}


def test_a_trigger_limits_bytes_by_a_sample_that_lasts_a_while() -> None:
    query = Query({"t": [FakeLog(0, 1000)]})
    assert query.later({A: 0}, TriggerLimits(max_bytes=500)) == {A: 50}
    assert query.later({A: 50}, TriggerLimits(max_bytes=500)) == {A: 100}
    assert query.samples == 1
    query.later({A: 100}, TriggerLimits(max_bytes=500), seconds=10)
    assert query.samples == 2


def test_a_stream_that_stays_far_below_its_limit_is_sampled_once() -> None:
    query = Query({"t": [FakeLog(0, 10)]})
    for latest in range(10, 100, 10):
        query.logs.by_topic["t"][0].latest = latest
        assert query.later({A: latest - 10}, TriggerLimits(max_bytes=10_000), seconds=10) == {A: latest}
    assert query.samples == 1
    query.logs.by_topic["t"][0].latest = 1000
    assert query.later({A: 100}, TriggerLimits(max_bytes=5_000), seconds=10) == {A: 600}
    assert query.samples == 2


def test_a_front_without_records_is_looked_past_to_know_their_size() -> None:
    def compacted(wanted: Range) -> Sample:
        records = max(0, wanted.end - max(wanted.start, 400))
        return Sample(records, 10 * records)

    assert Sizes(compacted).estimate({A: 0}, {A: 1000}) == {A: 10.0}


def test_the_stricter_of_two_limits_holds() -> None:
    query = Query({"t": [FakeLog(0, 1000)]})
    assert query.later({A: 0}, TriggerLimits(max_bytes=500, max_records=20)) == {A: 20}


def test_too_few_records_wait_for_more_but_not_for_ever() -> None:
    query = Query({"t": [FakeLog(0, 5)]})
    wait = TriggerLimits(min_records=10, max_delay=60)
    assert query.later({A: 0}, wait) == {A: 5}, "the first micro-batch has waited long enough"
    query.logs.by_topic["t"][0].latest = 9
    assert query.later({A: 5}, wait) == {A: 5}
    query.logs.by_topic["t"][0].latest = 15
    assert query.later({A: 5}, wait) == {A: 15}
    query.logs.by_topic["t"][0].latest = 16
    assert query.later({A: 15}, wait, seconds=59) == {A: 15}
    assert query.later({A: 15}, wait, seconds=2) == {A: 16}


def test_a_query_that_ends_with_what_is_there_does_not_wait() -> None:
    query = Query({"t": [FakeLog(0, 5)]})
    query.tracker.stop_at_present_end()
    wait = TriggerLimits(min_records=10, max_records=3)
    assert query.later({A: 0}, wait) == {A: 3}
    assert query.later({A: 3}, wait) == {A: 5}


def test_a_query_that_ends_with_what_is_there_sees_nothing_newer() -> None:
    query = Query({"t": [FakeLog(0, 5)]})
    query.tracker.stop_at_present_end()
    query.logs.by_topic["t"][0].latest = 50
    query.logs.by_topic["t"].append(FakeLog(0, 9))
    assert query.later({A: 0}) == {A: 5}
    assert query.later({A: 5}) == {A: 5}


def test_a_start_beyond_the_end_seen_is_no_loss_if_the_log_has_it() -> None:
    query = Query({"t": [FakeLog(0, 5)]})
    query.tracker.stop_at_present_end()
    query.logs.by_topic["t"][0].latest = 8
    assert query.later({A: 8}) == {A: 8}


def test_a_new_partition_is_found_and_read_from_its_beginning() -> None:
    query = Query({"t": [FakeLog(0, 5)]})
    assert query.later({A: 5}) == {A: 5}
    query.logs.by_topic["t"].append(FakeLog(0, 3))
    assert query.later({A: 5}) == {A: 5, B: 3}
    assert query.tracker.ranges({A: 5}, {A: 5, B: 3}) == [Range("t", 1, 0, 3)]


def test_a_limit_holds_for_a_new_partition_too() -> None:
    query = Query({"t": [FakeLog(0, 5), FakeLog(10, 110)]}, fail_on_data_loss=False)
    assert query.later({A: 5}, TriggerLimits(max_records=30)) == {A: 5, B: 40}


def test_a_new_topic_that_matches_is_found() -> None:
    options = parse({"subscribePattern": "t.*", "bootstrap": "localhost:1"})
    query = Query({"t": [FakeLog(0, 5)], "other": [FakeLog(0, 5)]}, subscription=options.subscription)
    assert query.later({A: 5}) == {A: 5}
    query.logs.create("t2", FakeLog(0, 1))
    assert query.later({A: 5}) == {A: 5, TopicPartition("t2", 0): 1}


def test_a_pattern_that_matches_nothing_waits_for_topics() -> None:
    options = parse({"subscribePattern": "none", "bootstrap": "localhost:1"})
    query = Query({"t": [FakeLog(0, 5)]}, subscription=options.subscription)
    assert query.tracker.initial() == {}
    assert query.later({}) == {}
    assert query.tracker.ranges({}, {}) == []


def test_a_deleted_topic_fails_the_query() -> None:
    query = Query({"t": [FakeLog(0, 5)], "u": [FakeLog(0, 1)]}, retries=2)
    query.logs.delete("t")
    with pytest.raises(DataLost, match=r"t-0 is gone\..*set option failOnDataLoss to false"):
        query.later({A: 5, TopicPartition("u", 0): 1})


def test_a_deleted_topic_can_be_passed_over_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    query = Query({"t": [FakeLog(0, 5)], "u": [FakeLog(0, 3)]}, fail_on_data_loss=False)
    query.logs.delete("t")
    start, end = {A: 5, TopicPartition("u", 0): 1}, {TopicPartition("u", 0): 3}
    with caplog.at_level(logging.WARNING):
        assert query.later(start) == end
        assert query.tracker.ranges(start, end) == [Range("u", 0, 1, 3)]
    assert "t-0 is gone" in caplog.text
    assert query.later(end) == end


def test_offsets_that_seem_to_go_back_are_looked_at_again() -> None:
    query = Query({"t": [FakeLog(0, 4)]})
    sleep = query.clock.sleep

    def catch_up(seconds: float) -> None:
        sleep(seconds)
        query.logs.by_topic["t"][0].latest = 6

    query.tracker._sleep = catch_up
    assert query.later({A: 5}) == {A: 6}


def test_offsets_that_went_back_fail_the_query() -> None:
    query = Query({"t": [FakeLog(0, 4)]})
    with pytest.raises(DataLost, match="t-0 went back from offset 5 to 4"):
        query.later({A: 5})


def test_what_is_there_after_offsets_went_back_is_read() -> None:
    query = Query({"t": [FakeLog(1, 4)]}, fail_on_data_loss=False)
    assert query.later({A: 5}) == {A: 4}
    assert query.tracker.ranges({A: 5}, {A: 4}) == [Range("t", 0, 1, 4)]


def test_a_log_that_was_truncated_while_the_query_was_down_is_not_read_again() -> None:
    query = Query({"t": [FakeLog(0, 4), FakeLog(0, 3)]}, fail_on_data_loss=False)
    start = {A: 5, B: 3}
    end = query.tracker.latest(start, ALL, {"t": b"t"})
    assert end == {A: 4, B: 3}
    assert query.tracker.ranges(start, end, {"t": b"t"}) == []


def test_a_log_that_was_truncated_under_a_running_query_is_not_read_again() -> None:
    query = Query({"t": [FakeLog(0, 5), FakeLog(0, 3)]}, fail_on_data_loss=False)
    assert query.later({A: 0, B: 0}) == {A: 5, B: 3}
    query.logs.by_topic["t"][0].latest = 4
    assert query.later({A: 5, B: 3}) == {A: 4, B: 3}
    assert query.tracker.ranges({A: 5, B: 3}, {A: 4, B: 3}) == []
    query.logs.by_topic["t"][0].latest = 7
    assert query.later({A: 4, B: 3}, TriggerLimits(max_records=2)) == {A: 6, B: 3}
    assert query.tracker.ranges({A: 4, B: 3}, {A: 6, B: 3}) == [Range("t", 0, 4, 6)]


def test_a_limited_micro_batch_passes_over_a_log_that_was_truncated() -> None:
    query = Query({"t": [FakeLog(0, 5), FakeLog(0, 3)]}, fail_on_data_loss=False)
    query.later({A: 0, B: 0})
    query.logs.by_topic["t"][0].latest = 4
    query.logs.by_topic["t"][1].latest = 9
    end = query.later({A: 5, B: 3}, TriggerLimits(max_records=2))
    assert end == {A: 4, B: 5}
    assert query.tracker.ranges({A: 5, B: 3}, end) == [Range("t", 1, 3, 5)]


def test_a_topic_made_anew_is_told_from_the_old_one_however_long_it_is() -> None:
    query = Query({"t": [FakeLog(0, 5)]}, fail_on_data_loss=False)
    assert query.later({A: 5}) == {A: 5}
    query.logs.create("t", FakeLog(0, 100))
    assert query.later({A: 5}) == {}
    assert query.tracker.ranges({A: 5}, {}) == []
    assert query.later({}) == {A: 100}
    assert query.tracker.ranges({}, {A: 100}) == [Range("t", 0, 0, 100)]
    assert query.later({A: 100}) == {A: 100}


def test_a_topic_made_anew_with_fewer_partitions_between_two_looks_is_passed_over() -> None:
    query = Query({"t": [FakeLog(0, 5), FakeLog(0, 5)]}, fail_on_data_loss=False)
    assert query.later({A: 0, B: 0}) == {A: 5, B: 5}
    query.logs.create("t", FakeLog(0, 7))
    assert B not in query.later({A: 5, B: 5}, seconds=0.1)


def test_a_topic_made_anew_fails_the_query() -> None:
    query = Query({"t": [FakeLog(0, 5)]})
    query.later({A: 5})
    query.logs.create("t", FakeLog(0, 100))
    with pytest.raises(DataLost, match="topic 't' was deleted and made anew"):
        query.later({A: 5})


@pytest.mark.parametrize("length", [3, 5, 100])
def test_a_topic_made_anew_while_the_query_was_down_fails_it_however_long_it_is(length: int) -> None:
    query = Query({"t": [FakeLog(0, 5)]}, retries=1)
    end = query.later({A: 0})
    ids = query.tracker.ids(end)
    query.logs.create("t", FakeLog(0, length))
    query.restart()
    with pytest.raises(DataLost, match="topic 't' was deleted and made anew"):
        query.tracker.latest(end, ALL, ids)


@pytest.mark.parametrize("length", [3, 5, 100])
def test_a_topic_made_anew_while_the_query_was_down_is_read_from_its_beginning(length: int) -> None:
    query = Query({"t": [FakeLog(0, 5)], "u": [FakeLog(0, 5)]}, fail_on_data_loss=False)
    other = TopicPartition("u", 0)
    end = query.later({A: 0, other: 0})
    ids = query.tracker.ids(end)
    query.logs.create("t", FakeLog(0, length))
    query.restart()
    without = query.tracker.latest(end, ALL, ids)
    assert without == {other: 5}
    assert query.tracker.ranges(end, without, query.tracker.ids(without)) == []
    found = query.tracker.latest(without, ALL, query.tracker.ids(without))
    assert query.tracker.ranges(without, found, query.tracker.ids(found)) == [Range("t", 0, 0, length)]
    assert query.tracker.latest(found, ALL, query.tracker.ids(found)) == found


def test_a_query_of_a_time_without_ids_goes_on_and_knows_them_from_then_on() -> None:
    query = Query({"t": [FakeLog(0, 9)]})
    end = query.tracker.latest({A: 5}, ALL)
    assert query.tracker.ranges({A: 5}, end, query.tracker.ids(end)) == [Range("t", 0, 5, 9)]
    assert query.tracker.ids(end) == {"t": b"t"}


def test_a_micro_batch_planned_of_a_topic_that_was_made_anew_is_not_read_from_the_new_one() -> None:
    query = Query({"t": [FakeLog(0, 9)], "u": [FakeLog(0, 9)]})
    other = TopicPartition("u", 0)
    start, end = {A: 2, other: 2}, {A: 7, other: 7}
    with pytest.raises(DataLost, match="topic 't' was deleted and made anew"):
        query.tracker.ranges(start, end, {"t": b"another", "u": b"u"})
    query = Query({"t": [FakeLog(0, 9)], "u": [FakeLog(0, 9)]}, fail_on_data_loss=False)
    assert query.tracker.ranges(start, end, {"t": b"another", "u": b"u"}) == [Range("u", 0, 2, 7)]


def test_a_micro_batch_planned_by_an_earlier_run_is_read_as_it_was_planned() -> None:
    query = Query({"t": [FakeLog(0, 9)]})
    assert query.tracker.ranges({A: 2}, {A: 7}) == [Range("t", 0, 2, 7)]


def test_a_first_micro_batch_planned_by_an_earlier_run_leaves_newer_partitions_for_later() -> None:
    query = Query({"t": [FakeLog(0, 9), FakeLog(0, 4)]}, starting=AtEnd(EARLIEST))
    start = query.tracker.initial()
    assert query.tracker.ranges(start, {A: 7}) == [Range("t", 0, 0, 7)]
    assert query.later({A: 7}) == {A: 9, B: 4}


def test_a_micro_batch_planned_by_an_earlier_run_may_find_its_log_shorter() -> None:
    query = Query({"t": [FakeLog(0, 5)]})
    with pytest.raises(DataLost, match="t-0 ends at offset 5, before 7"):
        query.tracker.ranges({A: 2}, {A: 7})
    query = Query({"t": [FakeLog(0, 5)]}, fail_on_data_loss=False)
    assert query.tracker.ranges({A: 2}, {A: 7}) == [Range("t", 0, 2, 5)]


def test_a_quiet_query_asks_the_cluster_ever_less_often() -> None:
    query = Query({"t": [FakeLog(0, 5)]})
    query.later({A: 5})
    before, since = query.logs.offset_requests, query.clock.now
    while query.clock.now < since + 10:
        assert query.later({A: 5}, seconds=0.01) == {A: 5}
    assert 150 < query.logs.offset_requests - before < 260
    assert query.logs.metadata_requests < 15


def test_records_are_seen_at_once_while_they_keep_coming() -> None:
    query = Query({"t": [FakeLog(0, 5)]})
    query.later({A: 0})
    for latest in range(6, 60):
        query.logs.by_topic["t"][0].latest = latest
        before = query.clock.now
        assert query.later({A: latest - 1}, seconds=0.01) == {A: latest}
        assert query.clock.now - before < 0.012


def test_an_answer_is_never_older_than_the_question() -> None:
    query = Query({"t": [FakeLog(0, 5)]})
    for _ in range(100):
        query.later({A: 5}, seconds=0.01)
    query.logs.by_topic["t"][0].latest = 6
    assert query.later({A: 5}, seconds=0.0) == {A: 6}


def test_micro_batches_that_follow_each_other_do_not_wait() -> None:
    query = Query({"t": [FakeLog(0, 5)]})
    for _ in range(100):
        query.later({A: 5}, seconds=0.1)
    before = query.clock.now
    query.later({A: 5}, seconds=0.1)
    assert query.clock.now - before == pytest.approx(0.1)


def test_the_ends_are_reported_whatever_the_limit() -> None:
    query = Query({"t": [FakeLog(0, 50)]}, starting=AtEnd(LATEST))
    query.later({A: 0}, TriggerLimits(max_records=5))
    assert query.tracker.seen == {A: 50}
