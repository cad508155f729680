"""`cleanup.policy=compact`: of every key only the latest record stays.

Three steps, so that the loop never waits: `plan` on the loop decides what to clean, `rewrite` on a worker thread
reads old segments and writes new ones beside them, `swap` on the loop puts the new ones in their place.

Offsets never change: a batch that loses records keeps its base offset and its last offset. Records stay when

*   no later record has their key (as far as the log was read, and not counting aborted transactions), and
*   they are not a tombstone older than `delete.retention.ms`. As in Kafka, the first cleaning that meets a tombstone
    writes into its batch when it may go: the base timestamp becomes that time, and a bit in the attributes says so.

The active segment is never touched, nor anything at or beyond the high watermark or an open transaction. A producer's
last batch stays as an empty one, so that its sequence is not forgotten. Transaction markers and what was aborted stay
until later records supersede it.

A crash at any point leaves the old or the new segments: the new file is complete and synced as `.cleaned`, becomes
`.swap` (from here on recovery finishes the job), the old ones go, and it becomes `.log`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from headrace.protocol.batch import APPEND_TIME_BIT, LOG_OVERHEAD, NO_PRODUCER, BatchHeader
from headrace.protocol.records import Record, decode_marker, decode_records, encode_sparse_batch

from .disk import Disk, File
from .log import Log
from .scan import scan
from .segment import CLEANED_SUFFIX, LARGEST_RELATIVE_OFFSET, Segment
from .settings import LogSettings

DELETE_HORIZON_BIT: Final = 0x40
_MOST_KEYS: Final = 500_000


@dataclass(frozen=True, slots=True)
class Source:
    """A segment to be cleaned, as it was when the plan was made."""

    segment: Segment
    file: File
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one cleaning reads and where it may write. The worker uses nothing but this."""

    disk: Disk
    directory: str
    settings: LogSettings
    now_ms: int
    sources: Sequence[Source]
    first_dirty_offset: int
    last_offsets: dict[int, int]
    """Where each producer's last batch ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """Segments that wait to take the place of others."""

    plan: Plan
    groups: Sequence[tuple[Sequence[Source], Segment]]
    clean_offset: int
    """Everything below it is clean once they have."""


def plan(disk: Disk, log: Log, *, now_ms: int, high_watermark: int) -> Plan | None:
    """What should be cleaned in a log now; None when it is clean enough."""
    settings = log.settings
    if not settings.compacts or log.offline is not None:
        return None
    limit = min(high_watermark, _or(log.first_unstable_offset(), high_watermark))
    segments: list[Segment] = []
    for segment in log.inactive_segments():
        if segment.next_offset > limit or segment.age_timestamp > now_ms - settings.min_compaction_lag_ms:
            break
        segments.append(segment)
    if not _is_worthwhile(segments, log.first_dirty_offset, settings, now_ms):
        return None
    return Plan(
        disk=disk,
        directory=log.directory,
        settings=settings,
        now_ms=now_ms,
        sources=[Source(segment, segment.open(), segment.size) for segment in segments],
        first_dirty_offset=log.first_dirty_offset,
        last_offsets={producer_id: state.last_offset for producer_id, state in log.producers().items()},
    )


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


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
    groups = [(group, _rewrite_group(plan, group, latest)) for group in _group(sources, plan.settings)]
    return Rewritten(plan=plan, groups=groups, clean_offset=clean_offset)


def _map_keys(plan: Plan, most_keys: int) -> tuple[dict[bytes, int], int]:
    """The latest offset of each key in the dirty part, and how far that was read: whole segments."""
    latest: dict[bytes, int] = {}
    undecided: dict[int, dict[bytes, int]] = {}
    clean_offset = plan.first_dirty_offset
    for source in plan.sources:
        if source.segment.next_offset <= plan.first_dirty_offset:
            continue
        if len(latest) >= most_keys:
            break
        for header, batch in _batches(source):
            if header.is_control:
                _decide(header, batch, latest, undecided)
            else:
                keys = undecided.setdefault(header.producer_id, {}) if header.is_transactional else latest
                keys.update({r.key: r.offset for r in decode_records(batch) if r.key is not None})
        clean_offset = source.segment.next_offset
    return latest, clean_offset


def _decide(
    header: BatchHeader, batch: bytes, latest: dict[bytes, int], undecided: dict[int, dict[bytes, int]]
) -> None:
    """What a transaction wrote counts when it was committed, and then from where it was written."""
    marker = decode_marker(batch)
    keys = undecided.pop(header.producer_id, {}) if marker else {}
    if marker and marker.committed:
        for key, offset in keys.items():
            latest[key] = max(offset, latest.get(key, -1))


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


def _rewrite_group(plan: Plan, group: Sequence[Source], latest: dict[bytes, int]) -> Segment:
    first = group[0].segment
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
    for source in group:
        for header, batch in _batches(source):
            kept = _clean_batch(plan, header, batch, latest)
            if kept is not None:
                kept_header, data = kept
                file.append(data)
                cleaned.take(kept_header)
    file.datasync()
    cleaned.save_cleaned_indexes()
    cleaned.next_offset = group[-1].segment.next_offset
    return cleaned


def _clean_batch(
    plan: Plan, header: BatchHeader, batch: bytes, latest: dict[bytes, int]
) -> tuple[BatchHeader, bytes] | None:
    """What stays of a batch; None when nothing does."""
    if header.is_control:
        return header, batch
    horizon = header.base_timestamp if header.attributes & DELETE_HORIZON_BIT else None
    records = decode_records(batch)
    kept = [record for record in records if _stays(record, latest, horizon, plan.now_ms)]
    if not kept:
        return _emptied(plan, header)
    starts_horizon = horizon is None and any(record.value is None for record in kept)
    if len(kept) == len(records) and not starts_horizon:
        return header, batch
    if starts_horizon:
        header = header._replace(
            attributes=header.attributes | DELETE_HORIZON_BIT,
            base_timestamp=plan.now_ms + plan.settings.delete_retention_ms,
        )
    return _encode(header, kept)


def _stays(record: Record, latest: dict[bytes, int], horizon: int | None, now_ms: int) -> bool:
    if record.key is None or record.offset < latest.get(record.key, -1):
        return False
    return record.value is not None or horizon is None or now_ms <= horizon


def _emptied(plan: Plan, header: BatchHeader) -> tuple[BatchHeader, bytes] | None:
    if header.producer_id == NO_PRODUCER or plan.last_offsets.get(header.producer_id) != header.last_offset:
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
