"""aiokafka: the asyncio client, one event loop per verb."""

import asyncio
import sys
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import aiokafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from ..model import (
    MAX_MESSAGE_BYTES,
    TIMEOUT_SECONDS,
    ClientDriver,
    Codec,
    Membership,
    Position,
    Record,
    Sending,
    Span,
    SpanCollector,
    Transaction,
)

T = TypeVar("T")


class AiokafkaDriver(ClientDriver):
    """The verbs in aiokafka's API."""

    name = "aiokafka"
    default_hash = "murmur2"

    def version(self) -> str:
        return str(aiokafka.__version__)

    def membership(self) -> Membership:
        command = (sys.executable, "-m", "tests.compat.members.aiokafka_member")
        return Membership(command=command, no_cooperative="aiokafka has no cooperative assignor")

    @asynccontextmanager
    async def _admin(self) -> AsyncIterator[AIOKafkaAdminClient]:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        await admin.start()
        try:
            yield admin
        finally:
            await admin.close()

    def create_topic(self, topic: str, partitions: int, config: Mapping[str, str]) -> None:
        async def create() -> None:
            new = NewTopic(topic, partitions, 1, topic_configs=dict(config))
            async with self._admin() as admin:
                answer = await admin.create_topics([new])
            _refuse(answer.topic_errors)

        _run(create())

    def list_topics(self) -> set[str]:
        async def names() -> set[str]:
            async with self._admin() as admin:
                return set(await admin.list_topics())

        return _run(names())

    def partition_count(self, topic: str) -> int:
        async def count() -> int:
            async with self._admin() as admin:
                (described,) = await admin.describe_topics([topic])
            if described["error_code"] != 0:
                raise RuntimeError(f"describe answered error {described['error_code']}")
            return sum(1 for partition in described["partitions"] if partition["leader"] >= 0)

        return _run(count())

    def topic_config(self, topic: str) -> dict[str, str]:
        async def describe() -> dict[str, str]:
            async with self._admin() as admin:
                (answer,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
            ((code, message, _, _, entries),) = answer.resources
            if code != 0:
                raise RuntimeError(f"describe configs answered error {code}: {message}")
            return {entry[0]: entry[1] for entry in entries}

        return _run(describe())

    def alter_config(self, topic: str, config: Mapping[str, str]) -> None:
        async def alter() -> None:
            resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs=dict(config))
            async with self._admin() as admin:
                (answer,) = await admin.alter_configs([resource])
            _refuse([(name, code, message) for code, message, _, name in answer.resources])

        _run(alter())

    def delete_topic(self, topic: str) -> None:
        async def delete() -> None:
            async with self._admin() as admin:
                answer = await admin.delete_topics([topic])
            _refuse(answer.topic_error_codes)

        _run(delete())

    def produce(self, topic: str, records: Sequence[Record], sending: Sending) -> list[Position] | None:
        async def send() -> list[Position] | None:
            producer = AIOKafkaProducer(
                bootstrap_servers=self.bootstrap,
                acks=sending.acks,
                enable_idempotence=sending.idempotent,
                compression_type=None if sending.codec is Codec.NONE else sending.codec.value,
                max_request_size=MAX_MESSAGE_BYTES,
                linger_ms=20,
            )
            await producer.start()
            try:
                waiting = [
                    await producer.send(
                        topic,
                        key=record.key,
                        value=record.value,
                        headers=list(record.headers),
                        partition=record.partition,
                        timestamp_ms=record.timestamp,
                    )
                    for record in records
                ]
                await producer.flush()
                stored = [await future for future in waiting]
            finally:
                await producer.stop()
            return None if sending.acks == 0 else [(one.partition, one.offset) for one in stored]

        return _run(send())

    def transact(self, topic: str, records: Sequence[Record], transaction: Transaction) -> None:
        async def send() -> None:
            producer = AIOKafkaProducer(bootstrap_servers=self.bootstrap, transactional_id=transaction.id)
            await producer.start()
            try:
                await producer.begin_transaction()
                for record in records:
                    await producer.send_and_wait(topic, key=record.key, value=record.value, partition=record.partition)
                offsets = {TopicPartition(topic, 0): transaction.offset}
                await producer.send_offsets_to_transaction(offsets, transaction.group)
                await (producer.commit_transaction() if transaction.commit else producer.abort_transaction())
            finally:
                await producer.stop()

        _run(send())

    @asynccontextmanager
    async def _consumer(self, *, committed: bool = False) -> AsyncIterator[AIOKafkaConsumer]:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            max_partition_fetch_bytes=MAX_MESSAGE_BYTES,
            fetch_max_wait_ms=100,
            isolation_level="read_committed" if committed else "read_uncommitted",
        )
        await consumer.start()
        try:
            yield consumer
        finally:
            await consumer.stop()

    def consume(self, topic: str, spans: Sequence[Span], *, committed: bool = False) -> list[Record]:
        collector = SpanCollector(spans)

        async def read() -> None:
            async with self._consumer(committed=committed) as consumer:
                consumer.assign([TopicPartition(topic, span.partition) for span in spans])
                for span in spans:
                    consumer.seek(TopicPartition(topic, span.partition), span.start)
                while not collector.full:
                    for batch in (await consumer.getmany(timeout_ms=200)).values():
                        for message in batch:
                            collector.add(_received(message))

        async def bounded() -> None:
            try:
                await asyncio.wait_for(read(), TIMEOUT_SECONDS)
            except TimeoutError:
                return

        asyncio.run(bounded())
        return collector.records

    def offset_at(self, topic: str, partition: int, timestamp: int) -> int | None:
        where = TopicPartition(topic, partition)

        async def ask() -> int | None:
            async with self._consumer() as consumer:
                found = (await consumer.offsets_for_times({where: timestamp}))[where]
            return None if found is None else int(found.offset)

        return _run(ask())


def _run(verb: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(verb, TIMEOUT_SECONDS))


def _refuse(answers: Sequence[tuple[Any, ...]]) -> None:
    for name, code, *message in answers:
        if code != 0:
            raise RuntimeError(f"{name}: error {code} {' '.join(str(part) for part in message)}")


def _received(message: Any) -> Record:
    return Record(
        key=message.key,
        value=message.value,
        headers=tuple(message.headers),
        timestamp=message.timestamp,
        partition=message.partition,
        offset=message.offset,
    )
