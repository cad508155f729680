"""Walking over the batches of a segment file, a block at a time."""

from collections.abc import Iterator
from typing import Final

from crc32c import crc32c

from headrace.protocol.batch import CRC_START, HEADER_SIZE, LOG_OVERHEAD, MAGIC, BatchHeader, read_header

from .disk import File

BLOCK: Final = 1 << 20
UNCHECKED: Final = 1 << 63
"""An offset that no batch reaches."""


class BadBatch(Exception):  # noqa: N818 - named for what was found
    """What stands at this position of the file is no sound batch."""

    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(f"{path} at position {position}: {reason}")
        self.path = path
        self.position = position
        self.reason = reason


def scan(
    file: File, start: int, end: int, *, floor: int = 0, checked_from: int = UNCHECKED, block: int = BLOCK
) -> Iterator[tuple[int, BatchHeader]]:
    """Positions and headers of the batches from `start`, which is a batch's first byte, up to `end`.

    Offsets must grow from `floor` on. Batches that reach offset `checked_from` are checked against their CRC,
    the others by their header alone. Raises `BadBatch` at the first one that is not sound.
    """
    position = origin = start
    data = b""
    while position < end:
        at = position - origin
        if at + HEADER_SIZE > len(data):
            data = file.pread(min(block, end - position), position)
            origin, at = position, 0
            if len(data) < HEADER_SIZE:
                raise BadBatch(file.path, position, f"{len(data)} bytes are not a whole batch")
        header = read_header(data, at)
        fault = _fault(header, floor, end - position)
        if fault:
            raise BadBatch(file.path, position, fault)
        if header.base_offset + header.last_offset_delta >= checked_from:
            _check_crc(file, position, header, data, at)
        yield position, header
        floor = header.base_offset + header.last_offset_delta + 1
        position += header.batch_length + LOG_OVERHEAD


def _fault(header: BatchHeader, floor: int, room: int) -> str | None:
    if header.magic != MAGIC:
        return f"no record batch (magic {header.magic})"
    if header.batch_length < HEADER_SIZE - LOG_OVERHEAD:
        return f"a batch cannot have a length of {header.batch_length}"
    if header.size > room:
        return f"a batch of {header.size} bytes is cut off after {room}"
    if header.base_offset < floor:
        return f"offset {header.base_offset} comes after {floor - 1}"
    if header.last_offset_delta < 0:
        return f"a batch cannot have a last offset delta of {header.last_offset_delta}"
    return None


def _check_crc(file: File, position: int, header: BatchHeader, data: bytes, at: int) -> None:
    size = header.size
    if at + size <= len(data):
        crc = crc32c(memoryview(data)[at + CRC_START : at + size])
    else:
        crc = _crc_of_range(file, position + CRC_START, position + size)
    if crc != header.crc:
        raise BadBatch(file.path, position, f"the batch at offset {header.base_offset} does not match its CRC-32C")


def _crc_of_range(file: File, start: int, end: int) -> int:
    crc = 0
    while start < end:
        piece = file.pread(min(BLOCK, end - start), start)
        if not piece:
            break
        crc = crc32c(piece, crc)
        start += len(piece)
    return crc
