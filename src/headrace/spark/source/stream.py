"""A streaming query: offsets for Spark's micro-batches, and the tasks that read between them.

Spark writes down where each micro-batch ends, but not where the first one starts: when a query dies in it, or before
it, the source is asked anew. The earliest offset is then still the earliest, but the latest is another one, and what
came meanwhile would be passed over. So a query that does not start at the earliest has a first micro-batch that reads
nothing: its end is the start of the query, which is thereby written down.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from headrace.client.columnar.cluster import shared_cluster
from headrace.client.columnar.model import EARLIEST, Range

from ..errors import with_query_errors
from .group_progress import GroupProgress
from .offsets import NOT_STARTED, Offsets, SparkOffsets, from_spark, ids_from_spark, to_spark
from .options import AtEnd, SourceOptions, TriggerLimits
from .planning import gathered, split
from .reading import RangeTask, Rows, read
from .sizes import SAMPLE_RECORDS, Sample, Sizes
from .tracker import Tracker

_FEW_RECORDS: Final = 5000
"""Partitions that have fewer new records than this between them are read by one task, unless the user splits them."""

_COMMIT_MS: Final = "5000"
"""How long a commit, which only shows progress, may hold up the query."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows topics. Spark keeps one of these to plan a query, and sends another, fresh one to the executors."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._tracker: Tracker | None = None
        self._progress: GroupProgress | None = None

    @with_query_errors
    def initialOffset(self) -> SparkOffsets:  # noqa: N802 - Spark's name
        """Where a new query starts, if that is the same whenever it is asked."""
        if self._rows.options.starting == AtEnd(EARLIEST):
            return self._written(self._tracked().initial())
        return NOT_STARTED

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """The limit the options set; with several, `latestOffset` keeps the others too."""
        trigger = self._rows.options.trigger
        if trigger.max_records is not None:
            return ReadMaxRows(trigger.max_records)
        if trigger.max_bytes is not None:
            return ReadMaxBytes(trigger.max_bytes)
        if trigger.min_records is not None:
            return ReadMinRows(trigger.min_records)
        return ReadAllAvailable()

    @with_query_errors
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """End the query where the topics end now."""
        self._tracked().stop_at_present_end()

    @with_query_errors
    def latestOffset(self, start: SparkOffsets, limit: ReadLimit) -> SparkOffsets:  # noqa: N802 - Spark's name
        """Where the next micro-batch ends. All before `start` is finished, which the group hears of."""
        tracker = self._tracked()
        if start == NOT_STARTED:
            return self._written(tracker.initial())
        begin = from_spark(start)
        end = tracker.latest(begin, limited(self._rows.options.trigger, limit), ids_from_spark(start))
        if self._progress is not None:
            self._progress.finished(begin)
        return self._written(end)

    def reportLatestOffset(self) -> SparkOffsets | None:  # noqa: N802 - Spark's name
        """The ends of the topics, for the query's progress."""
        return to_spark(self._tracked().seen) or None

    @with_query_errors
    def partitions(self, start: SparkOffsets, end: SparkOffsets) -> list[InputPartition]:
        """The tasks of a micro-batch."""
        if start == NOT_STARTED:
            return []
        ids, splitting = ids_from_spark(end), self._rows.options.splitting
        ranges = self._tracked().ranges(from_spark(start), from_spark(end), ids)
        if splitting.is_asked_for:
            return [RangeTask([wanted], ids) for wanted in split(ranges, splitting)]
        return [RangeTask(wanted, ids) for wanted in gathered(ranges, _FEW_RECORDS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        return self._rows.read(partition)

    def commit(self, end: SparkOffsets) -> None:
        """Nothing to do: what is finished shows in the next `latestOffset`, which comes sooner and always."""

    def _written(self, offsets: Offsets) -> SparkOffsets:
        return to_spark(offsets, self._tracked().ids(offsets))

    def _tracked(self) -> Tracker:
        if self._tracker is None:
            options = self._rows.options
            cluster = shared_cluster(options.client)
            self._tracker = Tracker(options, cluster, Sizes(lambda wanted: _sample(options, wanted)))
            self._progress = _progress(options)
        return self._tracker


def _progress(options: SourceOptions) -> GroupProgress | None:
    if options.group is None:
        return None
    impatient = shared_cluster({**options.client, "default.api.timeout.ms": _COMMIT_MS})
    return GroupProgress(options.group, impatient.commit)


def limited(configured: TriggerLimits, limit: ReadLimit) -> TriggerLimits | None:
    """What a micro-batch may take by the options and by Spark's word; None if Spark wants all there is."""
    match limit:
        case ReadMaxRows(max_rows=most):
            return replace(configured, max_records=most)
        case ReadMaxBytes(max_bytes=most):
            return replace(configured, max_bytes=most)
        case ReadMinRows(min_rows=least):
            return replace(configured, min_records=least)
        case _:
            return None


def _sample(options: SourceOptions, topic_partitions: Range) -> Sample:
    """A look at the front of a range; offsets that are gone are for its tasks to tell of, or to pass over."""
    from headrace.client.columnar.reader import read_ranges

    def fetch(ranges: Sequence[Range]) -> Iterator[pa.RecordBatch]:
        return read_ranges(shared_cluster(options.client), ranges, read_committed=options.read_committed)

    records = size = 0
    for batch in read(fetch, [topic_partitions], on_loss=lambda _message: None):
        records += batch.num_rows
        size += batch.column("key").nbytes + batch.column("value").nbytes
        if records >= SAMPLE_RECORDS:
            break
    return Sample(records, size)
