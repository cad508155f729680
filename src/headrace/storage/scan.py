"""Walking over the batches of a segment file, a block at a time."""

from collections.abc import Callable, Iterator
from typing import Final, Protocol

from crc32c import crc32c

from headrace.protocol.batch import CRC_START, HEADER, HEADER_SIZE, LOG_OVERHEAD, MAGIC, BatchHeader, crc_matches
from headrace.protocol.errors import CodedError, ErrorCode

BLOCK: Final = 1 << 20
_SHORTEST: Final = HEADER_SIZE - LOG_OVERHEAD
MOST_OFFSETS: Final = 1 << 31
"""No segment goes further, whatever compaction has removed from it: indexes could not name what lies behind."""
UNCHECKED: Final = 1 << 63
"""An offset that no batch reaches."""


_unpack: Final = HEADER.unpack_from
_new_tuple: Final = tuple.__new__  # half of what a NamedTuple's own constructor costs


class CorruptBatch(Exception):
    """What stands at this position of the file is no sound batch."""

    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(f"{path} at position {position}: {reason}")
        self.path = path
        self.position = position
        self.reason = reason


class Scanned(Protocol):
    """A file, as far as a scan needs it."""

    path: str

    def pread(self, size: int, position: int) -> bytes: ...


Skip = Callable[[bytes, int], tuple[int, int]]
"""Takes a block and where a batch begins in it. Passes over sound batches that nobody else has to look at; where in the
block the first one begins that was not passed over, and the least offset that it may have."""


def scan(
    file: Scanned,
    start: int,
    end: int,
    *,
    floor: int = 0,
    checked_from: int = UNCHECKED,
    block: int = BLOCK,
    skip: Skip | None = None,
) -> Iterator[tuple[int, BatchHeader]]:
    """Positions and headers of the batches from `start`, which is a batch's first byte, up to `end`.

    Offsets must grow from `floor` on, which is where the segment begins. Batches that reach offset `checked_from` are
    checked against their CRC, the others by their header alone. Raises `CorruptBatch` at the first one that is not
    sound. After each batch `skip` may pass over some, which has to hold them to the same.
    """
    limit = floor + MOST_OFFSETS
    position = origin = start
    data = b""
    view = memoryview(data)
    while position < end:
        at = position - origin
        if at + HEADER_SIZE > len(view):
            data = file.pread(min(block, end - position), position)
            view = memoryview(data)
            origin, at = position, 0
            if len(view) < HEADER_SIZE:
                raise CorruptBatch(file.path, position, f"{len(view)} bytes are not a whole batch")
        fields = _unpack(view, at)
        header = _new_tuple(BatchHeader, fields)
        base_offset, length, _, magic, crc, _, delta, _, _, _, _, _, _ = fields
        after = position + length + LOG_OVERHEAD
        last_offset = base_offset + delta
        if (
            magic != MAGIC
            or length < _SHORTEST
            or after > end
            or base_offset < floor
            or delta < 0
            or last_offset >= limit
        ):
            raise CorruptBatch(file.path, position, _fault(header, floor, limit, end - position))
        if last_offset >= checked_from:
            if after - origin <= len(view):
                found = crc32c(view[at + CRC_START : after - origin])
            else:
                found = _crc_of_range(file, position + CRC_START, after)
            if found != crc:
                raise CorruptBatch(file.path, position, f"the batch at offset {base_offset} does not match its CRC-32C")
        yield position, header
        floor = last_offset + 1
        position = after
        if skip is not None and after - origin + HEADER_SIZE <= len(view):
            at, floor = skip(data, after - origin)
            position = origin + at


def is_misplaced(expected: int, header: BatchHeader, following: BatchHeader | None, *, gap_is_fine: bool) -> bool:
    """Whether the offset of a batch cannot be right, which its CRC does not cover.

    Compaction leaves gaps before batches; but what follows the batch never belongs into the gap. Where nothing follows,
    it depends on whether a gap would be fine.
    """
    if header.base_offset <= expected:
        return False
    if following is None:
        return not gap_is_fine
    return expected <= following.base_offset <= header.last_offset


def _fault(header: BatchHeader, floor: int, limit: int, room: int) -> str:
    if header.magic != MAGIC:
        return f"no record batch (magic {header.magic})"
    if header.batch_length < _SHORTEST:
        return f"a batch cannot have a length of {header.batch_length}"
    if header.size > room:
        return f"a batch of {header.size} bytes is cut off after {room}"
    if header.base_offset < floor:
        return f"offset {header.base_offset} comes after {floor - 1}"
    if header.last_offset_delta >= 0:
        return f"offset {header.last_offset} cannot be right in a segment that ends before {limit}"
    return f"a batch cannot have a last offset delta of {header.last_offset_delta}"


def _crc_of_range(file: Scanned, start: int, end: int) -> int:
    crc = 0
    while start < end:
        piece = file.pread(min(BLOCK, end - start), start)
        if not piece:
            break
        crc = crc32c(piece, crc)
        start += len(piece)
    return crc


def check_fetched(log: str, end: int, batch: memoryview, header: BatchHeader) -> None:
    """Hold a batch to what a log that ends at an offset can take of its leader; `CodedError` where it cannot."""
    if len(batch) < HEADER_SIZE or header.last_offset_delta < 0 or not crc_matches(batch, header.crc):
        message = f"the batch for offset {end} of {log} is damaged as the leader sends it"
        raise CodedError(ErrorCode.corrupt_message, message)
    if header.base_offset < end:
        message = f"{log} ends at {end}, it cannot take a batch at {header.base_offset}"
        raise CodedError(ErrorCode.offset_out_of_range, message)


def check_gap(log: str, end: int, header: BatchHeader, following: BatchHeader | None, leader_end: int) -> None:
    """The same for a batch that begins later: compaction leaves gaps, but an offset may also be damaged."""
    if is_misplaced(end, header, following, gap_is_fine=header.last_offset < leader_end):
        raise CodedError(
            ErrorCode.corrupt_message,
            f"the batch for offset {end} of {log} is damaged as the leader sends it: it says that it is "
            f"at {header.base_offset}",
        )
