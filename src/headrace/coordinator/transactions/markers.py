"""The markers that end transactions, sent to the leaders of their partitions until each has written its own.

A leader gets the markers of many transactions in one request, and few requests at a time, so that a thousand producers
that commit at once cost it a few writes. Where a partition has moved, or nobody leads it, its marker is sent again a
little later to whoever leads it then. A partition needs none once its topic is known to be deleted, by its id; one
that this broker does not know is waited for: its feed may lag behind, or be at its beginning.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol
from uuid import UUID

import structlog

from headrace.cluster.image import NO_LEADER, ClusterImage
from headrace.net.peers import Peers, PeerUnreachable, Purpose
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode
from headrace.protocol.topic_partition import TopicPartition
from headrace.replication.transactions import TransactionMarker

log = structlog.get_logger(__name__)

MOST_MARKERS: Final = 2_000
"""In one request."""
MOST_REQUESTS: Final = 4
"""To one broker at a time."""
PAUSE_SECONDS: Final = 0.05
LONGEST_PAUSE: Final = 1.0
REQUEST_SECONDS: Final = 30.0
_ATTEMPTS_UNTIL_TOLD: Final = 30
"""Of a marker for a partition that nobody knows, before the log says so."""
_VERSION: Final = 2
_FINAL: Final = frozenset({ErrorCode.none, ErrorCode.invalid_producer_epoch, ErrorCode.producer_fenced})
"""After these a partition needs no marker any more: it has this one, or that of a later epoch."""

Marked = Mapping[TopicPartition, ErrorCode]
Spawn = Callable[[Coroutine[Any, Any, None]], None]


class AppendMarker(Protocol):
    """Writes a marker on a partition that this broker leads; the code when it is committed, or why it is not."""

    async def __call__(self, topic: str, index: int, marker: TransactionMarker) -> ErrorCode: ...


def is_gone(image: ClusterImage, partition: TopicPartition, topic_id: UUID | None) -> bool:
    """Whether a partition needs no marker any more, because its topic is known to have been deleted.

    Who leads a partition of `__transaction_state` has an image at least as new as the one by which the partitions in
    its records were added, once that image is whole: what then has the name is that topic or a later one. Records of
    Kafka's have no ids; what such an image does not know of them is gone.
    """
    topic, index = partition
    known = image.topic(topic)
    if topic_id is None:
        return image.is_whole and (known is None or index >= len(known.partitions))
    if known is not None and known.id == topic_id:
        return False
    return image.was_deleted(topic_id) or (image.is_whole and known is not None)


class Job:
    """The markers of one transaction that some partitions still need."""

    __slots__ = ("attempts", "done", "fenced", "is_wanted", "marker", "topic_ids", "waiting")

    def __init__(
        self,
        marker: TransactionMarker,
        partitions: Iterable[TopicPartition],
        topic_ids: Mapping[str, UUID],
        *,
        done: Callable[[], None],
        fenced: Callable[[], None],
        is_wanted: Callable[[], bool],
    ) -> None:
        """`done` is called when all partitions know, `fenced` when one has a marker of a later coordinator. Given up
        when it `is_wanted` no longer."""
        self.marker = marker
        self.waiting = set(partitions)
        self.topic_ids = topic_ids
        self.done = done
        self.fenced = fenced
        self.is_wanted = is_wanted
        self.attempts = 0


class MarkerSender:
    """Sends the markers of this broker's transactions."""

    def __init__(
        self, *, broker_id: int, image: ClusterImage, append: AppendMarker, peers: Peers | None, spawn: Spawn
    ) -> None:
        self._broker_id = broker_id
        self._image = image
        self._append = append
        self._peers = peers
        self._spawn = spawn
        self._queues: dict[int, deque[tuple[Job, TopicPartition]]] = {}
        self._under_way: dict[int, int] = {}

    def send(self, job: Job) -> None:
        """Tell the partitions."""
        self._route(job, list(job.waiting))

    def _route(self, job: Job, partitions: Iterable[TopicPartition]) -> None:
        if not job.is_wanted():
            return
        later = []
        for partition in partitions:
            if is_gone(self._image, partition, job.topic_ids.get(partition[0])):
                job.waiting.discard(partition)
                continue
            leader = self._leader(partition, job.topic_ids.get(partition[0]))
            if leader == NO_LEADER:
                later.append(partition)
            elif leader == self._broker_id:
                self._spawn(self._mark_here(job, partition))
            else:
                self._queues.setdefault(leader, deque()).append((job, partition))
        if later:
            self._spawn(self._again(job, later))
        if not job.waiting:
            job.done()
            return
        for broker in list(self._queues):
            self._work_off(broker)

    def _leader(self, partition: TopicPartition, topic_id: UUID | None) -> int:
        """The leader of a partition; NO_LEADER also where it is not known yet: an older topic may have its name."""
        topic, index = partition
        known = self._image.topic(topic)
        if known is None or index >= len(known.partitions) or topic_id not in (None, known.id):
            return NO_LEADER
        return known.partitions[index].leader

    def _work_off(self, broker: int) -> None:
        if self._queues.get(broker) and self._under_way.get(broker, 0) < MOST_REQUESTS:
            self._under_way[broker] = self._under_way.get(broker, 0) + 1
            self._spawn(self._drain(broker))

    async def _drain(self, broker: int) -> None:
        """Send what waits for a broker, one request after the other."""
        try:
            await asyncio.sleep(0)  # what is decided in the same turn goes along
            while batch := self._take(broker):
                results = await self._deliver(broker, batch)
                for job, asked in batch.items():
                    self._settle(job, asked, results.get(job, {}))
        finally:
            self._under_way[broker] -= 1

    def _take(self, broker: int) -> dict[Job, list[TopicPartition]]:
        queue = self._queues.get(broker)
        batch: dict[Job, list[TopicPartition]] = {}
        for _ in range(min(len(queue), MOST_MARKERS) if queue else 0):
            assert queue is not None
            job, partition = queue.popleft()
            if job.is_wanted():
                batch.setdefault(job, []).append(partition)
        if not queue:
            self._queues.pop(broker, None)
        return batch

    async def _deliver(self, broker: int, batch: Mapping[Job, Sequence[TopicPartition]]) -> Mapping[Job, Marked]:
        """What became of the markers; those of whom nothing is known are sent again."""
        try:
            return await self._ask(broker, batch)
        except PeerUnreachable as error:
            log.info("markers could not be sent", broker=broker, reason=str(error))
        except Exception:
            log.exception("markers could not be sent", broker=broker)
        return {}

    async def _ask(self, broker: int, batch: Mapping[Job, Sequence[TopicPartition]]) -> dict[Job, Marked]:
        assert self._peers is not None
        values = {"markers": [_marker_values(job.marker, partitions) for job, partitions in batch.items()]}
        answer = await self._peers.ask(
            broker, ApiKey.WRITE_TXN_MARKERS, _VERSION, values, purpose=Purpose.MARKERS, timeout=REQUEST_SECONDS
        )
        by_producer = {result.producer_id: _marked(result) for result in answer.markers}
        return {job: by_producer.get(job.marker.producer_id, {}) for job in batch}

    async def _mark_here(self, job: Job, partition: TopicPartition) -> None:
        """Write a marker on a partition that this broker leads; one that waits for its followers delays no other."""
        try:
            code = await self._append(*partition, job.marker)
        except Exception:
            log.exception("a marker could not be written", partition=partition, producer=job.marker)
            code = ErrorCode.unknown_server_error
        self._settle(job, [partition], {partition: code})

    def _settle(self, job: Job, partitions: Sequence[TopicPartition], results: Marked) -> None:
        again = []
        for partition in partitions:
            code = results.get(partition, ErrorCode.unknown_server_error)
            if code in _FINAL:
                if code is not ErrorCode.none:
                    log.warning("a marker came too late", partition=partition, code=code.name, producer=job.marker)
                job.waiting.discard(partition)
            elif code is ErrorCode.transaction_coordinator_fenced:
                log.error("a later coordinator has ended this transaction", partition=partition, producer=job.marker)
                job.fenced()
            else:
                again.append(partition)
        if again and job.is_wanted():
            self._spawn(self._again(job, again))
        elif not job.waiting and job.is_wanted():
            job.done()

    async def _again(self, job: Job, partitions: Sequence[TopicPartition]) -> None:
        await asyncio.sleep(min(PAUSE_SECONDS * 2 ** min(job.attempts, 10), LONGEST_PAUSE))
        job.attempts += 1
        if job.attempts == _ATTEMPTS_UNTIL_TOLD:
            log.warning("markers wait for partitions that have no leader", partitions=partitions, producer=job.marker)
        self._route(job, partitions)


def _marker_values(marker: TransactionMarker, partitions: Sequence[TopicPartition]) -> dict[str, Any]:
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    return {
        "producer_id": marker.producer_id,
        "producer_epoch": marker.producer_epoch,
        "transaction_result": marker.committed,
        "topics": [{"name": name, "partition_indexes": indexes} for name, indexes in topics.items()],
        "coordinator_epoch": marker.coordinator_epoch,
        "transaction_version": marker.transaction_version,
    }


def _marked(result: Any) -> Marked:
    return {
        TopicPartition(topic.name, partition.partition_index): partition.error_code
        for topic in result.topics
        for partition in topic.partitions
    }
