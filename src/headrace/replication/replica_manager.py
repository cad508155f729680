"""All partitions this broker holds: opened and closed as the cluster's metadata says, found by name or by id.

Also the broker's house-keeping of logs: flushes by time, retention, checkpoints, files to delete.
"""

from collections.abc import Iterator

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
"""Free bytes that a disk must have before logs that were full are written to again."""


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
            )

    def remove_topic(self, topic: Topic) -> None:
        """Stop serving a topic and delete its logs."""
        self._names.pop(topic.id.bytes, None)
        for index, partition in self._by_name.pop(topic.name, {}).items():
            partition.retire(ErrorCode.unknown_topic_or_partition)
            self._logs.delete(topic.name, index)

    def delete_records(self, partition: Partition, offset: int) -> int:
        """Drop everything below an offset; returns the new start of the log."""
        partition.log.advance_start(offset)
        return partition.log.log_start_offset

    def flush_due(self) -> None:
        """Sync the logs whose time has come: by `flush.ms`, or because a segment ended."""
        now = self.clock.now_ms()
        for partition in self.hosted():
            if partition.log.flush_due(now):
                partition.flush()

    def retain(self) -> None:
        """Apply retention, finish deletions, and let full logs take records again when there is space."""
        now = self.clock.now_ms()
        for partition in self.hosted():
            partition.log.retain(now, partition.high_watermark)
        self._logs.delete_files(now)
        self.revive()

    def revive(self) -> None:
        """Let logs that found the disk full try again once a little is free."""
        if self._logs.free_bytes() >= ENOUGH_SPACE:
            for partition in self.hosted():
                partition.log.revive()

    def drop_strays(self) -> None:
        """Delete the logs of topics that were deleted while this broker could not."""
        self._logs.drop_strays()

    def checkpoint(self) -> None:
        """Write down how far each log is synced, committed and deleted."""
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
