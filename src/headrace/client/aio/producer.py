"""An idempotent producer: records sent at the same time share a batch, and a retry is written once.

Each partition has a lane. A lane has one batch under way; what is sent meanwhile waits and makes the next batch, so
batches grow with the load and nothing waits when there is none. Batches of lanes that are ready in the same turn of
the event loop go to each leader in one Produce request.

A batch that is retried keeps its producer id and sequence number: the broker writes it once. When the outcome of a
batch stays unknown the producer id is given up, and lanes start again under a new one.

A broker that has told to wait (`throttle_time_ms`) is not asked before; what would have to wait for more than
`MOST_HELD_BACK` seconds fails at once (`Throttled`), as nothing of it was written.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from headrace.protocol.api import ApiKey
from headrace.protocol.decode import decode_response
from headrace.protocol.errors import CodedError, ErrorCode, ProtocolViolation
from headrace.protocol.produce_request import produce_parts
from headrace.protocol.records import Record, encode_batch
from headrace.protocol.topic_partition import TopicPartition

from ..core.errors import AuthenticationRefused, ConnectionLost, VersionNotServed
from ..core.produce import ALL_IN_SYNC, UNANSWERED, Produced, read_produced
from ..core.transactions import NOBODY, ProducerId, init_producer_request, read_producer
from .cluster import Cluster, ConnectionPurpose, checked
from .retrying import Pauses, Throttled, passes, retried

_TIMEOUT_MS: Final = 10_000
_BATCH_BYTES: Final = 512 * 1024
"""Of records that are gathered; one record may be larger."""
_RECORD_OVERHEAD: Final = 32
MOST_HELD_BACK: Final = 1.0
_SEQUENCES: Final = 2**31
_UNNUMBERED: Final = -1
"""The sequence number of batches whose producer has no id."""
_NEEDS_NEW_ID: Final = frozenset(
    {
        ErrorCode.unknown_producer_id,
        ErrorCode.out_of_order_sequence_number,
        ErrorCode.invalid_producer_epoch,
        ErrorCode.unknown_server_error,
    }
)
"""The broker expects another sequence number than ours is, or may: what failed for reasons unknown may be written."""


class Written(NamedTuple):
    """Where records were written; `base_offset` is -1 where no acknowledgement was asked for."""

    base_offset: int
    append_time: int
    """-1 where the topic keeps the producer's own times."""


class Identity(NamedTuple):
    """Producer and sequence number of a batch; see `once`."""

    producer: ProducerId
    sequence: int


class _Waiting(NamedTuple):
    records: Sequence[Record]
    size: int
    done: asyncio.Future[Written]


class _Batch(NamedTuple):
    topic: str
    partition: int
    payload: bytearray
    acks: int


class _Lane:
    __slots__ = ("acks", "is_busy", "partition", "producer", "queue", "sequence", "topic")

    def __init__(self, topic: str, partition: int, acks: int) -> None:
        self.topic = topic
        self.partition = partition
        self.acks = acks
        self.queue: deque[_Waiting] = deque()
        self.is_busy = False
        self.producer = NOBODY
        self.sequence = _UNNUMBERED
        """Of the next batch."""


class Producer:
    """Writes for one user. Each call returns when its records are written, or raises why they are not."""

    def __init__(self, cluster: Cluster, *, patience: float = 30.0) -> None:
        self._cluster = cluster
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._lanes: dict[tuple[str, int, int], _Lane] = {}
        self._ready: list[_Lane] = []
        self._is_scheduled = False
        self._producer_id: asyncio.Task[ProducerId] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._free_at: dict[int, float] = {}
        """Until when brokers have told to wait."""

    @property
    def in_flight(self) -> int:
        return len(self._tasks)

    def send(
        self, topic: str, partition: int, records: Sequence[Record], acks: int = ALL_IN_SYNC
    ) -> asyncio.Future[Written]:
        """Write records to a partition, in their order and next to each other; their offsets and times are ours."""
        key = topic, partition, acks
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane(topic, partition, acks)
        done: asyncio.Future[Written] = self._loop.create_future()
        lane.queue.append(_Waiting(records, _size(records), done))
        if not lane.is_busy and len(lane.queue) == 1:
            self._wake(lane)
        return done

    async def send_once(self, topic: str, partition: int, records: Sequence[Record], identity: Identity) -> Written:
        """Write a batch under an identity that no other batch has: however often, it is in the log once."""
        return await self._persist(_Batch(topic, partition, _encoded(records, *identity), ALL_IN_SYNC))

    async def close(self) -> None:
        """Wait for what is under way."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._producer_id is not None:
            self._producer_id.cancel()

    # Gathering

    def _wake(self, lane: _Lane) -> None:
        self._ready.append(lane)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Send what is ready, one request to each leader; lanes whose leader must be asked for go one by one."""
        self._is_scheduled = False
        ready, self._ready = self._ready, []
        by_node: dict[tuple[int, int], list[_Lane]] = {}
        for lane in ready:
            lane.is_busy = True
            view = self._cluster.known(lane.topic)
            leader = None if view is None else view.leaders.get(lane.partition)
            node = -1 if leader is None else leader.node
            by_node.setdefault((node, lane.acks), []).append(lane)
        for (node, acks), lanes in by_node.items():
            self._run(self._send_lanes(node, acks, lanes))

    def _run(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send_lanes(self, node: int, acks: int, lanes: list[_Lane]) -> None:
        """One request for all; what it does not settle is pursued lane by lane."""
        try:
            producer = await self._identify() if acks == ALL_IN_SYNC else NOBODY
        except Exception as error:
            for lane in lanes:
                self._settle(lane, _drain(lane), error)
            return
        taken = [(lane, *self._take(lane, producer)) for lane in lanes]
        batches = [batch for _, _, batch in taken]
        try:
            outcomes = await self._produce(node, acks, batches) if node >= 0 else {}
        except (ConnectionLost, AuthenticationRefused, VersionNotServed, Throttled) as error:
            outcomes = {TopicPartition(batch.topic, batch.partition): error for batch in batches}
        for lane, waiting, batch in taken:
            outcome = outcomes.get(
                TopicPartition(lane.topic, lane.partition), ConnectionLost("there is no leader for now")
            )
            if isinstance(outcome, Written):
                self._settle(lane, waiting, outcome)
            else:
                self._run(self._pursue(lane, waiting, batch, outcome))

    def _take(self, lane: _Lane, producer: ProducerId) -> tuple[list[_Waiting], _Batch]:
        """The next batch of a lane, numbered on from its last."""
        waiting = _gathered(lane.queue)
        if lane.producer != producer:
            lane.producer, lane.sequence = producer, 0
        records = [record for each in waiting for record in each.records]
        payload = _encoded(records, producer, lane.sequence)
        return waiting, _Batch(lane.topic, lane.partition, payload, lane.acks)

    async def _pursue(self, lane: _Lane, waiting: list[_Waiting], batch: _Batch, first: Exception) -> None:
        """Try a batch again until it is settled."""
        try:
            outcome: Written | Exception = await self._persist(batch, first)
        except Exception as error:
            outcome = error
        if isinstance(outcome, CodedError) and outcome.code is ErrorCode.message_too_large and len(waiting) > 1:
            await self._send_apart(lane, waiting)
            return
        self._settle(lane, waiting, outcome)

    async def _send_apart(self, lane: _Lane, waiting: list[_Waiting]) -> None:
        """What is too large together is tried one by one; nothing of it was written."""
        lane.queue.extendleft(reversed(waiting[1:]))
        payload = _encoded(waiting[0].records, lane.producer, lane.sequence)
        try:
            outcome: Written | Exception = await self._persist(_Batch(lane.topic, lane.partition, payload, lane.acks))
        except Exception as error:
            outcome = error
        self._settle(lane, waiting[:1], outcome)

    def _settle(self, lane: _Lane, waiting: list[_Waiting], outcome: Written | Exception) -> None:
        total = sum(len(each.records) for each in waiting)
        if isinstance(outcome, Written):
            if lane.sequence != _UNNUMBERED:
                lane.sequence = (lane.sequence + total) % _SEQUENCES
            offset = outcome.base_offset
            for each in waiting:
                if not each.done.done():
                    each.done.set_result(Written(offset, outcome.append_time))
                offset += len(each.records) if offset >= 0 else 0
        else:
            self._give_up(outcome)
            for each in waiting:
                if not each.done.done():
                    each.done.set_exception(outcome)
        lane.is_busy = False
        if lane.queue:
            self._wake(lane)
        elif lane.acks != ALL_IN_SYNC:
            del self._lanes[lane.topic, lane.partition, lane.acks]

    def _give_up(self, error: Exception) -> None:
        """Fail a batch; where it may have been written, its sequence number cannot be used again."""
        if not isinstance(error, CodedError) or error.code in _NEEDS_NEW_ID:
            self._producer_id = None

    # Who we are

    async def _identify(self) -> ProducerId:
        if self._producer_id is None or (self._producer_id.done() and self._producer_id.exception() is not None):
            self._producer_id = self._loop.create_task(self._init_producer_id())
        return await asyncio.shield(self._producer_id)

    async def _init_producer_id(self) -> ProducerId:
        async def attempt() -> ProducerId:
            values = init_producer_request(None, 60_000)
            return read_producer(checked(await (await self._cluster.any()).ask(ApiKey.INIT_PRODUCER_ID, values)))

        return await retried(attempt, self._patience, lambda: None)

    # Sending

    async def _wait_for_quota(self, node: int) -> None:
        seconds = self._free_at.get(node, 0.0) - self._loop.time()
        if seconds > MOST_HELD_BACK:
            raise Throttled(seconds)
        if seconds > 0:
            await asyncio.sleep(seconds)

    async def _persist(self, batch: _Batch, first: Exception | None = None) -> Written:
        """Send a batch again and again until it is written or refused for good."""
        pauses = Pauses(self._patience)
        error = first
        while True:
            if error is None:
                outcome = await self._attempt(batch)
                if isinstance(outcome, Written):
                    return outcome
                error = outcome
            if not isinstance(error, ConnectionLost) and not (isinstance(error, CodedError) and passes(error)):
                raise error
            self._cluster.forget(batch.topic)
            await pauses.after(error, is_uncertain=True)
            error = None

    async def _attempt(self, batch: _Batch) -> Written | Exception:
        try:
            node = await self._cluster.leader(batch.topic, batch.partition)
            return (await self._produce(node, batch.acks, [batch]))[TopicPartition(batch.topic, batch.partition)]
        except (ConnectionLost, CodedError) as error:
            return error

    async def _produce(
        self, node: int, acks: int, batches: Sequence[_Batch]
    ) -> dict[TopicPartition, Written | Exception]:
        """One Produce request; what each partition said."""
        await self._wait_for_quota(node)
        topics: dict[str, list[tuple[int, bytearray]]] = {}
        for batch in batches:
            topics.setdefault(batch.topic, []).append((batch.partition, batch.payload))
        cluster = self._cluster
        connection = cluster.ready(node, ConnectionPurpose.PRODUCE) or await cluster.to_node(
            node, ConnectionPurpose.PRODUCE
        )
        version = connection.version_of(ApiKey.PRODUCE)
        body = produce_parts(version, topics, acks=acks, timeout_ms=_TIMEOUT_MS)
        if acks == 0:
            connection.send(ApiKey.PRODUCE, version, body, is_answered=False)
            return {
                TopicPartition(topic, partition): Written(-1, -1)
                for topic, some in topics.items()
                for partition, _ in some
            }
        data = await connection.ask_bytes(ApiKey.PRODUCE, version, body)
        try:
            decoded = decode_response(ApiKey.PRODUCE, version, data)
            answer = read_produced(decoded)
        except ProtocolViolation as error:
            raise connection.lose(str(error)) from error
        throttled = decoded.throttle_time.total_seconds()
        if throttled > 0:
            self._free_at[node] = self._loop.time() + throttled
        partitions = (TopicPartition(batch.topic, batch.partition) for batch in batches)
        return {partition: _outcome(answer.get(partition, UNANSWERED)) for partition in partitions}


def _encoded(records: Sequence[Record], producer: ProducerId, sequence: int) -> bytearray:
    return encode_batch(records, producer_id=producer.id, producer_epoch=producer.epoch, base_sequence=sequence)


def _outcome(produced: Produced) -> Written | Exception:
    if produced.code is ErrorCode.none:
        return Written(produced.base_offset, produced.append_time)
    return CodedError(produced.code, produced.message)


def _gathered(queue: deque[_Waiting]) -> list[_Waiting]:
    taken = [queue.popleft()]
    size = taken[0].size
    while queue and size + queue[0].size <= _BATCH_BYTES:
        taken.append(queue.popleft())
        size += taken[-1].size
    return taken


def _drain(lane: _Lane) -> list[_Waiting]:
    waiting = list(lane.queue)
    lane.queue.clear()
    return waiting


def _size(records: Sequence[Record]) -> int:
    return sum(len(record.key or b"") + len(record.value or b"") + _RECORD_OVERHEAD for record in records)
