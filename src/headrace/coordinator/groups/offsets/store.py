"""The committed offsets of one shard.

An offset is kept as the bytes that its record has in the log, under its group and topic: a start takes them over
without looking inside, a commit keeps what it has just written, and only a fetch decodes. A million of them fit in
about 150 MB.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from headrace.coordinator.runtime.batches import Pair
from headrace.coordinator.runtime.fields import key_kind

from .records import OFFSET_KEYS, Committed, decode_offset, offset_key, offset_prefix, read_prefix, split_offset_key

_NOTHING: Final[dict[int, bytes]] = {}

Values = dict[int, bytes]
"""Encoded offsets by partition."""


def pairs_of(group_id: str, offsets: Mapping[str, Mapping[int, bytes]]) -> list[Pair]:
    """The records of a group's encoded offsets, by topic and partition."""
    pairs: list[Pair] = []
    for topic, values in offsets.items():
        prefix = offset_prefix(group_id, topic)
        pairs += [(offset_key(prefix, partition), value) for partition, value in values.items()]
    return pairs


class Offsets:
    """Committed offsets by group, topic and partition."""

    def __init__(self) -> None:
        self._by_prefix: dict[bytes, Values] = {}
        self._by_group: dict[str, dict[str, Values]] = {}
        """The same values, for those who ask by name."""

    def __len__(self) -> int:
        return sum(len(values) for values in self._by_prefix.values())

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._by_group

    def groups(self) -> Iterator[str]:
        """The groups that have offsets."""
        return iter(self._by_group)

    def topics(self, group_id: str) -> Mapping[str, Values]:
        """What a group has committed, still encoded."""
        return self._by_group.get(group_id, {})

    def get(self, group_id: str, topic: str, partition: int) -> Committed | None:
        value = self._by_group.get(group_id, {}).get(topic, _NOTHING).get(partition)
        return None if value is None else decode_offset(value)

    def replay(self, pairs: Iterable[Pair], other: Callable[[bytes, bytes | None], None]) -> None:
        """Take records of the log in; those that are no offsets go to `other`."""
        by_prefix, number = self._by_prefix, int.from_bytes
        for key, value in pairs:
            values = by_prefix.get(key[:-4])
            if values is not None and value is not None:
                values[number(key[-4:], "big")] = value
            elif key_kind(key) not in OFFSET_KEYS:
                other(key, value)
            else:
                self._replay_first(key, value)

    def _replay_first(self, key: bytes, value: bytes | None) -> None:
        """Take an offset in that is the first of its group and topic, is a tombstone, or has the older key."""
        prefix, partition = split_offset_key(key)
        if value is None:
            self._remove(prefix, partition)
        else:
            (self._by_prefix.get(prefix) or self._add(prefix))[partition] = value

    def update(self, group_id: str, offsets: Mapping[str, Mapping[int, bytes]]) -> None:
        """Take offsets in that were just written."""
        topics = self._by_group.get(group_id, {})
        for topic, encoded in offsets.items():
            if not encoded:
                continue
            values = topics.get(topic)
            if values is None:
                values = self._add(offset_prefix(group_id, topic))
            values.update(encoded)

    def forget(self, tombstones: Iterable[Pair]) -> None:
        """Let go of offsets whose tombstones were just written."""
        for key, _ in tombstones:
            self._remove(*split_offset_key(key))

    def tombstones(self, group_id: str, topic: str, partitions: Iterable[int]) -> list[Pair]:
        """The records that forget these offsets, of those that are there."""
        values = self._by_group.get(group_id, {}).get(topic, _NOTHING)
        prefix = offset_prefix(group_id, topic)
        return [(offset_key(prefix, partition), None) for partition in partitions if partition in values]

    def _add(self, prefix: bytes) -> Values:
        group_id, topic = read_prefix(prefix)
        values: Values = {}
        self._by_prefix[prefix] = values
        self._by_group.setdefault(group_id, {})[topic] = values
        return values

    def _remove(self, prefix: bytes, partition: int) -> None:
        values = self._by_prefix.get(prefix)
        if values is None or values.pop(partition, None) is None or values:
            return
        del self._by_prefix[prefix]
        group_id, topic = read_prefix(prefix)
        topics = self._by_group[group_id]
        del topics[topic]
        if not topics:
            del self._by_group[group_id]
