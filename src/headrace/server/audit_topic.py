"""Writes audit events to their topic, `__audit_log`: by its own hand where this broker leads the partition, else by
the hand of the broker that does, whether that one records events of its own or not.

The topic is made when the first event is there. What cannot be written stays where it is and is tried again; meanwhile
new events wait in the queue, which is bounded and counts what it has to drop. A batch whose answer was lost is written
again: readers tell events that stand there twice by their ids.
"""

import asyncio
from typing import Final

import structlog

from headrace.cluster.controller import Controller
from headrace.cluster.image import ClusterImage, Topic
from headrace.cluster.metadata_writer import TopicSpec
from headrace.net.clock import Clock
from headrace.net.peers import Peers, PeerUnreachable, Purpose
from headrace.net.tasks import Tasks
from headrace.protocol.batch import check_batch
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.peer import InternalApi, PeerMessage
from headrace.protocol.records import Record, encode_batch
from headrace.replication.replica_manager import ReplicaManager
from headrace.security.audit import TOPIC, Queued
from headrace.storage.disk import StorageError
from headrace.storage.log import Origin

BATCH_BYTES: Final = 256 << 10
WRITE_SECONDS: Final = 10.0
FIRST_PAUSE: Final = 0.25
LONGEST_PAUSE: Final = 5.0
CLOSE_SECONDS: Final = 2.0
"""How long a broker that stops goes on writing what waits."""
_ACKS: Final = -1

log = structlog.get_logger(__name__)


class AuditTopic:
    """Takes events out of the queue, and keeps them."""

    def __init__(
        self,
        *,
        broker_id: int,
        queued: Queued,
        image: ClusterImage,
        controller: Controller,
        partition: "AuditPartition",
        clock: Clock,
        replication_factor: int,
        retention_ms: int,
        peers: Peers | None = None,
    ) -> None:
        self._broker_id = broker_id
        self._queued = queued
        self._image = image
        self._controller = controller
        self._partition = partition
        self._clock = clock
        self._peers = peers
        self._spec = TopicSpec(
            name=TOPIC,
            partitions=1,
            replication_factor=replication_factor,
            configs={"cleanup.policy": "delete", "retention.ms": str(retention_ms)},
        )
        self._batch: bytes = b""
        """What could not be written yet."""
        self._is_failing = False
        self._tasks = Tasks()

    def start(self) -> None:
        """Begin to write whatever comes."""
        self._tasks.keep("audit topic", self._run)

    async def stop(self) -> None:
        """Write what waits, while this broker is among the others, and nothing more."""
        await self._tasks.close()
        await self.finish()

    async def _run(self) -> None:
        pause = FIRST_PAUSE
        while True:
            if not self._batch:
                await self._queued.wait()
                self._batch = self._build(self._queued.take(BATCH_BYTES))
            if await self._try_to_write():
                pause = FIRST_PAUSE
            else:
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)

    async def finish(self) -> None:
        """Write what waits, as far as that is possible now; once it was stopped."""
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                while self._batch or len(self._queued):
                    self._batch = self._batch or self._build(self._queued.take(BATCH_BYTES))
                    if not await self._try_to_write():
                        break
        except TimeoutError:
            pass

    def report_rest(self) -> None:
        """Say so if something waits still, which nobody will read."""
        if self._batch or len(self._queued):
            log.error("audit events lost", events=len(self._queued), reason="the broker stops and cannot write them")

    async def _try_to_write(self) -> bool:
        try:
            await self._write()
        except (CodedError, PeerUnreachable, StorageError, TimeoutError) as error:
            if not self._is_failing:
                log.warning("audit events cannot be written, they wait", topic=TOPIC, reason=str(error) or "timeout")
            self._is_failing = True
            return False
        self._batch = b""
        if self._is_failing:
            log.info("audit events are written again", topic=TOPIC)
        self._is_failing = False
        return True

    def _build(self, lines: list[bytes]) -> bytes:
        now_ms = self._clock.now_ms()
        return bytes(encode_batch([Record(0, now_ms, None, line) for line in lines]))

    async def _write(self) -> None:
        topic = self._image.topic(TOPIC) or await self._create_topic()
        leader = topic.partitions[0].leader
        if leader == self._broker_id:
            await self._partition.append(self._batch)
        elif self._peers is None or leader < 0:
            raise CodedError(ErrorCode.leader_not_available, f"{TOPIC} has no leader for now")
        else:
            await self._send(self._peers, leader)

    async def _create_topic(self) -> Topic:
        try:
            return await self._controller.create_topic(self._spec)
        except CodedError:
            topic = self._image.topic(TOPIC)
            if topic is None:
                raise
            return topic

    async def _send(self, peers: Peers, leader: int) -> None:
        await peers.send(leader, InternalApi.AUDIT, PeerMessage({}, self._batch), purpose=Purpose.FORWARD)


class AuditPartition:
    """The partition of the topic, where this broker leads it."""

    def __init__(self, replicas: ReplicaManager, clock: Clock) -> None:
        self._replicas = replicas
        self._clock = clock

    async def append(self, data: bytes) -> None:
        """Append a batch of events; returns once it is committed, `CodedError` where it is not."""
        partition = self._replicas.partition(TOPIC, 0)
        batch = memoryview(bytearray(data))
        appended = partition.append(batch, check_batch(batch), Origin.COORDINATOR)
        end = appended.last_offset + 1
        if partition.is_acknowledged(end, _ACKS):
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def committed(error: CodedError | None) -> None:
            if not done.done():
                done.set_exception(error) if error is not None else done.set_result(None)

        partition.wait(end, _ACKS, committed, self._clock.monotonic() + WRITE_SECONDS)
        await done

    async def serve(self, message: PeerMessage, _broker_id: int) -> PeerMessage:
        """Take events of another broker. A `PeerHandler`."""
        await self.append(bytes(message.attachment))
        return PeerMessage({})
