"""A task reads its range, and what is left of it when part of it is gone."""

import pickle
from collections.abc import Iterator

import pyarrow as pa
import pytest

from headrace.client.columnar.model import OffsetsGone, Range, TopicPartition, UnknownTopic
from headrace.spark.loss import DataLost, report
from headrace.spark.reading import RangeTask, read

WANTED = Range("t", 0, 0, 10)


class Log:
    """Gives records one by one, from `earliest` up to `latest`, as the columnar client would."""

    def __init__(self, earliest: int, latest: int, gone_from: int | None = None) -> None:
        self.earliest, self.latest, self.gone_from = earliest, latest, gone_from

    def fetch(self, wanted: Range) -> Iterator[pa.RecordBatch]:
        for offset in range(wanted.start, wanted.end):
            if offset == self.gone_from:
                self.gone_from, self.earliest = None, offset + 3
            if not self.earliest <= offset < self.latest:
                raise OffsetsGone(TopicPartition("t", 0), offset, self.earliest, self.latest)
            yield pa.record_batch({"offset": [offset]})


def _offsets(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [offset for batch in batches for offset in batch.column(0).to_pylist()]


def _ignore(message: str) -> None:
    pass


def _fail(message: str) -> None:
    report([message], fail=True)


def test_a_task_reads_its_range() -> None:
    assert _offsets(read(Log(0, 10).fetch, WANTED, _fail)) == list(range(10))


def test_expired_offsets_fail_the_task_with_advice() -> None:
    with pytest.raises(DataLost, match=r"offset 0 .* has 4 up to 20\..* failOnDataLoss to false"):
        _offsets(read(Log(4, 20).fetch, WANTED, _fail))


def test_expired_offsets_can_be_passed_over() -> None:
    assert _offsets(read(Log(4, 20).fetch, WANTED, _ignore)) == list(range(4, 10))
    assert _offsets(read(Log(15, 20).fetch, WANTED, _ignore)) == []


def test_offsets_that_expire_while_they_are_read_leave_no_duplicates() -> None:
    assert _offsets(read(Log(0, 20, gone_from=5).fetch, WANTED, _ignore)) == [0, 1, 2, 3, 4, 8, 9]


def test_a_log_that_ends_early_can_be_passed_over() -> None:
    assert _offsets(read(Log(0, 6).fetch, WANTED, _ignore)) == list(range(6))


def test_a_topic_made_anew_before_the_range_was_planned_is_asked_for_once_more() -> None:
    tries = []

    def fetch(wanted: Range) -> Iterator[pa.RecordBatch]:
        tries.append(wanted)
        if len(tries) == 1:
            raise OffsetsGone(TopicPartition("t", 0), 0, 0, 10)
        yield from Log(0, 10).fetch(wanted)

    assert _offsets(read(fetch, WANTED, _fail)) == list(range(10))


def test_a_topic_made_anew_while_it_is_read_is_a_loss() -> None:
    def fetch(wanted: Range) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"offset": [0]})
        raise OffsetsGone(TopicPartition("t", 0), 1, 0, 10)

    assert _offsets(read(fetch, WANTED, _ignore)) == [0]
    with pytest.raises(DataLost, match="offset 1 of 't'"):
        _offsets(read(fetch, WANTED, _fail))


def test_a_deleted_topic_fails_the_task_or_ends_it() -> None:
    def fetch(wanted: Range) -> Iterator[pa.RecordBatch]:
        raise UnknownTopic("t")

    assert _offsets(read(fetch, WANTED, _ignore)) == []
    with pytest.raises(DataLost, match="topic 't' does not exist"):
        _offsets(read(fetch, WANTED, _fail))


def test_a_task_travels_to_executors() -> None:
    assert pickle.loads(pickle.dumps(RangeTask(WANTED))).wanted == WANTED
