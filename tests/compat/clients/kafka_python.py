"""kafka-python: the pure Python client. Its snappy, lz4 and zstd come from packages installed beside it."""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import ClassVar

import kafka
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.structs import OffsetAndMetadata

from ..model import (
    MAX_MESSAGE_BYTES,
    TIMEOUT_SECONDS,
    Ability,
    ClientDriver,
    Codec,
    Membership,
    NotOffered,
    Position,
    Record,
    Sending,
    Span,
    SpanCollector,
    Transaction,
)


class KafkaPythonDriver(ClientDriver):
    """The verbs in kafka-python's API."""

    name = "kafka-python"
    default_hash = "murmur2"
    missing: ClassVar = {Ability.NULL_HEADERS: "kafka-python takes headers of (str, bytes) only"}

    def version(self) -> str:
        return str(kafka.__version__)

    def membership(self) -> Membership:
        return Membership(command=(sys.executable, "-m", "tests.compat.members.kafka_python"))

    @contextmanager
    def _admin(self) -> Iterator[KafkaAdminClient]:
        with closing(KafkaAdminClient(bootstrap_servers=self.bootstrap)) as admin:
            yield admin

    def create_topic(self, topic: str, partitions: int, config: Mapping[str, str]) -> None:
        new = {topic: {"num_partitions": partitions, "replication_factor": 1, "configs": dict(config)}}
        with self._admin() as admin:
            admin.create_topics(new)

    def list_topics(self) -> set[str]:
        with self._admin() as admin:
            return set(admin.list_topics())

    def partition_count(self, topic: str) -> int:
        with self._admin() as admin:
            (described,) = admin.describe_topics([topic])
        if described["error_code"] != 0:
            raise RuntimeError(f"describe answered error {described['error_code']}")
        return sum(1 for partition in described["partitions"] if partition["leader_id"] >= 0)

    def topic_config(self, topic: str) -> dict[str, str]:
        with self._admin() as admin:
            answer = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)], config_filter="all")
        (by_name,) = answer.values()
        return {name: entry["value"] for name, entry in by_name[topic].items()}

    def alter_config(self, topic: str, config: Mapping[str, str]) -> None:
        with self._admin() as admin:
            admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, dict(config))])

    def delete_topic(self, topic: str) -> None:
        with self._admin() as admin:
            admin.delete_topics([topic])

    def produce(self, topic: str, records: Sequence[Record], sending: Sending) -> list[Position] | None:
        codec = None if sending.codec is Codec.NONE else sending.codec.value
        try:
            producer = KafkaProducer(
                bootstrap_servers=self.bootstrap,
                acks=sending.acks,
                enable_idempotence=sending.idempotent,
                compression_type=codec,
                max_request_size=MAX_MESSAGE_BYTES,
                linger_ms=20,
            )
        except AssertionError as error:
            raise NotOffered(str(error)) from error
        with closing(producer):
            sent = [
                producer.send(
                    topic,
                    key=record.key,
                    value=record.value,
                    headers=list(record.headers),
                    partition=record.partition,
                    timestamp_ms=record.timestamp,
                )
                for record in records
            ]
            producer.flush(timeout=TIMEOUT_SECONDS)
            stored = [future.get(timeout=TIMEOUT_SECONDS) for future in sent]
        return None if sending.acks == 0 else [(one.partition, one.offset) for one in stored]

    def transact(self, topic: str, records: Sequence[Record], transaction: Transaction) -> None:
        producer = KafkaProducer(bootstrap_servers=self.bootstrap, transactional_id=transaction.id)
        with closing(producer):
            producer.init_transactions()
            producer.begin_transaction()
            for record in records:
                producer.send(topic, key=record.key, value=record.value, partition=record.partition)
            producer.flush(timeout=TIMEOUT_SECONDS)
            offsets = {TopicPartition(topic, 0): OffsetAndMetadata(transaction.offset, "", -1)}
            producer.send_offsets_to_transaction(offsets, transaction.group)
            end = producer.commit_transaction if transaction.commit else producer.abort_transaction
            end()

    def _consumer(self, *, committed: bool = False) -> KafkaConsumer:
        return KafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            max_partition_fetch_bytes=MAX_MESSAGE_BYTES,
            fetch_max_wait_ms=100,
            isolation_level="read_committed" if committed else "read_uncommitted",
        )

    def consume(self, topic: str, spans: Sequence[Span], *, committed: bool = False) -> list[Record]:
        collector = SpanCollector(spans)
        deadline = time.monotonic() + TIMEOUT_SECONDS
        with closing(self._consumer(committed=committed)) as consumer:
            consumer.assign([TopicPartition(topic, span.partition) for span in spans])
            for span in spans:
                consumer.seek(TopicPartition(topic, span.partition), span.start)
            while not collector.full and time.monotonic() < deadline:
                for batch in consumer.poll(timeout_ms=200).values():
                    for message in batch:
                        collector.add(
                            Record(
                                key=message.key,
                                value=message.value,
                                headers=tuple(message.headers),
                                timestamp=message.timestamp,
                                partition=message.partition,
                                offset=message.offset,
                            )
                        )
        return collector.records

    def offset_at(self, topic: str, partition: int, timestamp: int) -> int | None:
        where = TopicPartition(topic, partition)
        with closing(self._consumer()) as consumer:
            found = consumer.offsets_for_times({where: timestamp})[where]
        return None if found is None else int(found.offset)
