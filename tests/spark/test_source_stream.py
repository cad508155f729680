"""Streaming queries: each record once, over restarts and changes of the topics, and a lag that shows."""

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.ops.groups import GroupAdmin
from tests.support.spark.queries import started
from tests.support.spark.topics import Topics

Query = Any

_PATIENCE = 240.0
"""Seconds that a busy machine may take for what takes one."""


class Stream:
    """A streaming query from topics to Parquet files, started as often as a test likes."""

    def __init__(self, spark: Any, topics: Topics, place: Path) -> None:
        self._spark = spark
        self._topics = topics
        self._place = place

    def _start(self, trigger: dict[str, Any], options: dict[str, str]) -> Query:
        frame = (
            self._spark.readStream.format("headrace")
            .option("kafka.bootstrap.servers", self._topics.bootstrap)
            .options(**{"startingOffsets": "earliest", "fetchOffset.retryIntervalMs": "10", **options})
            .load()
        )
        writer = frame.writeStream.option("checkpointLocation", str(self._place / "checkpoint"))
        return writer.trigger(**trigger).format("parquet").start(str(self._place / "rows"))

    def run(self, **options: str) -> Query:
        """Read what is there, and end."""

        def ends(query: Query) -> None:
            assert query.awaitTermination(_PATIENCE), f"after {_PATIENCE:g} s: {query.status}"

        return started(lambda: self._start({"availableNow": True}, options), ends)

    @contextlib.contextmanager
    def running(self, **options: str) -> Iterator[Query]:
        """A query that has read what was there, and goes on."""
        query = started(
            lambda: self._start({"processingTime": "0 seconds"}, options), lambda query: query.processAllAvailable()
        )
        try:
            yield query
        finally:
            query.stop()

    def values(self) -> list[int]:
        rows = self._spark.read.schema("value binary").parquet(str(self._place / "rows")).collect()
        return sorted(int(row.value) for row in rows)


@pytest.fixture
def stream(spark: Any, topics: Topics, tmp_path: Path) -> Stream:
    return Stream(spark, topics, tmp_path)


def _numbers(start: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, end)]


def _eventually(holds: Callable[[], bool], seconds: float = _PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.05)


def test_a_restarted_query_goes_on_where_it_stopped(stream: Stream, topics: Topics) -> None:
    topic = topics.create(partitions=2)
    for run in range(3):
        topics.fill(topic, _numbers(100 * run, 100 * run + 100))
        stream.run(subscribe=topic)
    assert stream.values() == list(range(300))


def test_a_query_that_starts_at_the_end_misses_nothing_while_it_is_down(stream: Stream, topics: Topics) -> None:
    topic = topics.create(partitions=2)
    topics.fill(topic, _numbers(0, 10))
    stream.run(subscribe=topic, startingOffsets="latest")
    topics.fill(topic, _numbers(10, 20))
    stream.run(subscribe=topic, startingOffsets="latest")
    assert stream.values() == list(range(10, 20))


def test_limits_make_several_micro_batches_that_end_with_what_was_there(stream: Stream, topics: Topics) -> None:
    topic = topics.create(partitions=2)
    topics.fill(topic, _numbers(0, 100), partition=lambda number: number % 2)
    query = stream.run(subscribe=topic, maxOffsetsPerTrigger="40", minOffsetsPerTrigger="10")
    sizes = [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]
    assert sizes == [40, 40, 20]
    assert json.loads(query.lastProgress["sources"][0]["latestOffset"]) == {topic: {"0": 50, "1": 50}}
    assert stream.values() == list(range(100))


def test_too_few_records_are_waited_for_but_not_longer_than_allowed(stream: Stream, topics: Topics, spark: Any) -> None:
    topic = topics.create()
    topics.fill(topic, _numbers(0, 10))
    spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "500")  # so that a query tells what it waits for
    with stream.running(subscribe=topic, minOffsetsPerTrigger="100", maxTriggerDelay="10m") as query:
        _eventually(lambda: _sizes(query) == [10])
        topics.fill(topic, _numbers(10, 60))
        _eventually(lambda: json.loads(query.lastProgress["sources"][0]["latestOffset"]) == {topic: {"0": 60}})
        assert _sizes(query) == [10]
        topics.fill(topic, _numbers(60, 110))
        _eventually(lambda: _sizes(query) == [10, 100])
    with stream.running(subscribe=topic, minOffsetsPerTrigger="100", maxTriggerDelay="1s") as query:
        topics.fill(topic, _numbers(110, 115))
        _eventually(lambda: _sizes(query) == [5])
        topics.fill(topic, _numbers(115, 120))
        _eventually(lambda: _sizes(query) == [5, 5])
    spark.conf.unset("spark.sql.streaming.noDataProgressEventInterval")
    assert stream.values() == list(range(120))


def _sizes(query: Query) -> list[int]:
    """Of the micro-batches that read something."""
    return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]


def test_a_limit_on_bytes_makes_micro_batches_of_about_that_size(stream: Stream, topics: Topics) -> None:
    topic = topics.create()
    topics.fill(topic, [b"%0100d" % number for number in range(100)])
    query = stream.run(subscribe=topic, maxBytesPerTrigger="5k")
    sizes = [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]
    assert len(sizes) in (3, 4)
    assert max(sizes) * 105 < 6000
    assert stream.values() == list(range(100))


def test_a_running_query_follows_its_topics_and_its_lag_goes_to_zero(stream: Stream, topics: Topics) -> None:
    topic = topics.create(partitions=2)
    topics.fill(topic, _numbers(0, 50))
    groups = GroupAdmin(topics.bootstrap)
    with stream.running(subscribe=topic, group="the-query") as query:
        query.processAllAvailable()
        _eventually(lambda: groups.describe_group("the-query").lag == 0)
        topics.fill(topic, _numbers(50, 80))
        query.processAllAvailable()
        _eventually(lambda: sum(groups.committed_offsets("the-query").values()) == 80)
    assert groups.describe_group("the-query").lag == 0
    assert stream.values() == list(range(80))


def test_the_lag_of_a_query_that_ended_is_zero(stream: Stream, topics: Topics) -> None:
    topic = topics.create()
    topics.fill(topic, _numbers(0, 50))
    stream.run(subscribe=topic, **{"kafka.group.id": "ended"})
    assert GroupAdmin(topics.bootstrap).committed_offsets("ended") == {(topic, 0): 50}


def test_new_partitions_and_topics_are_picked_up(stream: Stream, topics: Topics) -> None:
    topic = topics.create()
    topics.fill(topic, _numbers(0, 10))
    with stream.running(subscribePattern=f"{topic}.*") as query:
        query.processAllAvailable()
        topics.add_partitions(topic, 2)
        topics.fill(topic, _numbers(10, 20), partition=lambda _: 1)
        topics.create_as(f"{topic}-second")
        topics.fill(f"{topic}-second", _numbers(20, 30))
        _eventually(lambda: len(stream.values()) == 30)
        assert query.exception() is None
    assert stream.values() == list(range(30))


def test_a_deleted_topic_fails_the_query(stream: Stream, topics: Topics) -> None:
    topic = topics.create()
    topics.fill(topic, _numbers(0, 10))
    with stream.running(subscribe=topic) as query:
        query.processAllAvailable()
        topics.delete(topic)
        with pytest.raises(Exception, match=rf"{topic}-0 is gone\..*failOnDataLoss to false"):
            query.awaitTermination(_PATIENCE)


def test_a_deleted_topic_can_be_passed_over_and_found_again(stream: Stream, topics: Topics) -> None:
    topic, other = topics.create(), topics.create()
    topics.fill(topic, _numbers(0, 10))
    with stream.running(subscribe=f"{topic},{other}", failOnDataLoss="false") as query:
        query.processAllAvailable()
        topics.delete(topic)
        topics.fill(other, _numbers(10, 20))
        _eventually(lambda: len(stream.values()) == 20)
        topics.create_as(topic)
        topics.fill(topic, _numbers(20, 25))
        _eventually(lambda: len(stream.values()) == 25)
        assert query.exception() is None
    assert stream.values() == list(range(25))


def test_a_topic_made_anew_while_the_query_was_down_is_not_taken_for_the_old_one(
    stream: Stream, topics: Topics
) -> None:
    topic = topics.create()
    topics.fill(topic, _numbers(0, 10))
    stream.run(subscribe=topic)
    topics.delete(topic)
    topics.create_as(topic)
    topics.fill(topic, _numbers(10, 30))
    with pytest.raises(Exception, match=rf"topic '{topic}' was deleted and made anew.*failOnDataLoss to false"):
        stream.run(subscribe=topic)
    stream.run(subscribe=topic, failOnDataLoss="false")
    assert stream.values() == list(range(30))


def test_offsets_that_expired_while_the_query_was_down(stream: Stream, topics: Topics) -> None:
    topic = topics.create()
    topics.fill(topic, _numbers(0, 10))
    stream.run(subscribe=topic)
    topics.fill(topic, _numbers(10, 20))
    topics.delete_records(topic, 0, before=15)
    with pytest.raises(Exception, match=r"offset 10 of .* has 15 up to 20\..*failOnDataLoss to false"):
        stream.run(subscribe=topic)
    stream.run(subscribe=topic, failOnDataLoss="false")
    assert stream.values() == [*range(10), *range(15, 20)]


def test_a_stream_has_no_end_to_set(stream: Stream, topics: Topics) -> None:
    topic = topics.create()
    with pytest.raises(Exception, match="a stream has no end: leave out endingOffsets"):
        stream.run(subscribe=topic, endingOffsets="latest")


def test_only_committed_transactions_are_read(stream: Stream, topics: Topics) -> None:
    topic = topics.create()
    topics.fill(topic, _numbers(0, 10))
    stream.run(subscribe=topic, **{"kafka.isolation.level": "read_committed"})
    assert stream.values() == list(range(10))
