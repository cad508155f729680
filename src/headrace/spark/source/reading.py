"""A task's side: the records of its ranges as Arrow batches of exactly the columns that Spark expects.

What is here travels to the executors, pickled, so it holds settings and no connections: those belong to the worker
process, which keeps them from one micro-batch to the next.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from headrace.client.columnar.model import (
    OffsetsGone,
    Range,
    TopicPartition,
    TopicReplaced,
    UnknownPartition,
    UnknownTopic,
)
from headrace.formats.flat import FlatDecoder, RecordDecoder

from ..errors import iterate_with_query_errors
from . import data_loss
from .options import SourceOptions

Fetch = Callable[[Sequence[Range]], Iterator[pa.RecordBatch]]
OnLoss = Callable[[str], None]


class RangeTask(InputPartition):
    """One task: ranges of offsets, each of another partition, of topics whose ids may be known."""

    def __init__(self, ranges: Sequence[Range], topic_ids: Mapping[str, bytes] | None = None) -> None:
        super().__init__([tuple(one) for one in ranges])
        topics = {one.topic for one in ranges}
        self.topic_ids = {topic: one for topic, one in (topic_ids or {}).items() if topic in topics}

    @property
    def ranges(self) -> list[Range]:
        """What the task reads."""
        return [Range(*one) for one in self.value]


@dataclass(frozen=True, slots=True)
class Rows:
    """Reads the rows of a task as a user wants them."""

    options: SourceOptions
    columns: list[str]
    decoder: RecordDecoder | None = None

    def record_column(self, name: str) -> str | None:
        """The column of the record that a column of the rows shows as it is."""
        return self.decoder.record_column(name) if isinstance(self.decoder, FlatDecoder) else name

    def read(self, task: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task, or none for the task that Spark makes up where there is nothing to read."""
        if not isinstance(task, RangeTask):
            return iter(())
        batches = read(partial(self._fetch, topic_ids=task.topic_ids), task.ranges, self._on_loss)
        if self.decoder is not None:
            batches = map(self.decoder.decode, batches)
        return iterate_with_query_errors(batch.select(self.columns) for batch in batches)

    def _fetch(self, ranges: Sequence[Range], topic_ids: Mapping[str, bytes]) -> Iterator[pa.RecordBatch]:
        # Spark imports the source to find its name and its columns; only tasks need the compiled loops.
        from headrace.client.columnar.cluster import shared_cluster
        from headrace.client.columnar.reader import read_ranges

        cluster = shared_cluster(self.options.client)
        with_headers = self.options.with_headers or (self.decoder is not None and self.decoder.needs_headers)
        return read_ranges(
            cluster,
            ranges,
            with_headers=with_headers,
            read_committed=self.options.read_committed,
            topic_ids=topic_ids,
        )

    def _on_loss(self, message: str) -> None:
        data_loss.report([message], fail=self.options.fail_on_data_loss)


def read(fetch: Fetch, ranges: Sequence[Range], on_loss: OnLoss) -> Iterator[pa.RecordBatch]:
    """All records of the ranges. `on_loss` hears what is no longer there; if it lets it pass, what is there is read.

    A worker may remember a topic that was deleted and made anew before the ranges were planned; the client tells the
    two apart and refuses. It is asked once more then, since it knows the new topic by now.
    """
    left = {TopicPartition(one.topic, one.partition): one for one in ranges if one.start < one.end}
    untouched = set(left)
    while left:
        try:
            for batch in fetch(list(left.values())):
                topic_partition, end = _end_of(batch)
                untouched.discard(topic_partition)
                left[topic_partition] = left[topic_partition]._replace(start=end)
                yield batch
            return
        except (UnknownTopic, TopicReplaced) as error:
            on_loss(error.message)
            left = {
                topic_partition: one for topic_partition, one in left.items() if topic_partition.topic != error.topic
            }
        except UnknownPartition as error:
            on_loss(error.message)
            left.pop(error.partition)
        except OffsetsGone as error:
            topic_partition, wanted = error.partition, left[error.partition]
            if topic_partition in untouched and error.earliest <= wanted.start and wanted.end <= error.latest:
                untouched.discard(topic_partition)
                continue
            on_loss(error.message)
            left[topic_partition] = _remaining(wanted, error)
            left = {topic_partition: one for topic_partition, one in left.items() if one.start < one.end}


def _end_of(batch: pa.RecordBatch) -> tuple[TopicPartition, int]:
    """The partition that a batch is of, and the offset after its last."""
    topic, partition, offset = (batch.column(name)[-1].as_py() for name in ("topic", "partition", "offset"))
    return TopicPartition(topic, partition), offset + 1


def _remaining(ranges: Range, gone: OffsetsGone) -> Range:
    """What is still to be read and still there; nothing if the log ends before it."""
    begin = gone.earliest if gone.offset < gone.earliest else ranges.end
    return ranges._replace(start=begin)
