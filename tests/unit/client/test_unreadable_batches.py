"""Readers step over a batch that nobody can read, say so, and go on."""

import asyncio
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from headrace.client.admin import Admin
from headrace.client.aio.client import Client
from headrace.client.aio.fetching import fetch, list_offsets, unpack
from headrace.client.aio.reader import Reader
from headrace.client.errors import ClientError
from headrace.client.reader import RecordReader
from headrace.protocol.batch import HEADER_SIZE
from headrace.protocol.compression import NONE, ZSTD
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.records import Record, encode_batch
from headrace.protocol.topic_partition import TopicPartition
from headrace.testing import Broker
from tests.support.unreadable import END, READABLE, planted, unchecked, unreadable
from tests.support.wire import Wire, produce_request
from tests.unit.client.test_aio import talk_to


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        planted(running, "t")
        yield running


def test_a_page_holds_what_is_around_them_and_tells_of_them(broker: Broker) -> None:
    async def talk(client: Client) -> None:
        with capture_logs() as lines:
            page = await fetch(client.cluster, TopicPartition("t", 0), 0)
        assert {record.offset: record.value for record in page.records} == READABLE
        assert page.next_offset == END
        assert [(each.first_offset, each.last_offset) for each in page.skipped] == [(1, 2), (4, 5)]
        told = [line for line in lines if line["event"] == "unreadable batch skipped"]
        assert [(line["topic"], line["partition"], line["first_offset"]) for line in told] == [("t", 0, 1), ("t", 0, 4)]

    talk_to(broker.bootstrap, talk)


@pytest.mark.parametrize("offset", range(END))
def test_a_reader_goes_on_from_wherever_it_begins(broker: Broker, offset: int) -> None:
    async def talk(client: Client) -> None:
        reader = Reader(client.cluster, {TopicPartition("t", 0): offset}, max_bytes=1)
        found: list[int] = []
        while reader.positions[TopicPartition("t", 0)] < END:
            found += [each.record.offset for each in await reader.take(1, 1000)]
        assert found == [at for at in READABLE if at >= offset]

    talk_to(broker.bootstrap, talk)


def test_offsets_by_time_are_found_behind_them(broker: Broker) -> None:
    async def talk(client: Client) -> None:
        assert (await list_offsets(client.cluster, "t", {0: 1}))[0][0] == 0
        assert (await list_offsets(client.cluster, "t", {0: -3}))[0][0] >= 0

    talk_to(broker.bootstrap, talk)


def test_a_trimmed_partition_begins_behind_them(broker: Broker) -> None:
    planted(broker, "trimmed")
    assert Admin(broker.bootstrap).delete_records("trimmed", {0: 3}) == {0: 3}

    async def talk(client: Client) -> None:
        page = await fetch(client.cluster, TopicPartition("trimmed", 0), 3, max_bytes=1)
        assert [record.value for record in page.records] == [b"middle"]

    talk_to(broker.bootstrap, talk)


def test_the_broker_refuses_them_now(broker: Broker) -> None:
    with Wire(broker.bootstrap) as wire:
        for codec in (NONE, ZSTD):
            answer = wire.ask(0, 9, produce_request("t", unreadable(codec)))
            assert answer.responses[0].partition_responses[0].error_code is ErrorCode.invalid_record


def test_damage_is_an_error_once_everything_before_it_was_read() -> None:
    sound = encode_batch([Record(0, 1, None, b"sound")], base_offset=0)
    damaged = encode_batch([Record(1, 1, None, b"damaged")], base_offset=1)
    damaged[HEADER_SIZE] ^= 1
    found = unpack(memoryview(sound + damaged), 0, [])
    assert ([record.value for record in found.records], found.next_offset) == ([b"sound"], 1)
    with pytest.raises(CodedError) as error:
        unpack(memoryview(damaged), 1, [])
    assert error.value.code is ErrorCode.corrupt_message


def test_waiting_for_records_ends_behind_an_unreadable_batch_at_the_end(broker: Broker) -> None:
    broker.create_topic("only")
    with unchecked(), Wire(broker.bootstrap) as wire:
        wire.ask(0, 9, produce_request("only", unreadable(ZSTD)))

    async def talk(client: Client) -> None:
        reader = Reader(client.cluster, {TopicPartition("only", 0): 0})
        async with asyncio.timeout(30):
            assert await reader.take(1, 100) == []
        assert reader.positions[TopicPartition("only", 0)] == 2

    talk_to(broker.bootstrap, talk)


def test_the_command_lines_reader_tells_how_to_get_past_them(broker: Broker) -> None:
    with pytest.raises(ClientError, match="headrace topic trim"):
        list(RecordReader(broker.bootstrap, "t", {0: 3}, {0: END}).messages())


def test_a_batch_that_others_can_read_is_not_skipped_for_its_size() -> None:
    """What was acknowledged and is sound is never passed over in silence."""
    sound = encode_batch([Record(0, 1, None, b"first")])
    large = encode_batch([Record(1, 1, None, bytes(33 << 20))], base_offset=1, codec=ZSTD)
    found = unpack(memoryview(bytes(sound + large)), 0, ())
    assert ([record.value for record in found.records], found.next_offset, found.skipped) == ([b"first"], 1, ())
    with pytest.raises(CodedError, match="go on at offset 2") as refused:
        unpack(memoryview(bytes(large)), 1, ())
    assert refused.value.code is ErrorCode.message_too_large
