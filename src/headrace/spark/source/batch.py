"""A batch query: which offsets it reads, decided once when Spark plans it."""

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from headrace.client.columnar.cluster import shared_cluster
from headrace.client.columnar.model import EARLIEST, LATEST, Range

from ..errors import with_query_errors
from . import data_loss
from .filters import Narrowing
from .logs import Logs, assigned, ends, resolve
from .offsets import Offsets, named
from .options import AtEnd, AtOffsets, SourceOptions
from .planning import split
from .reading import RangeTask, Rows


def plan(logs: Logs, options: SourceOptions, narrowing: Narrowing) -> list[Range]:
    """The ranges of a batch query, one for each task.

    The end is looked up first: a later look-up by time then speaks of every record that the query could read.
    """
    partitions = assigned(logs, options)
    end = resolve(logs, options.ending or AtEnd(LATEST), partitions, options, starting=False)
    start = resolve(logs, options.starting or AtEnd(EARLIEST), partitions, options, starting=True)
    if isinstance(options.starting, AtOffsets) or isinstance(options.ending, AtOffsets):
        start, end = _within_the_logs(logs, options, start, end)
    start = _not_before(logs, options, start, narrowing)
    wanted = sorted(where for where in start.keys() & end.keys() if narrowing.keeps_partition(where))
    return split(narrowing.cut(Range(*where, start[where], end[where]) for where in wanted), options.splitting)


def _within_the_logs(logs: Logs, options: SourceOptions, start: Offsets, end: Offsets) -> tuple[Offsets, Offsets]:
    first = ends(logs, start, EARLIEST)
    last = ends(logs, start, LATEST)  # what an open transaction holds back is not lost: its tasks wait for it
    outside = [
        partition
        for partition in start
        if not first[partition] <= start[partition] <= last[partition] or end[partition] > last[partition]
    ]
    data_loss.report(
        (
            f"offsets {start[partition]} up to {end[partition]} of {named([partition])} are asked for, "
            f"but the log has {first[partition]} up to {last[partition]}"
            for partition in sorted(outside)
        ),
        fail=options.fail_on_data_loss,
    )
    return (
        {partition: max(offset, first[partition]) for partition, offset in start.items()},
        {partition: min(offset, last[partition]) for partition, offset in end.items()},
    )


def _not_before(logs: Logs, options: SourceOptions, start: Offsets, narrowing: Narrowing) -> Offsets:
    """`start`, moved up to the first record of the time that filters ask for; no partition without one is left."""
    if narrowing.since is None:
        return start
    found = logs.offsets(dict.fromkeys(start, narrowing.since), read_committed=options.read_committed)
    return {where: max(start[where], offset) for where, offset in found.items() if offset is not None}


class BatchReader(DataSourceReader):
    """Reads topics from where to where the options say."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._narrowing = Narrowing(record_column=rows.record_column)

    @with_query_errors
    def partitions(self) -> list[InputPartition]:
        """The tasks of the query."""
        options = self._rows.options
        return [RangeTask([wanted]) for wanted in plan(shared_cluster(options.client), options, self._narrowing)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        return self._rows.read(partition)


class FilteringReader(BatchReader):
    """The same, reading less where filters allow it.

    A class of its own because Spark refuses a reader that has `pushFilters` while
    `spark.sql.python.filterPushdown.enabled` is off.
    """

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:  # noqa: N802 - Spark's name
        """Narrow what is read; gives back the filters that Spark still has to check."""
        return [one for one in filters if not self._narrowing.take(one)]
