"""Keeps the file of synced logs (`storage.synced_logs`) true while topics come, go and change `flush.messages`.

-   A log is named once it is durable (synced before each acknowledgement) and what it acknowledged before is synced.
-   One that is named stays durable until the file on disk names it no more: a weaker `flush.messages` waits for that.

So what the file names after a power loss has lost nothing that it acknowledged. Nothing here is done per append.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final, Protocol
from uuid import UUID

from headrace.protocol.topic_partition import TopicPartition
from headrace.storage.settings import LogSettings
from headrace.storage.synced_logs import SyncedLogs

from .partition import Partition

_AT_ONCE: Final = 500
"""Logs that are looked at before others have a turn."""


class PartitionHolder(Protocol):
    """The partitions of this broker, as far as proofs need them."""

    def held(self, key: TopicPartition) -> Partition | None: ...
    def is_awaited(self, key: TopicPartition) -> bool:
        """Whether a partition is to be held, and is not yet."""
        ...

    def is_durable_topic(self, topic: str) -> bool:
        """Whether its settings ask for a sync before each acknowledgement."""
        ...

    def configure(self, partition: Partition) -> None:
        """Let it go by its topic's settings."""
        ...


class SyncProofs:
    """Decides which logs the file names, and has it written."""

    def __init__(
        self, synced_logs: SyncedLogs, holder: PartitionHolder, run: Callable[[Callable[[], None]], Awaitable[None]]
    ) -> None:
        self._synced_logs = synced_logs
        self._holder = holder
        self._run = run
        """Does something slow off the loop."""
        self._unsettled: dict[TopicPartition, None] = {}
        """Logs that came, went or were given settings, as long as that may have consequences for the file."""
        self._removed: dict[TopicPartition, None] = {}
        """Logs that the file is not to name any more."""
        self._is_outdated = False

    def names(self, key: TopicPartition, topic_id: UUID) -> bool:
        """Whether the file on disk may name the log of this topic."""
        return self._synced_logs.topic_id(key) == topic_id

    def settings(self, key: TopicPartition, topic_id: UUID, settings: LogSettings) -> LogSettings:
        """What a log has to go by, of a topic with these settings."""
        self._unsettled[key] = None
        must_sync = settings.flush_messages > 1 and self.names(key, topic_id)
        return replace(settings, flush_messages=1) if must_sync else settings

    def left(self, key: TopicPartition) -> None:
        """A log is not held any more."""
        self._unsettled[key] = None

    def all_are_held(self) -> None:
        """The start is over: what is named and not held by now is gone."""
        self._unsettled |= dict.fromkeys(self._synced_logs.named())

    async def settle(self) -> None:
        """Bring the file up to date; to be called now and then, by one caller."""
        for count, key in enumerate(list(self._unsettled), start=1):
            self._look_at(key)
            if count % _AT_ONCE == 0:
                await asyncio.sleep(0)
        if not self._is_outdated:
            return
        removed = list(self._removed)
        await self._run(self._synced_logs.prepare(removed))
        self._is_outdated = False
        for key in removed:
            del self._removed[key]
            self._synced_logs.forget(key)
            self._look_at(key)

    def _look_at(self, key: TopicPartition) -> None:
        self._unsettled.pop(key, None)
        partition = self._holder.held(key)
        named = self._synced_logs.topic_id(key)
        if partition is None and self._holder.is_awaited(key):
            self._unsettled[key] = None
        elif partition is None or not self._holder.is_durable_topic(partition.topic):
            if named is not None:
                self._removed[key] = None
                self._is_outdated = True
            elif partition is not None:
                self._holder.configure(partition)
        elif named is None or named.bytes != partition.topic_id:
            self._name(key, partition)

    def _name(self, key: TopicPartition, partition: Partition) -> None:
        """From now on it cannot cease to be durable before the file, which is written next, is written again."""
        if partition.is_proven_synced:
            self._synced_logs.name(key, UUID(bytes=partition.topic_id))
            self._is_outdated = True
        else:
            self._unsettled[key] = None
