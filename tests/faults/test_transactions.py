"""Requests of a transaction that come late, or whose answer is lost: nothing is torn, doubled, or left hanging.

librdkafka is a client of the older protocol: an epoch serves many transactions there, so that the broker has to tell
what comes late from what is meant. `NewerProducer` is one of the newer, where each transaction has an epoch.
"""

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode
from headrace.testing import Broker
from tests.support.faults.newer import OFFSETS_VERSION, PRODUCE_VERSION, NewerProducer
from tests.support.process import wait_for
from tests.support.proxy import Fate, Proxy

pytestmark = pytest.mark.slow

TOPIC = "t"
GROUP = "g"
PATIENCE = 120.0
SETTINGS = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
    "transaction.state.log.num.partitions": 2,
}


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    proxy = Proxy()
    yield proxy
    proxy.close()


@pytest.fixture
def broker(proxy: Proxy) -> Iterator[Broker]:
    with Broker({**SETTINGS, "listeners": "PLAINTEXT://127.0.0.1:0", **_through(proxy)}) as broker:
        proxy.upstream = ("127.0.0.1", int(broker.bootstrap.rpartition(":")[2]))
        broker.create_topic(TOPIC, 2)
        yield broker


def _through(proxy: Proxy) -> dict[str, object]:
    return {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{proxy.port}"}


def producer_of(proxy: Proxy, message_ms: int = 110_000) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": f"127.0.0.1:{proxy.port}",
            "transactional.id": "x",
            "transaction.timeout.ms": 120_000,
            "socket.timeout.ms": 1_000,
            "message.timeout.ms": message_ms,
            "reconnect.backoff.max.ms": 200,
            "request.timeout.ms": 1_000,
            "log_level": 0,
            "linger.ms": 0,
        }
    )
    producer.init_transactions(PATIENCE)
    return producer


def write(producer: Producer, value: str) -> None:
    producer.begin_transaction()
    for index in range(2):
        producer.produce(TOPIC, value, partition=index)
    producer.flush(PATIENCE)


def committed(proxy: Proxy) -> list[str]:
    """What readers of committed records see, once they can read all there is."""
    consumer = Consumer(
        {
            "bootstrap.servers": f"127.0.0.1:{proxy.port}",
            "group.id": "reader",
            "isolation.level": "read_committed",
            "log_level": 0,
        }
    )
    places = [TopicPartition(TOPIC, index, 0) for index in range(2)]
    consumer.assign(places)
    values: list[str] = []
    deadline = time.monotonic() + PATIENCE
    while not _is_read(consumer, places):
        assert time.monotonic() < deadline, "readers are held back by a transaction that nobody ends"
        values += [(m.value() or b"").decode() for m in consumer.consume(100, 0.2) if not m.error()]
    consumer.close()
    return sorted(values)


def _is_read(consumer: Consumer, places: list[TopicPartition]) -> bool:
    ends = [consumer.get_watermark_offsets(place, PATIENCE, cached=False)[1] for place in places]
    return all(place.offset >= end for place, end in zip(consumer.position(places), ends, strict=True))


def test_an_end_that_comes_late_decides_no_later_transaction(broker: Broker, proxy: Proxy) -> None:
    del broker
    producer = producer_of(proxy)
    write(producer, "first")
    late = proxy.plan(ApiKey.END_TXN, Fate.HOLD)
    producer.commit_transaction(PATIENCE)
    assert late.struck == 1
    write(producer, "second")
    proxy.release()
    assert late.delivered.wait(PATIENCE)
    producer.abort_transaction(PATIENCE)
    write(producer, "third")
    producer.commit_transaction(PATIENCE)
    assert committed(proxy) == ["first", "first", "third", "third"]


def test_a_batch_that_comes_after_the_abort_leaves_nothing_hanging(broker: Broker, proxy: Proxy) -> None:
    del broker
    producer = producer_of(proxy, message_ms=20_000)  # an abort waits until its batches are answered or given up
    write(producer, "first")
    producer.commit_transaction(PATIENCE)
    late = proxy.plan(ApiKey.PRODUCE, Fate.HOLD)
    producer.begin_transaction()
    producer.produce(TOPIC, "late", partition=0)
    wait_for("the batch is on its way", lambda: producer.flush(0.1) >= 0 and late.struck == 1)
    producer.abort_transaction(PATIENCE)
    proxy.release()
    assert late.delivered.wait(PATIENCE)
    write(producer, "second")
    producer.commit_transaction(PATIENCE)
    assert committed(proxy) == ["first", "first", "second", "second"]


@pytest.mark.parametrize(
    "api_key", [ApiKey.PRODUCE, ApiKey.END_TXN, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.INIT_PRODUCER_ID], ids=str
)
def test_lost_answers_double_nothing(broker: Broker, proxy: Proxy, api_key: ApiKey) -> None:
    del broker
    if api_key is ApiKey.INIT_PRODUCER_ID:
        proxy.plan(api_key, Fate.LOSE_ANSWER)
    producer = producer_of(proxy)
    plan = proxy.plan(api_key, Fate.LOSE_ANSWER, times=2)
    for value in ("first", "second", "third"):
        write(producer, value)
        producer.commit_transaction(PATIENCE)
    assert plan.struck == (0 if api_key is ApiKey.INIT_PRODUCER_ID else 2)
    assert committed(proxy) == sorted(["first", "second", "third"] * 2)


@pytest.fixture
def newer(broker: Broker, proxy: Proxy) -> Iterator[NewerProducer]:
    del broker
    with NewerProducer(f"127.0.0.1:{proxy.port}", "x", TOPIC) as producer:
        producer.find(GROUP, kind=0)
        producer.init()
        transact(producer, "first")
        yield producer


def transact(producer: NewerProducer, value: str) -> None:
    for index in range(2):
        assert producer.write(index, value) is ErrorCode.none
    assert producer.end(commit=True) is ErrorCode.none


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_an_end_of_the_newer_protocol_that_comes_late_decides_no_later_transaction(
    newer: NewerProducer, proxy: Proxy, commit: bool
) -> None:
    assert newer.write(0, "second") is ErrorCode.none
    late = proxy.plan(ApiKey.END_TXN, Fate.HOLD)
    assert newer.end(commit=commit) is ErrorCode.none
    assert late.struck == 1
    for index in range(2):
        assert newer.write(index, "third") is ErrorCode.none
    proxy.release()
    assert late.delivered.wait(PATIENCE)
    assert newer.end(commit=not commit) is ErrorCode.none
    transact(newer, "fourth")
    once = ["second"] if commit else ["third", "third"]
    assert committed(proxy) == sorted(["first"] * 2 + once + ["fourth"] * 2)


def test_a_batch_of_the_newer_protocol_that_comes_late_begins_and_joins_no_transaction(
    newer: NewerProducer, proxy: Proxy
) -> None:
    assert newer.write(1, "second") is ErrorCode.none
    late = proxy.plan(ApiKey.PRODUCE, Fate.HOLD)
    newer.abandon(ApiKey.PRODUCE, PRODUCE_VERSION, newer.batch(0, "late"))
    wait_for("it is held", lambda: late.struck == 1)
    assert newer.end(commit=False) is ErrorCode.none
    assert newer.write(0, "third") is ErrorCode.none
    proxy.release()
    assert late.delivered.wait(PATIENCE)
    assert newer.end(commit=True) is ErrorCode.none
    assert committed(proxy) == ["first", "first", "third"]


def test_a_batch_of_the_newer_protocol_that_comes_late_is_no_second_one(newer: NewerProducer, proxy: Proxy) -> None:
    late = proxy.plan(ApiKey.PRODUCE, Fate.HOLD)
    assert newer.write(0, "second") is ErrorCode.none
    assert late.struck == 1
    proxy.release()
    assert late.delivered.wait(PATIENCE)
    assert newer.write(0, "third") is ErrorCode.none
    assert newer.end(commit=True) is ErrorCode.none
    assert committed(proxy) == ["first", "first", "second", "third"]


def test_an_offset_of_the_newer_protocol_that_comes_late_is_committed_with_no_later_transaction(
    newer: NewerProducer, proxy: Proxy
) -> None:
    assert newer.send_offset(GROUP, 0, 1) is ErrorCode.none
    assert newer.end(commit=True) is ErrorCode.none
    assert newer.write(0, "second") is ErrorCode.none
    late = proxy.plan(ApiKey.TXN_OFFSET_COMMIT, Fate.HOLD)
    newer.abandon(ApiKey.TXN_OFFSET_COMMIT, OFFSETS_VERSION, newer.offset(GROUP, 0, 2))
    wait_for("it is held", lambda: late.struck == 1)
    assert newer.end(commit=False) is ErrorCode.none
    assert newer.write(0, "third") is ErrorCode.none
    proxy.release()
    assert late.delivered.wait(PATIENCE)
    assert newer.end(commit=True) is ErrorCode.none
    assert committed(proxy) == ["first", "first", "third"]
    assert committed_offset(proxy, GROUP) == 1


def committed_offset(proxy: Proxy, group: str) -> int:
    consumer = Consumer({"bootstrap.servers": f"127.0.0.1:{proxy.port}", "group.id": group, "log_level": 0})
    (place,) = consumer.committed([TopicPartition(TOPIC, 0)], PATIENCE)
    consumer.close()
    return int(place.offset)


@pytest.mark.parametrize(
    "api_key", [ApiKey.PRODUCE, ApiKey.END_TXN, ApiKey.TXN_OFFSET_COMMIT, ApiKey.INIT_PRODUCER_ID], ids=str
)
def test_lost_answers_of_the_newer_protocol_double_nothing(newer: NewerProducer, proxy: Proxy, api_key: ApiKey) -> None:
    plan = proxy.plan(api_key, Fate.LOSE_ANSWER, times=2)
    newer.init()
    for number, value in enumerate(("second", "third", "fourth"), 1):
        assert newer.send_offset(GROUP, 0, number) is ErrorCode.none
        transact(newer, value)
    assert plan.struck == 2
    assert committed(proxy) == sorted(["first", "second", "third", "fourth"] * 2)
    assert committed_offset(proxy, GROUP) == 3


def test_who_was_replaced_is_shut_out_of_the_newer_protocol(newer: NewerProducer, proxy: Proxy) -> None:
    assert newer.write(0, "zombie") is ErrorCode.none
    with NewerProducer(f"127.0.0.1:{proxy.port}", "x", TOPIC) as successor:
        successor.init()
        assert newer.write(1, "zombie") is ErrorCode.invalid_producer_epoch
        assert newer.end(commit=True) is ErrorCode.producer_fenced
        transact(successor, "second")
    assert committed(proxy) == ["first", "first", "second", "second"]
