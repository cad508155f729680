"""Which transactions of a segment were aborted: what a `read_committed` reader needs to know of the bytes it gets.

One entry per aborted transaction, in the segment that holds its marker, in the order of the markers. The file beside
the segment, `<base offset>.txnindex`, has Kafka's entries and a tail of ours:

    entries: version i16 = 0, producer id i64, first offset i64, last offset i64 (the marker's), last stable offset i64
    tail: covered i64 | first open i64 | crc u32, CRC-32C of all before it

An index that says too little would show what was aborted. So the tail tells how far the file speaks for the segment:
what lies between there and the segment's end is read again. `first open` is where the oldest transaction began that
was still open at that point, -1 for none: it tells a search when it need not look into the next segment.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

NONE_OPEN: Final = -1
_VERSION: Final = 0
_ENTRY: Final = Struct(">hqqqq")
_TAIL: Final = Struct(">qqI")
_CRC_SIZE: Final = 4


class AbortedTransaction(NamedTuple):
    """An aborted transaction: its producer, its first offset here, its marker's, and the last stable offset after."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class AbortedIndex:
    """The aborted transactions of one segment.

    `covered` is the offset up to which it speaks; None when it is kept up with the segment as that grows.
    """

    __slots__ = ("_last_offsets", "covered", "entries", "first_open")

    def __init__(
        self,
        entries: Iterable[AbortedTransaction] = (),
        *,
        covered: int | None = None,
        first_open: int = NONE_OPEN,
    ) -> None:
        self.entries = list(entries)
        self._last_offsets = [entry.last_offset for entry in self.entries]
        self.covered = covered
        self.first_open = first_open

    def __len__(self) -> int:
        return len(self.entries)

    def add(self, entry: AbortedTransaction) -> None:
        """Note the transaction whose marker has just been met."""
        self.entries.append(entry)
        self._last_offsets.append(entry.last_offset)

    def cut(self, offset: int) -> None:
        """Forget markers at or above an offset; the index stays valid below it, and is not updated any more."""
        number = bisect_left(self._last_offsets, offset)
        del self.entries[number:]
        del self._last_offsets[number:]
        self.covered = offset if self.covered is None else min(self.covered, offset)

    def overlapping(self, start: int, end: int) -> Iterator[AbortedTransaction]:
        """Those that may have records from offset `start` up to `end`."""
        for number in range(bisect_left(self._last_offsets, start), len(self.entries)):
            entry = self.entries[number]
            if entry.first_offset < end:
                yield entry
            if entry.last_stable_offset >= end:
                return

    def encode(self, covered: int) -> bytes:
        """The file, valid for the segment up to an offset."""
        body = b"".join([_ENTRY.pack(_VERSION, *entry) for entry in self.entries])
        tail = _TAIL.pack(covered, self.first_open, 0)[:-_CRC_SIZE]
        crc: int = crc32c(body + tail)
        return body + tail + crc.to_bytes(_CRC_SIZE, "big")

    @classmethod
    def decode(cls, data: bytes, base_offset: int) -> "AbortedIndex | None":
        """What a file holds; None when it is damaged, or not that of a segment with this base."""
        size = len(data) - _TAIL.size
        if size < 0 or size % _ENTRY.size:
            return None
        covered, first_open, crc = _TAIL.unpack_from(data, size)
        if crc32c(data[:-_CRC_SIZE]) != crc or covered < base_offset:
            return None
        fields = list(_ENTRY.iter_unpack(data[:size]))
        if any(version != _VERSION for version, *_ in fields):
            return None
        return cls((AbortedTransaction(*entry) for _, *entry in fields), covered=covered, first_open=first_open)
