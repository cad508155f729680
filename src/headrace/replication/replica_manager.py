"""All partitions this broker holds: opened and closed as the cluster's metadata says, found by name or by id.

Also the broker's house-keeping of logs: flushes by time, retention, checkpoints, files to delete.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator

import structlog

from headrace.cluster.image import Topic
from headrace.cluster.log_settings import IntakeSettings, intake_settings, log_settings
from headrace.config import BrokerConfig
from headrace.net.clock import Clock
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.storage.flusher import Flusher
from headrace.storage.log import LogSettings
from headrace.storage.manager import LogManager

from .partition import Partition

NO_PARTITIONS: dict[int, Partition] = {}
ENOUGH_SPACE = 64 * 1024 * 1024
"""Free bytes that a disk must have before logs that were full are written to again; less where it is small."""

logger = structlog.get_logger(__name__)


class ReplicaManager:
    """The partitions of this broker."""

    def __init__(
        self, *, broker_id: int, config: BrokerConfig, clock: Clock, logs: LogManager, flusher: Flusher
    ) -> None:
        self.broker_id = broker_id
        self.clock = clock
        self._config = config
        self._logs = logs
        self._flusher = flusher
        self._by_name: dict[str, dict[int, Partition]] = {}
        self._names: dict[bytes, str] = {}

    @property
    def log_directory(self) -> str:
        return self._logs.data_directory

    def disk_usage(self) -> tuple[int, int]:
        """Total and usable bytes of the disk that holds the logs."""
        return self._logs.total_bytes(), self._logs.free_bytes()

    def partition(self, topic: str, index: int) -> Partition:
        """The partition, or the `CodedError` that a client should get."""
        found = self._by_name.get(topic, NO_PARTITIONS).get(index)
        if found is None:
            raise CodedError(ErrorCode.unknown_topic_or_partition, f"no partition {index} of topic {topic!r} here")
        return found

    def name_of(self, topic_id: bytes) -> str | None:
        """The name of a topic that is held here, by its id."""
        return self._names.get(topic_id)

    def hosted(self) -> Iterator[Partition]:
        for partitions in self._by_name.values():
            yield from partitions.values()

    def apply_topic(self, topic: Topic) -> None:
        """Hold what the topic's new state says: open partitions that are new, renew the settings of the others."""
        held = self._by_name.setdefault(topic.name, {})
        self._names[topic.id.bytes] = topic.name
        settings = log_settings(topic, self._config)
        rules = intake_settings(topic, self._config)
        for index, state in enumerate(topic.partitions):
            if self.broker_id not in state.replicas:
                continue
            if index in held:
                self._renew(held[index], settings, rules)
                continue
            log = self._logs.load(topic.name, index, topic.id, settings)
            held[index] = Partition(
                topic=topic.name,
                index=index,
                leader_epoch=state.leader_epoch,
                log=log,
                rules=rules,
                flusher=self._flusher,
                internal=topic.internal,
            )

    def remove_topic(self, topic: Topic) -> None:
        """Stop serving a topic and delete its logs."""
        self._names.pop(topic.id.bytes, None)
        held = self._by_name.pop(topic.name, {})
        for partition in held.values():
            partition.retire(ErrorCode.unknown_topic_or_partition)
        self._logs.delete(topic.name, held)

    def delete_records(self, partition: Partition, offset: int) -> int:
        """Drop everything below an offset; returns the new start of the log."""
        partition.log.advance_start(offset)
        return partition.log.log_start_offset

    async def flush_due(self) -> None:
        """Sync the logs whose time has come, by `flush.ms` or because a segment ended; see whether full ones can go on.

        Like all house-keeping it pauses often, for the sake of those who are served meanwhile.
        """
        now = self.clock.now_ms()
        full = []
        async for partition in self._unhurried():
            if partition.log.flush_due(now):
                partition.flush()
            if partition.log.is_full:
                full.append(partition)
        if full and self._logs.free_bytes() >= self._enough_space():
            for partition in full:
                partition.log.revive()

    def _enough_space(self) -> int:
        return min(ENOUGH_SPACE, self._logs.total_bytes() // 20)

    async def retain(self) -> None:
        """Apply retention, and finish deletions. A log that cannot follow does not keep the others from it."""
        now = self.clock.now_ms()
        async for partition in self._unhurried():
            try:
                partition.log.retain(now, partition.high_watermark)
            except CodedError as error:
                logger.error("retention could not be applied", log=partition.log.name, reason=error.message)
        self._logs.delete_files(now)

    async def _unhurried(self) -> AsyncIterator[Partition]:
        """All partitions, with a breath for others every millisecond; one may be deleted before its turn comes."""
        began = self.clock.now_ms()
        for partition in list(self.hosted()):
            yield partition
            if (now := self.clock.now_ms()) != began:
                await asyncio.sleep(0)
                began = now

    def set_strays_aside(self) -> list[str]:
        """Give logs of topics that the metadata does not know other names; those. Once, at the end of the start."""
        return self._logs.set_strays_aside()

    async def settle(self) -> None:
        """Wait until all that a start after a crash has found is synced: readers had seen it, and must not see less."""
        for partition in list(self.hosted()):
            end = partition.log.log_end_offset
            if partition.high_watermark < end and partition.log.offline is None:
                await _committed(partition, end)

    async def checkpoint(self) -> None:
        """Write down how far each log is synced, committed and deleted."""
        async for partition in self._unhurried():
            partition.log.save()
        self._logs.checkpoint(self._high_watermarks())

    def close(self) -> None:
        """Bring every log to rest; the next start need not recover."""
        for partition in self.hosted():
            partition.retire(ErrorCode.not_leader_or_follower)
        self._logs.close(self._high_watermarks())

    def _renew(self, partition: Partition, settings: LogSettings, rules: IntakeSettings) -> None:
        partition.log.configure(settings)
        partition.rules = rules

    def _high_watermarks(self) -> dict[tuple[str, int], int]:
        return {(p.topic, p.index): p.high_watermark for p in self.hosted()}


async def _committed(partition: Partition, end_offset: int) -> None:
    known = asyncio.Event()
    partition.commits.wait(end_offset, lambda _: known.set())
    await known.wait()
