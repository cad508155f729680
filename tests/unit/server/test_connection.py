"""Many requests on one connection: order, long polls, slow readers, large answers."""

import datetime
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest
from kio.index import load_payload_module
from kio.static.constants import EntityType

from headrace.protocol.encode import encode_request
from headrace.protocol.errors import ErrorCode
from headrace.testing import Broker
from tests.support.wire import Wire, batch_of, produce_request, request, values_in

MEBIBYTE = 1 << 20
LARGE = {"max.message.bytes": str(16 * MEBIBYTE)}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def topic(broker: Broker, request: pytest.FixtureRequest) -> str:
    name = request.node.name.replace("[", "-").replace("]", "")
    return broker.create_topic(name, 1, **LARGE)


def fetch_request(
    topic: str, offset: int = 0, *, wait_ms: int = 0, min_bytes: int = 1, max_bytes: int = 1 << 30
) -> Any:
    module: Any = load_payload_module(1, 11, EntityType.request)
    partition = module.FetchPartition(
        partition=0,
        current_leader_epoch=-1,
        fetch_offset=offset,
        log_start_offset=-1,
        partition_max_bytes=max_bytes,
    )
    return module.FetchRequest(
        replica_id=-1,
        max_wait=datetime.timedelta(milliseconds=wait_ms),
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=(module.FetchTopic(topic=topic, partitions=(partition,)),),
        forgotten_topics_data=(),
        rack_id="",
    )


def produce(broker: Broker, topic: str, *values: bytes) -> int:
    with Wire(broker.bootstrap) as wire:
        answer = wire.ask(0, 9, produce_request(topic, batch_of(*values))).responses[0].partition_responses[0]
        assert answer.error_code is ErrorCode.none
        return int(answer.base_offset)


def values_of(answer: Any) -> list[bytes | None]:
    (partition,) = answer.responses[0].partitions
    assert partition.error_code is ErrorCode.none
    return values_in(partition.records or b"")


def test_answers_come_in_the_order_of_the_requests(broker: Broker, topic: str) -> None:
    with Wire(broker.bootstrap) as wire:
        wire.send(1, 11, fetch_request(topic, wait_ms=300))
        for number in range(50):
            wire.send(0, 9, produce_request(topic, batch_of(b"%d" % number)))
            wire.send(18, 0, request(18, 0))
        assert values_of(wire.receive(1, 11))
        for number in range(50):
            answer = wire.receive(0, 9)
            assert answer.responses[0].partition_responses[0].base_offset == number
            assert wire.receive(18, 0).error_code is ErrorCode.none


def test_a_waiting_fetch_is_woken_by_an_append(broker: Broker, topic: str) -> None:
    with Wire(broker.bootstrap) as wire, ThreadPoolExecutor(1) as pool:
        wire.send(1, 11, fetch_request(topic, wait_ms=60_000))
        pool.submit(produce, broker, topic, b"news").result()
        assert values_of(wire.receive(1, 11)) == [b"news"]


def test_a_fetch_waits_until_there_are_enough_bytes(broker: Broker, topic: str) -> None:
    with Wire(broker.bootstrap) as wire:
        wire.send(1, 11, fetch_request(topic, wait_ms=60_000, min_bytes=500))
        produce(broker, topic, b"little")
        produce(broker, topic, b"x" * 500)
        assert values_of(wire.receive(1, 11)) == [b"little", b"x" * 500]


def test_a_fetch_that_finds_nothing_answers_at_its_deadline(broker: Broker, topic: str) -> None:
    with Wire(broker.bootstrap) as wire:
        began = time.monotonic()
        assert values_of(wire.ask(1, 11, fetch_request(topic, wait_ms=200))) == []
        assert time.monotonic() - began >= 0.19


def test_the_first_batch_is_returned_whole_whatever_the_limit(broker: Broker, topic: str) -> None:
    produce(broker, topic, b"a" * 100_000)
    produce(broker, topic, b"b")
    with Wire(broker.bootstrap) as wire:
        assert values_of(wire.ask(1, 11, fetch_request(topic, max_bytes=1))) == [b"a" * 100_000]


def test_a_fetch_beyond_the_end_is_out_of_range(broker: Broker, topic: str) -> None:
    produce(broker, topic, b"a")
    with Wire(broker.bootstrap) as wire:
        for offset in (2, -1, 2**62):
            answer = wire.ask(1, 11, fetch_request(topic, offset))
            assert answer.responses[0].partitions[0].error_code is ErrorCode.offset_out_of_range


def test_large_records_come_back_equal(broker: Broker, topic: str) -> None:
    large = bytes(range(256)) * (10 * MEBIBYTE // 256)
    assert produce(broker, topic, b"before") == 0
    assert produce(broker, topic, large) == 1
    with Wire(broker.bootstrap) as wire:
        assert values_of(wire.ask(1, 11, fetch_request(topic, 1))) == [large]
        assert values_of(wire.ask(1, 11, fetch_request(topic, 0))) == [b"before", large]


def test_a_reader_that_does_not_read_costs_no_memory(broker: Broker, topic: str) -> None:
    for _ in range(8):
        produce(broker, topic, b"x" * MEBIBYTE)
    before = psutil.Process().memory_info().rss
    with Wire(broker.bootstrap) as slow:
        slow.socket.setblocking(False)
        for _ in range(3_000):
            try:
                slow.send(1, 11, fetch_request(topic, max_bytes=8 * MEBIBYTE))
                slow.send(3, 1, request(3, 1, topics=None))
            except BlockingIOError:
                break
        produce(broker, topic, b"others are served")
        assert psutil.Process().memory_info().rss - before < 48 * MEBIBYTE


def test_a_thousand_silent_connections_do_not_keep_others_from_being_served(broker: Broker, topic: str) -> None:
    silent = [Wire(broker.bootstrap) for _ in range(1_000)]
    try:
        for number, wire in enumerate(silent):
            wire.send_bytes(b"\0\0\x10\0ab"[: number % 7])
        assert produce(broker, topic, b"a") == 0
        with Wire(broker.bootstrap) as wire:
            assert values_of(wire.ask(1, 11, fetch_request(topic))) == [b"a"]
    finally:
        for wire in silent:
            wire.socket.close()


def test_connections_of_one_address_are_capped() -> None:
    with Broker({"max.connections.per.ip": 3}) as small:
        wires = [Wire(small.bootstrap) for _ in range(3)]
        for wire in wires:
            assert wire.ask(18, 0, request(18, 0)).error_code is ErrorCode.none
        with Wire(small.bootstrap) as fourth:
            assert fourth.is_closed()
        wires.pop().socket.close()
        wires[0].ask(18, 0, request(18, 0))
        with Wire(small.bootstrap) as wire:
            assert wire.ask(18, 0, request(18, 0)).error_code is ErrorCode.none
        for wire in wires:
            wire.socket.close()


def test_the_cap_of_one_address_changes_while_the_broker_runs() -> None:
    config = {"name": "max.connections.per.ip", "config_operation": 0, "value": "1"}
    resource = {"resource_type": 4, "resource_name": "1", "configs": [config]}
    body = encode_request(44, 1, {"resources": [resource], "validate_only": False})
    with Broker() as running, Wire(running.bootstrap) as first, Wire(running.bootstrap) as second:
        first.send_body(44, 1, bytes(body))
        assert first.receive(44, 1).responses[0].error_code is ErrorCode.none
        with Wire(running.bootstrap) as third:
            assert third.is_closed()
        assert second.ask(18, 0, request(18, 0)).error_code is ErrorCode.none


def test_what_was_asked_is_answered_before_the_broker_stops() -> None:
    with Broker() as stopping:
        stopping.create_topic("t")
        with Wire(stopping.bootstrap) as waiting, Wire(stopping.bootstrap) as writing:
            waiting.send(1, 11, fetch_request("t", wait_ms=60_000, min_bytes=1 << 20))
            assert waiting.socket.fileno() >= 0
            writing.ask(0, 9, produce_request("t", batch_of(b"a")))
            stopping.stop()
            assert values_of(waiting.receive(1, 11)) == [b"a"]
            assert waiting.is_closed()


def test_thousands_of_requests_at_once_are_all_answered_in_order(broker: Broker) -> None:
    topic = broker.create_topic("flood", 1, **{"flush.messages": str(1 << 40)})
    count = 5_000

    def send_all() -> None:
        for _ in range(count):
            wire.send(0, 9, produce_request(topic, batch_of(b"a")))

    with Wire(broker.bootstrap) as wire, ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send_all)
        for number in range(count):
            assert wire.receive(0, 9).responses[0].partition_responses[0].base_offset == number
        sending.result()
