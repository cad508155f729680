"""A compacted topic keeps the latest record of each key, at its offset, while it is used."""

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from headrace.testing import Broker

pytestmark = pytest.mark.slow


SECONDS = 60.0
KEYS = 20
ROUNDS = 200


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"log.cleaner.backoff.ms": 50}) as running:
        yield running


def read(bootstrap: str, topic: str) -> dict[int, tuple[bytes, bytes]]:
    """Keys and values by offset, from the start to the end."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "x", "enable.auto.commit": False})
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=SECONDS)
        consumer.assign([TopicPartition(topic, 0, 0)])
        found: dict[int, tuple[bytes, bytes]] = {}
        while not found or max(found) < end - 1:
            for message in consumer.consume(1_000, timeout=5):
                assert message.error() is None
                found[message.offset()] = (message.key(), message.value())
        return found
    finally:
        consumer.close()


def test_only_the_latest_record_of_each_key_stays_at_its_offset(broker: Broker) -> None:
    configs = {"cleanup.policy": "compact", "segment.bytes": "10000", "min.cleanable.dirty.ratio": "0.01"}
    topic = broker.create_topic("state", 1, **configs)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0, "batch.num.messages": 50})
    expected: dict[bytes, tuple[int, bytes]] = {}

    def delivered(error: object, message: object) -> None:
        assert error is None
        expected[message.key()] = (message.offset(), message.value())  # type: ignore[attr-defined]

    for number in range(KEYS * ROUNDS):
        producer.produce(topic, b"v%d" % number, b"k%d" % (number % KEYS), on_delivery=delivered)
    assert producer.flush(SECONDS) == 0

    deadline = time.monotonic() + SECONDS
    found = read(broker.bootstrap, topic)
    while len(found) > KEYS * ROUNDS // 2:
        assert time.monotonic() < deadline, f"{len(found)} records are left"
        found = read(broker.bootstrap, topic)
    latest = {key: (offset, value) for offset, (key, value) in sorted(found.items())}
    assert latest == expected
