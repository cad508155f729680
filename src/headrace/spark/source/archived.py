"""A batch over a topic and its table: old offsets from the files of the table, new ones from the brokers.

Which offsets are where is decided when the query is planned. A task that finds its offsets deleted by then looks for
them in the table, which has them if the archive goes on meanwhile.
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from headrace.client.columnar.cluster import Cluster, shared_cluster
from headrace.client.columnar.model import EARLIEST, LATEST, Range, TopicPartition
from headrace.lake.opening import Lake
from headrace.lake.reading import ArchivedTopic, Part, open_lake, parts_of

from ..errors import iterate_with_query_errors, with_query_errors
from .logs import assigned, ends, resolve
from .offsets import Offsets
from .options import AtEnd, AtOffsets, AtTime, AtTimes, SourceOptions
from .planning import Splitting, split
from .reading import Rows

_MOST_RECORDS: Final = 1_000_000
"""How many offsets of a table a task reads, unless the user splits them."""


class ArchiveTask(InputPartition):
    """One task: offsets of a partition that are in the table, or that are not."""

    def __init__(self, lake: Lake, wanted: Range, is_archived: bool) -> None:
        super().__init__(tuple(wanted))
        self.lake = lake
        self.wanted = wanted
        self.is_archived = is_archived


class ArchivedReader(DataSourceReader):
    """Reads topics and their tables."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    @with_query_errors
    def partitions(self) -> list[InputPartition]:
        """The tasks of the query."""
        options = self._rows.options
        cluster = shared_cluster(options.client)
        return [
            task
            for topic, (lake, log) in _logs(cluster, options).items()
            for task in _tasks(cluster, options, topic, lake, log)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        return iterate_with_query_errors(self._read(partition))

    def _read(self, task: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(task, ArchiveTask):
            return
        rows, wanted = self._rows, task.wanted
        options, decoder = rows.options, rows.decoder
        cluster = shared_cluster(options.client)
        log = ArchivedTopic(task.lake, wanted.topic, cluster, read_committed=options.read_committed)
        part = Part(wanted.partition, wanted.start, wanted.end, task.is_archived)
        with_headers = options.with_headers or (decoder is not None and decoder.needs_headers)
        for batch in log.read([part], with_headers=with_headers):
            yield (batch if decoder is None else decoder.decode(batch)).select(rows.columns)


def _logs(cluster: Cluster, options: SourceOptions) -> dict[str, tuple[Lake, ArchivedTopic]]:
    settings = options.archive_settings
    storage, catalog = _below("storage.", settings), _below("catalog.", settings)
    found = {}
    for topic in sorted({where.topic for where in assigned(cluster, options)}):
        lake = open_lake(options.archive, topic, storage, catalog)
        found[topic] = lake, ArchivedTopic(lake, topic, cluster, read_committed=options.read_committed)
    return found


def _below(prefix: str, settings: Mapping[str, str]) -> dict[str, str]:
    return {name.removeprefix(prefix): value for name, value in settings.items() if name.startswith(prefix)}


def _tasks(
    cluster: Cluster, options: SourceOptions, topic: str, lake: Lake, log: ArchivedTopic
) -> Iterator[InputPartition]:
    partitions = {where for where in assigned(cluster, options) if where.topic == topic}
    # The ends come first, and the table after them: what brokers have deleted before is in it by then, if it ever is.
    end = _resolved(cluster, options, log, partitions, starting=False)
    start = _resolved(cluster, options, log, partitions, starting=True)
    log.refresh()
    log.require_same_topic()
    chosen = options.splitting
    how = chosen if chosen.is_asked_for else Splitting(max_records=_MOST_RECORDS)
    for where in sorted(partitions):
        if start[where] >= end[where]:
            continue
        for part in parts_of((start[where], end[where]), where.partition, log.state.covered(where.partition)):
            ranges = [Range(topic, part.partition, part.start, part.end)]
            for wanted in split(ranges, how) if part.is_archived or chosen.is_asked_for else ranges:
                yield ArchiveTask(lake, wanted, part.is_archived)


def _resolved(
    cluster: Cluster, options: SourceOptions, log: ArchivedTopic, partitions: set[TopicPartition], *, starting: bool
) -> Offsets:
    position = options.starting or AtEnd(EARLIEST) if starting else options.ending or AtEnd(LATEST)
    match position:
        case AtTime(time):
            return _at_times(cluster, log, dict.fromkeys(partitions, time), options)
        case AtTimes(times):
            return _at_times(cluster, log, {where: times[where] for where in partitions if where in times}, options)
        case AtOffsets(offsets):
            own = AtOffsets({where: offset for where, offset in offsets.items() if where in partitions})
            found = resolve(cluster, own, partitions, options, starting=starting)
            from_start = {where for where, offset in own.offsets.items() if offset == EARLIEST}
        case AtEnd(which):
            found = resolve(cluster, position, partitions, options, starting=starting)
            from_start = partitions if which == EARLIEST else set()
    return {
        where: log.first(where.partition, offset) if where in from_start else offset for where, offset in found.items()
    }


def _at_times(cluster: Cluster, log: ArchivedTopic, times: Offsets, options: SourceOptions) -> Offsets:
    found = cluster.offsets(times, read_committed=options.read_committed)
    first = ends(cluster, times, EARLIEST)
    last = ends(cluster, times, LATEST, read_committed=options.read_committed)
    settled: Offsets = {}
    for where, time in times.items():
        offset = found[where]
        offset = last[where] if offset is None else offset
        moment = datetime.fromtimestamp(time / 1000, UTC)
        settled[where] = log.since(where.partition, moment, offset) if offset <= first[where] else offset
    return settled
