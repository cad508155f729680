"""Acknowledged records survive a broker that is killed again and again under load."""

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.process import BrokerProcess

PARTITIONS = 3
ACKED_PER_ROUND = 200
ROUND_SECONDS = 120.0

Acked = dict[tuple[int, int], bytes]
"""Values by partition and offset."""


class Load:
    """A producer that never stops, and what was acknowledged to it."""

    def __init__(self, bootstrap: str, topic: str, **options: Any) -> None:
        self.topic = topic
        self.acked: Acked = {}
        self.failed: list[KafkaError] = []
        self._numbers = itertools.count()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "linger.ms": 2,
                "message.timeout.ms": 240_000,
                "retry.backoff.ms": 20,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 50,
                "log_level": 0,
                **options,
            }
        )

    def until_acked(self, more: int) -> None:
        """Keep sending until so many more records are acknowledged."""
        wanted = len(self.acked) + more
        deadline = time.monotonic() + ROUND_SECONDS
        while len(self.acked) < wanted:
            assert time.monotonic() < deadline, f"{len(self.acked)} of {wanted} acknowledged, {self.failed[:3]}"
            if len(self._producer) < 2_000:
                for _ in range(20):
                    number = next(self._numbers)
                    value = b"%d" % number
                    self._producer.produce(
                        self.topic, value, partition=number % PARTITIONS, on_delivery=self._delivered
                    )
            self._producer.poll(0.005)

    def finish(self) -> None:
        assert self._producer.flush(ROUND_SECONDS) == 0

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed.append(error)
            return
        place = (message.partition(), message.offset())
        assert place not in self.acked, f"{place} was acknowledged for two records"
        self.acked[place] = message.value()


def read_all(bootstrap: str, topic: str) -> Acked:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False})
    found: Acked = {}
    try:
        for partition in range(PARTITIONS):
            _, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=60)
            consumer.assign([TopicPartition(topic, partition, 0)])
            position = 0
            while position < end:
                for message in consumer.consume(1_000, timeout=10):
                    assert message.error() is None, message.error()
                    assert message.offset() >= position
                    position = message.offset() + 1
                    found[(partition, message.offset())] = message.value()
    finally:
        consumer.close()
    return found


def kill_under_load(
    data: Path, kills: int, topic_configs: dict[str, str], check: Callable[[Load, Acked], None], **options: Any
) -> None:
    with BrokerProcess(data) as broker:
        topic = NewTopic("load", PARTITIONS, 1, config={"segment.bytes": "1048576", **topic_configs})
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([topic])["load"].result()
        load = Load(broker.bootstrap, "load", **options)
        for _ in range(kills):
            load.until_acked(ACKED_PER_ROUND)
            broker.kill()
            broker.start()
        load.finish()
        check(load, read_all(broker.bootstrap, "load"))


def in_order(found: Acked) -> bool:
    """Whether each partition holds growing numbers."""
    for partition in range(PARTITIONS):
        numbers = [int(value) for (p, _), value in sorted(found.items()) if p == partition]
        if numbers != sorted(set(numbers)):
            return False
    return True


@pytest.mark.parametrize("kills", [6, pytest.param(50, marks=pytest.mark.long)])
def test_an_idempotent_producer_finds_each_record_once_and_in_order_after_every_kill(
    tmp_path: Path, kills: int
) -> None:
    def check(load: Load, found: Acked) -> None:
        assert not load.failed
        assert found == load.acked
        assert in_order(found)

    kill_under_load(tmp_path, kills, {}, check, **{"enable.idempotence": True})


@pytest.mark.parametrize("kills", [2, pytest.param(10, marks=pytest.mark.long)])
def test_a_plain_producer_finds_every_acknowledged_record_after_every_kill(tmp_path: Path, kills: int) -> None:
    def check(load: Load, found: Acked) -> None:
        assert not load.failed
        assert load.acked.items() <= found.items()

    kill_under_load(tmp_path, kills, {"flush.messages": "1000"}, check, acks="1")
