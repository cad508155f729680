"""Producers that do not write just now, packed: 39 bytes each, and 8 for every batch before the last one.

A log remembers each producer for a day, and most of them are silent by then. Rows lie in hash tables whose buckets are
plain bytes, so a row costs little more than itself. There is a table for each stretch of time (a generation), by the
timestamp of the producer's last batch: what is too old, or one too many, leaves by generation, the oldest first.

A row: producer id i64 | batches before the last u8 | epoch i16 | coordinator epoch i32 | last timestamp i64 |
last sequence i32 | last offset i64 | offset delta i32, and for each batch before it, newest first: how far its last
offset lies before that of the batch after it u32 | offset delta u32. Sequence numbers have no gaps, so they follow from
the last one.
"""

from collections.abc import Container, Iterator
from struct import Struct
from typing import Final

_GENERATIONS: Final = 8
_MOST_GENERATIONS: Final = 2 * _GENERATIONS
_ROWS_PER_BUCKET: Final = 16
_IDENTITY: Final = Struct("<q")
ROW: Final = Struct("<qBhiqiqi")
OLDER_BATCH: Final = Struct("<II")
_COUNT_AT: Final = _IDENTITY.size


class _Table:
    """Rows by producer id: a hash table that grows by one bucket at a time, so that nobody waits for it.

    The hash is Python's own of bytes, which nobody outside can foresee: no choice of ids makes a bucket long.
    """

    __slots__ = ("_buckets", "count")

    def __init__(self) -> None:
        self._buckets = [b""]
        self.count = 0

    def copy(self) -> "_Table":
        table = _Table()
        table._buckets, table.count = self._buckets.copy(), self.count
        return table

    def put(self, identity: bytes, row: bytes) -> None:
        self._buckets[self._number(identity)] += row
        self.count += 1
        if self.count > len(self._buckets) * _ROWS_PER_BUCKET:
            self._split()

    def find(self, identity: bytes) -> bytes | None:
        bucket = self._buckets[self._number(identity)]
        start, end = _locate(bucket, identity)
        return bucket[start:end] or None

    def remove(self, identity: bytes) -> bytes | None:
        number = self._number(identity)
        bucket = self._buckets[number]
        start, end = _locate(bucket, identity)
        if start == end:
            return None
        self._buckets[number] = bucket[:start] + bucket[end:]
        self.count -= 1
        return bucket[start:end]

    def empty(self) -> Iterator[list[bytes]]:
        """Rows leave the table, some at a time, for as long as they are asked for."""
        for number, bucket in enumerate(self._buckets):
            if bucket:
                self._buckets[number] = b""
                removed = list(_rows(bucket))
                self.count -= len(removed)
                yield removed

    def rows(self) -> Iterator[bytes]:
        for bucket in self._buckets:
            yield from _rows(bucket)

    def _number(self, identity: bytes) -> int:
        count = len(self._buckets)
        mask = (1 << count.bit_length()) - 1
        number = hash(identity) & mask
        return number if number < count else number & (mask >> 1)

    def _split(self) -> None:
        """Linear hashing: the next bucket in turn shares its rows with a new one at the end."""
        count = len(self._buckets)
        number = count & ((1 << (count.bit_length() - 1)) - 1)
        rows = list(_rows(self._buckets[number]))
        self._buckets.append(b"")
        stay = [row for row in rows if self._number(row[:_COUNT_AT]) == number]
        self._buckets[count] = b"".join([row for row in rows if self._number(row[:_COUNT_AT]) == count])
        self._buckets[number] = b"".join(stay)


def _locate(bucket: bytes, identity: bytes) -> tuple[int, int]:
    """Where the row of a producer begins and ends; the same twice when there is none."""
    if identity not in bucket:
        return 0, 0
    start = 0
    while start < len(bucket):
        end = start + ROW.size + bucket[start + _COUNT_AT] * OLDER_BATCH.size
        if bucket.startswith(identity, start):
            return start, end
        start = end
    return 0, 0


def _rows(bucket: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(bucket):
        end = start + ROW.size + bucket[start + _COUNT_AT] * OLDER_BATCH.size
        yield bucket[start:end]
        start = end


class RestingProducers:
    """Packed producers of one log, each in the generation of its last timestamp."""

    __slots__ = ("_generations", "_span_ms")

    def __init__(self, expiration_ms: int) -> None:
        self._generations: dict[int, _Table] = {}
        """By the time before which the last batches of all their producers were written."""
        self._span_ms = max(expiration_ms // _GENERATIONS, 1)

    def __len__(self) -> int:
        return sum([table.count for table in self._generations.values()])

    def copy(self) -> "RestingProducers":
        """One that does not change with this one: for other threads, which may then take their time."""
        resting = RestingProducers(self._span_ms * _GENERATIONS)
        resting._generations = {bound: table.copy() for bound, table in self._generations.items()}
        return resting

    def generations(self) -> list[int]:
        """For each generation, before which time the last batches of its producers were written."""
        return list(self._generations)

    def put(self, row: bytes, last_timestamp: int) -> None:
        """Take a producer that is not among them."""
        self._generation_of(last_timestamp).put(row[:_COUNT_AT], row)

    def find(self, producer_id: int) -> bytes | None:
        """A producer's row."""
        identity = _IDENTITY.pack(producer_id)
        for table in self._generations.values():
            row = table.find(identity)
            if row is not None:
                return row
        return None

    def remove(self, producer_id: int) -> bytes | None:
        """A producer's row, which is no longer among them."""
        identity = _IDENTITY.pack(producer_id)
        for table in self._generations.values():
            row = table.remove(identity)
            if row is not None:
                return row
        return None

    def rows(self) -> Iterator[bytes]:
        for table in self._generations.values():
            yield from table.rows()

    def expire_after(self, expiration_ms: int) -> None:
        """Let generations be an eighth as long as producers are remembered."""
        self._span_ms = max(expiration_ms // _GENERATIONS, 1)

    def expire(self, now_ms: int, expiration_ms: int, keep: Container[int]) -> None:
        """Forget whole generations that are older than a time, except for the producers to keep."""
        for bound in [bound for bound in self._generations if bound <= now_ms - expiration_ms]:
            self.forget(bound, self._generations[bound].count, keep)

    def forget(self, generation: int, count: int, keep: Container[int]) -> int:
        """Forget so many of a generation, or few more, except for the producers to keep; how many went."""
        table = self._generations[generation]
        kept: list[bytes] = []
        forgotten = 0
        for rows in table.empty():
            stay = [row for row in rows if _IDENTITY.unpack_from(row)[0] in keep]
            kept += stay
            forgotten += len(rows) - len(stay)
            if forgotten >= count:
                break
        if not table.count:
            del self._generations[generation]
        for row in kept:
            self.put(row, generation - 1)
        return forgotten

    def _generation_of(self, timestamp: int) -> _Table:
        """The table for a last timestamp. There are only so many: others last as long as the next later one.

        So timestamps that lie far apart, which clients choose, neither make many tables nor let anybody go early.
        """
        bound = (timestamp // self._span_ms + 1) * self._span_ms
        generations = self._generations
        if bound not in generations:
            if len(generations) < _MOST_GENERATIONS:
                generations[bound] = _Table()
            elif bound > max(generations):
                generations[bound] = generations.pop(max(generations))
            else:
                bound = min(known for known in generations if known > bound)
        return generations[bound]
