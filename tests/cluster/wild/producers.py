"""Producers of a wild run: idempotent ones with several batches in flight, and plain ones with any acks."""

import asyncio
from collections.abc import Sequence
from itertools import count
from uuid import UUID

from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode
from tests.support.checker.history import Operation
from tests.support.simulation.clients import Failed

from .clients import AGAIN, DELIVERY_SECONDS, MOST_IN_FLIGHT, NEVER_WRITTEN, OUT_OF_SEQUENCE, Client, Scene

MOST_OF_ALL = 8
"""Batches in flight of one producer, to all partitions."""
KEYS = [f"k{number}" for number in range(6)]


class Producer:
    """Writes batches to any partition of the topics there are."""

    def __init__(
        self, scene: Scene, name: str, *, acks: int, idempotent: bool, stream: "type[Stream] | None" = None
    ) -> None:
        self.name = name
        self.acknowledged = 0
        self._client = Client(scene, name)
        self._scene = scene
        self._rng = self._client.rng
        self._acks = acks
        self._is_idempotent = idempotent
        self._stream_class = Stream if stream is None else stream
        self._streams: dict[tuple[UUID, int], Stream] = {}
        self._stream_count = 0
        self._value_count = 0
        self._in_flight: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        while not self._scene.is_over:
            try:
                await self._step()
            except (Failed, OSError):
                await self._client.pause()
            await self._client.rest()
        if self._in_flight:
            await asyncio.wait(self._in_flight)
        self._client.close()

    async def _step(self) -> None:
        topic = self._rng.choice(self._scene.topics)
        known = await self._client.known(topic)
        partition = self._rng.randrange(known.count)
        if self._rng.random() < 0.02:
            self._client.mistrust(topic)
        values = self._values()
        keys = [self._rng.choice(KEYS) for _ in values]
        if self._is_idempotent:
            await self._send_in_stream(topic, known.id, partition, values, keys)
        else:
            await self._send_once(topic, known.id, partition, values, keys)

    def _values(self) -> list[str]:
        large = self._scene.mix.does("large batches")
        size = self._rng.choice((1, 1, 3, 10, 40) if large else (1, 1, 1, 2, 5))
        padding = "~" * self._rng.choice((0, 0, 30, 60))
        first, self._value_count = self._value_count, self._value_count + size
        return [f"{self.name}-{number}{padding}" for number in range(first, first + size)]

    async def _send_in_stream(
        self, topic: str, topic_id: UUID, partition: int, values: Sequence[str], keys: Sequence[str]
    ) -> None:
        stream = self._streams.get((topic_id, partition))
        if (
            stream is None
            or stream.is_broken
            or (not stream.in_flight and self._rng.random() < self._scene.mix.new_producers)
        ):
            self._stream_count += 1
            name = f"{self.name}/{self._stream_count}"
            stream = self._stream_class(self._client, name, topic, topic_id, partition, await self._producer_id())
            self._streams[topic_id, partition] = stream
        if len(self._in_flight) >= MOST_OF_ALL or len(stream.in_flight) >= (
            MOST_IN_FLIGHT if self._scene.mix.does("pipelined") else 1
        ):
            return
        task = asyncio.ensure_future(self._counted(stream, stream.begin(values, keys)))
        self._in_flight.add(task)
        task.add_done_callback(self._in_flight.discard)

    async def _counted(self, stream: "Stream", batch: "Batch") -> None:
        if await stream.deliver(batch):
            self.acknowledged += 1

    async def _producer_id(self) -> int:
        values = {"transactional_id": None, "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
        answer = await self._client.ask_anyone(ApiKey.INIT_PRODUCER_ID, 4, values)
        if answer.error_code != ErrorCode.none:
            raise Failed(ErrorCode(answer.error_code))
        return int(answer.producer_id)

    async def _send_once(
        self, topic: str, topic_id: UUID, partition: int, values: Sequence[str], keys: Sequence[str]
    ) -> None:
        client = self._client
        leader = await client.leader_of(topic, partition, topic_id)
        batch = client.batch(values, keys)
        operation = self._scene.history.send(self.name, topic_id.hex, partition, values, acks=self._acks, keys=keys)
        if self._acks == 0:
            data = {"topic_id": topic_id, "partition_data": [{"index": partition, "records": batch}]}
            values_ = {"transactional_id": None, "acks": 0, "timeout": 1000, "topic_data": [data]}
            await client.tell(leader, ApiKey.PRODUCE, 13, values_)
            return
        try:
            code, offset = await client.produce_batch(topic, topic_id, partition, batch, acks=self._acks)
        except OSError:
            operation.info()
            client.mistrust(topic)
            return
        if code is ErrorCode.none:
            operation.ok(offset=offset)
            self.acknowledged += 1
            return
        client.mistrust(topic)
        operation.fail(error=code.name) if code in NEVER_WRITTEN else operation.info(error=code.name)
        if code not in AGAIN | NEVER_WRITTEN:
            self._scene.history.complain(f"refused: {self.name} was told {code.name}")


class Batch:
    """Values under way, with the sequence number of the first."""

    def __init__(self, operation: Operation, values: Sequence[str], keys: Sequence[str], sequence: int) -> None:
        self.operation = operation
        self.values = values
        self.keys = keys
        self.sequence = sequence
        self.begun = asyncio.get_running_loop().time()
        self.may_be_there = False
        self.outcome: asyncio.Future[bool] = asyncio.get_running_loop().create_future()


class Stream:
    """What one producer id sends to one partition: numbered, five batches at a time, each until it is answered."""

    def __init__(self, client: Client, name: str, topic: str, topic_id: UUID, partition: int, producer_id: int) -> None:
        self.is_broken = False
        self.in_flight: list[Batch] = []
        self._client = client
        self._name = name
        self._topic = topic
        self._id = topic_id
        self._partition = partition
        self._producer_id = producer_id
        self._sequence = 0

    def begin(self, values: Sequence[str], keys: Sequence[str]) -> Batch:
        """The next batch; to be delivered at once."""
        operation = self._client.scene.history.send(
            self._client.name, self._id.hex, self._partition, values, keys=keys, stream=self._name
        )
        batch = Batch(operation, values, keys, self._sequence)
        self._sequence += len(values)
        self.in_flight.append(batch)
        return batch

    async def deliver(self, batch: Batch) -> bool:
        """Sends it until that is known to have worked, or to be in vain; whether it has worked."""
        try:
            async with asyncio.timeout(DELIVERY_SECONDS):
                offset = await self._send(batch, 0, len(batch.values))
        except TimeoutError:
            offset = None
        self.in_flight.remove(batch)
        if offset is None:
            self.is_broken = True
            batch.operation.info() if batch.may_be_there else batch.operation.fail()
            return False
        batch.operation.ok(offset=offset)
        return True

    async def _send(self, batch: Batch, start: int, end: int) -> int | None:
        """The offset of a part of a batch, -1 where that is not told; None where it is given up."""
        data = self._client.batch(
            batch.values[start:end],
            batch.keys[start:end],
            producer_id=self._producer_id,
            producer_epoch=0,
            base_sequence=batch.sequence + start,
        )
        for attempt in count():
            try:
                code, offset = await self._client.produce_batch(self._topic, self._id, self._partition, data)
            except Failed as failed:
                code, offset = failed.code, -1
                if code is ErrorCode.unknown_topic_id:
                    return None
            except (OSError, asyncio.CancelledError) as error:
                batch.may_be_there = True
                if isinstance(error, asyncio.CancelledError):
                    raise
                code, offset = ErrorCode.network_exception, -1
            if code is ErrorCode.none:
                return offset
            if code is ErrorCode.duplicate_sequence_number:
                return -1  # what clients take for success
            if code in (ErrorCode.message_too_large, ErrorCode.record_list_too_large) and end - start > 1:
                return await self._split(batch, start, end)
            if not self._is_worth_another_try(batch, code):
                return None
            self._client.mistrust(self._topic)
            await self._client.back_off(attempt)
        raise AssertionError("attempts do not end")

    async def _split(self, batch: Batch, start: int, end: int) -> int | None:
        middle = (start + end) // 2
        for part in ((start, middle), (middle, end)):
            if await self._send(batch, *part) is None:
                batch.may_be_there = True
                return None
        return -1

    def _is_worth_another_try(self, batch: Batch, code: ErrorCode) -> bool:
        if code in OUT_OF_SEQUENCE:
            return self.in_flight[0] is not batch and not self.is_broken
        if code not in NEVER_WRITTEN:
            batch.may_be_there = True
        if code in AGAIN:
            return True
        if code not in NEVER_WRITTEN:
            self._client.scene.history.complain(f"refused: {self._name} was told {code.name}")
        return False
