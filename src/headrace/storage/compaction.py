"""`cleanup.policy=compact`: of every key only the latest record stays.

Three steps, so that the loop never waits: `plan` on the loop decides what to clean, `rewrite` on a worker thread
reads old segments and writes new ones beside them, `swap` on the loop puts the new ones in their place.

Offsets never change: a batch that loses records keeps its base offset and its last offset. Records stay when

*   their transaction, if they are of one, was not aborted,
*   no later record has their key (as far as the log was read, and not counting aborted transactions), and
*   they are not a tombstone older than `delete.retention.ms`. As in Kafka, the first cleaning that meets a tombstone
    writes into its batch when it may go: the base timestamp becomes that time, and a bit in the attributes says so.

A batch that nobody can read stays as it is. The active segment is never touched, nor anything at or beyond the last
stable offset. A producer's last batch stays as an empty one, so that its sequence is not forgotten; its last marker
stays where that alone tells its epoch. Other markers stay as long as a batch of their transaction does, and then for
`delete.retention.ms`, as tombstones do: so whoever reads the log from its start meets the end of every transaction of
which it has met something.

A crash at any point leaves the old or the new segments: the new file is complete and synced as `.cleaned`, becomes
`.swap` (from here on recovery finishes the job), the old ones go, and it becomes `.log`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from headrace.protocol.batch import APPEND_TIME_BIT, LOG_OVERHEAD, NO_PRODUCER, BatchHeader
from headrace.protocol.errors import CodedError
from headrace.protocol.records import Record, decode_marker, decode_records, encode_sparse_batch, readable_records

from .aborted import AbortedIndex, AbortedTransaction
from .disk import Disk, File
from .log import Log
from .producer_state import NO_OFFSET, Producers
from .scan import scan
from .segment import CLEANED_SUFFIX, LARGEST_RELATIVE_OFFSET, Segment
from .settings import LogSettings

DELETE_HORIZON_BIT: Final = 0x40
_MOST_KEYS: Final = 500_000


log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Source:
    """A segment to be cleaned, as it was when the plan was made."""

    segment: Segment
    file: File
    size: int
    first_open: int
    """Where the oldest transaction began that was open where the segment ends; -1 for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one cleaning reads and where it may write. The worker uses nothing but this."""

    disk: Disk
    directory: str
    settings: LogSettings
    now_ms: int
    sources: Sequence[Source]
    first_dirty_offset: int
    producers: Producers
    aborted: Sequence[AbortedTransaction]
    """Those with records in the sources, by their markers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """Segments that wait to take the place of others."""

    plan: Plan
    groups: Sequence[tuple[Sequence[Source], Segment]]
    clean_offset: int
    """Everything below it is clean once they have."""


def plan(disk: Disk, log: Log, *, now_ms: int, last_stable_offset: int) -> Plan | None:
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
    return Plan(
        disk=disk,
        directory=log.directory,
        settings=settings,
        now_ms=now_ms,
        sources=[Source(segment, segment.open(), segment.size, log.first_open_after(segment)) for segment in segments],
        first_dirty_offset=log.first_dirty_offset,
        producers=log.producers().copy(),
        aborted=log.aborted_between(segments[0].base_offset, segments[-1].next_offset),
    )


def _is_worthwhile(segments: list[Segment], first_dirty: int, settings: LogSettings, now_ms: int) -> bool:
    dirty = [segment for segment in segments if segment.next_offset > first_dirty]
    if not dirty:
        return False
    if now_ms - dirty[0].age_timestamp > settings.max_compaction_lag_ms:
        return True
    dirty_bytes = sum(segment.size for segment in dirty)
    return dirty_bytes >= settings.min_cleanable_dirty_ratio * sum(segment.size for segment in segments)


def rewrite(plan: Plan, most_keys: int = _MOST_KEYS) -> Rewritten:
    """On a worker: write the cleaned segments beside the old ones."""
    latest, clean_offset = _map_keys(plan, most_keys)
    sources = [source for source in plan.sources if source.segment.base_offset < clean_offset]
    rewriting = _Rewriting(plan, latest, Transactions(plan.aborted))
    groups = [(group, _rewrite_group(rewriting, group)) for group in _group(sources, plan.settings)]
    return Rewritten(plan=plan, groups=groups, clean_offset=clean_offset)


def _map_keys(plan: Plan, most_keys: int) -> tuple[dict[bytes, int], int]:
    """The latest offset of each key in the dirty part, and how far that was read: whole segments."""
    latest: dict[bytes, int] = {}
    transactions = Transactions(plan.aborted)
    clean_offset = plan.first_dirty_offset
    for source in plan.sources:
        if source.segment.next_offset <= plan.first_dirty_offset:
            continue
        if len(latest) >= most_keys:
            break
        for header, batch in _batches(source):
            if not header.is_control and not transactions.is_aborted(header):
                latest.update({r.key: r.offset for r in _readable(batch) or () if r.key is not None})
        clean_offset = source.segment.next_offset
    return latest, clean_offset


def _readable(batch: bytes) -> list[Record] | None:
    """The records of a batch; None where nobody can read them. Such a batch stays as it is."""
    records = readable_records(batch, exact=True)
    return None if isinstance(records, CodedError) else records


def _batches(source: Source) -> Iterator[tuple[BatchHeader, bytes]]:
    file = source.file
    for position, header in scan(file, 0, source.size, floor=source.segment.base_offset, checked_from=0):
        yield header, file.pread(header.size, position)


def _group(sources: Sequence[Source], settings: LogSettings) -> Iterator[list[Source]]:
    """Neighbours that fit one segment are merged, as their cleaned remains would leave many small files."""
    group: list[Source] = []
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
    """What a walk over the batches from the log's start has met of each producer's transaction."""

    def __init__(self, aborted: Sequence[AbortedTransaction]) -> None:
        self._to_come = sorted(aborted, key=lambda entry: entry.first_offset, reverse=True)
        self._aborted: dict[int, AbortedTransaction] = {}
        self._met: set[int] = set()

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether the records of a batch were taken back; batches are asked for in their order."""
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
    plan: Plan
    latest: dict[bytes, int]
    transactions: Transactions


def _rewrite_group(rewriting: _Rewriting, group: Sequence[Source]) -> Segment:
    plan, first = rewriting.plan, group[0].segment
    cleaned = Segment(
        plan.disk,
        plan.directory,
        first.base_offset,
        size=0,
        next_offset=first.base_offset,
        created_ms=first.created_ms,
        interval=plan.settings.index_interval_bytes,
    )
    path = cleaned.path + CLEANED_SUFFIX
    plan.disk.unlink(path)
    file = plan.disk.create(path)
    cleaned.begin()
    cleaned.aborted = AbortedIndex(first_open=group[-1].first_open)
    for source in group:
        for header, batch in _batches(source):
            kept = _clean_batch(rewriting, header, batch, cleaned.aborted)
            if kept is not None:
                kept_header, data = kept
                file.append(data)
                cleaned.take(kept_header)
    file.datasync()
    cleaned.save_cleaned_indexes(group[-1].segment.next_offset)
    return cleaned


def _clean_batch(
    rewriting: _Rewriting, header: BatchHeader, batch: bytes, aborted: AbortedIndex
) -> tuple[BatchHeader, bytes] | None:
    """What stays of a batch; None when nothing does."""
    plan = rewriting.plan
    horizon = header.base_timestamp if header.attributes & DELETE_HORIZON_BIT else None
    if header.is_control:
        return _clean_marker(rewriting, header, batch, horizon, aborted)
    if rewriting.transactions.is_aborted(header):
        return _emptied(plan, header)
    records = _readable(batch)
    if records is None:
        log.warning("unreadable batch kept by compaction", directory=plan.directory, offset=header.base_offset)
        return header, batch
    kept = [record for record in records if _stays(record, rewriting.latest, horizon, plan.now_ms)]
    if not kept:
        return _emptied(plan, header)
    starts_horizon = horizon is None and any(record.value is None for record in kept)
    if len(kept) == len(records) and not starts_horizon:
        return header, batch
    return _encode(_with_horizon(plan, header) if starts_horizon else header, kept)


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
        return _encode(_with_horizon(plan, header), decode_records(batch))
    return None if horizon < plan.now_ms else (header, batch)


def _with_horizon(plan: Plan, header: BatchHeader) -> BatchHeader:
    return header._replace(
        attributes=header.attributes | DELETE_HORIZON_BIT,
        base_timestamp=plan.now_ms + plan.settings.delete_retention_ms,
    )


def _stays(record: Record, latest: dict[bytes, int], horizon: int | None, now_ms: int) -> bool:
    if record.key is None or record.offset < latest.get(record.key, -1):
        return False
    return record.value is not None or horizon is None or now_ms <= horizon


def _emptied(plan: Plan, header: BatchHeader) -> tuple[BatchHeader, bytes] | None:
    known = plan.producers.get(header.producer_id)
    if header.producer_id == NO_PRODUCER or known is None or known.last_offset != header.last_offset:
        return None
    return _encode(header._replace(attributes=header.attributes & ~header.codec), [])


def _encode(header: BatchHeader, records: Sequence[Record]) -> tuple[BatchHeader, bytes]:
    if records and not header.attributes & APPEND_TIME_BIT:
        header = header._replace(max_timestamp=max(record.timestamp for record in records))
    deltas = [record.offset - header.base_offset for record in records]
    batch = bytes(encode_sparse_batch(records, deltas, head=header))
    return header._replace(batch_length=len(batch) - LOG_OVERHEAD, record_count=len(records)), batch


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
