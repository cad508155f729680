"""The client for event loops, with brokers whose answers are unreadable, incomplete or of a later Kafka."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from headrace.client.aio.client import Client
from headrace.client.aio.fetching import fetch
from headrace.client.core.handshake import ConnectionSettings
from headrace.net.address import Address
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.records import Record, encode_batch
from tests.support.columnar.scripted_cluster import TOPIC, ScriptedCluster, ScriptedLog, partition
from tests.support.scripted import Asked, Reply

SETTINGS = ConnectionSettings(client_id="test", connect_timeout=60.0, request_timeout=120.0)
UNREADABLE = b"\x7f"
NO_PARTITIONS: dict[ApiKey, Reply] = {
    ApiKey.PRODUCE: {"responses": (), "throttle_time": 0},
    ApiKey.FETCH: {"throttle_time": 0, "error_code": 0, "responses": ()},
}


@pytest.fixture
def scripted() -> Iterator[ScriptedCluster]:
    with ScriptedCluster({0: ScriptedLog([encode_batch([value(b"first")])])}) as cluster:
        yield cluster


def value(data: bytes) -> Record:
    return Record(0, 1, None, data)


def talk_to(scripted: ScriptedCluster, talk: Callable[[Client], Awaitable[None]]) -> None:
    async def main() -> None:
        async with Client([Address("127.0.0.1", scripted.brokers[0].port)], SETTINGS, patience=60.0) as client:
            await talk(client)

    asyncio.run(main())


def answer_first(scripted: ScriptedCluster, api_key: ApiKey, reply: Reply) -> None:
    """The first request of a kind is not carried out, and answered so."""

    def before(_node: int, asked: Asked) -> Reply | bool:
        return reply if asked.api_key == api_key and scripted.count(api_key) == 1 else False

    scripted.before = before


@pytest.mark.parametrize("reply", [UNREADABLE, NO_PARTITIONS[ApiKey.FETCH]], ids=["unreadable", "throttled"])
def test_a_fetch_without_a_usable_answer_is_sent_again(scripted: ScriptedCluster, reply: Reply) -> None:
    async def talk(client: Client) -> None:
        page = await fetch(client.cluster, partition(0), 0)
        assert [record.value for record in page.records] == [b"first"]
        assert scripted.count(ApiKey.FETCH) == 2

    answer_first(scripted, ApiKey.FETCH, reply)
    talk_to(scripted, talk)


def test_an_error_code_of_a_later_kafka_is_an_unknown_error(scripted: ScriptedCluster) -> None:
    def after(_node: int, asked: Asked, reply: Any) -> Reply:
        if asked.api_key == ApiKey.FETCH:
            reply["responses"][0]["partitions"][0]["error_code"] = 9_999
        return dict(reply)

    async def talk(client: Client) -> None:
        with pytest.raises(CodedError) as refused:
            await fetch(client.cluster, partition(0), 0)
        assert refused.value.code is ErrorCode.unknown_server_error

    scripted.after = after
    talk_to(scripted, talk)


@pytest.mark.parametrize("knows_leader", [True, False])
def test_a_batch_with_an_unreadable_answer_is_sent_again(scripted: ScriptedCluster, knows_leader: bool) -> None:
    async def talk(client: Client) -> None:
        if knows_leader:
            await client.cluster.topic(TOPIC)
        assert (await client.producer.send(TOPIC, 0, [value(b"second")])).base_offset == 1

    answer_first(scripted, ApiKey.PRODUCE, UNREADABLE)
    talk_to(scripted, talk)
    assert scripted.logs[0].values == [b"first", b"second"]


@pytest.mark.parametrize("knows_leader", [True, False])
def test_no_batch_takes_the_number_of_one_that_may_be_written(scripted: ScriptedCluster, knows_leader: bool) -> None:
    def after(_node: int, asked: Asked, reply: Reply) -> Reply:
        first = asked.api_key == ApiKey.PRODUCE and scripted.count(ApiKey.PRODUCE) == 1
        return NO_PARTITIONS[ApiKey.PRODUCE] if first else reply

    async def talk(client: Client) -> None:
        if knows_leader:
            await client.cluster.topic(TOPIC)
        with pytest.raises(CodedError) as refused:
            await client.producer.send(TOPIC, 0, [value(b"second")])
        assert refused.value.code is ErrorCode.unknown_server_error
        assert (await client.producer.send(TOPIC, 0, [value(b"third")])).base_offset == 2

    scripted.after = after
    talk_to(scripted, talk)
    assert scripted.logs[0].values == [b"first", b"second", b"third"]


def test_what_is_too_large_together_keeps_its_acknowledgements(scripted: ScriptedCluster) -> None:
    async def talk(client: Client) -> None:
        await client.cluster.topic(TOPIC)
        scripted.logs[0].errors.append(ErrorCode.message_too_large)
        sends = [client.producer.send(TOPIC, 0, [value(data)], acks=1) for data in (b"second", b"third")]
        assert [each.base_offset for each in await asyncio.gather(*sends)] == [1, 2]

    talk_to(scripted, talk)
    produced = [asked.entity for asked in scripted.asked if asked.api_key == ApiKey.PRODUCE]
    assert [request.acks for request in produced] == [1, 1, 1]
