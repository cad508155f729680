"""Offsets that were committed in transactions which have not ended: nobody sees them until theirs has.

They stand in the log as batches of their producer's transaction; its marker decides. Of two commits for one partition
the one that was written later counts, whenever they are decided: the log's compaction goes by that too. So a tombstone
ends what was pending when it was written: an offset that was deleted does not come back with a marker.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from headrace.coordinator.groups.group import group_of
from headrace.coordinator.runtime.batches import Pair

from .records import offset_key, offset_prefix, split_offset_key


def _normalized(key: bytes) -> bytes:
    """The key of a partition's offset in its newest version, whichever it was written with."""
    return offset_key(*split_offset_key(key))


class PendingOffsets:
    """The offsets of open transactions, by their producer."""

    def __init__(self) -> None:
        self._by_producer: dict[int, list[tuple[int, Sequence[Pair]]]] = {}
        self._waiting: dict[str, Counter[bytes]] = {}
        """By group: how many commits wait for each of its partitions, without those that were deleted."""
        self._undecided: Counter[bytes] = Counter()
        """How many commits there are for each partition whose transaction is open, with those that were deleted."""
        self._overtaken: dict[bytes, int] = {}
        """Where the newest record stands that counts already, of partitions for which others are undecided."""
        self._deleted: dict[bytes, int] = {}
        """Where the newest tombstone stands, of the same."""

    def __bool__(self) -> bool:
        return bool(self._by_producer)

    def add(self, producer_id: int, pairs: Sequence[Pair], offset: int) -> None:
        """Keep offsets that were written at an offset of the log."""
        self._by_producer.setdefault(producer_id, []).append((offset, pairs))
        for written, _ in pairs:
            key = _normalized(written)
            self._undecided[key] += 1
            self._waiting.setdefault(group_of(key), Counter())[key] += 1

    def note_decided(self, pairs: Iterable[Pair], offset: int) -> None:
        """Offsets that count at once, or tombstones, were written at an offset of the log."""
        for written, value in pairs:
            key = _normalized(written)
            if key not in self._undecided:
                continue
            self._overtaken[key] = offset
            if value is None:
                self._deleted[key] = offset
                self._wait_no_more(key, None)

    def end(self, producer_id: int, marker_offset: int, *, committed: bool) -> list[Pair]:
        """A producer's transaction has ended by a marker at an offset; those of its offsets that count from now on."""
        batches = self._by_producer.pop(producer_id, [])
        later = [batch for batch in batches if batch[0] > marker_offset]
        if later:
            self._by_producer[producer_id] = later
        counting: dict[bytes, Pair] = {}
        for offset, pairs in batches[: len(batches) - len(later)]:
            for pair in pairs:
                key = _normalized(pair[0])
                if committed and offset > self._overtaken.get(key, -1):
                    counting[key] = pair
                    self._overtaken[key] = offset
                self._settle(key, offset)
        return list(counting.values())

    def _settle(self, key: bytes, offset: int) -> None:
        if offset > self._deleted.get(key, -1):
            self._wait_no_more(key, 1)
        self._undecided[key] -= 1
        if not self._undecided[key]:
            del self._undecided[key]
            self._overtaken.pop(key, None)
            self._deleted.pop(key, None)

    def _wait_no_more(self, key: bytes, count: int | None) -> None:
        """So many commits for a partition, or all, wait no longer."""
        group_id = group_of(key)
        waiting = self._waiting.get(group_id)
        if waiting is None or key not in waiting:
            return
        waiting[key] -= waiting[key] if count is None else count
        if not waiting[key]:
            del waiting[key]
        if not waiting:
            del self._waiting[group_id]

    def has(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether a transaction is open that has committed an offset for a partition."""
        waiting = self._waiting.get(group_id)
        return waiting is not None and offset_key(offset_prefix(group_id, topic), partition) in waiting

    def has_any(self, group_id: str) -> bool:
        """Whether a transaction is open that has committed an offset for a group."""
        return group_id in self._waiting

    def groups(self) -> list[str]:
        """The groups for which one has."""
        return list(self._waiting)

    def keys(self, group_id: str, topic: str | None = None) -> list[bytes]:
        """The keys of the offsets that wait for a group, of one topic or of all."""
        waiting = self._waiting.get(group_id, ())
        if topic is None:
            return list(waiting)
        prefix = offset_prefix(group_id, topic)
        return [key for key in waiting if key[:-4] == prefix]
