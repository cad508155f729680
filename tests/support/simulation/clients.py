"""Clients of a simulated cluster that do what real ones do: follow the metadata, and try again."""

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any, Final

from headrace.net.address import Address
from headrace.net.network import LinkClosed
from headrace.protocol.api import ApiKey
from headrace.protocol.batch import HEADER_SIZE, read_header
from headrace.protocol.errors import ErrorCode
from headrace.protocol.records import Record, decode_records, encode_batch
from headrace.testing.client import SimulatedClient
from headrace.testing.cluster import SimulatedCluster
from headrace.testing.loop import VirtualClock
from tests.support.checker.history import History, Operation

RETRIABLE: Final = frozenset(
    {
        ErrorCode.not_leader_or_follower,
        ErrorCode.leader_not_available,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.not_enough_replicas,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.request_timed_out,
        ErrorCode.kafka_storage_error,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.coordinator_not_available,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.not_coordinator,
        ErrorCode.not_controller,
        ErrorCode.offset_not_available,
    }
)
NEVER_WRITTEN: Final = frozenset({ErrorCode.not_enough_replicas, ErrorCode.unknown_topic_or_partition})
"""Errors of Produce after which nothing was appended."""
ANSWER_SECONDS: Final = 5.0
PRODUCE_TIMEOUT_MS: Final = 3_000
METADATA_VERSION: Final = 7
NOBODY: Final = (-1, -1, -1)
"""Producer id, epoch and sequence of a producer that is not idempotent."""


def offset_topics(topic: str, partition: int, offset: int, metadata: str = "") -> list[dict[str, Any]]:
    """The topics of an OffsetCommit or TxnOffsetCommit request for one offset."""
    asked = {
        "partition_index": partition,
        "committed_offset": offset,
        "committed_leader_epoch": -1,
        "committed_metadata": metadata,
    }
    return [{"name": topic, "partitions": [asked]}]


class Failed(Exception):
    """An answer with an error code."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


class ClusterClient:
    """Knows a cluster by its metadata, as far as it has asked for it."""

    def __init__(self, cluster: SimulatedCluster, name: str) -> None:
        self.name = name
        self._cluster = cluster
        self._client = SimulatedClient(cluster.network.host(name))
        self._rng = Random(f"{name} {cluster.seed}")
        self._leaders: dict[tuple[str, int], Address] = {}

    async def ask(
        self, address: Address, api_key: int, version: int, values: dict[str, Any], seconds: float = ANSWER_SECONDS
    ) -> Any:
        """An answer, or `OSError`: then nobody knows what became of the request."""
        try:
            async with asyncio.timeout(seconds):
                return await self._client.ask(address, api_key, version, values)
        except (OSError, LinkClosed, TimeoutError) as error:
            self._client.drop(address)
            raise OSError(f"no answer from {address[0]}: {error!r}") from error

    def drop(self, address: Address) -> None:
        """Give up the connection to a broker."""
        self._client.drop(address)

    def is_connected(self, address: Address) -> bool:
        """Whether there is a connection to a broker that the broker has not closed."""
        return self._client.is_connected(address)

    async def ask_anyone(self, api_key: int, version: int, values: dict[str, Any]) -> Any:
        return await self.ask(self._rng.choice(self._cluster.addresses), api_key, version, values)

    async def leader(self, topic: str, partition: int) -> Address:
        """Who leads a partition, as far as is known; asks anyone where nothing is."""
        if (topic, partition) not in self._leaders:
            await self._refresh(topic)
        found = self._leaders.get((topic, partition))
        if found is None:
            raise Failed(ErrorCode.leader_not_available)
        return found

    def forget(self, topic: str, partition: int) -> None:
        """What was known of a partition's leader has turned out wrong."""
        self._leaders.pop((topic, partition), None)

    def believe(self, topic: str, partition: int, leader: Address) -> None:
        """Take a broker for the leader of a partition, until that turns out wrong."""
        self._leaders[topic, partition] = leader

    async def _refresh(self, topic: str) -> None:
        values = {"topics": [{"name": topic}], "allow_auto_topic_creation": False}
        answer = await self.ask_anyone(ApiKey.METADATA, METADATA_VERSION, values)
        nodes = {broker.node_id: Address(broker.host, broker.port) for broker in answer.brokers}
        for found in answer.topics[0].partitions:
            if found.leader_id in nodes:
                self._leaders[topic, found.partition_index] = nodes[found.leader_id]

    async def pause(self) -> None:
        """As long as clients wait before they try again."""
        await asyncio.sleep(self._rng.uniform(0.05, 0.15))

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        replicas: int = 3,
        assignments: Sequence[Sequence[int]] = (),
        configs: dict[str, str] | None = None,
    ) -> None:
        """Ask until there is such a topic; brokers that are missing for its replicas may come back."""
        topic = {
            "name": name,
            "num_partitions": -1 if assignments else partitions,
            "replication_factor": -1 if assignments else replicas,
            "assignments": [{"partition_index": p, "broker_ids": list(r)} for p, r in enumerate(assignments)],
            "configs": [{"name": key, "value": value} for key, value in (configs or {}).items()],
        }
        while True:
            try:
                answer = await self.ask_anyone(ApiKey.CREATE_TOPICS, 7, {"topics": [topic], "timeout": 5_000})
            except OSError:
                await self.pause()
                continue
            code = answer.topics[0].error_code
            if code in (ErrorCode.none, ErrorCode.topic_already_exists):
                return
            if code not in RETRIABLE and code is not ErrorCode.invalid_replication_factor:
                raise Failed(code)
            await self.pause()

    async def reassign(self, topic: str, partition: int, replicas: Sequence[int] | None) -> ErrorCode:
        """Ask for other replicas, until there is an answer."""
        asked = {"partition_index": partition, "replicas": None if replicas is None else list(replicas)}
        values = {"timeout": 5_000, "topics": [{"name": topic, "partitions": [asked]}]}
        while True:
            try:
                answer = await self.ask_anyone(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, values)
            except OSError:
                await self.pause()
                continue
            code = answer.error_code or answer.responses[0].partitions[0].error_code
            if code not in RETRIABLE:
                return ErrorCode(code)
            await self.pause()

    async def produce(
        self,
        leader: Address,
        topic: str,
        partition: int,
        value: bytes,
        *,
        ids: tuple[int, int, int] = NOBODY,
        acks: int = -1,
        timeout_ms: int = PRODUCE_TIMEOUT_MS,
    ) -> tuple[ErrorCode, int]:
        """What a broker answered to a batch of one value, and the offset that it has; `OSError` where it did not."""
        now = VirtualClock(asyncio.get_running_loop()).now_ms()
        batch = encode_batch(
            [Record(0, now, None, value)], producer_id=ids[0], producer_epoch=ids[1], base_sequence=ids[2]
        )
        data = {"name": topic, "partition_data": [{"index": partition, "records": bytes(batch)}]}
        values = {"transactional_id": None, "acks": acks, "timeout": timeout_ms, "topic_data": [data]}
        answer = await self.ask(leader, ApiKey.PRODUCE, 9, values, timeout_ms / 1000 + 2)
        found = answer.responses[0].partition_responses[0]
        return ErrorCode(found.error_code), found.base_offset

    async def fetch(self, topic: str, partition: int, offset: int, wait_ms: int = 200) -> tuple[Any, list[Record]]:
        """What the leader answers, with the records in it; `Failed` or `OSError` where it does not."""
        wanted = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
        values = {
            "max_wait": wait_ms,
            "min_bytes": 1,
            "topics": [{"topic": topic, "partitions": [wanted]}],
            "forgotten_topics_data": (),
            "rack_id": "",
        }
        answer = await self.ask(await self.leader(topic, partition), ApiKey.FETCH, 12, values)
        found = answer.responses[0].partitions[0]
        if found.error_code:
            raise Failed(ErrorCode(found.error_code))
        return found, [record for record in _records_in(found.records or b"") if record.offset >= offset]

    async def read_all(self, topic: str, partition: int, seconds: float = 60.0) -> dict[int, bytes]:
        """Everything a partition holds up to its high watermark, by offset."""
        found: dict[int, bytes] = {}
        offset = 0
        async with asyncio.timeout(seconds):
            while True:
                try:
                    answer, records = await self.fetch(topic, partition, offset)
                except (OSError, Failed) as error:
                    if isinstance(error, Failed) and error.code is ErrorCode.offset_out_of_range:
                        offset += 1  # what stood here may have been deleted
                    self.forget(topic, partition)
                    await self.pause()
                    continue
                found |= {record.offset: record.value or b"" for record in records}
                if not records and offset >= answer.high_watermark:
                    return found
                offset = max(found, default=-1) + 1

    def close(self) -> None:
        self._client.close()


def _records_in(data: bytes) -> list[Record]:
    records: list[Record] = []
    while len(data) >= HEADER_SIZE and len(data) >= (size := read_header(data).size):
        records += decode_records(data[:size])
        data = data[size:]
    return records


class Producer:
    """Sends values to one partition with acks=all, one after another.

    An idempotent one sends each until it is acknowledged, as clients with `enable.idempotence` do; a plain one sends
    each once, so that a value is never there twice unless a broker does that.
    """

    def __init__(
        self, cluster: SimulatedCluster, name: str, topic: str, partition: int, history: History, *, idempotent: bool
    ) -> None:
        self.name = name
        self.is_stopping = False
        self.acknowledged = 0
        self.longest_silence = 0.0
        """The longest time between two acknowledgements."""
        self._heard_at = 0.0
        self._client = ClusterClient(cluster, name)
        self._topic = topic
        self._partition = partition
        self._history = history
        self._is_idempotent = idempotent
        self._rng = Random(f"producer {name} {cluster.seed}")
        self._producer_id = -1
        self._sequence = 0
        self._sent = 0

    async def run(self, pace: float = 0.05) -> None:
        """Send until told to stop."""
        if self._is_idempotent:
            await self._become_known()
        while not self.is_stopping:
            await self.send_next()
            await asyncio.sleep(self._rng.uniform(0, 2 * pace))
        self._client.close()

    async def send_next(self) -> None:
        value = f"{self.name}-{self._sent}"
        stream = self.name if self._is_idempotent else None
        operation = self._history.send(self.name, self._topic, self._partition, [value], stream=stream)
        self._sent += 1
        await self._send(operation, value)
        self._sequence += 1

    async def _become_known(self) -> None:
        while self._producer_id < 0:
            try:
                values = {"transactional_id": None, "transaction_timeout": 60_000}
                answer = await self._client.ask_anyone(ApiKey.INIT_PRODUCER_ID, 4, values)
                self._producer_id = answer.producer_id
            except OSError:
                pass
            await self._client.pause()

    async def _send(self, operation: Operation, value: str) -> None:
        while True:
            code, offset = await self._try(value)
            if code is ErrorCode.none:
                operation.ok(offset=offset)
                self._note_acknowledged()
                return
            self._client.forget(self._topic, self._partition)
            if code is not None and code not in RETRIABLE:
                self._history.complain(f"{self.name} was told {code.name} of {value!r}")
                self.is_stopping = True
                return
            if not self._is_idempotent:
                if code in NEVER_WRITTEN:
                    operation.fail()
                await self._client.pause()
                return
            await self._client.pause()

    def _note_acknowledged(self) -> None:
        now = asyncio.get_running_loop().time()
        if self.acknowledged:
            self.longest_silence = max(self.longest_silence, now - self._heard_at)
        self._heard_at = now
        self.acknowledged += 1

    async def _try(self, value: str) -> tuple[ErrorCode | None, int]:
        """What the leader answered; None where nothing came."""
        ids = (self._producer_id, 0, self._sequence) if self._is_idempotent else NOBODY
        try:
            leader = await self._client.leader(self._topic, self._partition)
        except (OSError, Failed):
            return ErrorCode.unknown_topic_or_partition, -1
        try:
            return await self._client.produce(leader, self._topic, self._partition, value.encode(), ids=ids)
        except OSError:
            return None, -1


class Consumer:
    """Reads one partition from its start, again and again after errors, and notes what it was given where."""

    def __init__(self, cluster: SimulatedCluster, name: str, topic: str, partition: int, history: History) -> None:
        self.name = name
        self.is_stopping = False
        self.offset = 0
        self._client = ClusterClient(cluster, name)
        self._topic = topic
        self._partition = partition
        self._history = history

    async def run(self) -> None:
        while not self.is_stopping:
            await self.poll()
        self._client.close()

    async def poll(self) -> None:
        try:
            _, records = await self._client.fetch(self._topic, self._partition, self.offset)
        except Failed as error:
            if error.code not in RETRIABLE:
                self._history.complain(f"{self.name} was told {error.code.name} at {self.offset}")
            self._client.forget(self._topic, self._partition)
            await self._client.pause()
            return
        except OSError:
            self._client.forget(self._topic, self._partition)
            await self._client.pause()
            return
        held = [(record.offset, (record.value or b"").decode(), None) for record in records]
        self._history.saw(self.name, self._topic, self._partition, self.offset, held)
        self.offset = max((record.offset + 1 for record in records), default=self.offset)
