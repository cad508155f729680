"""Finding records by time."""

from collections.abc import Sequence
from typing import NamedTuple

from headrace.protocol.batch import NO_TIMESTAMP, BatchHeader
from headrace.protocol.compression import TooLarge
from headrace.protocol.errors import CodedError
from headrace.protocol.records import readable_records

from .scan import scan
from .segment import Segment


class TimestampOffset(NamedTuple):
    """A record found by its time."""

    offset: int
    timestamp: int
    leader_epoch: int


def first_at_or_after(
    segments: Sequence[Segment], timestamp: int, start_offset: int, end_offset: int
) -> TimestampOffset | None:
    """The first record from `start_offset` up to `end_offset` that is not older than a timestamp."""
    for segment in segments:
        if segment.base_offset >= end_offset:
            break
        if segment.next_offset <= start_offset or segment.latest.timestamp < timestamp:
            continue
        found = _first_in(segment, timestamp, start_offset, end_offset)
        if found:
            return found
    return None


def _first_in(segment: Segment, timestamp: int, start_offset: int, end_offset: int) -> TimestampOffset | None:
    entry = segment.times.before(timestamp)
    first = max(segment.base_offset + entry.offset if entry else 0, start_offset)
    file = segment.open()
    for position, header in scan(file, segment.position_of(first), segment.size, floor=segment.base_offset):
        if header.base_offset >= end_offset:
            return None
        if header.max_timestamp < timestamp:
            continue
        records = readable_records(file.pread(header.size, position))
        if isinstance(records, TooLarge):
            return _beginning(header, start_offset)
        if isinstance(records, CodedError):
            continue  # nobody can read them: what lies behind is found
        for record in records:
            if record.timestamp >= timestamp and record.offset >= start_offset:
                return TimestampOffset(record.offset, record.timestamp, header.leader_epoch)
    return None


def _beginning(header: BatchHeader, start_offset: int) -> TimestampOffset:
    """What is told of a batch whose records are not known here: who reads from there misses none of them."""
    return TimestampOffset(max(header.base_offset, start_offset), header.max_timestamp, header.leader_epoch)


def latest(segments: Sequence[Segment], start_offset: int, end_offset: int) -> TimestampOffset | None:
    """The first record that has the largest timestamp of all from `start_offset` up to `end_offset`."""
    best: tuple[Segment, int, BatchHeader] | None = None
    for segment in segments:
        if segment.base_offset >= end_offset:
            break
        if segment.next_offset <= start_offset or (best and segment.latest.timestamp <= best[2].max_timestamp):
            continue
        found = _latest_batch(segment, start_offset, end_offset)
        if found and (best is None or found[1].max_timestamp > best[2].max_timestamp):
            best = (segment, *found)
    if best is None or best[2].max_timestamp == NO_TIMESTAMP:
        return None
    return _latest_record(*best, start_offset)


def _latest_batch(segment: Segment, start_offset: int, end_offset: int) -> tuple[int, BatchHeader] | None:
    """Every batch before the one that the last usable index entry names is older than that one."""
    entry = segment.times.below(end_offset - segment.base_offset)
    first = max(segment.base_offset + entry.offset if entry else 0, start_offset)
    best: tuple[int, BatchHeader] | None = None
    start = segment.position_of(first)
    for position, header in scan(segment.open(), start, segment.size, floor=segment.base_offset):
        if header.base_offset >= end_offset:
            break
        if header.record_count and (best is None or header.max_timestamp > best[1].max_timestamp):
            best = (position, header)
    return best


def _latest_record(segment: Segment, position: int, header: BatchHeader, start_offset: int) -> TimestampOffset | None:
    records = readable_records(segment.open().pread(header.size, position))
    if isinstance(records, CodedError):
        return _beginning(header, start_offset)
    readable = [record for record in records if record.offset >= start_offset]
    if not readable:
        return None
    newest = max(readable, key=lambda record: record.timestamp)
    return TimestampOffset(newest.offset, newest.timestamp, header.leader_epoch)
