"""The hand-written messages agree with kio's, in every version."""

import datetime
import io
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_payload_module, load_response_schema
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from headrace.protocol import fetch, produce
from headrace.protocol.errors import ErrorCode, ProtocolViolation

TOPIC_ID = UUID(int=77)


def encode_produce(version: int, partitions: int = 2, transactional: bool = True) -> bytes:
    module: Any = load_payload_module(0, version, EntityType.request)
    data = (
        module.PartitionProduceData(index=3, records=b"abc"),
        module.PartitionProduceData(index=4, records=None),
    )
    topic = {"topic_id": TOPIC_ID} if version >= 13 else {"name": "orders"}
    request = module.ProduceRequest(
        transactional_id="t" if version % 2 and transactional else None,
        acks=-1,
        timeout=datetime.timedelta(milliseconds=1500),
        topic_data=(module.TopicProduceData(**topic, partition_data=data[:partitions]),),
    )
    out = io.BytesIO()
    entity_writer(module.ProduceRequest)(out, request)
    return out.getvalue()


@pytest.mark.parametrize("version", range(3, 14))
def test_a_produce_request_of_every_version_is_parsed(version: int) -> None:
    parsed = produce.parse_request(memoryview(b"head" + encode_produce(version)), 4, version)
    assert (parsed.transactional_id, parsed.acks, parsed.timeout_ms) == ("t" if version % 2 else None, -1, 1500)
    (topic,) = parsed.topics
    assert (topic.name, topic.id) == (("", TOPIC_ID.bytes) if version >= 13 else ("orders", None))
    (first, records), second = topic.partitions
    assert first == 3
    assert records is not None
    assert bytes(records) == b"abc"
    assert second == (4, None)


@pytest.mark.parametrize("version", range(3, 14))
def test_a_request_with_one_partition_is_parsed_alike(version: int) -> None:
    body = encode_produce(version, partitions=1, transactional=False)
    parsed = produce.parse_request(memoryview(body), 0, version)
    assert (parsed.transactional_id, parsed.acks, parsed.timeout_ms) == (None, -1, 1500)
    (topic,) = parsed.topics
    assert (topic.name, topic.id) == (("", TOPIC_ID.bytes) if version >= 13 else ("orders", None))
    ((index, records),) = topic.partitions
    assert index == 3
    assert records is not None
    assert bytes(records) == b"abc"


@pytest.mark.parametrize("version", range(3, 14))
@given(data=st.data())
def test_a_damaged_produce_request_is_a_violation_or_parses(version: int, data: st.DataObject) -> None:
    body = bytearray(encode_produce(version, data.draw(st.integers(1, 2)), data.draw(st.booleans())))
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = body[: data.draw(st.integers(0, len(body)))]
    try:
        produce.parse_request(memoryview(cut), 0, version)
    except ProtocolViolation:
        pass


@pytest.mark.parametrize("version", range(3, 14))
def test_a_produce_response_of_every_version_is_read_by_kio(version: int) -> None:
    topic = produce.TopicRecords("orders", TOPIC_ID.bytes, [])
    answers = [
        produce.PartitionAnswer(3, 0, 500, 1234, 7),
        produce.PartitionAnswer(4, ErrorCode.message_too_large.value, message="too large"),
    ]
    out = bytearray()
    produce.write_response(out, version, [(topic, answers)], throttle_ms=9)
    response: Any
    response, size = entity_reader(load_response_schema(0, version))(bytes(out), 0)
    assert size == len(out)
    assert response.throttle_time.total_seconds() == 0.009
    good, bad = response.responses[0].partition_responses
    assert (good.index, good.error_code, good.base_offset) == (3, ErrorCode.none, 500)
    assert bad.error_code is ErrorCode.message_too_large
    if version >= 5:
        assert good.log_start_offset == 7
    if version >= 8:
        assert bad.error_message == "too large"


@pytest.mark.parametrize("version", range(3, 14))
def test_the_short_way_to_answer_one_partition_writes_the_same(version: int) -> None:
    topic = produce.TopicRecords("orders", TOPIC_ID.bytes, [])
    answer = produce.PartitionAnswer(3, 0, 500, 1234, 7)
    out = bytearray(b"\0\0\0\7" + (b"\0" if version >= produce.FIRST_FLEXIBLE else b""))
    produce.write_response(out, version, [(topic, [answer])])
    assert produce.one_response(version, 7, topic, answer) == len(out).to_bytes(4, "big") + out


class Bytes:
    """A range of a file that is only bytes."""

    position = next_offset = 0
    path = ""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.length = len(data)

    @property
    def file(self) -> "Bytes":
        return self

    def fileno(self) -> int:
        return -1

    def pread(self, size: int, position: int) -> bytes:
        return self.data[position : position + size]


class OnDisk(Bytes):
    """The same with a descriptor."""

    def fileno(self) -> int:
        return 0


@pytest.mark.parametrize("version", range(4, 19))
def test_a_fetch_response_of_every_version_is_read_by_kio(version: int) -> None:
    partitions = [
        fetch.FetchedPartition(3, 0, 50, 49, 7, Bytes(b"records"), ((5, 6),)),
        fetch.FetchedPartition(4, ErrorCode.offset_out_of_range.value),
        fetch.FetchedPartition(5, 0, 50, 49, 7, diverging=fetch.EpochEnd(2, 30)),
    ]
    response = fetch.Response(b"")
    fetch.write_response(response, version, [fetch.FetchedTopic("orders", TOPIC_ID, partitions)], session_id=12)
    body = b"".join(part for part in response.finish() if isinstance(part, bytearray))
    assert response.length == len(body)
    entity: Any
    entity, size = entity_reader(load_response_schema(1, version))(body, 0)
    assert size == len(body)
    first, second, third = entity.responses[0].partitions
    assert (first.high_watermark, first.last_stable_offset, bytes(first.records)) == (50, 49, b"records")
    assert (first.aborted_transactions[0].producer_id, first.aborted_transactions[0].first_offset) == (5, 6)
    assert second.error_code is ErrorCode.offset_out_of_range
    if version >= 7:
        assert entity.session_id == 12
    if version >= 12:
        assert (third.diverging_epoch.epoch, third.diverging_epoch.end_offset) == (2, 30)


def test_an_answer_from_many_partitions_takes_little_memory() -> None:
    piece = bytes(fetch.SMALL_READ)
    partitions = [fetch.FetchedPartition(number, 0, 1, 1, 0, OnDisk(piece)) for number in range(100)]
    response = fetch.Response(b"")
    fetch.write_response(response, 11, [fetch.FetchedTopic("orders", None, partitions)])
    copied = sum(len(part) for part in response.finish() if isinstance(part, bytearray))
    assert copied < fetch.MOST_COPIED + 2 * fetch.SMALL_READ
    assert response.length > 100 * fetch.SMALL_READ


def test_a_file_that_is_shorter_than_it_should_be_breaks_no_frame() -> None:
    short = Bytes(b"records")
    short.length += 1
    with pytest.raises(OSError, match="shorter"):
        fetch.Response(b"").records(short, flexible=True)
