"""A segment as it lies on disk, looked at from outside: its batches, and whether they and its indexes are sound.

Nothing is changed, and nothing is recovered: what a broker would cut off or rebuild at its next start is reported.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from headrace.protocol.batch import HEADER_SIZE, MAGIC, BatchHeader, read_header
from headrace.protocol.errors import CodedError
from headrace.protocol.records import iterate_records

from .aborted import AbortedIndex
from .index import OFFSET_ENTRY, TIME_ENTRY, OffsetIndex, TimeIndex
from .scan import CorruptBatch, Scanned, scan

_REBUILT: Final = "a broker builds it anew when it starts"


class FileFault(NamedTuple):
    """What is wrong in a file."""

    path: str
    position: int | None
    reason: str
    is_at_end: bool = False
    """Whether nothing sound follows in the file: a write that did not finish looks like this."""

    def __str__(self) -> str:
        where = self.path if self.position is None else f"{self.path} at position {self.position}"
        return f"{where}: {self.reason}"


@dataclass(kw_only=True)
class SegmentReport:
    """What was found in a segment."""

    path: str
    base_offset: int
    size: int
    batches: int = 0
    records: int = 0
    next_offset: int = 0
    faults: list[FileFault] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class IndexFiles:
    """What the files beside a segment hold; None for one that is not there."""

    offsets: bytes | None = None
    times: bytes | None = None
    aborted: bytes | None = None


def batches(file: Scanned, size: int, base_offset: int) -> Iterator[tuple[int, BatchHeader] | FileFault]:
    """Positions and headers of a segment's batches, each held against its CRC, and what is wrong in between."""
    position, floor = 0, base_offset
    while position < size:
        try:
            for position, header in scan(file, position, size, floor=floor, checked_from=0):  # noqa: B020 - resumed
                floor = header.last_offset + 1
                yield position, header
            return
        except CorruptBatch as error:
            after = _behind(file, error.position, size)
            yield FileFault(error.path, error.position, error.reason, is_at_end=after is None)
            if after is None:
                return
            position = after


def _behind(file: Scanned, position: int, size: int) -> int | None:
    """Where the batch after a bad one begins, if that can be told."""
    data = file.pread(HEADER_SIZE, position)
    if len(data) < HEADER_SIZE:
        return None
    header = read_header(data)
    after = position + header.size
    if header.magic != MAGIC or header.size < HEADER_SIZE or after >= size:
        return None
    following = file.pread(HEADER_SIZE, after)
    return after if len(following) == HEADER_SIZE and read_header(following).magic == MAGIC else None


def inspect_segment(
    file: Scanned, size: int, base_offset: int, prefix: str, indexes: IndexFiles, *, records: bool
) -> SegmentReport:
    """Check every batch and every index entry of a segment; with `records`, also that each record can be read."""
    report = SegmentReport(path=file.path, base_offset=base_offset, size=size, next_offset=base_offset)
    positions: list[int] = []
    headers: list[BatchHeader] = []
    for found in batches(file, size, base_offset):
        if isinstance(found, FileFault):
            report.faults.append(found)
            continue
        position, header = found
        positions.append(position)
        headers.append(header)
        report.batches += 1
        report.records += header.record_count
        report.next_offset = header.last_offset + 1
        if records:
            _check_records(file, position, header, report)
    if not report.faults:  # else entries of the batches that are damaged would seem to lie
        report.faults += _offset_faults(f"{prefix}.index", indexes.offsets, size, base_offset, positions, headers)
        report.faults += _time_faults(f"{prefix}.timeindex", indexes.times, base_offset, headers)
    if indexes.aborted and AbortedIndex.decode(indexes.aborted, base_offset) is None:
        report.faults.append(FileFault(f"{prefix}.txnindex", None, f"it is damaged; {_REBUILT}"))
    return report


def _check_records(file: Scanned, position: int, header: BatchHeader, report: SegmentReport) -> None:
    try:
        for _ in iterate_records(file.pread(header.size, position)):
            pass
    except CodedError as error:
        report.faults.append(FileFault(file.path, position, f"records of offset {header.base_offset}: {error.message}"))


def decode_offset_index(data: bytes, size: int) -> OffsetIndex | None:
    """The entries of an `.index` file; Kafka fills up that of an active segment with zeros."""
    return OffsetIndex.decode(_without_padding(data, OFFSET_ENTRY.size), size)


def decode_time_index(data: bytes) -> TimeIndex | None:
    """The entries of a `.timeindex` file; Kafka fills up that of an active segment with zeros."""
    return TimeIndex.decode(_without_padding(data, TIME_ENTRY.size))


def _without_padding(data: bytes, entry: int) -> bytes:
    length = len(data.rstrip(b"\0"))
    return data[: -(-length // entry) * entry] if not len(data) % entry else data


def _offset_faults(
    path: str, data: bytes | None, size: int, base: int, positions: list[int], headers: list[BatchHeader]
) -> Iterator[FileFault]:
    if data is None:
        return
    index = decode_offset_index(data, size)
    if index is None:
        yield FileFault(path, None, f"it is damaged, or not that of this segment; {_REBUILT}")
        return
    for offset, position in zip(index.offsets, index.positions, strict=True):
        number = bisect_left(positions, position)
        is_there = number < len(positions) and positions[number] == position
        if not is_there or headers[number].last_offset != base + offset:
            reason = f"an entry says that the batch that ends with offset {base + offset} is at position {position}"
            yield FileFault(path, None, f"{reason}, where it is not; {_REBUILT}")
            return


def _time_faults(path: str, data: bytes | None, base: int, headers: list[BatchHeader]) -> Iterator[FileFault]:
    if data is None:
        return
    index = decode_time_index(data)
    if index is None:
        yield FileFault(path, None, f"it is damaged; {_REBUILT}")
        return
    last_offsets = [header.last_offset for header in headers]
    for timestamp, offset in zip(index.timestamps, index.offsets, strict=True):
        number = bisect_left(last_offsets, base + offset)
        if number == len(headers) or (
            headers[number].base_offset <= base + offset and headers[number].max_timestamp != timestamp
        ):
            yield FileFault(
                path, None, f"an entry says {timestamp} for offset {base + offset}, which it is not; {_REBUILT}"
            )
            return
