"""Which offsets a batch query reads."""

from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import datasource as ds

from headrace.client.columnar.model import LATEST, Range, TopicPartition, UnknownTopic
from headrace.config.setting import ConfigError
from headrace.spark.source.batch import plan
from headrace.spark.source.data_loss import DataLost
from headrace.spark.source.filters import Narrowing
from headrace.spark.source.options import Assigned, AtOffsets, AtTime, AtTimes, SourceOptions, Topics
from headrace.spark.source.planning import Splitting
from tests.support.spark.logs import FakeLog, FakeLogs

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def _options(**options: Any) -> SourceOptions:
    return SourceOptions(client={}, **{"subscription": Topics(("t",)), **options})


def _logs() -> FakeLogs:
    return FakeLogs({"t": [FakeLog(2, 10, times={5: 500}), FakeLog(0, 4)]})


def _planned(*filters: Any, **options: Any) -> list[Range]:
    narrowing = Narrowing()
    for one in filters:
        narrowing.take(one)
    return plan(_logs(), _options(**options), narrowing)


def test_a_batch_reads_all_there_is() -> None:
    assert _planned() == [Range("t", 0, 2, 10), Range("t", 1, 0, 4)]


def test_a_batch_reads_between_the_offsets_given() -> None:
    assert _planned(starting=AtOffsets({A: 3, B: -2}), ending=AtOffsets({A: 7, B: LATEST})) == [
        Range("t", 0, 3, 7),
        Range("t", 1, 0, 4),
    ]


def test_a_batch_reads_between_times() -> None:
    assert _planned(starting=AtTime(3), ending=AtTimes({A: 500, B: 9})) == [
        Range("t", 0, 3, 5),
        Range("t", 1, 3, 4),
    ]


def test_a_batch_reads_the_partitions_assigned() -> None:
    assert _planned(subscription=Assigned(frozenset({B}))) == [Range("t", 1, 0, 4)]
    with pytest.raises(ConfigError, match="assign names t-2"):
        _planned(subscription=Assigned(frozenset({TopicPartition("t", 2)})))


def test_a_topic_that_does_not_exist_is_named() -> None:
    with pytest.raises(UnknownTopic, match="topic 'u' does not exist"):
        _planned(subscription=Topics(("t", "u")))


def test_a_batch_is_cut_into_tasks() -> None:
    assert len(_planned(splitting=Splitting(max_records=2))) == 6


@pytest.mark.parametrize(
    ("starting", "ending"),
    [({A: 1, B: 0}, {A: 10, B: 4}), ({A: 2, B: 0}, {A: 11, B: 4}), ({A: 11, B: 0}, {A: LATEST, B: 4})],
)
def test_offsets_that_the_log_does_not_have_fail_the_query(starting: Any, ending: Any) -> None:
    with pytest.raises(DataLost, match=r"of t-0 are asked for, but the log has 2 up to 10"):
        _planned(starting=AtOffsets(starting), ending=AtOffsets(ending))


def test_offsets_that_the_log_does_not_have_can_be_passed_over() -> None:
    options = {"starting": AtOffsets({A: 0, B: 0}), "ending": AtOffsets({A: 99, B: 1})}
    assert _planned(**options, fail_on_data_loss=False) == [Range("t", 0, 2, 10), Range("t", 1, 0, 1)]


def test_offsets_that_an_open_transaction_holds_back_are_not_lost() -> None:
    logs = FakeLogs({"t": [FakeLog(0, 10, stable=4)]})
    offsets = {"starting": AtOffsets({A: 1}), "ending": AtOffsets({A: 8})}
    assert plan(logs, _options(**offsets, read_committed=True), Narrowing()) == [Range("t", 0, 1, 8)]
    to_the_end = _options(starting=AtOffsets({A: 1}), read_committed=True)
    assert plan(logs, to_the_end, Narrowing()) == [Range("t", 0, 1, 4)]


def test_filters_leave_less_to_read() -> None:
    assert _planned(ds.EqualTo(("partition",), 1)) == [Range("t", 1, 0, 4)]
    assert _planned(ds.GreaterThanOrEqual(("offset",), 8)) == [Range("t", 0, 8, 10)]
    assert _planned(ds.EqualTo(("topic",), "u")) == []


def test_a_filter_on_time_starts_at_the_first_record_that_late() -> None:
    late = datetime.fromtimestamp(0.1, UTC)
    assert _planned(ds.GreaterThan(("timestamp",), late)) == [Range("t", 0, 5, 10)]
