"""A simulated cluster whose transaction coordinator is the test: it says which transactions are open, and ends them."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from headrace.protocol.api import ApiKey
from headrace.protocol.batch import HEADER_SIZE, read_header
from headrace.protocol.errors import ErrorCode
from headrace.protocol.records import Record, decode_records, encode_batch
from headrace.protocol.topic_partition import TopicPartition
from headrace.replication.transactions import TransactionMarker
from headrace.testing.client import SimulatedClient
from headrace.testing.cluster import SimulatedCluster
from headrace.testing.loop import VirtualClock

from .clients import ClusterClient, offset_topics

TOPIC = "orders"
GROUP = "g"
OFFSETS = "__consumer_offsets"
TRANSACTIONAL_ID = "tx"


class Verifier:
    """Answers as it is told, and remembers what it was asked."""

    def __init__(self) -> None:
        self.code = ErrorCode.none
        self.asked: list[tuple[int, int, TopicPartition, bool]] = []
        self.open = asyncio.Event()
        self.open.set()
        self.was_asked = asyncio.Event()
        self.first_takes = 0.0
        """Seconds until the first question is answered; others are answered at once."""

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        topic_ids: Mapping[str, UUID],
        *,
        add: bool,
    ) -> Mapping[TopicPartition, ErrorCode]:
        assert transactional_id == TRANSACTIONAL_ID
        assert {topic for topic, _ in partitions} <= set(topic_ids)
        self.asked += [(producer_id, producer_epoch, partition, add) for partition in partitions]
        self.was_asked.set()
        first_takes, self.first_takes = self.first_takes, 0.0
        await asyncio.sleep(first_takes)
        await self.open.wait()
        return dict.fromkeys(partitions, self.code)


class Bench:
    """Brokers, a client that speaks the protocol, and the verifier that all brokers ask."""

    def __init__(self, brokers: int = 1, seed: int = 1) -> None:
        settings = {"offsets.topic.num.partitions": "1"}
        if brokers == 1:
            settings |= {"min.insync.replicas": "1", "default.replication.factor": "1"}
            settings |= {"offsets.topic.replication.factor": "1"}
        self.cluster = SimulatedCluster(brokers, seed=seed, settings=settings)
        self.client = SimulatedClient(self.cluster.network.host("client"))
        self.other = SimulatedClient(self.cluster.network.host("other"))
        self.verifier = Verifier()
        self.sequences: dict[tuple[int, int, int], int] = {}

    async def start(self, partitions: int = 1) -> None:
        await self.cluster.start()
        admin = ClusterClient(self.cluster, "admin")
        await admin.create_topic(TOPIC, partitions=partitions, replicas=len(self.cluster.machines))
        await admin.ask_anyone(ApiKey.FIND_COORDINATOR, 3, {"key": GROUP, "key_type": 0})
        await self.cluster.until(
            lambda: OFFSETS in self.cluster.topics() and self.cluster.is_whole(), "the topics are there"
        )
        admin.close()
        self.employ_verifier()

    def employ_verifier(self) -> None:
        for machine in self.cluster:
            if machine.is_up:
                machine.broker.replicas.verifier = self.verifier

    async def stop(self) -> None:
        self.client.close()
        self.other.close()
        await self.cluster.stop()

    async def ask(self, api_key: ApiKey, version: int, values: dict[str, Any], topic: str = TOPIC) -> Any:
        return await self.client.ask(self.cluster.leader(topic).address, api_key, version, values)

    # Producing

    def batch(self, value: bytes, producer_id: int = 7, epoch: int = 0, partition: int = 0, **more: Any) -> bytes:
        """The next batch of a producer."""
        key = (producer_id, epoch, partition)
        sequence = self.sequences.get(key, 0)
        self.sequences[key] = sequence + 1
        now = VirtualClock(asyncio.get_running_loop()).now_ms()
        given = {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": sequence, "transactional": True}
        return bytes(encode_batch([Record(0, now, None, value, ())], **{**given, **more}))

    async def produce(
        self, batch: bytes, *, version: int = 11, partition: int = 0, transactional_id: str | None = TRANSACTIONAL_ID
    ) -> ErrorCode:
        data = {"name": TOPIC, "partition_data": [{"index": partition, "records": batch}]}
        values = {"transactional_id": transactional_id, "acks": -1, "timeout": 30_000, "topic_data": [data]}
        address = self.cluster.leader(TOPIC, partition).address
        answer = await self.client.ask(address, ApiKey.PRODUCE, version, values)
        return ErrorCode(answer.responses[0].partition_responses[0].error_code)

    async def write(self, value: bytes, producer_id: int = 7, epoch: int = 0, **more: Any) -> None:
        assert await self.produce(self.batch(value, producer_id, epoch), **more) is ErrorCode.none

    async def plain(self, value: bytes) -> None:
        batch = self.batch(value, -1, -1, base_sequence=-1, transactional=False)
        assert await self.produce(batch, transactional_id=None) is ErrorCode.none

    async def mark(
        self,
        producer_id: int = 7,
        epoch: int = 0,
        *,
        committed: bool,
        topic: str = TOPIC,
        coordinator_epoch: int = 0,
        transaction_version: int = 1,
    ) -> ErrorCode:
        marker = TransactionMarker(
            producer_id=producer_id,
            producer_epoch=epoch,
            coordinator_epoch=coordinator_epoch,
            committed=committed,
            transaction_version=transaction_version,
        )
        return await self.cluster.leader(topic).broker.replicas.append_marker(topic, 0, marker)

    # Reading

    def fetch_values(self, offset: int, *, committed: bool, wait_ms: int = 0, min_bytes: int = 1) -> dict[str, Any]:
        wanted = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
        return {
            "max_wait": wait_ms,
            "min_bytes": min_bytes,
            "isolation_level": int(committed),
            "topics": [{"topic": TOPIC, "partitions": [wanted]}],
            "forgotten_topics_data": (),
            "rack_id": "",
        }

    async def fetch(self, offset: int = 0, *, committed: bool = True, **more: int) -> Any:
        values = self.fetch_values(offset, committed=committed, **more)
        answer = await self.other.ask(self.cluster.leader(TOPIC).address, ApiKey.FETCH, 12, values)
        return answer.responses[0].partitions[0]

    async def list_offset(self, timestamp: int, *, committed: bool) -> int:
        asked = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
        topics = [{"name": TOPIC, "partitions": [asked]}]
        answer = await self.ask(
            ApiKey.LIST_OFFSETS, 7, {"replica_id": -1, "isolation_level": int(committed), "topics": topics}
        )
        return int(answer.topics[0].partitions[0].offset)

    # Groups

    async def commit_offset(self, offset: int, producer_id: int = 7, epoch: int = 0, **more: Any) -> ErrorCode:
        """TxnOffsetCommit."""
        version = more.pop("version", 4)
        partition = more.pop("partition", 0)
        topics = offset_topics(more.pop("topic", TOPIC), partition, offset, more.pop("metadata", ""))
        values = {
            "transactional_id": TRANSACTIONAL_ID,
            "group_id": GROUP,
            "producer_id": producer_id,
            "producer_epoch": epoch,
            "generation_id": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": topics,
            **more,
        }
        answer = await self.ask(ApiKey.TXN_OFFSET_COMMIT, version, values, OFFSETS)
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    async def commit_plainly(self, offset: int) -> ErrorCode:
        """OffsetCommit, outside of any transaction."""
        values = {
            "group_id": GROUP,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": offset_topics(TOPIC, 0, offset),
        }
        answer = await self.ask(ApiKey.OFFSET_COMMIT, 7, values, OFFSETS)
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    async def committed_offset(self, *, stable: bool = True) -> int | ErrorCode:
        values = {
            "group_id": GROUP,
            "topics": [{"name": TOPIC, "partition_indexes": [0]}],
            "require_stable": stable,
        }
        while True:
            answer = await self.ask(ApiKey.OFFSET_FETCH, 7, values, OFFSETS)
            if answer.error_code == ErrorCode.none:
                break
            await asyncio.sleep(0.1)
        found = answer.topics[0].partitions[0]
        return int(found.committed_offset) if found.error_code == ErrorCode.none else ErrorCode(found.error_code)


def visible(fetched: Any) -> list[bytes | None]:
    """The values that a `read_committed` consumer shows of what it got."""
    records = bytes(fetched.records or b"")
    aborted = sorted((each.first_offset, each.producer_id) for each in fetched.aborted_transactions or ())
    dropping: set[int] = set()
    found: list[bytes | None] = []
    while len(records) >= HEADER_SIZE and len(records) >= (size := read_header(records).size):
        header = read_header(records)
        while aborted and aborted[0][0] <= header.last_offset:
            dropping.add(aborted.pop(0)[1])
        if header.is_control:
            dropping.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in dropping):
            found += [record.value for record in decode_records(records[:size])]
        records = records[size:]
    return found
