"""`cleanup.policy=compact`: of every key only the latest record stays.

Three steps, so that the loop never waits: `plan` on the loop decides what to clean, `rewrite` on a worker thread
reads old segments and writes new ones beside them, `swap` on the loop puts the new ones in their place.

Offsets never change: a batch that loses records keeps its base offset and its last offset. Records stay when

*   their transaction, if they are of one, was not aborted,
*   no later record has their key (as far as the log was read, and not counting aborted transactions), and
*   they are not a tombstone older than `delete.retention.ms`. As in Kafka, the first cleaning that meets a tombstone
    writes into its batch when it may go: the base timestamp becomes that time, and a bit in the attributes says so.

A batch that nobody can read stays as it is. The active segment is never touched, nor anything at or beyond the last
stable offset. The map of latest offsets is bounded; where it is full the cleaning ends, also within a segment or a
batch, and what comes after stays as it is for the next one. Of a batch only its bytes are in memory as a whole, never
all its records.

A producer's last batch stays as an empty one, so that its sequence is not forgotten; its last marker stays where that
alone tells its epoch. Other markers stay as long as a batch of their transaction does, and then for
`delete.retention.ms`, as tombstones do: so whoever reads the log from its start meets the end of every transaction of
which it has met something.

The last batch stays, too, as an empty one if need be: else a log of which nothing is left would end behind offsets that
no follower can reach, as there is no batch to fetch.

A crash at any point leaves the old or the new segments: the new file is complete and synced as `.cleaned`, becomes
`.swap` (from here on recovery finishes the job), the old ones go, and it becomes `.log`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

import structlog

from headrace.protocol.batch import APPEND_TIME_BIT, NO_PRODUCER, NO_TIMESTAMP, BatchHeader, read_header
from headrace.protocol.compression import TooLarge
from headrace.protocol.errors import CodedError
from headrace.protocol.records import Record, decode_marker, decode_records, encode_sparse_batch, iterate_records

from .aborted import AbortedIndex, AbortedTransaction
from .disk import Disk, File
from .log import Log
from .producer_state import NO_OFFSET, Producers
from .scan import CorruptBatch, scan
from .segment import CLEANED_SUFFIX, LARGEST_RELATIVE_OFFSET, Segment
from .settings import NEVER, LogSettings

DELETE_HORIZON_BIT: Final = 0x40
BYTES_PER_KEY: Final = 192
"""What a key takes in the map at most: itself or its digest, its offset, and its part of a dict that grows."""
DEDUPE_BYTES: Final = 128 << 20
_DIGEST_SIZE: Final = 16


log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SegmentToClean:
    """A segment to be cleaned, as it was when the plan was made."""

    segment: Segment
    file: File
    size: int
    first_open: int
    """Where the oldest transaction began that was open where the segment ends; -1 for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPlan:
    """What one cleaning reads and where it may write. The worker uses nothing but this."""

    disk: Disk
    directory: str
    settings: LogSettings
    now_ms: int
    sources: Sequence[SegmentToClean]
    first_dirty_offset: int
    producers: Producers
    aborted: Sequence[AbortedTransaction]
    """Those with records in the sources, by their markers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """Segments that wait to take the place of others."""

    plan: CompactionPlan
    groups: Sequence[tuple[Sequence[SegmentToClean], Segment]]
    clean_offset: int
    """Everything below it is clean once they have."""


def plan(disk: Disk, log: Log, *, now_ms: int, last_stable_offset: int) -> CompactionPlan | None:
    """What should be cleaned in a log now; None when it is clean enough."""
    settings = log.settings
    if not settings.compacts or log.offline is not None:
        return None
    segments: list[Segment] = []
    for segment in log.inactive_segments():
        if segment.next_offset > last_stable_offset or segment.age_timestamp > now_ms - settings.min_compaction_lag_ms:
            break
        segments.append(segment)
    if not _is_worthwhile(segments, log.first_dirty_offset, settings, now_ms):
        return None
    return CompactionPlan(
        disk=disk,
        directory=log.directory,
        settings=settings,
        now_ms=now_ms,
        sources=[
            SegmentToClean(segment, segment.open(), segment.size, log.first_open_after(segment)) for segment in segments
        ],
        first_dirty_offset=log.first_dirty_offset,
        producers=log.producers().copy(),
        aborted=log.aborted_between(segments[0].base_offset, segments[-1].next_offset),
    )


def _is_worthwhile(segments: list[Segment], first_dirty: int, settings: LogSettings, now_ms: int) -> bool:
    dirty = [segment for segment in segments if segment.next_offset > first_dirty]
    if not dirty:
        return False
    if settings.max_compaction_lag_ms != NEVER:
        oldest = now_ms - settings.max_compaction_lag_ms
        if any(segment.oldest_timestamp < oldest for segment in dirty if segment.size):
            return True
    dirty_bytes = sum(segment.size for segment in dirty)
    return dirty_bytes >= settings.min_cleanable_dirty_ratio * sum(segment.size for segment in segments)


def rewrite(plan: CompactionPlan, most_keys: int = DEDUPE_BYTES // BYTES_PER_KEY) -> Rewritten:
    """On a worker: write the cleaned segments beside the old ones.

    The dirty part is cleaned as far as its keys fit into memory, the rest by the next cleaning. `CorruptBatch`, and
    nothing written, where the log is damaged.
    """
    latest, clean_offset = _map_keys(plan, most_keys)
    sources = [source for source in plan.sources if source.segment.base_offset < clean_offset]
    last = next((source for source in reversed(plan.sources) if source.size), None)
    rewriting = _Rewriting(plan, latest, clean_offset, Transactions(plan.aborted), last)
    groups: list[tuple[Sequence[SegmentToClean], Segment]] = []
    rewritten = Rewritten(plan=plan, groups=groups, clean_offset=clean_offset)
    try:
        for group in _group(sources, plan.settings):
            cleaned = _new_segment(plan, group)
            groups.append((group, cleaned))
            _rewrite_group(rewriting, group, cleaned)
    except Exception:
        discard(rewritten)
        raise
    return rewritten


def _map_keys(plan: CompactionPlan, most_keys: int) -> tuple[dict[bytes, int], int]:
    """The latest offset of each key in the dirty part, and the first offset for which there was no room."""
    latest: dict[bytes, int] = {}
    transactions = Transactions(plan.aborted)
    for source in plan.sources:
        if source.segment.next_offset <= plan.first_dirty_offset:
            continue
        for header, batch in _batches(source):
            if header.is_control or transactions.is_aborted(header) or header.last_offset < plan.first_dirty_offset:
                continue
            if not _is_readable(source, header, batch):
                continue
            full_at = _map_batch(latest, _records(source, header, batch), plan.first_dirty_offset, most_keys)
            if full_at is not None:
                return latest, full_at
    return latest, plan.sources[-1].segment.next_offset


def _map_batch(
    latest: dict[bytes, int], records: Iterable[Record], first_dirty_offset: int, most_keys: int
) -> int | None:
    """Put the keys of a batch into the map; the offset of the first one that it has no room for."""
    for record in records:
        if record.key is None or record.offset < first_dirty_offset:
            continue
        key = _digest(record.key)
        if len(latest) >= most_keys and key not in latest:
            return record.offset
        latest[key] = record.offset
    return None


def _digest(key: bytes) -> bytes:
    """What stands for a key in the map: itself if it is short, else a hash that is longer than those."""
    return key if len(key) < _DIGEST_SIZE else blake2b(key, digest_size=_DIGEST_SIZE).digest()


def _records(source: SegmentToClean, header: BatchHeader, batch: bytes) -> Iterator[Record]:
    """The records of a batch one by one; `_Unreadable` where they are not what the header promises.

    `CorruptBatch` where others might read what we cannot: to go on would bring back what was deleted after it.
    """
    try:
        for record in iterate_records(batch, exact=True):
            if not header.base_offset <= record.offset <= header.last_offset:
                raise CorruptBatch(
                    source.file.path, 0, f"a record of the batch at {header.base_offset} lies outside of it"
                )
            yield record
    except TooLarge as error:
        raise CorruptBatch(source.file.path, 0, f"offset {header.base_offset}: {error.message}") from error
    except CodedError as error:
        raise _Unreadable from error


def _is_readable(source: SegmentToClean, header: BatchHeader, batch: bytes) -> bool:
    """Whether all records of a batch can be read. One that cannot stays as it is: no reader gets any of it."""
    try:
        for _ in _records(source, header, batch):
            pass
    except _Unreadable:
        return False
    return True


class _Unreadable(Exception):
    """The records of a batch are not what its header promises, though its checksum is right."""


def _batches(source: SegmentToClean) -> Iterator[tuple[BatchHeader, bytes]]:
    file = source.file
    for position, header in scan(file, 0, source.size, floor=source.segment.base_offset, checked_from=0):
        yield header, file.pread(header.size, position)


def _group(sources: Sequence[SegmentToClean], settings: LogSettings) -> Iterator[list[SegmentToClean]]:
    """Neighbours that fit one segment are merged, as their cleaned remains would leave many small files."""
    group: list[SegmentToClean] = []
    size = 0
    for source in sources:
        base = group[0].segment.base_offset if group else source.segment.base_offset
        too_wide = source.segment.next_offset - base > LARGEST_RELATIVE_OFFSET
        if group and (too_wide or size + source.size > settings.segment_bytes):
            yield group
            group, size = [], 0
        group.append(source)
        size += source.size
    if group:
        yield group


class Transactions:
    """The transactions met so far while batches are read from the log's start."""

    def __init__(self, aborted: Sequence[AbortedTransaction]) -> None:
        self._to_come = sorted(aborted, key=lambda entry: entry.first_offset, reverse=True)
        self._aborted: dict[int, AbortedTransaction] = {}
        self._met: set[int] = set()

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether a batch is of an aborted transaction; batches are asked for in their order."""
        if not header.is_transactional:
            return False
        self._move_to(header)
        self._met.add(header.producer_id)
        entry = self._aborted.get(header.producer_id)
        return entry is not None and header.last_offset < entry.last_offset

    def end(self, header: BatchHeader) -> tuple[AbortedTransaction | None, bool]:
        """At a marker: the transaction, if it was aborted, and whether a batch of it was met."""
        self._move_to(header)
        was_met = header.producer_id in self._met
        self._met.discard(header.producer_id)
        return self._aborted.pop(header.producer_id, None), was_met

    def _move_to(self, header: BatchHeader) -> None:
        while self._to_come and self._to_come[-1].first_offset <= header.last_offset:
            entry = self._to_come.pop()
            self._aborted[entry.producer_id] = entry


@dataclass(frozen=True, slots=True)
class _Rewriting:
    plan: CompactionPlan
    latest: dict[bytes, int]
    clean_offset: int
    """Where the map ends: records from here on stay."""
    transactions: Transactions
    last: SegmentToClean | None
    """The last one with batches."""


def _new_segment(plan: CompactionPlan, group: Sequence[SegmentToClean]) -> Segment:
    first = group[0].segment
    return Segment(
        plan.disk,
        plan.directory,
        first.base_offset,
        size=0,
        next_offset=first.base_offset,
        created_ms=first.created_ms,
        interval=plan.settings.index_interval_bytes,
    )


def _rewrite_group(rewriting: _Rewriting, group: Sequence[SegmentToClean], cleaned: Segment) -> None:
    plan = rewriting.plan
    path = cleaned.path + CLEANED_SUFFIX
    plan.disk.unlink(path)
    file = plan.disk.create(path)
    cleaned.begin()
    cleaned.aborted = AbortedIndex(first_open=group[-1].first_open)
    for source in group:
        for header, data in _cleaned_batches(rewriting, source, cleaned.aborted):
            file.append(data)
            cleaned.take(header)
    file.datasync()
    cleaned.save_cleaned_indexes(group[-1].segment.next_offset)


def _cleaned_batches(
    rewriting: _Rewriting, source: SegmentToClean, aborted: AbortedIndex
) -> Iterator[tuple[BatchHeader, bytes]]:
    """What stays of a segment: of the last one that has any the last batch at least, though it may be empty."""
    last: tuple[BatchHeader, bytes] | None = None
    kept: tuple[BatchHeader, bytes] | None = None
    for header, batch in _batches(source):
        last, kept = (header, batch), _clean_batch(rewriting, source, header, batch, aborted)
        if kept is not None:
            yield kept
    if last is not None and kept is None and source is rewriting.last:
        yield last if last[0].is_control else _without_records(last[0])


def _clean_batch(
    rewriting: _Rewriting, source: SegmentToClean, header: BatchHeader, batch: bytes, aborted: AbortedIndex
) -> tuple[BatchHeader, bytes] | None:
    """What stays of a batch; None when nothing does."""
    plan = rewriting.plan
    horizon = header.base_timestamp if header.attributes & DELETE_HORIZON_BIT else None
    if header.is_control:
        return _clean_marker(rewriting, header, batch, horizon, aborted)
    if rewriting.transactions.is_aborted(header):
        return _emptied(plan, header)

    def kept() -> Iterator[Record]:
        return (record for record in _records(source, header, batch) if _stays(record, rewriting, horizon))

    count, max_timestamp, has_tombstone = 0, NO_TIMESTAMP, False
    try:
        for record in kept():
            count += 1
            max_timestamp = max(max_timestamp, record.timestamp)
            has_tombstone = has_tombstone or record.value is None
    except _Unreadable:
        log.warning("unreadable batch kept by compaction", directory=plan.directory, offset=header.base_offset)
        return header, batch
    if not count:
        return _emptied(plan, header)
    starts_horizon = horizon is None and has_tombstone and header.last_offset < rewriting.clean_offset
    if count == header.record_count and not starts_horizon:
        return header, batch
    if not header.attributes & APPEND_TIME_BIT:
        header = header._replace(max_timestamp=max_timestamp)
    return _encode(_with_horizon(plan, header) if starts_horizon else header, kept())


def _clean_marker(
    rewriting: _Rewriting, header: BatchHeader, batch: bytes, horizon: int | None, aborted: AbortedIndex
) -> tuple[BatchHeader, bytes] | None:
    plan = rewriting.plan
    if decode_marker(batch) is None:
        return header, batch
    entry, was_met = rewriting.transactions.end(header)
    if was_met:
        if entry is not None:
            aborted.add(entry)
        return header, batch
    known = plan.producers.get(header.producer_id)
    if known is not None and (known.last_offset, known.epoch) == (NO_OFFSET, header.producer_epoch):
        return header, batch
    if horizon is None:
        if header.last_offset >= rewriting.clean_offset:
            return header, batch
        return _encode(_with_horizon(plan, header), decode_records(batch))
    return None if horizon < plan.now_ms else (header, batch)


def _with_horizon(plan: CompactionPlan, header: BatchHeader) -> BatchHeader:
    return header._replace(
        attributes=header.attributes | DELETE_HORIZON_BIT,
        base_timestamp=plan.now_ms + plan.settings.delete_retention_ms,
    )


def _stays(record: Record, rewriting: _Rewriting, horizon: int | None) -> bool:
    if record.offset >= rewriting.clean_offset:
        return True
    if record.key is None or record.offset < rewriting.latest.get(_digest(record.key), -1):
        return False
    return record.value is not None or horizon is None or rewriting.plan.now_ms <= horizon


def _emptied(plan: CompactionPlan, header: BatchHeader) -> tuple[BatchHeader, bytes] | None:
    known = plan.producers.get(header.producer_id)
    if header.producer_id == NO_PRODUCER or known is None or known.last_offset != header.last_offset:
        return None
    return _without_records(header)


def _without_records(header: BatchHeader) -> tuple[BatchHeader, bytes]:
    return _encode(header._replace(attributes=header.attributes & ~header.codec), [])


def _encode(header: BatchHeader, records: Iterable[Record]) -> tuple[BatchHeader, bytes]:
    batch = bytes(encode_sparse_batch(records, head=header))
    return read_header(batch), batch


def swap(rewritten: Rewritten, log: Log) -> bool:
    """On the loop: put the cleaned segments in their place; False when the log has changed too much meanwhile."""
    for group, cleaned in rewritten.groups:
        old = [source.segment for source in group]
        unchanged = all(source.segment.size == source.size for source in group)
        if not (unchanged and log.holds(old)):
            discard(rewritten)
            return False
        log.replace_segments(old, cleaned)
    log.first_dirty_offset = rewritten.clean_offset
    return True


def discard(rewritten: Rewritten) -> None:
    """Remove what a cleaning wrote, when it is of no use any more."""
    for _, cleaned in rewritten.groups:
        for path in (cleaned.path, *cleaned.index_paths()):
            rewritten.plan.disk.unlink(path + CLEANED_SUFFIX)
