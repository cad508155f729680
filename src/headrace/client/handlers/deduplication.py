"""Messages that come twice under one id are handled once.

A message is a duplicate if an earlier one of its partition, within the window and among the last 100,000, has the same
`headrace.message-id`. That is decided by the log alone: whoever gets a partition reads what is before its first
message, as far as the window goes back, and then knows what the member before it knew. Nothing is kept elsewhere.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from ..delays.topics import admin_like
from ..messages import MESSAGE_ID, Message
from ..producer import OF_PRODUCERS, Settings, library_settings
from ..reader import RecordReader
from ..waiting import LibraryErrors

log: Final = logging.getLogger("headrace.handlers")

MOST_BEHIND: Final = 100_000
"""How many messages of a partition are looked back on: its ids take about 15 MB then."""
Place = tuple[str, int, int]


class Seen(NamedTuple):
    """The messages with one id, each a duplicate of the one before but the first."""

    first: int
    last: int
    last_ms: int


class SeenIds:
    """The ids of one partition, by a hash."""

    def __init__(self, window_ms: int, clock: Callable[[], float] = time.time) -> None:
        self._window_ms = window_ms
        self._clock = clock
        self._seen: dict[bytes, Seen] = {}

    def __len__(self) -> int:
        return len(self._seen)

    def is_duplicate(self, message_id: bytes, offset: int, time_ms: int) -> bool:
        """Whether an earlier message has the id. What is read again is answered as before."""
        time_ms = min(time_ms, int(self._clock() * 1000))
        key = blake2b(message_id, digest_size=16).digest()
        found = self._seen.get(key)
        if found is not None and offset <= found.last:
            return offset > found.first
        is_duplicate = (
            found is not None and offset - found.last <= MOST_BEHIND and abs(time_ms - found.last_ms) <= self._window_ms
        )
        self._seen.pop(key, None)
        self._seen[key] = Seen(found.first if found is not None and is_duplicate else offset, offset, time_ms)
        self._forget(offset, time_ms)
        return is_duplicate

    def _forget(self, offset: int, time_ms: int) -> None:
        """What no message can be a duplicate of any more: ids stand in the order in which they came last."""
        while True:
            key, seen = next(iter(self._seen.items()))
            if offset - seen.last <= MOST_BEHIND and time_ms - seen.last_ms <= self._window_ms:
                return
            del self._seen[key]


class Deduplication:
    """Which messages of a subscription are duplicates."""

    def __init__(self, group: str, window_ms: int, bootstrap: str | None, settings: Settings | None) -> None:
        self._group = group
        self._window_ms = window_ms
        self._bootstrap = bootstrap
        self._settings = settings
        self._partitions: dict[tuple[str, int], SeenIds] = {}
        self._duplicates: set[Place] = set()

    async def judge(self, messages: Sequence[Message[Any]]) -> None:
        """Take in messages in their order."""
        for message in messages:
            partition = (message.topic, message.partition)
            if partition not in self._partitions:
                self._partitions[partition] = await asyncio.to_thread(self._read_before, message)
            message_id = id_of(message.record)
            time_ms = message.record.timestamp()[1]
            if message_id is not None and self._partitions[partition].is_duplicate(message_id, message.offset, time_ms):
                self._duplicates.add((*partition, message.offset))

    def is_duplicate(self, message: Message[Any]) -> bool:
        """Whether a message that was taken in is a duplicate; it is asked once."""
        place = (message.topic, message.partition, message.offset)
        if place not in self._duplicates:
            return False
        self._duplicates.remove(place)
        log.info("%s is a duplicate", message)
        return True

    def forget(self, partitions: Iterable[tuple[str, int]]) -> None:
        """These are another member's now."""
        for partition in partitions:
            self._partitions.pop(partition, None)
            self._duplicates = {place for place in self._duplicates if place[:2] != partition}

    def _read_before(self, message: Message[Any]) -> SeenIds:
        """The ids before a message, as far back as they count."""
        seen = SeenIds(self._window_ms)
        settings = library_settings(self._bootstrap, self._settings, LibraryErrors(), OF_PRODUCERS)
        admin, bootstrap = admin_like(settings), settings.pop("bootstrap.servers")
        topic, partition, end = message.topic, message.partition, message.offset
        time_ms = max(message.record.timestamp()[1] - self._window_ms, 0)
        start = admin.offsets_at_time(topic, [partition], time_ms)[partition]
        start = max(start, end - MOST_BEHIND, admin.start_offsets(topic, [partition])[partition])
        if start >= end:
            return seen
        own = {**settings, "isolation.level": "read_committed", "group.id": self._group}
        with closing(RecordReader(bootstrap, topic, {partition: start}, {partition: end}, own).messages()) as records:
            for record in records:
                message_id = None if record is None else id_of(record)
                if record is not None and message_id is not None:
                    seen.is_duplicate(message_id, record.offset(), record.timestamp()[1])
        return seen


def id_of(record: Any) -> bytes | None:
    """The id of a message; the last header that says one counts."""
    found: bytes | None = None
    for name, data in record.headers() or ():
        if name == MESSAGE_ID:
            found = data
    return found
