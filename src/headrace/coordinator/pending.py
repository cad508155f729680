"""Offsets that were committed in transactions which have not ended: nobody sees them until theirs has.

They stand in the log as batches of their producer's transaction; its marker decides. Of two commits for one partition
the one that was written later counts, whenever they are decided: the log's compaction goes by that too.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from .journal import Pair
from .records import offset_key, offset_prefix, split_offset_key


def _place(key: bytes) -> bytes:
    """One name for a partition of a group, whichever version its key has."""
    return offset_key(*split_offset_key(key))


class PendingOffsets:
    """The offsets of open transactions, by their producer."""

    def __init__(self) -> None:
        self._by_producer: dict[int, list[tuple[int, Sequence[Pair]]]] = {}
        self._waiting: Counter[bytes] = Counter()
        """How many commits wait for each partition of a group."""
        self._overtaken: dict[bytes, int] = {}
        """Where the newest commit stands that counts already, of partitions for which others wait."""

    def __bool__(self) -> bool:
        return bool(self._by_producer)

    def add(self, producer_id: int, pairs: Sequence[Pair], offset: int) -> None:
        """Keep offsets that were written at an offset of the log."""
        self._by_producer.setdefault(producer_id, []).append((offset, pairs))
        self._waiting.update(_place(key) for key, _ in pairs)

    def note_decided(self, pairs: Iterable[Pair], offset: int) -> None:
        """Offsets that count at once were written at an offset of the log."""
        for key, value in pairs:
            place = _place(key)
            if value is not None and place in self._waiting:
                self._overtaken[place] = offset

    def end(self, producer_id: int, marker_offset: int, *, committed: bool) -> list[Pair]:
        """A producer's transaction has ended by a marker at an offset; those of its offsets that count from now on."""
        batches = self._by_producer.pop(producer_id, [])
        later = [batch for batch in batches if batch[0] > marker_offset]
        if later:
            self._by_producer[producer_id] = later
        counting: dict[bytes, Pair] = {}
        for offset, pairs in batches[: len(batches) - len(later)]:
            for pair in pairs:
                place = _place(pair[0])
                if committed and offset > self._overtaken.get(place, -1):
                    counting[place] = pair
                    self._overtaken[place] = offset
                self._settle(place)
        return list(counting.values())

    def _settle(self, place: bytes) -> None:
        self._waiting[place] -= 1
        if not self._waiting[place]:
            del self._waiting[place]
            self._overtaken.pop(place, None)

    def has(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether a transaction is open that has committed an offset for a partition."""
        return bool(self._waiting) and offset_key(offset_prefix(group_id, topic), partition) in self._waiting

    def has_any(self, group_id: str) -> bool:
        """Whether a transaction is open that has committed an offset for a group."""
        start = offset_prefix(group_id, "")[:-2]
        return any(place.startswith(start) for place in self._waiting)
