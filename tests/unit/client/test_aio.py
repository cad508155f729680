"""The client for event loops: what it decides, and what it does against a broker."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from struct import pack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.aio import admin, once
from headrace.client.aio.assignment import (
    assign_range,
    assign_whole,
    decode_assignment,
    decode_subscription,
)
from headrace.client.aio.client import Client
from headrace.client.aio.cluster import ConnectionPurpose
from headrace.client.aio.connection import BrokerConnection
from headrace.client.aio.fetching import fetch, unpack
from headrace.client.aio.producer import Written
from headrace.client.aio.reader import Reader
from headrace.client.aio.retrying import Unavailable
from headrace.client.core.errors import ConnectionLost
from headrace.client.core.handshake import ConnectionSettings
from headrace.client.core.metadata import metadata_request
from headrace.net.address import Address
from headrace.protocol.api import ApiKey
from headrace.protocol.consumer_protocol import encode_assignment, encode_subscription
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.records import Record, encode_batch, encode_marker
from headrace.protocol.topic_partition import TopicPartition
from headrace.testing import Broker
from tests.support.process import free_port

SETTINGS = ConnectionSettings(client_id="test", connect_timeout=60.0, request_timeout=120.0)


def value(data: bytes, key: bytes | None = None) -> Record:
    return Record(0, 1, key, data)


def talk_to(bootstrap: str, talk: Callable[[Client], Awaitable[None]], **more: Any) -> None:
    async def main() -> None:
        host, _, port = bootstrap.rpartition(":")
        async with Client([Address(host, int(port))], SETTINGS, **more) as client:
            await talk(client)

    asyncio.run(main())


# Decisions

_TOPICS = st.lists(st.text("abc", min_size=1, max_size=3), max_size=4, unique=True)


@given(_TOPICS)
def test_a_subscription_is_read_as_it_was_written(topics: list[str]) -> None:
    assert decode_subscription(encode_subscription(topics)) == sorted(topics)


@given(st.dictionaries(st.text("abc", min_size=1, max_size=3), st.lists(st.integers(0, 99), max_size=5), max_size=4))
def test_an_assignment_is_read_as_it_was_written(assignment: dict[str, list[int]]) -> None:
    assert decode_assignment(encode_assignment(assignment)) == {t: sorted(p) for t, p in assignment.items()}


@given(st.binary(max_size=40))
def test_nonsense_of_other_members_is_nothing(data: bytes) -> None:
    assert isinstance(decode_subscription(data), list)
    assert isinstance(decode_assignment(data), dict)


@given(
    st.dictionaries(st.text("xyz", min_size=1, max_size=3), _TOPICS, min_size=1, max_size=4),
    st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(0, 7)),
)
def test_each_partition_has_one_owner_who_wants_it(wanted: dict[str, list[str]], partitions: dict[str, int]) -> None:
    shares = assign_range(wanted, partitions)
    given_out = [(topic, p) for share in shares.values() for topic, some in share.items() for p in some]
    assert len(given_out) == len(set(given_out))
    asked = {topic for topics in wanted.values() for topic in topics}
    assert set(given_out) == {(t, p) for t, count in partitions.items() if t in asked for p in range(count)}
    assert all(topic in wanted[member] for member, share in shares.items() for topic in share)
    whole = assign_whole(wanted, partitions)
    assert sum(bool(share) for share in whole.values()) <= 1


def test_the_identity_of_a_key_tells_users_topics_and_bodies_apart() -> None:
    base = once.identity("c", "alice", "t", "k", [value(b"x")])
    assert base == once.identity("c", "alice", "t", "k", [Record(9, 9, None, b"x")])
    assert base.producer.id >= 1 << 62
    for other in (("d", "alice", "t", "k"), ("c", "bob", "t", "k"), ("c", "alice", "u", "k"), ("c", "alice", "t", "l")):
        assert once.identity(*other, [value(b"x")]).producer.id != base.producer.id
    for body in ([value(b"y")], [value(b"x")] * 2, [value(b"x", b"")], [Record(0, 0, None, None)]):
        assert once.identity("c", "alice", "t", "k", body).sequence != base.sequence


def test_records_of_aborted_transactions_and_markers_are_left_out() -> None:
    def batch(offset: int, data: bytes, producer: int, *, transactional: bool = True) -> bytes:
        return bytes(
            encode_batch(
                [Record(offset, 0, None, data)],
                base_offset=offset,
                producer_id=producer,
                producer_epoch=0,
                base_sequence=0,
                transactional=transactional,
            )
        )

    def marker(offset: int, producer: int, *, committed: bool) -> bytes:
        made = encode_marker(
            committed=committed, producer_id=producer, producer_epoch=0, coordinator_epoch=0, timestamp=0
        )
        made[:8] = offset.to_bytes(8, "big")
        return bytes(made)

    log = [
        batch(0, b"plain", -1, transactional=False),
        batch(1, b"aborted", 7),
        batch(2, b"kept", 8),
        marker(3, 7, committed=False),
        marker(4, 8, committed=True),
        batch(5, b"later", 7),
        marker(6, 7, committed=True),
    ]
    records, next_offset, _ = unpack(memoryview(b"".join(log)), 0, [(7, 1)])
    assert [record.value for record in records] == [b"plain", b"kept", b"later"]
    assert next_offset == 7
    assert [r.offset for r in unpack(memoryview(b"".join(log)), 5, [])[0]] == [5]
    assert unpack(memoryview(b"".join(log)[:-1]), 0, [])[1] == 6
    damaged = bytearray(log[0])
    damaged[-1] ^= 1
    with pytest.raises(CodedError):
        unpack(memoryview(damaged), 0, [])


# Against a broker


def test_what_is_sent_at_once_goes_out_together_and_in_order() -> None:
    async def talk(client: Client) -> None:
        await admin.create_topic(client.cluster, "t", partitions=2)
        await client.cluster.topic("t")
        sends = [client.producer.send("t", i % 2, [value(str(i).encode())]) for i in range(200)]
        written = await asyncio.gather(*sends)
        assert [each.base_offset for each in written] == [i // 2 for i in range(200)]
        page = await fetch(client.cluster, TopicPartition("t", 0), 0)
        assert [record.value for record in page.records] == [str(i).encode() for i in range(0, 200, 2)]
        produced = client.cluster.ready(1, ConnectionPurpose.PRODUCE)
        assert produced is not None
        assert produced._conversation.correlation_id < 20  # versions, and a few requests for 200 records

    with Broker() as broker:
        talk_to(broker.bootstrap, talk)


def test_a_broker_that_restarts_gets_every_record_once(tmp_path: Path) -> None:
    def restart() -> None:
        broker.stop()
        broker.start()

    async def talk(client: Client) -> None:
        await admin.create_topic(client.cluster, "t")
        await client.cluster.topic("t")
        loop = asyncio.get_running_loop()
        restarted = loop.run_in_executor(None, restart)
        numbers = range(2000)

        async def publish(start: int) -> list[Written]:
            return [await client.producer.send("t", 0, [value(str(i).encode())]) for i in numbers[start::20]]

        written = [each for some in await asyncio.gather(*map(publish, range(20))) for each in some]
        await restarted
        assert len({each.base_offset for each in written}) == len(numbers)
        reader = Reader(client.cluster, {TopicPartition("t", 0): 0})
        found: list[bytes | None] = []
        while len(found) < len(numbers):
            found += [each.record.value for each in await reader.take(500, 5000)]
        assert sorted(found, key=str) == sorted((str(i).encode() for i in numbers), key=str)

    with Broker({"listeners": f"PLAINTEXT://127.0.0.1:{free_port()}"}, tmp_path) as broker:
        talk_to(broker.bootstrap, talk, patience=120.0)


def test_what_is_too_large_together_goes_one_by_one() -> None:
    async def talk(client: Client) -> None:
        await admin.create_topic(client.cluster, "small", configs={"max.message.bytes": "2000"})
        await client.cluster.topic("small")
        bodies = [os.urandom(size) for size in (900, 900, 900, 5000, 900)]
        sends = [client.producer.send("small", 0, [value(body)]) for body in bodies]
        results = await asyncio.gather(*sends, return_exceptions=True)
        refused = results.pop(3)
        assert isinstance(refused, CodedError)
        assert refused.code is ErrorCode.message_too_large
        assert [each.base_offset for each in results if isinstance(each, Written)] == [0, 1, 2, 3]
        after = await client.producer.send("small", 0, [value(b"x")])
        assert after.base_offset == 4

    with Broker() as broker:
        talk_to(broker.bootstrap, talk)


def test_without_a_cluster_calls_end_in_time() -> None:
    async def talk(client: Client) -> None:
        with pytest.raises(Unavailable):
            await client.cluster.topic("t")
        with pytest.raises(Unavailable):
            await client.producer.send("t", 0, [value(b"x")])

    talk_to(f"127.0.0.1:{free_port()}", talk, patience=0.2)


class Wire(asyncio.Transport):
    """Takes what is written to it, to nowhere."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def abort(self) -> None:
        pass


@pytest.mark.parametrize(
    "answer",
    [
        pack(">ii", 4, 7),
        pack(">iiB", 5, 1, 9),
        pack(">iiB4s", 9, 1, 0, b"junk"),
        pack(">ii", -1, 1),
    ],
    ids=["to another request", "tags that are cut short", "a body of another kind", "a length that none has"],
)
def test_whoever_waits_for_an_answer_learns_that_a_wrong_one_came(answer: bytes) -> None:
    async def main() -> None:
        connection = BrokerConnection(Address("broker", 9092), "test", request_timeout=120.0)
        connection.connection_made(Wire())
        connection.served = {ApiKey.METADATA: (9, 9)}
        waiting = [asyncio.create_task(connection.ask(ApiKey.METADATA, metadata_request([]))) for _ in range(2)]
        await asyncio.sleep(0)
        assert connection.in_flight == 2
        connection.data_received(answer)
        for each in waiting:
            with pytest.raises(ConnectionLost, match="broker:9092"):
                await asyncio.wait_for(each, 60)
        assert connection.is_closed

    asyncio.run(main())


def test_acks_of_one_and_none_are_written_too() -> None:
    async def talk(client: Client) -> None:
        await admin.create_topic(client.cluster, "t")
        await client.cluster.topic("t")
        assert (await client.producer.send("t", 0, [value(b"a")], 1)).base_offset == 0
        assert (await client.producer.send("t", 0, [value(b"b")], 0)).base_offset == -1
        reader = Reader(client.cluster, {TopicPartition("t", 0): 1})
        assert [each.record.value for each in await reader.take(1, 60_000)] == [b"b"]

    with Broker() as broker:
        talk_to(broker.bootstrap, talk)
