"""The share coordinator of one broker: the state of the share-partitions whose shards it leads, and where others are.

A share-partition's coordinator is the leader of a partition of `__share_group_state`, by Kafka's rule: the hash of
`group:topic id:partition`. It is asked by the leaders of partitions, for what their share groups have done there, and
by the group coordinator, which begins and ends that; both ask through a `ShareStateStore` (see `store`).
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import structlog

from headrace.cluster.controller import Controller
from headrace.cluster.image import BrokerNode, ClusterImage
from headrace.cluster.metadata_writer import TopicSpec
from headrace.config import BrokerConfig
from headrace.coordinator.runtime.runtime import Runtime
from headrace.coordinator.runtime.timers import Scheduler
from headrace.net.clock import Clock
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.replication.partition import Partition
from headrace.replication.replica_manager import ReplicaManager
from headrace.replication.share_state import (
    SharePartition,
    ShareState,
    ShareStateChange,
    ShareStateSummary,
)

from .records import SHARE_STATE_TOPIC
from .shard import ShareStateShard

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareCoordinatorSettings:
    """See `share.coordinator.*` in docs/configuration.md."""

    topic_partitions: int
    topic_replication_factor: int
    topic_min_isr: int
    topic_segment_bytes: int
    updates_per_snapshot: int
    write_seconds: float

    @classmethod
    def of(cls, config: BrokerConfig) -> "ShareCoordinatorSettings":
        return cls(
            topic_partitions=config["share.coordinator.state.topic.num.partitions"],
            topic_replication_factor=1 if config.lone else config["share.coordinator.state.topic.replication.factor"],
            topic_min_isr=1 if config.lone else config["share.coordinator.state.topic.min.isr"],
            topic_segment_bytes=config["share.coordinator.state.topic.segment.bytes"],
            updates_per_snapshot=config["share.coordinator.snapshot.update.records.per.snapshot"],
            write_seconds=config["share.coordinator.write.timeout.ms"] / 1000,
        )


class ShareCoordinator:
    """Coordinates the share-partitions of the shards that this broker leads. Answers are committed; `CodedError` with
    the answer for who asks otherwise, as NOT_COORDINATOR."""

    def __init__(
        self,
        *,
        settings: ShareCoordinatorSettings,
        image: ClusterImage,
        controller: Controller,
        replicas: ReplicaManager,
        clock: Clock,
        scheduler: Scheduler,
    ) -> None:
        self._settings = settings
        self._image = image
        self._clock = clock
        self.runtime = Runtime(
            _topic(settings),
            image=image,
            controller=controller,
            replicas=replicas,
            clock=clock,
            make=lambda partition: ShareStateShard(partition, clock, scheduler, settings.updates_per_snapshot),
            loaded=_log_loaded,
        )

    # Life

    def start(self) -> None:
        """Begin to load what is here."""
        self.runtime.start()

    async def close(self) -> None:
        """Coordinate nothing any more."""
        await self.runtime.close()

    def leads(self, partition: Partition) -> None:
        """See `replication.Leadership`."""
        self.runtime.leads(partition)

    def leads_no_more(self, partition: Partition) -> None:
        """See `replication.Leadership`."""
        self.runtime.leads_no_more(partition)

    def topic_deleted(self, name: str) -> None:
        """A topic was deleted: if it was the internal one nothing is kept any more. What share groups have done in
        others is forgotten by `prune`."""
        if name == SHARE_STATE_TOPIC:
            self.runtime.close_shards()

    async def find(self, key: str) -> BrokerNode:
        """The coordinator of a share-partition, by the text that FindCoordinator names it with."""
        return await self.runtime.find(coordinator_key(parse_coordinator_key(key)))

    async def leader(self, key: SharePartition) -> int:
        """The id of the broker that coordinates a share-partition."""
        return await self.runtime.leader(coordinator_key(key))

    async def prune(self) -> None:
        """Forget what deleted topics have left, and delete what of the logs is of no use any more."""
        for shard in self.runtime.active():
            try:
                await shard.prune(self._image.was_deleted)
            except CodedError as error:
                log.warning("share groups' state was not pruned", log=shard.partition.log.name, reason=error.message)

    # Requests

    async def initialize(self, key: SharePartition, state_epoch: int, start_offset: int) -> None:
        """See `ShareStateStore`."""
        self._check_known(key)
        shard = self._shard(key)
        shard.initialize(key, state_epoch, start_offset)
        await self._committed(shard)

    async def read(self, key: SharePartition, leader_epoch: int) -> ShareState:
        """See `ShareStateStore`."""
        shard = self._shard(key)
        self._check_known(key, shard)
        state = shard.read(key, leader_epoch)
        await self._committed(shard)
        return state

    async def write(self, key: SharePartition, change: ShareStateChange) -> None:
        """See `ShareStateStore`."""
        shard = self._shard(key)
        self._check_known(key, shard)
        shard.write(key, change)
        await self._committed(shard)

    async def summary(self, key: SharePartition) -> ShareStateSummary:
        """See `ShareStateStore`."""
        shard = self._shard(key)
        summary = shard.summary(key)
        await self._committed(shard)
        return summary

    async def delete(self, key: SharePartition) -> None:
        """See `ShareStateStore`."""
        shard = self._shard(key)
        shard.delete(key)
        await self._committed(shard)

    def _shard(self, key: SharePartition) -> ShareStateShard:
        return self.runtime.shard(coordinator_key(key))

    async def _committed(self, shard: ShareStateShard) -> None:
        await shard.committed(deadline=self._clock.monotonic() + self._settings.write_seconds)

    def _check_known(self, key: SharePartition, shard: ShareStateShard | None = None) -> None:
        """While this broker does not know all of its cluster it cannot say of anything that it does not exist. Of what
        was not initialized in a shard the shard itself says so, as in Kafka."""
        if shard is not None and key not in shard.entries:
            return
        topic = self._image.topic_by_id(key.topic_id)
        if topic is not None and key.partition < len(topic.partitions):
            return
        if topic is None and not self._image.is_whole and not self._image.was_deleted(key.topic_id):
            raise CodedError(ErrorCode.coordinator_load_in_progress)
        raise CodedError(ErrorCode.unknown_topic_or_partition, f"the partition of {key.text} is not known here")


def coordinator_key(key: SharePartition) -> str:
    """The text by which a share-partition's coordinator is found. Kafka writes ids of topics in base64."""
    topic_id = urlsafe_b64encode(key.topic_id.bytes).rstrip(b"=").decode()
    return f"{key.group_id}:{topic_id}:{key.partition}"


def parse_coordinator_key(text: str) -> SharePartition:
    """The share-partition that such a text names; `CodedError` (INVALID_REQUEST) if it does not. A group id may have
    colons itself."""
    group_id, _, rest = text.rpartition(":")[0].rpartition(":")
    partition = text.rpartition(":")[2]
    try:
        topic_id = UUID(bytes=urlsafe_b64decode(f"{rest}=="))
        is_sound = bool(group_id) and partition.isascii() and partition.isdecimal() and int(partition) < 2**31
    except (ValueError, NotBase64):
        is_sound = False
    if not is_sound:
        raise CodedError(ErrorCode.invalid_request, "a share-partition is looked for as GROUP:TOPIC ID:PARTITION")
    return SharePartition(group_id, topic_id, int(partition))


def _topic(settings: ShareCoordinatorSettings) -> TopicSpec:
    return TopicSpec(
        name=SHARE_STATE_TOPIC,
        partitions=settings.topic_partitions,
        replication_factor=settings.topic_replication_factor,
        configs={
            "cleanup.policy": "delete",
            "compression.type": "uncompressed",
            "min.insync.replicas": str(settings.topic_min_isr),
            "retention.bytes": "-1",
            "retention.ms": "-1",
            "segment.bytes": str(settings.topic_segment_bytes),
            "unclean.leader.election.enable": "false",
        },
    )


def _log_loaded(shards: Sequence[ShareStateShard], seconds: float) -> None:
    log.info("share groups' state loaded", partitions=sum(len(shard.entries) for shard in shards), seconds=seconds)
