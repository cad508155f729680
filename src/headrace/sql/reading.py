"""A topic as a table that is scanned: what a query needs of it, fetched and decoded while the query runs."""

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from headrace.client.columnar.cluster import Cluster
from headrace.client.columnar.model import EARLIEST, LATEST, Range, TopicPartition
from headrace.client.columnar.reader import read_ranges
from headrace.client.errors import OffsetsGone
from headrace.formats.flat import ERROR, FlatDecoder

from .errors import BadRecords, SqlError
from .predicates import ALL, Node, columns_in, reach, tree_of

KEEP: Final = "keep"
SKIP: Final = "skip"
FAIL: Final = "fail"
ON_BAD: Final = (KEEP, SKIP, FAIL)
"""What becomes of records that cannot be decoded."""

_CHEAPEST: Final = ("partition", "offset")
"""What to read where a query asks for rows and no column, as a count does."""


@dataclass(slots=True)
class BadCount:
    """How many records of a topic could not be decoded in a query, and the first of them."""

    records: int = 0
    first: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The offsets that a query reads of a topic: fixed once, so that all its scans see the same rows."""

    ranges: tuple[Range, ...]
    topic_id: bytes | None = None

    @property
    def ends(self) -> dict[TopicPartition, int]:
        """Where each partition ends."""
        return {TopicPartition(one.topic, one.partition): one.end for one in self.ranges}


Begin = Callable[[Cluster, list[TopicPartition]], dict[TopicPartition, int]]
"""Gives the offset that each partition is read from."""


def from_beginning(cluster: Cluster, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
    """The first offset that each partition still has."""
    found = cluster.offsets(dict.fromkeys(partitions, EARLIEST))
    return {where: offset or 0 for where, offset in found.items()}


def snapshot(
    cluster: Cluster,
    topic: str,
    *,
    read_committed: bool,
    begin: Begin = from_beginning,
    after: Snapshot | None = None,
) -> Snapshot:
    """The topic from `begin`, or from the end of an earlier snapshot, to its end as it is now."""
    image = cluster.describe([topic], max_age=0.0)[topic]
    if after is not None and after.topic_id and image.id and image.id != after.topic_id:
        raise SqlError(f"topic {topic} was deleted and made anew, so its offsets mean other records: begin anew")
    partitions = [TopicPartition(topic, number) for number in range(image.partitions)]
    ends = cluster.offsets(dict.fromkeys(partitions, LATEST), read_committed=read_committed)
    if after is None:
        starts = begin(cluster, partitions)
    else:
        known = after.ends
        fresh = [where for where in partitions if where not in known]
        starts = {**known, **(from_beginning(cluster, fresh) if fresh else {})}
    ranges = [Range(*where, starts[where], max(starts[where], ends[where] or 0)) for where in partitions]
    return Snapshot(ranges=tuple(ranges), topic_id=image.id)


@dataclass(slots=True, kw_only=True)
class TopicTable:
    """A topic: the columns of its table, and the rows of a snapshot."""

    topic: str
    cluster: Cluster
    decoder: FlatDecoder
    snapshot: Snapshot
    read_committed: bool = True
    on_bad: str = KEEP
    pushes: bool = True
    """Whether filters narrow what is fetched; answers are the same either way."""
    bad: BadCount = field(default_factory=BadCount)
    failure: Exception | None = None
    """What ended a scan, as the engine only hands on its text."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def schema(self) -> pa.Schema:
        """The columns, in their order."""
        return self.decoder.arrow_schema

    @property
    def cheapest(self) -> str:
        """The column that costs least."""
        return next(one.name for one in self.decoder.columns if one.source in _CHEAPEST)

    def scan(self, columns: Collection[str], predicate: Any = None) -> Iterator[pa.RecordBatch]:
        """Batches of these columns, in the table's order, of the rows that an Arrow expression holds for."""
        try:
            tree = self._tree(predicate)
            needed = {*columns, *(self.schema.names if predicate is not None and tree is None else [])}
            if tree is not None:
                needed |= columns_in(tree)
            wanted = [name for name in self.schema.names if name in columns]
            for batch in self._rows(self._ranges(tree), needed):
                kept = batch if predicate is None else batch.filter(predicate)
                if len(kept):
                    yield kept.select(wanted)
        except OffsetsGone as gone:
            self.failure = SqlError(
                f"{gone.message}: records were deleted while the query read them; begin later, such as with "
                "WHERE _timestamp > now() - INTERVAL 1 HOUR, or give the topic a longer retention",
                gone.code,
            )
            raise self.failure from gone
        except Exception as error:
            self.failure = error
            raise

    def _tree(self, predicate: Any) -> Node | None:
        if predicate is None or not self.pushes:
            return None
        try:
            return tree_of(predicate)
        except ValueError:  # nothing is narrowed then
            return None

    def _ranges(self, tree: Node | None) -> list[Range]:
        """What a filter leaves to fetch."""
        if tree is None:
            return list(self.snapshot.ranges)
        records = {one.name: one.source for one in self.decoder.columns if self.decoder.record_column(one.name)}
        found = {}
        times = {}
        for one in self.snapshot.ranges:
            where = TopicPartition(one.topic, one.partition)
            part = reach(tree, where, records)
            cut = one._replace(start=max(one.start, part.start), end=min(one.end, part.end))
            if cut.start < cut.end:
                found[where] = cut
                if part.since > ALL.since:
                    times[where] = part.since
        return [one for one in self._not_before(found, times).values() if one.start < one.end]

    def _not_before(
        self, ranges: dict[TopicPartition, Range], times: dict[TopicPartition, int]
    ) -> dict[TopicPartition, Range]:
        """The ranges, from the first record of a time on; nothing of a partition that has none as late."""
        if not times:
            return ranges
        offsets = self.cluster.offsets(times)
        moved = {}
        for where, one in ranges.items():
            first = offsets[where] if where in times else one.start
            moved[where] = one._replace(start=one.end if first is None else max(one.start, first))
        return moved

    def _rows(self, ranges: Sequence[Range], needed: Collection[str]) -> Iterator[pa.RecordBatch]:
        decoder = self.decoder
        error = next((one.name for one in decoder.columns if one.source == ERROR), None)
        decodes = error is not None and (self.on_bad != KEEP or decoder.needs_decoding(needed))
        names = {*needed, *((error,) if decodes and error else ())}
        names = names or {self.cheapest}
        ids = {self.topic: self.snapshot.topic_id} if self.snapshot.topic_id else {}
        for records in read_ranges(
            self.cluster,
            ranges,
            with_headers=decoder.needs_record_headers(names),
            read_committed=self.read_committed,
            topic_ids=ids,
        ):
            rows = decoder.decode(records, names)
            yield self._judged(records, rows, error) if decodes and error else rows

    def _judged(self, records: pa.RecordBatch, rows: pa.RecordBatch, error: str) -> pa.RecordBatch:
        """The rows, once the bad ones among them are counted, and left out if they are to be."""
        errors = rows.column(error)
        bad = len(errors) - errors.null_count
        if not bad:
            return rows
        place = errors.is_valid().index(True).as_py()
        partition, offset = (records.column(name)[place].as_py() for name in ("partition", "offset"))
        first = f"{self.topic}-{partition} offset {offset}: {errors[place].as_py()}"
        with self._lock:
            self.bad.records += bad
            self.bad.first = self.bad.first or first
        if self.on_bad == FAIL:
            raise BadRecords(f"a record cannot be decoded, {first}", "BAD_RECORD")
        return rows.filter(errors.is_null()) if self.on_bad == SKIP else rows
