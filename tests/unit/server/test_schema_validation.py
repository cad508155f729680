"""Topics that take only records with registered schemas."""

import asyncio
import struct
from collections.abc import Callable, Iterator
from typing import Any, cast
from uuid import UUID

import pytest
from confluent_kafka import KafkaError, Producer

from headrace.client.admin import Admin
from headrace.client.aio.client import Client
from headrace.client.core.handshake import ConnectionSettings
from headrace.cluster.image import ClusterImage, PartitionState
from headrace.cluster.image import Topic as ClusterTopic
from headrace.net.address import Address
from headrace.net.clock import SystemClock
from headrace.protocol.api import ApiKey
from headrace.protocol.batch import stamp
from headrace.protocol.compression import ZSTD
from headrace.protocol.encode import encode_response
from headrace.protocol.errors import CodedError, ErrorCode, RecordsRefused
from headrace.protocol.produce import PartitionAnswer, TopicRecords, write_response
from headrace.protocol.records import Record, encode_batch, encode_marker
from headrace.registry import decisions
from headrace.registry.judging import Inline
from headrace.registry.parsing import Posted
from headrace.registry.service import Registry
from headrace.registry.topic_log import TopicLog
from headrace.schema_log.records import TOPIC, Proposal, encode
from headrace.schema_log.state import RegistryState
from headrace.server.registry_reader import RegistryReader, slice_of
from headrace.server.schema_book import SchemaBook, Slice, named_schemas
from headrace.testing import Broker
from tests.support.registry.registering import now
from tests.support.unreadable import unreadable

LIBRARY = Inline()


def framed(schema_id: int, rest: bytes = b"x") -> bytes:
    return struct.pack(">bi", 0, schema_id) + rest


def registrations(*subjects: str) -> list[bytes]:
    """A log in which each subject has a schema of its own: ids count from 1."""
    state = RegistryState()
    log = []
    for number, subject in enumerate(subjects):
        text = f'{{"type":"enum","name":"E","symbols":["A"],"default":"A","doc":"{number}"}}'
        proposal = now(decisions.register(state, LIBRARY, subject, Posted(text=text), normalize=False))
        assert isinstance(proposal, Proposal)
        state.apply(number, proposal)
        log.append(encode(proposal))
    return log


def batch(*values: bytes | None, key: bytes | None = None) -> memoryview:
    return memoryview(bytearray(encode_batch([Record(i, 0, key, value) for i, value in enumerate(values)])))


class Topic:
    """The registry's topic as a book reads it."""

    def __init__(self, *subjects: str) -> None:
        self.log = registrations(*subjects)
        self.reads = 0
        self.was_read = asyncio.Event()

    async def read(self, offset: int) -> Slice:
        self.reads += 1
        self.was_read.set()
        records = [Record(offset + i, 0, None, value) for i, value in enumerate(self.log[offset:])]
        return Slice(records, len(self.log), len(self.log))


def with_book(topic: Topic, talk: Callable[[SchemaBook], Any]) -> None:
    async def main() -> None:
        book = SchemaBook(topic.read, SystemClock())
        following = asyncio.create_task(book.follow())
        try:
            await talk(book)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    asyncio.run(main())


async def told_to_wait(
    book: SchemaBook, topic: Topic, records: memoryview, fields: tuple[str, ...] = ("value",)
) -> None:
    """The first to bring an unknown id is asked to come again; returns once the topic was read."""
    topic.was_read.clear()
    with pytest.raises(CodedError) as error:
        book.check("t", named_schemas(fields, records))
    assert error.value.code is ErrorCode.request_timed_out
    await topic.was_read.wait()


def test_a_registered_schema_passes_once_the_topic_was_read() -> None:
    topic = Topic("t-value")

    async def talk(book: SchemaBook) -> None:
        await told_to_wait(book, topic, batch(framed(1)))
        reads = topic.reads
        book.check("t", named_schemas(("value",), batch(framed(1), None, framed(1))))
        assert topic.reads == reads

    with_book(topic, talk)


@pytest.mark.parametrize("value", [framed(2), framed(9), framed(-1)])
def test_an_unknown_schema_or_one_of_another_subject_is_refused_by_record(value: bytes) -> None:
    topic = Topic("t-value", "other-value")

    async def talk(book: SchemaBook) -> None:
        await told_to_wait(book, topic, batch(framed(1), value))
        with pytest.raises(RecordsRefused) as refused:
            book.check("t", named_schemas(("value",), batch(framed(1), value)))
        assert refused.value.code is ErrorCode.invalid_record
        assert [index for index, _ in refused.value.records] == [1]

    with_book(topic, talk)


@pytest.mark.parametrize("value", [b"", b"\x00\x00", b"\x01\x00\x00\x00\x01x", b"text"])
def test_what_has_no_schema_id_is_refused_at_once(value: bytes) -> None:
    async def talk(book: SchemaBook) -> None:
        with pytest.raises(RecordsRefused):
            book.check("t", named_schemas(("value",), batch(value)))

    with_book(Topic(), talk)


def test_keys_are_checked_against_their_own_subject() -> None:
    topic = Topic("t-value", "t-key")

    async def talk(book: SchemaBook) -> None:
        await told_to_wait(book, topic, batch(framed(1), key=framed(2)), ("key", "value"))
        book.check("t", named_schemas(("key", "value"), batch(framed(1), key=framed(2))))
        await told_to_wait(book, topic, batch(framed(1), key=framed(1)), ("key", "value"))
        with pytest.raises(RecordsRefused):
            book.check("t", named_schemas(("key", "value"), batch(framed(1), key=framed(1))))

    with_book(topic, talk)


def test_a_schema_registered_after_the_first_try_is_found_at_the_second() -> None:
    topic = Topic("t-value")

    async def talk(book: SchemaBook) -> None:
        await told_to_wait(book, topic, batch(framed(1)))
        topic.log = registrations("t-value", "t-value")
        await told_to_wait(book, topic, batch(framed(2)))
        book.check("t", named_schemas(("value",), batch(framed(2))))

    with_book(topic, talk)


def test_refused_records_are_named_in_the_answer() -> None:
    answer = PartitionAnswer(0, ErrorCode.invalid_record.value, message="why", refused=((3, "because"),))
    for version in (7, 8, 9, 12):
        out = bytearray()
        write_response(out, version, [(TopicRecords("t", None, []), [answer])])
        assert (b"because" in out) == (version >= 8)


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


def produced(broker: Broker, topic: str, value: bytes) -> KafkaError | None:
    """What became of a record, as a client sees it."""
    outcome: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap, "retry.backoff.ms": 10})
    producer.produce(topic, value, on_delivery=lambda error, _: outcome.append(error))
    assert producer.flush(60) == 0
    return outcome[0]


def registered(broker: Broker, subject: str) -> int:
    async def main() -> int:
        host, port = broker.bootstrap.split(":")
        settings = ConnectionSettings(client_id="registry", connect_timeout=60, request_timeout=120)
        client = Client([Address(host, int(port))], settings)
        async with client, Registry(TopicLog(lambda: client), LIBRARY).running() as registry:
            posted = Posted(text=f'{{"type":"fixed","name":"{subject[0]}","size":1}}')
            return (await registry.registered(subject, posted)).id

    return asyncio.run(main())


@pytest.mark.slow
def test_a_broker_refuses_what_is_not_registered_and_takes_what_is(broker: Broker) -> None:
    broker.create_topic("t")
    Admin(broker.bootstrap).alter_configs("t", {"headrace.schema.validation": "true"})
    broker.create_topic("free")
    refused = produced(broker, "t", framed(1))
    assert refused is not None
    assert refused.code() == KafkaError.INVALID_RECORD
    mine, other = registered(broker, "t-value"), registered(broker, "other-value")
    assert produced(broker, "t", framed(mine)) is None
    assert produced(broker, "free", b"anything") is None
    for bad in (framed(other), framed(99), b"plain"):
        refused = produced(broker, "t", bad)
        assert refused is not None
        assert refused.code() == KafkaError.INVALID_RECORD
    broker.restart()
    assert produced(broker, "t", framed(mine)) is None


class Leader:
    """Another broker, which leads the registry's topic."""

    def __init__(self, log: list[bytes]) -> None:
        self._log = log

    async def ask_bytes(self, broker_id: int, api_key: int, version: int, body: Any, **_: Any) -> memoryview:
        assert (broker_id, api_key) == (2, ApiKey.FETCH)
        assert TOPIC.encode() in bytes(body[0])
        records = [Record(i, 0, b"k", value) for i, value in enumerate(self._log)]
        answer = {
            "partition_index": 0,
            "error_code": 0,
            "high_watermark": len(self._log),
            "last_stable_offset": len(self._log),
            "log_start_offset": 0,
            "aborted_transactions": [],
            "records": bytes(encode_batch(records)),
        }
        values = {
            "throttle_time": 0,
            "error_code": 0,
            "session_id": 0,
            "responses": [{"topic": TOPIC, "partitions": [answer]}],
        }
        return memoryview(encode_response(api_key, version, values))


def test_the_topic_is_read_from_the_broker_that_leads_it() -> None:
    log = registrations("a", "b")
    image = ClusterImage(cluster_id="c", controller_id=1)
    state = PartitionState(leader=2, leader_epoch=0, replicas=(2,), isr=(2,))
    image.put_topic(ClusterTopic(name=TOPIC, id=UUID(int=1), partitions=(state,)))
    reader = RegistryReader(broker_id=1, image=image, replicas=cast(Any, None), peers=cast(Any, Leader(log)))
    whole, rest = asyncio.run(reader.read(0)), asyncio.run(reader.read(1))
    assert ([r.value for r in whole.records], whole.next_offset, whole.high_watermark) == (log, 2, 2)
    assert [r.value for r in rest.records] == log[1:]


def test_a_registry_that_is_not_there_is_empty() -> None:
    image = ClusterImage(cluster_id="c", controller_id=1)
    reader = RegistryReader(broker_id=1, image=image, replicas=cast(Any, None))
    assert asyncio.run(reader.read(0)) == Slice((), 0, 0)


def test_the_registrys_topic_is_read_on_behind_batches_that_nobody_can_read_and_markers() -> None:
    sound = [encode_batch([Record(0, 0, None, value)], base_offset=at) for at, value in ((0, b"a"), (4, b"b"))]
    bad = bytearray(unreadable(ZSTD))
    marker = encode_marker(committed=True, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp=0)
    stamp(memoryview(bad), 1, 0)
    stamp(memoryview(marker), 3, 0)
    found = slice_of(memoryview(sound[0] + bad + marker + sound[1] + bad[:-1]), 0, 9)
    assert ([record.value for record in found.records], found.next_offset) == ([b"a", b"b"], 5)
    assert slice_of(memoryview(bad), 1, 9).next_offset == 3
