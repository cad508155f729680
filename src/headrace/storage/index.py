"""The two sparse indexes of a segment, in Kafka's bytes.

    .index      relative offset i32 | position i32       one entry per `index.interval.bytes` of log
    .timeindex  timestamp i64 | relative offset i32      the largest timestamp so far, and the batch that has it

An entry of the offset index names the last offset of a batch and where that batch starts. An entry (t, o) of the
time index says that everything later than t comes after offset o. In memory each is two arrays searched by
bisection; on disk an index is a hint that is never trusted further than it can be checked, since the segment
can always rebuild it.
"""

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from struct import Struct, iter_unpack
from typing import Final, NamedTuple

from headrace.protocol.batch import NO_TIMESTAMP

OFFSET_ENTRY: Final = Struct(">ii")
TIME_ENTRY: Final = Struct(">qi")
_LITTLE: Final = sys.byteorder == "little"


class TimeEntry(NamedTuple):
    timestamp: int
    offset: int


class OffsetIndex:
    """Where the batches with certain last offsets start; offsets are relative to the segment's base."""

    __slots__ = ("offsets", "positions")

    def __init__(self) -> None:
        self.offsets = array("i")
        self.positions = array("i")

    def __len__(self) -> int:
        return len(self.offsets)

    def add(self, offset: int, position: int) -> None:
        self.offsets.append(offset)
        self.positions.append(position)

    def extend(self, offsets: Iterable[int], positions: Iterable[int]) -> None:
        self.offsets.extend(offsets)
        self.positions.extend(positions)

    def floor(self, offset: int) -> int:
        """The number of the last entry at or below an offset; -1 when there is none."""
        return bisect_right(self.offsets, offset) - 1

    def cut(self, offset: int, position: int) -> None:
        """Forget entries at or above an offset, or at or behind a position."""
        keep = min(bisect_left(self.offsets, offset), bisect_left(self.positions, position))
        del self.offsets[keep:]
        del self.positions[keep:]

    def encode(self, first: int = 0) -> bytes:
        """The entries from number `first` on, as the file has them."""
        flat = array("i", bytes(8 * (len(self.offsets) - first)))
        flat[0::2] = self.offsets[first:]
        flat[1::2] = self.positions[first:]
        if _LITTLE:
            flat.byteswap()
        return flat.tobytes()

    @classmethod
    def decode(cls, data: bytes, size: int) -> "OffsetIndex | None":
        """What a file holds, for a log of `size` bytes; None when it cannot be an index of that log."""
        if len(data) % OFFSET_ENTRY.size:
            return None
        flat = array("i", data)
        if _LITTLE:
            flat.byteswap()
        index = cls()
        index.offsets = flat[0::2]
        index.positions = flat[1::2]
        if not (_strictly_grows(index.offsets) and _strictly_grows(index.positions)):
            return None
        if len(index) and (index.offsets[0] < 0 or index.positions[0] <= 0 or index.positions[-1] >= size):
            return None
        return index


class TimeIndex:
    """How late the records up to certain offsets are; offsets are relative to the segment's base."""

    __slots__ = ("offsets", "timestamps")

    def __init__(self) -> None:
        self.timestamps = array("q")
        self.offsets = array("i")

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def last(self) -> TimeEntry | None:
        return TimeEntry(self.timestamps[-1], self.offsets[-1]) if self.offsets else None

    @property
    def last_timestamp(self) -> int:
        """Of the last entry; what comes next is later."""
        return self.timestamps[-1] if self.timestamps else NO_TIMESTAMP

    def add(self, timestamp: int, offset: int) -> None:
        """Note the largest timestamp so far; nothing when it has not grown."""
        timestamps = self.timestamps
        if timestamp > (timestamps[-1] if timestamps else NO_TIMESTAMP):
            timestamps.append(timestamp)
            self.offsets.append(offset)

    def extend(self, timestamps: Iterable[int], offsets: Iterable[int]) -> None:
        """Note timestamps that grow."""
        self.timestamps.extend(timestamps)
        self.offsets.extend(offsets)

    def before(self, timestamp: int) -> TimeEntry | None:
        """The last entry that is earlier than a timestamp."""
        number = bisect_left(self.timestamps, timestamp) - 1
        return TimeEntry(self.timestamps[number], self.offsets[number]) if number >= 0 else None

    def below(self, offset: int) -> TimeEntry | None:
        """The last entry whose batch lies below an offset."""
        number = bisect_left(self.offsets, offset) - 1
        return TimeEntry(self.timestamps[number], self.offsets[number]) if number >= 0 else None

    def cut(self, offset: int) -> None:
        """Forget entries at or above an offset."""
        keep = bisect_left(self.offsets, offset)
        del self.offsets[keep:]
        del self.timestamps[keep:]

    def encode(self, first: int = 0) -> bytes:
        """The entries from number `first` on, as the file has them."""
        pairs = zip(self.timestamps[first:], self.offsets[first:], strict=True)
        return b"".join([TIME_ENTRY.pack(timestamp, offset) for timestamp, offset in pairs])

    @classmethod
    def decode(cls, data: bytes) -> "TimeIndex | None":
        """What a file holds; None when it cannot be a time index."""
        if len(data) % TIME_ENTRY.size:
            return None
        index = cls()
        for timestamp, offset in iter_unpack(TIME_ENTRY.format, data):
            index.timestamps.append(timestamp)
            index.offsets.append(offset)
        if len(index) and index.offsets[0] < 0:
            return None
        if not (_strictly_grows(index.timestamps) and _strictly_grows(index.offsets)):
            return None
        return index


def _strictly_grows(values: "array[int]") -> bool:
    items = values.tolist()
    return len(set(items)) == len(items) and sorted(items) == items
