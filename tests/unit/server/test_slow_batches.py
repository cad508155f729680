"""A batch that takes long to look inside is checked by a thread: its connection waits, everybody else is served."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.protocol.compression import DECOMPRESSED_LIMIT, GZIP, LZ4, SNAPPY, ZSTD
from headrace.protocol.encode import encode_request
from headrace.protocol.errors import ErrorCode
from headrace.protocol.records import Record, encode_batch
from headrace.replication import intake
from headrace.server.handlers import produce
from headrace.testing import Broker
from tests.support.wire import Wire, batch_of, produce_request

MEBIBYTE = 1 << 20


def large(codec: int = ZSTD, size: int = 4 * MEBIBYTE) -> bytes:
    """A sound batch of few bytes that decompresses to many."""
    return bytes(encode_batch([Record(0, 1, b"key", bytes(size), ())], codec=codec))


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        running.create_topic("orders", 3, **{"headrace.record.validation": "full"})
        yield running


class Thread:
    """The thread that checks: it waits until it may go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        self.begun = threading.Event()
        self.may_go_on = threading.Event()
        monkeypatch.setattr(produce, "admit", self._admit)

    def _admit(self, *args: Any, **options: Any) -> Any:
        self.names.append(threading.current_thread().name)
        self.begun.set()
        assert self.may_go_on.wait(60)
        return intake.admit(*args, **options)


@pytest.fixture
def thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[Thread]:
    thread = Thread(monkeypatch)
    yield thread
    thread.may_go_on.set()


def offset_of(answer: Any) -> int:
    (partition,) = answer.responses[0].partition_responses
    assert partition.error_code is ErrorCode.none
    offset: int = partition.base_offset
    return offset


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD], ids=["gzip", "snappy", "lz4", "zstd"])
def test_others_are_served_meanwhile_and_what_came_behind_it_stays_behind(
    broker: Broker, thread: Thread, codec: int
) -> None:
    with Wire(broker.bootstrap) as slow, Wire(broker.bootstrap) as other:
        slow.send(0, 9, produce_request("orders", large(codec)))
        slow.send(0, 9, produce_request("orders", batch_of(b"behind")))
        assert thread.begun.wait(60)
        first = offset_of(other.ask(0, 9, produce_request("orders", batch_of(b"other"))))
        thread.may_go_on.set()
        assert offset_of(slow.receive(0, 9)) == first + 1
        assert offset_of(slow.receive(0, 9)) == first + 2
    assert [name.startswith("background") for name in thread.names] == [True]


def test_a_bomb_is_refused_by_the_thread(broker: Broker, thread: Thread) -> None:
    thread.may_go_on.set()
    bomb = bytearray(large(LZ4, DECOMPRESSED_LIMIT + 1))
    with Wire(broker.bootstrap) as wire:
        (partition,) = wire.ask(0, 9, produce_request("orders", bytes(bomb))).responses[0].partition_responses
        assert partition.error_code is ErrorCode.invalid_record


@pytest.mark.parametrize("many", [False, True])
def test_each_partition_of_a_request_is_answered_in_its_place(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, many: bool
) -> None:
    if many:
        monkeypatch.setattr(produce, "MANY", 1)
    damaged = batch_of(b"c")[:-1] + b"\xff"
    batches = [large(), batch_of(b"b"), damaged]
    data = [{"index": index, "records": batch} for index, batch in enumerate(batches)]
    topics = [{"name": "orders", "partition_data": data}]
    values = {"transactional_id": None, "acks": -1, "timeout": 10_000, "topic_data": topics}
    with Wire(broker.bootstrap) as wire:
        wire.send_body(0, 9, bytes(encode_request(0, 9, values)))
        answers = wire.receive(0, 9).responses[0].partition_responses
    assert [answer.index for answer in answers] == [0, 1, 2]
    assert [answer.error_code for answer in answers] == [ErrorCode.none, ErrorCode.none, ErrorCode.corrupt_message]
    assert answers[0].base_offset >= 0
    assert answers[1].base_offset >= 0


def test_without_acks_it_is_written_too_and_an_error_closes_the_connection(broker: Broker) -> None:
    with Wire(broker.bootstrap) as wire:
        before = offset_of(wire.ask(0, 9, produce_request("orders", batch_of(b"a"))))
        wire.send(0, 9, produce_request("orders", large(), acks=0))
        assert offset_of(wire.ask(0, 9, produce_request("orders", batch_of(b"a")))) == before + 2
        wire.send(0, 9, produce_request("orders", large(LZ4, DECOMPRESSED_LIMIT + 1), acks=0))
        assert wire.is_closed()


def test_a_batch_that_is_compressed_anew_takes_a_thread_too(broker: Broker, thread: Thread) -> None:
    broker.create_topic("packed", 1, **{"compression.type": "gzip"})
    thread.may_go_on.set()
    with Wire(broker.bootstrap) as wire:
        offset_of(wire.ask(0, 9, produce_request("packed", batch_of(b"a"))))
        assert not thread.names
        offset_of(wire.ask(0, 9, produce_request("packed", large(0, MEBIBYTE // 2))))
        assert len(thread.names) == 1


def test_the_schemas_of_many_records_are_looked_for_by_a_thread(broker: Broker, thread: Thread) -> None:
    broker.create_topic("checked", 1, **{"headrace.schema.validation": "true"})
    values = [None] * 3_000
    many = bytes(encode_batch([Record(0, 1, b"key", value, ()) for value in values]))
    bad = bytes(encode_batch([Record(0, 1, b"key", value, ()) for value in [*values, b"no schema"]]))
    with Wire(broker.bootstrap) as slow, Wire(broker.bootstrap) as other:
        offset_of(other.ask(0, 9, produce_request("checked", bytes(encode_batch([Record(0, 1, b"key", None, ())])))))
        assert not thread.names
        slow.send(0, 9, produce_request("checked", many))
        assert thread.begun.wait(60)
        offset_of(other.ask(0, 9, produce_request("orders", batch_of(b"other"))))
        thread.may_go_on.set()
        offset_of(slow.receive(0, 9))
        (partition,) = slow.ask(0, 9, produce_request("checked", bad)).responses[0].partition_responses
    assert partition.error_code is ErrorCode.invalid_record
    assert [each.batch_index for each in partition.record_errors] == [3_000]
    assert len(thread.names) == 2
