"""The partitions of `__transaction_state` that this broker leads, and where the others are."""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

import structlog

from headrace.cluster.control import Control
from headrace.cluster.controller import TopicSpec
from headrace.cluster.image import NO_LEADER, ClusterImage, Topic
from headrace.coordinator.partitions import partition_of
from headrace.coordinator.shard import Phase
from headrace.net.clock import Clock
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.replication.partition import Partition
from headrace.replication.replica_manager import ReplicaManager

from .records import LARGEST_ID
from .settings import TransactionSettings
from .shard import Prepared, TransactionShard

log = structlog.get_logger(__name__)

TRANSACTION_TOPIC: Final = "__transaction_state"

Spawn = Callable[[Coroutine[Any, Any, None]], None]


class Shards:
    """The shards that are here: opened as this broker comes to lead them, closed when it no longer does."""

    def __init__(
        self,
        *,
        settings: TransactionSettings,
        image: ClusterImage,
        controller: Control,
        replicas: ReplicaManager,
        clock: Clock,
        prepared: Prepared,
        spawn: Spawn,
    ) -> None:
        self._settings = settings
        self._image = image
        self._controller = controller
        self._replicas = replicas
        self._clock = clock
        self._prepared = prepared
        self._spawn = spawn
        self._shards: dict[int, TransactionShard] = {}

    def start(self) -> None:
        """Begin to load every shard that is here, the smallest first."""
        topic = self._image.topic(TRANSACTION_TOPIC)
        if topic is None:
            return
        here = [partition for partition in map(self._led, range(len(topic.partitions))) if partition is not None]
        shards = [self._open(partition) for partition in sorted(here, key=lambda p: p.log.size_bytes)]
        self._spawn(self._load_all([shard for shard in shards if shard.phase is Phase.LOADING]))

    def close(self) -> None:
        """Speak for nobody any more."""
        for shard in self._shards.values():
            shard.close()
        self._shards.clear()

    def leads(self, partition: Partition) -> None:
        """This broker has come to lead a partition: if it is one of ours, its transactions are read from it."""
        if partition.topic == TRANSACTION_TOPIC:
            shard = self._open(partition)
            if shard.phase is Phase.LOADING:
                self._spawn(shard.load())

    def leads_no_more(self, partition: Partition) -> None:
        """Another broker speaks for the transactions of a partition now."""
        if partition.topic == TRANSACTION_TOPIC and (shard := self._shards.pop(partition.index, None)) is not None:
            shard.close()

    def of(self, transactional_id: str) -> TransactionShard:
        """The shard of an id, ready to act; `CodedError` with what the client is to be told otherwise."""
        topic = self._image.topic(TRANSACTION_TOPIC)
        if topic is None:
            raise CodedError(ErrorCode.not_coordinator)
        index = partition_of(transactional_id, len(topic.partitions))
        partition = self._led(index)
        if partition is None:
            raise CodedError(ErrorCode.not_coordinator)
        shard = self._shards.get(index)
        if shard is None or shard.partition is not partition or shard.leader_epoch != partition.leader_epoch:
            shard = self._open(partition)
            if shard.phase is Phase.LOADING:
                self._spawn(shard.load())
        if shard.phase is Phase.FAILED:
            self._revive(shard)
        if shard.phase is Phase.LOADING:
            raise CodedError(ErrorCode.coordinator_load_in_progress)
        return shard

    def all(self) -> list[TransactionShard]:
        """Every shard that is here; `CodedError` while one of them cannot speak yet."""
        if any(shard.phase is Phase.LOADING for shard in self._shards.values()):
            raise CodedError(ErrorCode.coordinator_load_in_progress)
        return self.active()

    def active(self) -> list[TransactionShard]:
        """Those that can speak now. Those that failed are read again."""
        for shard in self._shards.values():
            if shard.phase is Phase.FAILED and shard.partition.log.offline is None:
                self._revive(shard)
        return [shard for shard in self._shards.values() if shard.phase is Phase.ACTIVE]

    async def leader(self, transactional_id: str) -> int:
        """The broker that speaks for an id. The internal topic is made when the first one is looked for."""
        check_id(transactional_id)
        topic = self._image.topic(TRANSACTION_TOPIC) or await self._create_topic()
        leader = topic.partitions[partition_of(transactional_id, len(topic.partitions))].leader
        if leader == NO_LEADER:
            raise CodedError(ErrorCode.coordinator_not_available, "the transaction's partition has no leader")
        return leader

    def _led(self, index: int) -> Partition | None:
        try:
            partition = self._replicas.partition(TRANSACTION_TOPIC, index)
        except CodedError:
            return None
        return partition if partition.is_leader else None

    def _open(self, partition: Partition) -> TransactionShard:
        former = self._shards.get(partition.index)
        if former is not None:
            former.close()
        shard = TransactionShard(partition, self._clock, self._prepared)
        self._shards[partition.index] = shard
        return shard

    def _revive(self, shard: TransactionShard) -> None:
        if shard.partition.log.offline is not None:
            raise CodedError(ErrorCode.coordinator_not_available, shard.partition.log.offline)
        shard.phase = Phase.LOADING
        self._spawn(shard.load())

    async def _load_all(self, shards: Sequence[TransactionShard]) -> None:
        started = self._clock.monotonic()
        for shard in shards:
            await shard.load()
        log.info(
            "transactions loaded",
            ids=sum(len(shard.entries) for shard in shards),
            seconds=round(self._clock.monotonic() - started, 3),
        )

    async def _create_topic(self) -> Topic:
        settings = self._settings
        spec = TopicSpec(
            name=TRANSACTION_TOPIC,
            partitions=settings.topic_partitions,
            replication_factor=settings.topic_replication_factor,
            configs={
                "cleanup.policy": "compact",
                "compression.type": "uncompressed",
                "min.insync.replicas": str(settings.topic_min_isr),
                "segment.bytes": str(settings.topic_segment_bytes),
                "unclean.leader.election.enable": "false",
            },
        )
        try:
            return await self._controller.create_topic(spec)
        except CodedError as error:
            topic = self._image.topic(TRANSACTION_TOPIC)
            if topic is not None:
                return topic
            raise CodedError(ErrorCode.coordinator_not_available, error.message) from error


def check_id(transactional_id: str) -> None:
    """Refuse a transactional id that is empty, or that the internal topic cannot hold."""
    if not transactional_id:
        raise CodedError(ErrorCode.invalid_request, "the transactional id is empty")
    if len(transactional_id) > LARGEST_ID // 4 and len(transactional_id.encode()) > LARGEST_ID:
        raise CodedError(
            ErrorCode.invalid_request,
            f"a transactional id of {len(transactional_id)} characters; at most {LARGEST_ID} bytes",
        )
