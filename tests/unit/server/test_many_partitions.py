"""Produce and Fetch requests of very many partitions are served in turns, whole and in order."""

from collections.abc import Iterator
from typing import Any

import pytest

from headrace.protocol.encode import encode_request, write_uvarint
from headrace.protocol.errors import CodedError, ErrorCode, ProtocolViolation
from headrace.protocol.guard import MOST_TAGS
from headrace.protocol.produce import MOST_PARTITIONS, parse_request
from headrace.server.handlers import fetch, fetch_sessions, produce
from headrace.testing import Broker
from tests.support.wire import Wire, batch_of, request
from tests.unit.server.test_fetch_sessions import request as session_request
from tests.unit.server.test_fetch_sessions import sessions

READABLE = 3


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


def produce_body(topic: str, count: int, acks: int = -1) -> bytes:
    partitions = [{"index": 0, "records": batch_of(b"%d" % number)} for number in range(count)]
    topics = [{"name": topic, "partition_data": partitions}]
    values = {"transactional_id": None, "acks": acks, "timeout": 10_000, "topic_data": topics}
    return bytes(encode_request(0, 9, values))


def fetch_body(topic: str, count: int, *, session: tuple[int, int] = (0, -1), wait_ms: int = 0) -> bytes:
    partitions = [
        {"partition": index, "fetch_offset": 0, "partition_max_bytes": 1_000, "last_fetched_epoch": -1}
        for index in range(count)
    ]
    values: dict[str, Any] = {
        "replica_id": -1,
        "max_wait": wait_ms,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "isolation_level": 0,
        "session_id": session[0],
        "session_epoch": session[1],
        "topics": [{"topic": topic, "partitions": partitions}] if count else [],
        "forgotten_topics_data": [],
        "rack_id": "",
    }
    return bytes(encode_request(1, 12, values))


@pytest.mark.parametrize("acks", [-1, 1])
def test_batches_for_many_partitions_are_all_written_in_their_order(broker: Broker, acks: int) -> None:
    topic, count = broker.create_topic(f"many-{acks}"), produce.MANY + 500
    with Wire(broker.bootstrap) as wire:
        wire.send_body(0, 9, produce_body(topic, count, acks))
        wire.send_body(0, 9, produce_body(topic, 1, acks))
        answers = wire.receive(0, 9).responses[0].partition_responses
        assert [(answer.error_code, answer.base_offset) for answer in answers] == [
            (ErrorCode.none, offset) for offset in range(count)
        ]
        assert wire.receive(0, 9).responses[0].partition_responses[0].base_offset == count


def test_without_acks_they_are_written_too_and_an_error_closes_the_connection(broker: Broker) -> None:
    topic, count = broker.create_topic("silent"), produce.MANY + 500
    with Wire(broker.bootstrap) as wire:
        wire.send_body(0, 9, produce_body(topic, count, 0))
        wire.send_body(0, 9, produce_body(topic, 1))
        assert wire.receive(0, 9).responses[0].partition_responses[0].base_offset == count
        wire.send_body(0, 9, produce_body("nobody-has-this", count, 0))
        assert wire.is_closed()


@pytest.mark.parametrize("count", [fetch.MANY + 100, 200])
def test_a_fetch_of_many_partitions_is_answered_whole_and_in_its_place(broker: Broker, count: int) -> None:
    topic = broker.create_topic(f"read-{count}", READABLE)
    with Wire(broker.bootstrap) as wire:
        wire.ask(18, 0, request(18, 0))
        wire.send_body(1, 12, fetch_body(topic, count, session=(0, 0)))
        wire.send(18, 0, request(18, 0))
        first = wire.receive(1, 12)
        wire.receive(18, 0)
        found = first.responses[0].partitions
        assert [partition.partition_index for partition in found] == list(range(count))
        missing = ErrorCode.unknown_topic_or_partition
        assert [partition.error_code for partition in found[:READABLE]] == [ErrorCode.none] * READABLE
        assert {partition.error_code for partition in found[READABLE:]} == {missing}
        wire.send_body(1, 12, fetch_body(topic, 0, session=(first.session_id, 1)))
        told = wire.receive(1, 12).responses[0].partitions
        assert [partition.partition_index for partition in told] == list(range(READABLE, count))


def test_a_fetch_of_many_partitions_waits_and_is_woken(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "MANY", 2)
    topic = broker.create_topic("awaited", READABLE)
    with Wire(broker.bootstrap) as reader, Wire(broker.bootstrap) as writer:
        reader.send_body(1, 12, fetch_body(topic, READABLE, wait_ms=60_000))
        writer.send_body(0, 9, produce_body(topic, 1))
        writer.receive(0, 9)
        found = reader.receive(1, 12).responses[0].partitions
        assert [bool(partition.records) for partition in found] == [True, False, False]


def test_more_partitions_than_anybody_fetches_or_writes_close_the_connection(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "MOST_PARTITIONS", 1_000)
    with Wire(broker.bootstrap) as wire:
        wire.send_body(1, 12, fetch_body("t", 1_001))
        assert wire.is_closed()
    nothing = {"index": 0, "records": None}
    topics = [{"name": "t", "partition_data": [nothing] * MOST_PARTITIONS}]
    values = {"transactional_id": None, "acks": 1, "timeout": 0, "topic_data": topics}
    for version in (8, 9):
        with pytest.raises(ProtocolViolation, match="partitions"):
            parse_request(memoryview(encode_request(0, version, values | {"topic_data": topics * 2})), 0, version)
        found = parse_request(memoryview(encode_request(0, version, values)), 0, version)
        assert len(found.topics[0].partitions) == MOST_PARTITIONS


def test_a_produce_request_with_more_tagged_fields_than_anybody_has_is_refused() -> None:
    tags = bytearray()
    write_uvarint(tags, MOST_TAGS + 1)
    body = produce_body("t", 2)[:-1] + tags + bytes(3_000)
    with pytest.raises(ProtocolViolation, match="tagged"):
        parse_request(memoryview(body), 0, 9)


def test_sessions_hold_so_many_partitions_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_sessions, "MOST_PARTITIONS", 5)
    cache = sessions(slots=9)
    first = cache.view(session_request(0, 0, {0: 0, 1: 0, 2: 0}), 12, 0.0)
    assert first.session_id
    assert not cache.view(session_request(0, 0, {0: 0, 1: 0, 2: 0}), 12, 0.0).session_id
    second = cache.view(session_request(0, 0, {0: 0, 1: 0}), 12, 0.0)
    with pytest.raises(CodedError) as refused:
        cache.view(session_request(second.session_id, 1, {7: 0}), 12, 0.0)
    assert refused.value.code is ErrorCode.fetch_session_id_not_found
    cache.view(session_request(first.session_id, 1, {7: 0}, forgotten=(0, 1)), 12, 0.0)
    assert cache.view(session_request(0, 0, {0: 0, 1: 0, 2: 0}), 12, 0.0).session_id
