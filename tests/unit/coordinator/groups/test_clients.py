"""Groups of other people's consumers against a broker."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka import KafkaConsumer

from headrace.testing import Broker

pytestmark = pytest.mark.slow


PARTITIONS = 12
RECORDS = 240
PATIENCE = 60.0


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker({"group.initial.rebalance.delay.ms": 300, "offsets.topic.num.partitions": 3}) as broker:
        broker.create_topic("t", PARTITIONS)
        yield broker


def produce(broker: Broker, count: int = RECORDS) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    for number in range(count):
        producer.produce("t", value=str(number), partition=number % PARTITIONS)
    assert producer.flush(PATIENCE) == 0


class Member:
    """A confluent consumer on a thread, with a log of what it owned and read."""

    def __init__(self, broker: Broker, **settings: Any) -> None:
        self.owned: set[int] = set()
        self.read: set[str] = set()
        self.assignments = 0
        self._stop = threading.Event()
        self._settings = {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 300,
            "log_level": 0,
            **settings,
        }
        self._thread = threading.Thread(target=self._consume, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE)

    def _consume(self) -> None:
        consumer = Consumer(self._settings)
        consumer.subscribe(["t"], on_assign=self._assigned, on_revoke=self._revoked)
        while not self._stop.is_set():
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                self.read.add(message.value().decode())
        consumer.close()

    def _assigned(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        self.assignments += 1
        self.owned = self.owned | {partition.partition for partition in partitions}

    def _revoked(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        self.owned = self.owned - {partition.partition for partition in partitions}


def eventually(what: str, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, f"not within {PATIENCE:.0f} s: {what}"
        time.sleep(0.05)


def shared(members: list[Member]) -> bool:
    """Every partition has one owner, and everyone has some."""
    owned = [partition for member in members for partition in member.owned]
    return sorted(owned) == list(range(PARTITIONS)) and all(member.owned for member in members)


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_members_share_the_partitions_and_take_over_from_those_who_leave(broker: Broker, strategy: str) -> None:
    members = [Member(broker, **{"partition.assignment.strategy": strategy}) for _ in range(3)]
    eventually("three share", lambda: shared(members))
    produce(broker)
    eventually("all is read", lambda: set().union(*(m.read for m in members)) == set(map(str, range(RECORDS))))
    members.pop().stop()
    eventually("two share", lambda: shared(members))
    members.append(Member(broker, **{"partition.assignment.strategy": strategy}))
    eventually("three share again", lambda: shared(members))
    for member in members:
        member.stop()


def test_a_static_member_that_restarts_makes_no_rebalance(broker: Broker) -> None:
    # A session outlasts the restart on any machine: its end would be a reason to rebalance.
    names = [{"group.instance.id": f"i{number}", "session.timeout.ms": 120_000} for number in range(2)]
    stays, leaves = Member(broker, **names[0]), Member(broker, **names[1])
    eventually("two share", lambda: shared([stays, leaves]))
    before, owned = stays.assignments, leaves.owned
    leaves.stop()
    returns = Member(broker, **names[1])
    eventually("it returns to what it had", lambda: returns.owned == owned)
    assert stays.assignments == before
    stays.stop()
    returns.stop()


def consume_with_confluent(broker: Broker, count: int) -> int:
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "g", "auto.offset.reset": "earliest", "log_level": 0}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    consumer.subscribe(["t"])
    read = len(_poll(lambda: consumer.consume(count, 0.2), count))
    consumer.commit(asynchronous=False)
    consumer.close()
    return read


def consume_with_kafka_python(broker: Broker, count: int) -> int:
    consumer = KafkaConsumer(
        "t", bootstrap_servers=broker.bootstrap, group_id="g", auto_offset_reset="earliest", enable_auto_commit=False
    )
    read = len(_poll(lambda: [m for some in consumer.poll(200).values() for m in some], count))
    consumer.commit()
    consumer.close()
    return read


def consume_with_aiokafka(broker: Broker, count: int) -> int:
    async def consume() -> int:
        consumer = AIOKafkaConsumer(
            "t",
            bootstrap_servers=broker.bootstrap,
            group_id="g",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        await consumer.start()
        read = [await asyncio.wait_for(consumer.getone(), PATIENCE) for _ in range(count)]
        await consumer.commit()
        await consumer.stop()
        return len(read)

    return asyncio.run(consume())


def _poll(poll: Callable[[], list[Any]], count: int) -> list[Any]:
    found: list[Any] = []
    deadline = time.monotonic() + PATIENCE
    while len(found) < count and time.monotonic() < deadline:
        found += poll()
    return found


@pytest.mark.parametrize("consume", [consume_with_confluent, consume_with_kafka_python, consume_with_aiokafka])
def test_a_group_goes_on_where_it_was_after_the_broker_restarts(
    broker: Broker, consume: Callable[[Broker, int], int]
) -> None:
    produce(broker)
    assert consume(broker, RECORDS) == RECORDS
    broker.restart()
    produce(broker, 24)
    assert consume(broker, 24) == 24
