"""A task reads its ranges, and what is left of them when part of them is gone."""

import pickle
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pytest

from headrace.client.columnar.model import (
    OffsetsGone,
    Range,
    TopicPartition,
    TopicReplaced,
    UnknownPartition,
    UnknownTopic,
)
from headrace.spark.source.data_loss import DataLost, report
from headrace.spark.source.reading import RangeTask, read

A, B = TopicPartition("t", 0), TopicPartition("u", 0)
OF_A, OF_B = Range(*A, 0, 10), Range(*B, 0, 4)


class Logs:
    """Gives the records of partitions one by one in turn, each from its earliest up to its latest."""

    def __init__(self, **logs: tuple[int, int]) -> None:
        self.logs = {TopicPartition(topic, 0): list(ends) for topic, ends in logs.items()}
        self.expires: dict[int, int] = {}
        self.fetches = 0

    def fetch(self, wanted: Sequence[Range]) -> Iterator[pa.RecordBatch]:
        self.fetches += 1
        for offset in range(20):
            for one in wanted:
                if one.start <= offset < one.end:
                    yield self._record(TopicPartition(one.topic, one.partition), offset)

    def _record(self, where: TopicPartition, offset: int) -> pa.RecordBatch:
        if where not in self.logs:
            raise UnknownPartition(where, 1) if where.partition else UnknownTopic(where.topic)
        if where == A and offset in self.expires:
            self.logs[A][0] = self.expires.pop(offset)
        earliest, latest = self.logs[where]
        if not earliest <= offset < latest:
            raise OffsetsGone(where, offset, earliest, latest)
        return _batch(where, offset)


def _batch(where: TopicPartition, offset: int) -> pa.RecordBatch:
    return pa.record_batch({"topic": [where.topic], "partition": [where.partition], "offset": [offset]})


def _offsets(batches: Iterator[pa.RecordBatch], where: TopicPartition = A) -> list[int]:
    table = pa.Table.from_batches(batches, _batch(A, 0).schema)
    return [row["offset"] for row in table.to_pylist() if row["topic"] == where.topic]


def _ignore(message: str) -> None:
    pass


def _fail(message: str) -> None:
    report([message], fail=True)


def test_a_task_reads_its_ranges() -> None:
    batches = list(read(Logs(t=(0, 10), u=(0, 9)).fetch, [OF_A, OF_B], _fail))
    assert _offsets(iter(batches), A) == list(range(10))
    assert _offsets(iter(batches), B) == list(range(4))


def test_expired_offsets_fail_the_task_with_advice() -> None:
    with pytest.raises(DataLost, match=r"offset 0 .* has 4 up to 20\..* failOnDataLoss to false"):
        _offsets(read(Logs(t=(4, 20)).fetch, [OF_A], _fail))


def test_expired_offsets_can_be_passed_over() -> None:
    assert _offsets(read(Logs(t=(4, 20)).fetch, [OF_A], _ignore)) == list(range(4, 10))
    assert _offsets(read(Logs(t=(15, 20)).fetch, [OF_A], _ignore)) == []


def test_offsets_that_expire_while_they_are_read_leave_no_duplicates_in_any_partition() -> None:
    logs = Logs(t=(0, 20), u=(0, 9))
    logs.expires = {3: 8}
    batches = list(read(logs.fetch, [OF_A, OF_B], _ignore))
    assert _offsets(iter(batches), A) == [0, 1, 2, 8, 9]
    assert _offsets(iter(batches), B) == [0, 1, 2, 3]
    assert logs.fetches == 2


def test_a_log_that_ends_early_can_be_passed_over() -> None:
    assert _offsets(read(Logs(t=(0, 6)).fetch, [OF_A], _ignore)) == list(range(6))


def test_a_topic_made_anew_before_the_range_was_planned_is_asked_for_once_more() -> None:
    logs = Logs(t=(0, 10))
    tries: list[Sequence[Range]] = []

    def fetch(wanted: Sequence[Range]) -> Iterator[pa.RecordBatch]:
        tries.append(wanted)
        if len(tries) == 1:
            raise OffsetsGone(A, 0, 0, 10)
        yield from logs.fetch(wanted)

    assert _offsets(read(fetch, [OF_A], _fail)) == list(range(10))


def test_a_topic_made_anew_while_it_is_read_is_a_loss() -> None:
    def fetch(wanted: Sequence[Range]) -> Iterator[pa.RecordBatch]:
        yield _batch(A, 0)
        raise OffsetsGone(A, 1, 0, 10)

    assert _offsets(read(fetch, [OF_A], _ignore)) == [0]
    with pytest.raises(DataLost, match="offset 1 of 't'"):
        _offsets(read(fetch, [OF_A], _fail))


def test_a_topic_that_is_another_one_fails_the_task_or_is_passed_over() -> None:
    logs = Logs(u=(0, 9))

    def fetch(wanted: Sequence[Range]) -> Iterator[pa.RecordBatch]:
        if any(one.topic == A.topic for one in wanted):
            raise TopicReplaced(A.topic)
        yield from logs.fetch(wanted)

    assert _offsets(read(fetch, [OF_A, OF_B], _ignore), B) == [0, 1, 2, 3]
    with pytest.raises(DataLost, match="topic 't' was deleted and made anew"):
        _offsets(read(fetch, [OF_A], _fail))


def test_a_deleted_topic_fails_the_task_or_is_passed_over() -> None:
    logs = Logs(u=(0, 9))
    assert _offsets(read(logs.fetch, [OF_A, OF_B], _ignore), B) == [0, 1, 2, 3]
    with pytest.raises(DataLost, match="topic 't' does not exist"):
        _offsets(read(logs.fetch, [OF_A], _fail))


def test_a_partition_that_a_topic_made_anew_does_not_have_fails_the_task_or_is_passed_over() -> None:
    logs = Logs(t=(0, 10))
    with pytest.raises(DataLost, match="there is no partition 1"):
        list(read(logs.fetch, [Range("t", 1, 0, 4)], _fail))
    assert _offsets(read(logs.fetch, [Range("t", 1, 0, 4), OF_A], _ignore)) == list(range(10))


def test_a_task_travels_to_executors() -> None:
    assert pickle.loads(pickle.dumps(RangeTask([OF_A, OF_B]))).ranges == [OF_A, OF_B]
