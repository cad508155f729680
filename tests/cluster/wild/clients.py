"""Clients of a wild run: they write batches of many records, several at a time, and read what others wrote."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final
from uuid import UUID

from headrace.net.address import Address
from headrace.protocol.api import ApiKey
from headrace.protocol.batch import HEADER_SIZE, crc_matches, read_header
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.records import Record, decode_marker, decode_records, encode_batch
from headrace.testing.client import SimulatedClient
from headrace.testing.cluster import SimulatedCluster
from headrace.testing.loop import START, VirtualClock
from tests.support.checker.history import History
from tests.support.simulation.clients import RETRIABLE, ClusterClient, Failed

from .mix import Mix

PRODUCE_TIMEOUT_MS: Final = 3_000
DELIVERY_SECONDS: Final = 12.0
MOST_IN_FLIGHT: Final = 5
FETCH_WAIT_MS: Final = 1_000
NEVER_WRITTEN: Final = frozenset(
    {
        ErrorCode.not_enough_replicas,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
        ErrorCode.message_too_large,
        ErrorCode.record_list_too_large,
        ErrorCode.invalid_timestamp,
        ErrorCode.out_of_order_sequence_number,
    }
)
"""Errors of Produce after which nothing was appended."""
AGAIN: Final = RETRIABLE | {
    ErrorCode.unknown_topic_id,
    ErrorCode.inconsistent_topic_id,
    ErrorCode.network_exception,
    ErrorCode.unstable_offset_commit,
    ErrorCode.concurrent_transactions,
    ErrorCode.invalid_replication_factor,
    ErrorCode.replica_not_available,
}
OUT_OF_SEQUENCE: Final = frozenset({ErrorCode.out_of_order_sequence_number, ErrorCode.unknown_producer_id})
EARLIEST: Final = -2


@dataclass(slots=True, kw_only=True)
class Scene:
    """What all clients of a run share."""

    cluster: SimulatedCluster
    history: History
    mix: Mix
    topics: list[str] = field(default_factory=list)
    """Those that records are written to outside of transactions."""
    share_topics: list[str] = field(default_factory=list)
    """Those that a share group reads."""
    shares_committed: bool = False
    """Whether it reads committed records only."""
    is_rewinding: bool = False
    """Whether members of the share group stay away, as an operator has it begin anew."""
    is_calm: bool = False
    """Whether faults are over: operators change nothing any more, while clients work on."""
    is_over: bool = False
    finish: list[Callable[[], None]] = field(default_factory=list)

    def rng(self, name: str) -> Random:
        return Random(f"{name} {self.mix.seed}")

    @property
    def now(self) -> float:
        """As the history counts."""
        return round(asyncio.get_running_loop().time() - START, 4)


@dataclass(slots=True)
class Known:
    """A topic as a client knows it."""

    id: UUID
    leaders: dict[int, Address]
    count: int

    @property
    def name(self) -> str:
        return self.id.hex[:8]


class Client(ClusterClient):
    """Knows topics by their ids."""

    def __init__(self, scene: Scene, name: str) -> None:
        super().__init__(scene.cluster, name)
        self.scene = scene
        self.rng = scene.rng(name)
        self._known: dict[str, Known] = {}
        self._worked = 0

    async def known(self, topic: str) -> Known:
        """The topic as far as is known; asks anyone where nothing is. `Failed` or `OSError` where that is in vain."""
        found = self._known.get(topic)
        return await self.refresh(topic) if found is None else found

    async def refresh(self, topic: str) -> Known:
        values = {
            "topics": [{"topic_id": None, "name": topic}],
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": False,
        }
        answer = await self.ask_anyone(ApiKey.METADATA, 12, values)
        nodes = {broker.node_id: Address(broker.host, broker.port) for broker in answer.brokers}
        found = answer.topics[0]
        if found.error_code != ErrorCode.none or found.topic_id is None:
            raise Failed(ErrorCode(found.error_code))
        leaders = {p.partition_index: nodes[p.leader_id] for p in found.partitions if p.leader_id in nodes}
        known = self._known[topic] = Known(found.topic_id, leaders, len(found.partitions))
        return known

    async def leader_of(self, topic: str, partition: int, topic_id: UUID | None = None) -> Address:
        """Who leads, as far as is known. UNKNOWN_TOPIC_ID where the topic was made anew."""
        known = await self.known(topic)
        if topic_id is not None and known.id != topic_id:
            raise Failed(ErrorCode.unknown_topic_id)
        leader = known.leaders.get(partition)
        if leader is None:
            self.mistrust(topic)
            raise Failed(ErrorCode.leader_not_available)
        return leader

    def mistrust(self, topic: str) -> None:
        """What is known of a topic has turned out wrong."""
        self._known.pop(topic, None)

    async def back_off(self, attempt: int) -> None:
        """As long as clients wait before they try again after so many attempts."""
        await asyncio.sleep(self.rng.uniform(0.5, 1.0) * min(0.1 * 2**attempt, 1.0))

    async def rest(self) -> None:
        """Between two pieces of work."""
        self._worked += 1
        mix = self.scene.mix
        busy = mix.busy if self._worked < mix.much_work else max(mix.busy, 1.0)
        await asyncio.sleep(self.rng.uniform(0, 2 * busy))

    def batch(self, values: Sequence[str], keys: Sequence[str] | None = None, **ids: Any) -> bytes:
        now = VirtualClock(asyncio.get_running_loop()).now_ms()
        records = [
            Record(index, now, None if keys is None else keys[index].encode(), value.encode())
            for index, value in enumerate(values)
        ]
        return bytes(encode_batch(records, **ids))

    async def produce_batch(
        self,
        topic: str,
        topic_id: UUID,
        partition: int,
        batch: bytes,
        *,
        acks: int = -1,
        transactional_id: str | None = None,
        leader: Address | None = None,
    ) -> tuple[ErrorCode, int]:
        """What the leader answers, with the base offset; `Failed` before it was sent, `OSError` where nobody knows."""
        if leader is None:
            leader = await self.leader_of(topic, partition, topic_id)
        data = {"topic_id": topic_id, "partition_data": [{"index": partition, "records": batch}]}
        values = {
            "transactional_id": transactional_id,
            "acks": acks,
            "timeout": PRODUCE_TIMEOUT_MS,
            "topic_data": [data],
        }
        answer = await self.ask(leader, ApiKey.PRODUCE, 13, values, PRODUCE_TIMEOUT_MS / 1000 + 2)
        found = answer.responses[0].partition_responses[0]
        return ErrorCode(found.error_code), found.base_offset

    async def tell(self, address: Address, api_key: int, version: int, values: dict[str, Any]) -> None:
        """Send what gets no answer, on a connection of its own."""
        lone = SimulatedClient(self.scene.cluster.network.host(self.name))
        asking = asyncio.ensure_future(lone.ask(address, api_key, version, values))
        await asyncio.wait([asking], timeout=1.0)
        asking.cancel()
        lone.close()
        await asyncio.gather(asking, return_exceptions=True)

    async def fetch_from(
        self, address: Address, topic_id: UUID, partition: int, offset: int, *, committed_only: bool, rack: str = ""
    ) -> Any:
        """What a broker answers of one partition."""
        asked = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
        values = {
            "max_wait": FETCH_WAIT_MS,
            "min_bytes": 1,
            "isolation_level": int(committed_only),
            "topics": [{"topic_id": topic_id, "partitions": [asked]}],
            "forgotten_topics_data": (),
            "rack_id": rack,
        }
        answer = await self.ask(address, ApiKey.FETCH, 13, values)
        if answer.error_code != ErrorCode.none or not answer.responses:
            raise Failed(ErrorCode(answer.error_code))
        return answer.responses[0].partitions[0]

    async def list_offset(self, topic: str, partition: int, timestamp: int = EARLIEST) -> int:
        asked = {"partition_index": partition, "current_leader_epoch": -1, "timestamp": timestamp}
        values = {
            "replica_id": -1,
            "isolation_level": 0,
            "topics": [{"name": topic, "partitions": [asked]}],
        }
        answer = await self.ask(await self.leader_of(topic, partition), ApiKey.LIST_OFFSETS, 7, values)
        found = answer.topics[0].partitions[0]
        if found.error_code != ErrorCode.none:
            raise Failed(ErrorCode(found.error_code))
        return int(found.offset)


@dataclass(slots=True)
class Fetched:
    """Records of an answer, as a consumer of an isolation level is shown them."""

    records: list[tuple[int, str, str | None]]
    next: int
    control: set[int] = field(default_factory=set)
    """Offsets of markers."""


def shown(found: Any, offset: int, *, committed_only: bool) -> Fetched:
    """What a consumer at an offset makes of an answer. `CodedError` for a batch whose checksum is wrong."""
    data = bytes(found.records or b"")
    pending = sorted((each.first_offset, each.producer_id) for each in found.aborted_transactions or ())
    dropping: set[int] = set()
    result = Fetched([], offset)
    while len(data) >= HEADER_SIZE and len(data) >= (size := read_header(data).size):
        batch, data = data[:size], data[size:]
        header = read_header(batch)
        if not crc_matches(memoryview(batch), header.crc):
            raise CodedError(ErrorCode.corrupt_message)
        while committed_only and pending and pending[0][0] <= header.last_offset:
            dropping.add(pending.pop(0)[1])
        if header.is_control:
            result.control.add(header.base_offset)
            marker = decode_marker(batch)
            if marker is not None and not marker.committed:
                dropping.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in dropping):
            result.records += [
                (r.offset, (r.value or b"").decode(), None if r.key is None else r.key.decode())
                for r in decode_records(batch)
                if r.offset >= offset
            ]
        result.next = max(result.next, header.last_offset + 1)
    return result


class Reader:
    """Reads one partition from its start on, whatever incarnation of the topic is there."""

    def __init__(self, scene: Scene, name: str, topic: str, partition: int, *, committed_only: bool, rack: str) -> None:
        self._client = Client(scene, name)
        self._scene = scene
        self._topic = topic
        self._partition = partition
        self._committed_only = committed_only
        self._rack = rack
        self._nearby: Address | None = None
        self._id: UUID | None = None
        self.offset = 0

    async def run(self) -> None:
        failures = 0
        while not self._scene.is_over:
            try:
                await self._poll()
                failures = 0
            except (Failed, OSError, CodedError):
                self._nearby = None
                self._client.mistrust(self._topic)
                await self._client.back_off(failures)
                failures += 1
        self._client.close()

    async def _poll(self) -> None:
        known = await self._client.known(self._topic)
        if known.id != self._id:
            self._id, self.offset, self._nearby = known.id, 0, None
        since, offset, from_leader = self._scene.now, self.offset, self._nearby is None
        address = self._nearby or await self._client.leader_of(self._topic, self._partition)
        found = await self._client.fetch_from(
            address, known.id, self._partition, offset, committed_only=self._committed_only, rack=self._rack
        )
        code = ErrorCode(found.error_code)
        if code is ErrorCode.offset_out_of_range and from_leader:
            await self._reset(known, since)
            return
        if code is not ErrorCode.none:
            raise Failed(code)
        if found.preferred_read_replica >= 0:
            self._nearby = self._scene.cluster[found.preferred_read_replica].address
            return
        fetched = shown(found, offset, committed_only=self._committed_only)
        self._scene.history.saw(
            self._client.name,
            known.id.hex,
            self._partition,
            offset,
            fetched.records,
            next_offset=fetched.next,
            committed_only=self._committed_only,
            since=since,
        )
        self.offset = fetched.next
        if self._nearby is not None and self._client.rng.random() < 0.05:
            self._nearby = None

    async def _reset(self, known: Known, since: float) -> None:
        start = await self._client.list_offset(self._topic, self._partition)
        if (await self._client.refresh(self._topic)).id != known.id:
            return
        if self.offset < start or self.offset > await self._client.list_offset(self._topic, self._partition, -1):
            self._scene.history.note(
                "poll",
                "fail",
                client=self._client.name,
                topic=known.id.hex,
                partition=self._partition,
                start=self.offset,
                since=since,
                error="offset_out_of_range",
                log_start=start,
            )
            self.offset = start
        else:
            await self._client.pause()
