"""The streaming reader as Spark drives it."""

import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows

from headrace.client.columnar.model import OffsetsGone, Range, TopicPartition
from headrace.spark.errors import QueryError
from headrace.spark.source.offsets import NOT_STARTED
from headrace.spark.source.options import TriggerLimits, parse
from headrace.spark.source.reading import RangeTask, Rows
from headrace.spark.source.stream import StreamReader, limited
from tests.support.spark.logs import FakeLog, FakeLogs

IDS = {"": {"t": "dA"}}
"""The id of the topic, as offsets have it."""


class Cluster(FakeLogs):
    """Fake logs that groups can commit to."""

    def __init__(self, *logs: FakeLog) -> None:
        super().__init__({"t": list(logs)})
        self.committed: list[Any] = []

    def commit(self, group: str, offsets: Any) -> None:
        self.committed.append((group, offsets))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster(FakeLog(0, 7), FakeLog(0, 3))
    monkeypatch.setattr("headrace.spark.source.stream.shared_cluster", lambda _settings: cluster)
    return cluster


def _reader(**options: str) -> StreamReader:
    return StreamReader(Rows(parse({"bootstrap": "localhost:1", "subscribe": "t", **options}), ["value"]))


def _tasks(reader: StreamReader, start: Any, end: Any) -> list[Any]:
    return [task.value for task in reader.partitions(start, end) if isinstance(task, RangeTask)]


def test_a_query_reads_from_the_earliest_to_the_end(cluster: Cluster) -> None:
    reader = _reader(startingOffsets="earliest")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert (start, end) == ({**IDS, "t": {"0": 0, "1": 0}}, {**IDS, "t": {"0": 7, "1": 3}})
    assert reader.reportLatestOffset() == {"t": {"0": 7, "1": 3}}
    assert _tasks(reader, start, end) == [[("t", 0, 0, 7), ("t", 1, 0, 3)]]


def test_a_query_from_the_latest_first_writes_down_where_it_starts(cluster: Cluster) -> None:
    reader = _reader()
    assert reader.initialOffset() == NOT_STARTED
    start = reader.latestOffset(NOT_STARTED, ReadAllAvailable())
    assert start == {**IDS, "t": {"0": 7, "1": 3}}
    assert reader.partitions(NOT_STARTED, start) == []


def test_a_first_micro_batch_that_was_cut_short_still_reads_nothing_and_the_next_reads_all_since(
    cluster: Cluster,
) -> None:
    start = {"t": {"0": 5, "1": 3}}
    reader = _reader()
    assert reader.partitions(reader.initialOffset(), start) == []
    end = reader.latestOffset(start, ReadAllAvailable())
    assert _tasks(reader, start, end) == [[("t", 0, 5, 7)]]


def test_a_query_that_is_started_again_knows_its_topics_by_their_ids(cluster: Cluster) -> None:
    start = _reader(startingOffsets="earliest").initialOffset()
    end = _reader().latestOffset(start, ReadAllAvailable())
    task = _reader().partitions(start, end)[0]
    assert isinstance(task, RangeTask)
    assert pickle.loads(pickle.dumps(task)).topic_ids == {"t": b"t"}
    cluster.create("t", FakeLog(0, 100), FakeLog(0, 100))
    with pytest.raises(QueryError, match="topic 't' was deleted and made anew"):
        _reader().latestOffset(end, ReadAllAvailable())
    with pytest.raises(QueryError, match="topic 't' was deleted and made anew"):
        _reader().partitions(start, end)


def test_a_checkpoint_without_ids_is_read(cluster: Cluster) -> None:
    start = {"t": {"0": 5, "1": 3}}
    assert _reader().latestOffset(start, ReadAllAvailable()) == {**IDS, "t": {"0": 7, "1": 3}}
    assert _tasks(_reader(), start, {"t": {"0": 7, "1": 3}}) == [[("t", 0, 5, 7)]]


def test_many_records_are_read_by_a_task_for_each_partition(cluster: Cluster) -> None:
    for log in cluster.by_topic["t"]:
        log.latest = 4000
    start, end = {"t": {"0": 0, "1": 0}}, {"t": {"0": 4000, "1": 4000}}
    assert _tasks(_reader(), start, end) == [[("t", 0, 0, 4000)], [("t", 1, 0, 4000)]]


def test_a_user_who_splits_a_batch_gets_what_was_asked_for(cluster: Cluster) -> None:
    start, end = {"t": {"0": 0, "1": 0}}, {"t": {"0": 7, "1": 3}}
    assert len(_tasks(_reader(minPartitions="2"), start, end)) == 2
    assert len(_tasks(_reader(maxRecordsPerPartition="2"), start, end)) == 6


def test_what_is_finished_is_committed_also_when_nothing_follows(cluster: Cluster) -> None:
    reader = _reader(group="g", startingOffsets="earliest")
    for start in ({"t": {"0": 0, "1": 0}}, {"t": {"0": 7, "1": 3}}, {"t": {"0": 7, "1": 3}}):
        reader.latestOffset(start, ReadAllAvailable())
    assert [list(offsets.values()) for _, offsets in cluster.committed] == [[0, 0], [7, 3]]


def test_a_limit_on_bytes_does_not_fail_a_query_that_passes_over_expired_offsets(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.by_topic["t"] = [FakeLog(500, 900)]

    def read_ranges(_cluster: Any, wanted: Sequence[Range], **_how: Any) -> Iterator[pa.RecordBatch]:
        (one,) = wanted
        if one.start < 500:
            raise OffsetsGone(TopicPartition(one.topic, one.partition), one.start, 500, 900)
        count = one.end - one.start
        yield pa.record_batch(
            {
                "topic": ["t"] * count,
                "partition": [0] * count,
                "offset": range(one.start, one.end),
                "key": pa.nulls(count, pa.binary()),
                "value": [b"v" * 96] * count,
            }
        )

    monkeypatch.setattr("headrace.client.columnar.reader.read_ranges", read_ranges)
    reader = _reader(startingOffsets="earliest", maxBytesPerTrigger="9000", failOnDataLoss="false")
    end = reader.latestOffset({"t": {"0": 0}}, reader.getDefaultReadLimit())
    assert 50 < end["t"]["0"] < 100


def test_a_reader_travels_to_executors_without_what_it_knows(cluster: Cluster) -> None:
    assert pickle.loads(pickle.dumps(_reader()))._rows.columns == ["value"]


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({}, ReadAllAvailable()),
        ({"maxOffsetsPerTrigger": "5"}, ReadMaxRows(5)),
        ({"maxBytesPerTrigger": "5"}, ReadMaxBytes(5)),
        ({"minOffsetsPerTrigger": "5"}, ReadMinRows(5)),
        ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "9"}, ReadMaxRows(9)),
    ],
)
def test_options_set_the_limit(options: dict[str, str], limit: Any) -> None:
    assert _reader(**options).getDefaultReadLimit() == limit


def test_sparks_word_counts_and_the_other_limits_stay() -> None:
    configured = TriggerLimits(max_records=9, min_records=2, max_bytes=50)
    assert limited(configured, ReadAllAvailable()) is None
    assert limited(configured, ReadMaxRows(4)) == TriggerLimits(max_records=4, min_records=2, max_bytes=50)
    assert limited(configured, ReadMaxBytes(4)) == TriggerLimits(max_records=9, min_records=2, max_bytes=4)
    assert limited(configured, ReadMinRows(4)) == TriggerLimits(max_records=9, min_records=4, max_bytes=50)
