"""Kafka's records and batches by the letter of their format, read with no regard to speed."""

import io
import struct
from dataclasses import dataclass
from random import Random
from typing import Final

from .reading import Bad

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
CRC_AT: Final = 17
CRC_START: Final = 21


_FIELDS: Final = (
    (0, 8),
    (8, 4),
    (12, 4),
    (16, 1),
    (21, 2),
    (23, 4),
    (27, 8),
    (35, 8),
    (43, 8),
    (51, 2),
    (53, 4),
    (57, 4),
)
"""Where each field of a head is, and how many bytes it has."""


def with_head_changed(random: Random, batch: bytes) -> bytes:
    """A batch, one field of whose head is as large or as small as it can be, or next to what it was."""
    at, size = random.choice(_FIELDS)
    if len(batch) < HEADER.size:
        return batch
    limit, before = 1 << 8 * size - 1, int.from_bytes(batch[at : at + size], "big", signed=True)
    value = random.choice((0, 1, -1, limit - 1, -limit, limit // 2, before + 1, before - 1))
    value = max(-limit, min(value, limit - 1))
    return batch[:at] + value.to_bytes(size, "big", signed=True) + batch[at + size :]


@dataclass(frozen=True, slots=True)
class Parsed:
    """One record of a batch."""

    attributes: int
    timestamp_delta: int
    offset_delta: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...] | None
    """None where they are not what they should be."""


class Records:
    """Reads records; `Bad` says why it cannot. Varints have at most so many bytes: of lengths, and of timestamps."""

    def __init__(self, data: bytes, *, longest: tuple[int, int] = (10, 10)) -> None:
        self._in = io.BytesIO(data)
        self._size = len(data)
        self._longest = longest

    @property
    def left(self) -> int:
        """Bytes behind the last record."""
        return self._size - self._in.tell()

    def _varint(self, stop: int, longest: int) -> int:
        folded = 0
        for place in range(longest):
            if self._in.tell() >= stop:
                break
            byte = self._in.read(1)[0]
            folded |= (byte & 0x7F) << 7 * place
            if byte < 0x80 and folded < 2**64:
                return (folded >> 1) ^ -(folded & 1)
        raise Bad("a number is cut short or too long")

    def _field(self, stop: int, *, may_be_null: bool = True) -> bytes | None:
        size = self._varint(stop, self._longest[0])
        if size == -1 and may_be_null:
            return None
        if size < 0 or size > stop - self._in.tell():
            raise Bad("a field is longer than its record")
        return self._in.read(size)

    def record(self) -> Parsed:
        """The next one."""
        short, long = self._longest
        size = self._varint(self._size, short)
        stop = self._in.tell() + size
        if size < 6 or stop > self._size:
            raise Bad("a record is cut short")
        attributes = self._in.read(1)[0]
        timestamp_delta = self._varint(stop, long)
        offset_delta = self._varint(stop, short)
        key = self._field(stop)
        value = self._field(stop)
        headers = self._headers(stop)
        self._in.seek(stop)
        return Parsed(attributes, timestamp_delta, offset_delta, key, value, headers)

    def _headers(self, stop: int) -> tuple[tuple[bytes, bytes | None], ...] | None:
        try:
            count = self._varint(stop, self._longest[0])
            if count < 0 or count > stop - self._in.tell():
                return None
            found = [(self._field(stop, may_be_null=False) or b"", self._field(stop)) for _ in range(count)]
        except Bad:
            return None
        return tuple(found) if self._in.tell() == stop else None
