"""Which logs hold, on stable storage, everything that they have ever acknowledged: a small file that says so.

It is written when a log becomes one of them and, before it ceases to be one, without it; never for an append. After a
power loss the logs that it names are as good as after a clean stop.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from uuid import UUID

from headrace.protocol.topic_partition import TopicPartition

from . import checkpoints
from .disk import Disk


class SyncedLogs:
    """The logs that the file names, or may name: what is being added to it or taken from it counts as named."""

    __slots__ = ("_disk", "_named", "_path")

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._named: dict[TopicPartition, UUID] = {}

    def load(self, data: bytes) -> None:
        """Take what the file holds; a damaged one proves nothing."""
        self._named = checkpoints.decode_topic_ids(data) or {}

    def topic_id(self, key: TopicPartition) -> UUID | None:
        """The topic whose log of this name is named; None for no one's."""
        return self._named.get(key)

    def named(self) -> Mapping[TopicPartition, UUID]:
        return self._named

    def name(self, key: TopicPartition, topic_id: UUID) -> None:
        """Have the next `prepare` name a log."""
        self._named[key] = topic_id

    def prepare(self, removed: Iterable[TopicPartition]) -> Callable[[], None]:
        """Writes the file when it is called, on whichever thread, one at a time. Then `forget` what was removed."""
        gone = frozenset(removed)
        left = {key: topic_id for key, topic_id in self._named.items() if key not in gone}
        return partial(self._write, left)

    def forget(self, key: TopicPartition) -> None:
        """The file on disk does not name a log any more."""
        self._named.pop(key, None)

    def _write(self, named: Mapping[TopicPartition, UUID]) -> None:
        self._disk.write_atomically(self._path, checkpoints.encode_topic_ids(named))
