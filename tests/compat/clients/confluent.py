"""confluent-kafka: librdkafka through its Python binding. Also the suite's reference client."""

import sys
import time
from collections.abc import Mapping, Sequence

import confluent_kafka
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from ..model import (
    MAX_MESSAGE_BYTES,
    TIMEOUT_SECONDS,
    Advertised,
    ClientDriver,
    Membership,
    Position,
    Record,
    Sending,
    Span,
    SpanCollector,
    Transaction,
)
from .librdkafka import require_codec


class ConfluentDriver(ClientDriver):
    """The verbs in confluent-kafka's API."""

    name = "confluent-kafka"
    default_hash = "CRC-32 (`consistent_random`); murmur2 with `partitioner=murmur2_random`"

    def __init__(self, bootstrap: str, advertised: Advertised) -> None:
        super().__init__(bootstrap, advertised)
        self._common = {"bootstrap.servers": bootstrap, "log_level": 2}
        self._admin = AdminClient(self._common)

    def version(self) -> str:
        return f"{confluent_kafka.__version__} (librdkafka {confluent_kafka.libversion()[0]})"

    def membership(self) -> Membership:
        command = (sys.executable, "-m", "tests.compat.members.confluent")
        return Membership(command=command, protocols=("classic", "consumer"))

    def create_topic(self, topic: str, partitions: int, config: Mapping[str, str]) -> None:
        new = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=dict(config))
        self._admin.create_topics([new])[topic].result(TIMEOUT_SECONDS)

    def list_topics(self) -> set[str]:
        return set(self._admin.list_topics(timeout=TIMEOUT_SECONDS).topics)

    def partition_count(self, topic: str) -> int:
        described = self._admin.list_topics(topic, timeout=TIMEOUT_SECONDS).topics[topic]
        if described.error is not None:
            raise KafkaException(described.error)
        return sum(1 for partition in described.partitions.values() if partition.leader >= 0)

    def topic_config(self, topic: str) -> dict[str, str]:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        entries = self._admin.describe_configs([resource])[resource].result(TIMEOUT_SECONDS)
        return {name: entry.value for name, entry in entries.items()}

    def alter_config(self, topic: str, config: Mapping[str, str]) -> None:
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in config.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        self._admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_SECONDS)

    def delete_topic(self, topic: str) -> None:
        self._admin.delete_topics([topic])[topic].result(TIMEOUT_SECONDS)

    def produce(self, topic: str, records: Sequence[Record], sending: Sending) -> list[Position] | None:
        require_codec(self.advertised, sending)
        producer = Producer(
            self._common
            | {
                "acks": sending.acks,
                "enable.idempotence": sending.idempotent,
                "compression.type": sending.codec.value,
                "partitioner": "murmur2_random",
                "message.max.bytes": MAX_MESSAGE_BYTES,
                "linger.ms": 20,
            }
        )
        positions: dict[int, Position] = {}
        failures: list[str] = []
        for index, record in enumerate(records):

            def delivered(error: KafkaError | None, message: Message, index: int = index) -> None:
                if error is not None:
                    failures.append(str(error))
                positions[index] = (message.partition(), message.offset())

            producer.produce(
                topic,
                key=record.key,
                value=record.value,
                headers=list(record.headers),
                on_delivery=delivered,
                partition=-1 if record.partition is None else record.partition,
                timestamp=record.timestamp or 0,
            )
        unsent = producer.flush(TIMEOUT_SECONDS)
        if unsent or failures:
            raise RuntimeError(f"{unsent} records unsent; {'; '.join(failures[:3])}")
        return None if sending.acks == 0 else [positions[index] for index in range(len(records))]

    def transact(self, topic: str, records: Sequence[Record], transaction: Transaction) -> None:
        producer = Producer(self._common | {"transactional.id": transaction.id})
        reader = Consumer(self._common | {"group.id": transaction.group})
        producer.init_transactions(TIMEOUT_SECONDS)
        producer.begin_transaction()
        for record in records:
            producer.produce(topic, key=record.key, value=record.value, partition=record.partition or 0)
        producer.flush(TIMEOUT_SECONDS)
        offsets = [TopicPartition(topic, 0, transaction.offset)]
        producer.send_offsets_to_transaction(offsets, reader.consumer_group_metadata(), TIMEOUT_SECONDS)
        reader.close()
        end = producer.commit_transaction if transaction.commit else producer.abort_transaction
        end(TIMEOUT_SECONDS)

    def committed_offset(self, topic: str, group: str) -> int:
        """The offset of a group in partition 0."""
        reader = Consumer(self._common | {"group.id": group})
        try:
            return int(reader.committed([TopicPartition(topic, 0)], TIMEOUT_SECONDS)[0].offset)
        finally:
            reader.close()

    def _consumer(self, *, committed: bool = False) -> Consumer:
        return Consumer(
            self._common
            | {
                "group.id": "compat-confluent",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "fetch.message.max.bytes": MAX_MESSAGE_BYTES,
                "fetch.wait.max.ms": 100,
                "isolation.level": "read_committed" if committed else "read_uncommitted",
            }
        )

    def consume(self, topic: str, spans: Sequence[Span], *, committed: bool = False) -> list[Record]:
        collector = SpanCollector(spans)
        consumer = self._consumer(committed=committed)
        consumer.assign([TopicPartition(topic, span.partition, span.start) for span in spans])
        deadline = time.monotonic() + TIMEOUT_SECONDS
        try:
            while not collector.full and time.monotonic() < deadline:
                for message in consumer.consume(num_messages=500, timeout=0.2):
                    if message.error() is not None:
                        raise KafkaException(message.error())
                    collector.add(_received(message))
        finally:
            consumer.close()
        return collector.records

    def offset_at(self, topic: str, partition: int, timestamp: int) -> int | None:
        consumer = self._consumer()
        try:
            asked = [TopicPartition(topic, partition, timestamp)]
            found = consumer.offsets_for_times(asked, timeout=TIMEOUT_SECONDS)[0]
        finally:
            consumer.close()
        if found.error is not None:
            raise KafkaException(found.error)
        return int(found.offset) if found.offset >= 0 else None


def _received(message: Message) -> Record:
    return Record(
        key=message.key(),
        value=message.value(),
        headers=tuple(message.headers() or ()),
        timestamp=message.timestamp()[1],
        partition=message.partition(),
        offset=message.offset(),
    )
