"""Live and archived as one: old offsets from a topic's table, new ones from the brokers, every offset once.

What the table has is read from it, also where the brokers still have it; the rest is read from the brokers. While a
read goes on, the archive may be written further, and retention may delete behind it: when the brokers no longer have
what was to be read from them, the table is looked at again, and the read goes on there. Offsets that nobody has any
more end it with `OffsetsMissing`, which names them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.client.columnar.api import LOCAL, Bound, cluster_of, resolved
from headrace.client.columnar.cluster import Cluster
from headrace.client.columnar.model import (
    SCHEMA,
    SCHEMA_WITH_HEADERS,
    OffsetsGone,
    Range,
    TopicPartition,
)
from headrace.client.columnar.reader import read_ranges

from .archiving import UPSERT
from .errors import LakeError, OffsetsMissing
from .files import DataFile
from .opening import Lake, format_of
from .places import joined
from .records import NAMES, OFFSET, PARTITION, TIMESTAMP, VALUE, to_records
from .state import Interval, Intervals, TableState, overlap, without
from .tables.model import LakeTable, Snapshot

_LOOKS: Final = 3
"""How often a table is looked at again for offsets that brokers have deleted."""


@dataclass(frozen=True, slots=True)
class Part:
    """Offsets of a partition, and whether they are in the table."""

    partition: int
    start: int
    end: int
    is_archived: bool


def parts_of(wanted: Interval, partition: int, covered: Intervals) -> list[Part]:
    """A range as pieces that are in the table and pieces that are not, in their order."""
    inside = [Part(partition, start, end, True) for start, end in overlap(wanted, covered)]
    outside = [Part(partition, start, end, False) for start, end in without(wanted, covered)]
    return sorted([*inside, *outside], key=lambda part: part.start)


@dataclass(frozen=True, slots=True)
class Archived:
    """All records of a topic that were archived: its table, and the table of those that could not be decoded."""

    topic: str
    state: TableState
    sources: Sequence[tuple[LakeTable, Snapshot]]

    @property
    def name(self) -> str:
        """The table's name."""
        return self.sources[0][0].name

    def partitions(self) -> list[int]:
        """The partitions of the topic that there are records of."""
        found: set[int] = set()
        for table, snapshot in self.sources:
            files = snapshot.files()
            if all(one.spans for one in files):
                found |= {number for one in files for number in one.spans}
                continue
            for batch in table.read(snapshot, files, [PARTITION]):
                found |= set(batch.column(PARTITION).drop_null().unique().to_pylist())
        return sorted(found)

    def first_since(self, partition: int, moment: datetime) -> int | None:
        """The first offset of a record of a time or later; None if there is none."""
        wanted = int(moment.timestamp() * 1_000_000)
        first: int | None = None
        for table, snapshot in self.sources:
            files = [
                one
                for one in snapshot.files()
                if (not one.spans or partition in one.spans) and (one.times is None or one.times[1] >= wanted)
            ]
            for batch in table.read(snapshot, files, [PARTITION, OFFSET, TIMESTAMP]):
                late = pc.greater_equal(batch.column(TIMESTAMP).cast(pa.int64()), wanted)
                mine = pc.and_(pc.equal(batch.column(PARTITION), partition), late)
                found = pc.min(batch.filter(mine).column(OFFSET)).as_py()
                if found is not None and (first is None or found < first):
                    first = found
        return first

    def records(self, partition: int, wanted: Interval, *, with_headers: bool = False) -> Iterator[pa.RecordBatch]:
        """The records of a range of offsets, in their order, in the columns that the client reads.

        Files whose offsets do not interleave are read one after the other, those that do together.
        """
        schema = SCHEMA_WITH_HEADERS if with_headers else SCHEMA
        files = [
            (one, source) for source in self.sources for one in source[1].files() if _may_have(one, partition, wanted)
        ]
        for group in disjoint(files, partition):
            found = [
                kept
                for one, (table, snapshot) in group
                for batch in table.read(snapshot, [one], _columns_of(snapshot))
                if len(kept := _within(batch, partition, wanted))
            ]
            for batch in _in_order(found):
                yield to_records(batch, self.topic).select(schema.names)


def archived(lake: Lake, topic: str, *, as_log: bool = True) -> Archived:
    """What was archived of a topic; LakeError if there is no table, or none that has its records as they were.

    With `as_log` the table must have every record of the offsets that it tells of.
    """
    table, bad_table = lake.table(topic), lake.bad_table(topic)
    while True:
        # An archive commits bad records first, a reprocess takes them away last: with the same bad records before and
        # after, what is in neither table was in neither at that time.
        before = bad_table.snapshot()
        snapshot = _raw_snapshot(table, as_log=as_log)
        bad = bad_table.snapshot()
        if (None if before is None else before.version) == (None if bad is None else bad.version):
            break
    sources = [(table, snapshot), *([(bad_table, bad)] if bad is not None else [])]
    return Archived(topic, snapshot.state, sources)


class ArchivedTopic:
    """A topic together with its table."""

    def __init__(self, lake: Lake, topic: str, cluster: Cluster, *, read_committed: bool = False) -> None:
        self._lake = lake
        self._topic = topic
        self._cluster = cluster
        self._read_committed = read_committed
        self._archived = archived(lake, topic)

    @property
    def state(self) -> TableState:
        """What the table has."""
        return self._archived.state

    def refresh(self) -> None:
        """Take in what was archived meanwhile."""
        self._archived = archived(self._lake, self._topic)

    def plan(self, start: Bound, end: Bound, partitions: Iterable[int] | None = None) -> list[Part]:
        """What to read, from where.

        The ends are looked up first, and the table after them: what the brokers have deleted before is in it by then,
        if it ever is.
        """
        count = self._cluster.partitions([self._topic])[self._topic]
        chosen = [TopicPartition(self._topic, one) for one in (range(count) if partitions is None else partitions)]
        ends = self._resolved(chosen, end, "end")
        starts = self._resolved(chosen, start, "start")
        self.refresh()
        self.require_same_topic()
        return [
            part
            for where in chosen
            if starts[where] < ends[where]
            for part in parts_of((starts[where], ends[where]), where.partition, self.state.covered(where.partition))
        ]

    def _resolved(self, partitions: list[TopicPartition], bound: Bound, name: str) -> dict[TopicPartition, int]:
        """Where a position is, in the table or in the topic."""
        found = resolved(self._cluster, partitions, bound, name)
        if bound == "earliest":
            return {where: self.first(where.partition, offset) for where, offset in found.items()}
        if not isinstance(bound, datetime):
            return found
        # What the brokers have deleted may be as late as that, too.
        begin = resolved(self._cluster, partitions, "earliest", name)
        return {
            where: self.since(where.partition, bound, offset) if offset <= begin[where] else offset
            for where, offset in found.items()
        }

    def first(self, partition: int, offset: int) -> int:
        """Where a partition begins, in the table or, at an offset, in the topic."""
        return min([offset, *(begin for begin, _ in self.state.covered(partition)[:1])])

    def since(self, partition: int, moment: datetime, offset: int) -> int:
        """The first offset of a time or later, in the table or, at `offset`, in the topic."""
        found = self._archived.first_since(partition, moment)
        return offset if found is None else min(offset, found)

    def require_same_topic(self) -> None:
        """LakeError if the topic is another one of the same name."""
        topic_id = self._cluster.describe([self._topic])[self._topic].id
        known = self.state.topic_id
        if known and topic_id is not None and topic_id.hex() != known:
            raise LakeError(
                f"topic '{self._topic}' was deleted and made anew, and {self._archived.name} has the records of the "
                "one before: they are not one log"
            )

    def read(self, parts: Sequence[Part], *, with_headers: bool = False) -> Iterator[pa.RecordBatch]:
        """The records, in the columns that the client reads; those of a partition in their order."""
        by_partition: dict[int, list[Part]] = {}
        for part in parts:
            by_partition.setdefault(part.partition, []).append(part)
        for pieces in by_partition.values():
            for part in pieces:
                yield from self._part(part, with_headers)

    def _part(self, part: Part, with_headers: bool) -> Iterator[pa.RecordBatch]:
        if part.is_archived:
            yield from self._archived.records(part.partition, (part.start, part.end), with_headers=with_headers)
            return
        position, looks = part.start, 0
        while position < part.end:
            wanted = Range(self._topic, part.partition, position, part.end)
            try:
                for batch in read_ranges(
                    self._cluster, [wanted], with_headers=with_headers, read_committed=self._read_committed
                ):
                    position = batch.column("offset")[-1].as_py() + 1
                    looks = 0
                    yield batch
                return
            except OffsetsGone as gone:
                self.refresh()
                moved = parts_of((position, part.end), part.partition, self.state.covered(part.partition))
                if not moved[0].is_archived:
                    looks += 1
                    if looks >= _LOOKS:
                        raise self._missing(moved[0], gone) from None
                    continue
                span = moved[0].start, moved[0].end
                yield from self._archived.records(part.partition, span, with_headers=with_headers)
                position = moved[0].end

    def _missing(self, part: Part, gone: OffsetsGone) -> OffsetsMissing:
        end = min(part.end, max(gone.earliest, part.start + 1))
        return OffsetsMissing(
            f"offsets {part.start} up to {end} of {self._topic}-{part.partition} are lost: "
            f"{self._archived.name} does not have them, and the log begins at {gone.earliest}"
        )


def _may_have(one: DataFile, partition: int, wanted: Interval) -> bool:
    if not one.spans:
        return True
    span = one.spans.get(partition)
    return span is not None and span[0] < wanted[1] and span[1] >= wanted[0]


_Source = tuple[LakeTable, Snapshot]
_Files = list[tuple[DataFile, _Source]]


def disjoint(files: _Files, partition: int) -> list[_Files]:
    """Files in groups whose offsets do not interleave, in their order; all together where offsets are not known."""
    if any(partition not in one.spans for one, _ in files):
        return [files] if files else []
    groups: list[_Files] = []
    end = -1
    for one, source in sorted(files, key=lambda item: item[0].spans[partition]):
        first, last = one.spans[partition]
        if groups and first <= end:
            groups[-1].append((one, source))
        else:
            groups.append([(one, source)])
        end = max(end, last)
    return groups


def _columns_of(snapshot: Snapshot) -> list[str]:
    return [name for name in NAMES.values() if name in snapshot.columns.names]


def _in_order(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows by their offsets, each offset once."""
    if not batches:
        return
    together = pa.Table.from_batches(batches)
    offsets = together.column(OFFSET).to_numpy()
    if not (offsets[1:] > offsets[:-1]).all():
        together = together.take(pa.array(np.unique(offsets, return_index=True)[1]))
    yield from together.combine_chunks().to_batches(max_chunksize=65536)


def _within(batch: pa.RecordBatch, partition: int, wanted: Interval) -> pa.RecordBatch:
    offsets = batch.column(OFFSET)
    kept = pc.and_(
        pc.equal(batch.column(PARTITION), partition),
        pc.and_(pc.greater_equal(offsets, wanted[0]), pc.less(offsets, wanted[1])),
    )
    return batch.filter(kept)


def _raw_snapshot(table: LakeTable, *, as_log: bool) -> Snapshot:
    snapshot = table.snapshot()
    if snapshot is None:
        raise LakeError(f"there is no table {table.name}")
    if as_log and snapshot.state.mode == UPSERT:
        raise LakeError(f"{table.name} has one row for each key, not every record: it is no log that can be read on")
    if VALUE not in snapshot.columns.names:
        raise LakeError(
            f"{table.name} does not have the bytes of values (keepBytes: false), so its rows are no records any more"
        )
    if not snapshot.state.topic:
        raise LakeError(f"{table.name} is not the table of an archive: it does not tell which offsets it has")
    return snapshot


def open_lake(
    archive: str, topic: str, storage: Mapping[str, str] | None = None, catalog: Mapping[str, str] | None = None
) -> Lake:
    """The archive that has a table of a topic; LakeError if there is none."""
    found = format_of(archive, topic, storage)
    if found is None:
        raise LakeError(f"there is no table of topic '{topic}' in {archive}; tables are PATH/TOPIC")
    return Lake(path=archive, format=found, options=storage or {}, catalog=catalog or {})


def scan(
    topic: str,
    *,
    archive: str,
    bootstrap: str = LOCAL,
    start: Bound = "earliest",
    end: Bound = "latest",
    partitions: Iterable[int] | None = None,
    columns: Sequence[str] | None = None,
    headers: bool = False,
    storage: Mapping[str, str] | None = None,
    catalog: Mapping[str, str] | None = None,
    **settings: Any,
) -> pa.RecordBatchReader:
    """The records of a topic, from its table as far as that has them, from the brokers beyond, as a stream of batches.

        stream = scan("orders", archive="lake")
        duckdb.sql("SELECT partition, count(*) FROM stream GROUP BY partition")

    The arguments are those of `headrace.client.columnar.scan_arrow`; `archive` is the directory that topics were
    archived to, `storage` the options of its object store, `catalog` those of Iceberg's catalog. OffsetsMissing names
    offsets that neither has.
    """
    cluster = cluster_of(bootstrap, settings)
    lake = open_lake(archive, topic, storage, catalog)
    log = ArchivedTopic(lake, topic, cluster, read_committed=cluster.settings["isolation.level"] == "read_committed")
    parts = log.plan(start, end, partitions)
    wants_headers = headers or (columns is not None and "headers" in columns)
    schema = SCHEMA_WITH_HEADERS if wants_headers else SCHEMA
    names = list(columns) if columns is not None else schema.names
    if unknown := [name for name in names if name not in schema.names]:
        raise LakeError(f"records have no column '{unknown[0]}', they have {', '.join(SCHEMA_WITH_HEADERS.names)}")
    batches = (batch.select(names) for batch in log.read(parts, with_headers=wants_headers))
    return pa.RecordBatchReader.from_batches(pa.schema([schema.field(name) for name in names]), batches)


def read(topic: str, *, archive: str, **arguments: Any) -> pa.Table:
    """The same as a table."""
    return scan(topic, archive=archive, **arguments).read_all()


def files(
    archive: str,
    topic: str,
    *,
    bad: bool = False,
    storage: Mapping[str, str] | None = None,
    catalog: Mapping[str, str] | None = None,
) -> list[str]:
    """The Parquet files that a topic's table has now, for DuckDB, pyarrow, polars or Spark to read.

    With `bad` those of its records that could not be decoded.
    """
    lake = open_lake(archive, topic, storage, catalog)
    table = lake.bad_table(topic) if bad else lake.table(topic)
    snapshot = table.snapshot()
    return [] if snapshot is None else [joined(table.place.url, one.name) for one in snapshot.files()]
