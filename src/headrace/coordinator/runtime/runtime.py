"""The coordinator runtime: the partitions of one internal topic that this broker leads, and where the others are.

Groups live in the partitions of one such topic, transactional ids in those of another. The leader of a partition is the
coordinator of everything in it, once it has read it; until then clients get COORDINATOR_LOAD_IN_PROGRESS, and those of
other partitions are served. What happens within one partition is in `shard`.
"""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Generic, TypeVar

from headrace.cluster.controller import Controller
from headrace.cluster.image import NO_LEADER, BrokerNode, ClusterImage, Topic
from headrace.cluster.metadata_writer import TopicSpec
from headrace.net.clock import Clock
from headrace.net.tasks import Tasks
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.replication.partition import Partition
from headrace.replication.replica_manager import Leadership, ReplicaManager

from .partitions import partition_of
from .shard import Phase, Shard

LONGEST_BACKOFF: Final = 60.0
"""Seconds after which a log that could not be read is tried again at the latest."""

AnyShard = TypeVar("AnyShard", bound=Shard)


class Runtime(Generic[AnyShard]):
    """The shards that are here: opened as this broker comes to lead them, closed when it no longer does.

    `spec` is the internal topic, which is created when a coordinator is first looked for; `make` opens the shard of a
    partition; `loaded` is called with the shards that were here at the start, and how long they took.
    """

    def __init__(
        self,
        spec: TopicSpec,
        *,
        image: ClusterImage,
        controller: Controller,
        replicas: ReplicaManager,
        clock: Clock,
        make: Callable[[Partition], AnyShard],
        loaded: Callable[[Sequence[AnyShard], float], None],
    ) -> None:
        self.is_closed = False
        self._spec = spec
        self._image = image
        self._controller = controller
        self._replicas = replicas
        self._clock = clock
        self._make = make
        self._loaded = loaded
        self._tasks = Tasks()
        self._shards: dict[int, AnyShard] = {}
        self._backoffs: dict[AnyShard, float] = {}
        """Until when those that could not be read are left alone."""

    def start(self) -> None:
        """Begin to load every shard that is here, the smallest first."""
        topic = self._image.topic(self._spec.name)
        if topic is None:
            return
        here = [partition for partition in map(self._led, range(len(topic.partitions))) if partition is not None]
        shards = [self._open(partition) for partition in sorted(here, key=lambda p: p.log.size_bytes)]
        self.spawn(self._load_all([shard for shard in shards if shard.phase is Phase.LOADING]))

    def spawn(self, work: Coroutine[Any, Any, object]) -> None:
        """Run work in the background until it ends or the runtime is closed; once closed, it is dropped unbegun."""
        if self.is_closed:
            work.close()
            return
        self._tasks.spawn(work)

    async def close(self) -> None:
        """Coordinate nothing any more: requests that wait get NOT_COORDINATOR, background work ends."""
        self.is_closed = True
        self.close_shards()
        await self._tasks.close()

    def close_shards(self) -> None:
        """Forget all shards, as when the internal topic is deleted."""
        for shard in self._shards.values():
            shard.close()
        self._shards.clear()
        self._backoffs.clear()

    # Leadership

    def leads(self, partition: Partition) -> None:
        """This broker has come to lead a partition: if it is one of the topic's, it is read."""
        if partition.topic == self._spec.name and not self.is_closed:
            self._load(self._open(partition))

    def leads_no_more(self, partition: Partition) -> None:
        """Another broker leads a partition now: requests that wait here get NOT_COORDINATOR."""
        if partition.topic == self._spec.name and (shard := self._shards.pop(partition.index, None)) is not None:
            self._backoffs.pop(shard, None)
            shard.close()

    async def find(self, key: str) -> BrokerNode:
        """The coordinator of a key. The internal topic is created when the first one is looked for."""
        node = self._image.brokers.get(await self.leader(key))
        if node is None:
            raise CodedError(ErrorCode.coordinator_not_available, f"its partition of {self._spec.name} has no leader")
        return node

    async def leader(self, key: str) -> int:
        """The id of the broker that coordinates a key."""
        topic = self._image.topic(self._spec.name) or await self._create_topic()
        leader = topic.partitions[partition_of(key, len(topic.partitions))].leader
        if leader == NO_LEADER:
            raise CodedError(ErrorCode.coordinator_not_available, f"its partition of {self._spec.name} has no leader")
        return leader

    def leaders(self) -> set[int]:
        """The brokers that coordinate all keys together; `CodedError` where a partition has no leader, or not all of
        the cluster is known."""
        topic = self._image.topic(self._spec.name)
        leaders = set() if topic is None else {partition.leader for partition in topic.partitions}
        if NO_LEADER in leaders or not self._image.is_whole:
            raise CodedError(ErrorCode.coordinator_not_available, f"not all of {self._spec.name} can be asked now")
        return leaders

    # Shards

    def shard(self, key: str) -> AnyShard:
        """The shard of a key, ready to act; `CodedError` with the client's answer otherwise."""
        topic = self._image.topic(self._spec.name)
        if topic is None or self.is_closed:
            raise CodedError(ErrorCode.not_coordinator)
        index = partition_of(key, len(topic.partitions))
        partition = self._led(index)
        if partition is None:
            raise CodedError(ErrorCode.not_coordinator)
        shard = self._shards.get(index)
        if shard is None or shard.partition is not partition or shard.leader_epoch != partition.leader_epoch:
            shard = self._open(partition)
            self._load(shard)
        if shard.phase is Phase.FAILED:
            if not self._may_reload(shard):
                reason = partition.log.offline or f"its log could not be read: {shard.failure}"
                raise CodedError(ErrorCode.coordinator_not_available, reason)
            self._reload(shard)
        if shard.phase is Phase.LOADING:
            raise CodedError(ErrorCode.coordinator_load_in_progress)
        return shard

    def at(self, partition: Partition) -> AnyShard | None:
        """The shard of a partition, if there is one."""
        if partition.topic != self._spec.name:
            return None
        shard = self._shards.get(partition.index)
        return shard if shard is not None and shard.partition is partition else None

    def all(self) -> list[AnyShard]:
        """Every shard that is here; `CodedError` while one of them is being read. Those that failed are read again."""
        if any(shard.phase is Phase.LOADING for shard in self._shards.values()):
            raise CodedError(ErrorCode.coordinator_load_in_progress)
        self.reload_failed()
        return self.active()

    def active(self) -> list[AnyShard]:
        """Those that are loaded."""
        return [shard for shard in self._shards.values() if shard.phase is Phase.ACTIVE]

    def inactive(self) -> list[AnyShard]:
        """Those that are being loaded, or have to be."""
        return [shard for shard in self._shards.values() if shard.phase in (Phase.LOADING, Phase.FAILED)]

    def reload_failed(self) -> None:
        """Load the shards that failed again, where their log can be read."""
        for shard in self._shards.values():
            if shard.phase is Phase.FAILED and self._may_reload(shard):
                self._reload(shard)

    def _led(self, index: int) -> Partition | None:
        try:
            partition = self._replicas.partition(self._spec.name, index)
        except CodedError:
            return None
        return partition if partition.is_leader else None

    def _open(self, partition: Partition) -> AnyShard:
        former = self._shards.get(partition.index)
        if former is not None:
            self._backoffs.pop(former, None)
            former.close()
        shard = self._shards[partition.index] = self._make(partition)
        return shard

    def _load(self, shard: AnyShard) -> None:
        if shard.phase is Phase.LOADING:
            self.spawn(self._read(shard))

    def _may_reload(self, shard: AnyShard) -> bool:
        """Whether a log that could not be read, or not be written, is read again: one with a record that nobody can
        read is not read with every request."""
        return shard.partition.log.offline is None and self._clock.monotonic() >= self._backoffs.get(shard, 0.0)

    def _reload(self, shard: AnyShard) -> None:
        shard.phase = Phase.LOADING
        self.spawn(self._read(shard))

    async def _read(self, shard: AnyShard) -> None:
        await shard.load()
        self._backoffs.pop(shard, None)
        if shard.phase is Phase.FAILED and shard.failures:
            self._backoffs[shard] = self._clock.monotonic() + min(2.0**shard.failures, LONGEST_BACKOFF)

    async def _load_all(self, shards: Sequence[AnyShard]) -> None:
        started = self._clock.monotonic()
        for shard in shards:
            await self._read(shard)
        self._loaded(shards, round(self._clock.monotonic() - started, 3))

    async def _create_topic(self) -> Topic:
        try:
            return await self._controller.create_topic(self._spec)
        except CodedError as error:
            topic = self._image.topic(self._spec.name)
            if topic is not None:
                return topic
            raise CodedError(ErrorCode.coordinator_not_available, error.message) from error


class Coordinators:
    """Implements `Leadership`: tells several coordinators which partitions this broker leads."""

    def __init__(self, *coordinators: Leadership) -> None:
        self._coordinators = coordinators

    def leads(self, partition: Partition) -> None:
        """This broker has come to lead a partition."""
        for coordinator in self._coordinators:
            coordinator.leads(partition)

    def leads_no_more(self, partition: Partition) -> None:
        """This broker no longer leads the partition."""
        for coordinator in self._coordinators:
            coordinator.leads_no_more(partition)
