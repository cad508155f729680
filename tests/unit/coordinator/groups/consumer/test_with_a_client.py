"""librdkafka speaks the new group protocol with a broker: three members, one killed, one more, topics that change."""

import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from headrace.testing import Broker

pytestmark = pytest.mark.slow


SETTINGS = {
    "group.consumer.heartbeat.interval.ms": 200,
    "group.consumer.session.timeout.ms": 4_000,
    "group.initial.rebalance.delay.ms": 100,
    "offsets.topic.num.partitions": 3,
}
PATIENCE = 60.0


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(SETTINGS) as running:
        yield running


class Member:
    """A consumer on a thread of its own, which remembers what it owned when and what it read."""

    def __init__(self, broker: Broker, group: str, topics: list[str], **settings: Any) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": group,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **settings,
            }
        )
        self._is_eager = settings.get("partition.assignment.strategy") == "range"
        self.owned: set[tuple[str, int]] = set()
        self.seen: set[tuple[str, int, int]] = set()
        self.errors: list[str] = []
        self._stop = threading.Event()
        self._consumer.subscribe(topics, on_assign=self._assign, on_revoke=self._revoke, on_lost=self._revoke)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _assign(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        if self._is_eager:
            consumer.assign(partitions)
        else:
            consumer.incremental_assign(partitions)
        self.owned = self.owned | {(each.topic, each.partition) for each in partitions}

    def _revoke(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        self.owned = self.owned - {(each.topic, each.partition) for each in partitions}
        if self._is_eager:
            consumer.unassign()
        else:
            consumer.incremental_unassign(partitions)

    def _run(self) -> None:
        while not self._stop.is_set():
            message = self._consumer.poll(0.1)
            if message is None:
                continue
            if message.error() is not None:
                self.errors.append(str(message.error()))
                continue
            self.seen.add((message.topic(), message.partition(), message.offset()))
            self._consumer.commit(message, asynchronous=True)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._consumer.close()


class DoomedMember:
    """A member in a process of its own, which can be killed. It reads nothing, and tells what it owns."""

    SCRIPT = """
import sys
from confluent_kafka import Consumer
owned = set()
def tell(change, partitions):
    change(owned, {each.partition for each in partitions})
    print(*sorted(owned), flush=True)
def assign(consumer, partitions):
    consumer.incremental_assign(partitions)
    consumer.pause(partitions)
    tell(set.update, partitions)
def revoke(consumer, partitions):
    tell(set.difference_update, partitions)
    consumer.incremental_unassign(partitions)
settings = {"bootstrap.servers": sys.argv[1], "group.id": sys.argv[2], "group.protocol": "consumer"}
consumer = Consumer(settings)
consumer.subscribe([sys.argv[3]], on_assign=assign, on_revoke=revoke)
while True:
    consumer.poll(0.1)
"""

    def __init__(self, broker: Broker, group: str, topic: str) -> None:
        self.owned: set[tuple[str, int]] = set()
        command = [sys.executable, "-c", self.SCRIPT, broker.bootstrap, group, topic]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._thread = threading.Thread(target=self._read, args=(topic,), daemon=True)
        self._thread.start()

    def _read(self, topic: str) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.owned = {(topic, int(index)) for index in line.split()}

    def kill(self) -> None:
        """The group learns it from the silence alone."""
        self._process.kill()
        self._process.wait()
        self._thread.join()


def wait_until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, f"did not happen: {what}"
        time.sleep(0.05)


def shared(members: Sequence[Member | DoomedMember], topics: dict[str, int]) -> bool:
    """Whether the members own all partitions, each one of them, in even shares."""
    wanted = {(topic, index) for topic, count in topics.items() for index in range(count)}
    owned = [partition for member in members for partition in member.owned]
    counts = [len(member.owned) for member in members]
    return len(owned) == len(wanted) and set(owned) == wanted and max(counts) - min(counts) <= 1


def produce(broker: Broker, topic: str, partitions: int, each: int) -> set[tuple[str, int, int]]:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    written: set[tuple[str, int, int]] = set()

    def delivered(error: Any, message: Any) -> None:
        assert error is None
        written.add((message.topic(), message.partition(), message.offset()))

    for index in range(partitions):
        for number in range(each):
            producer.produce(topic, str(number).encode(), partition=index, on_delivery=delivered)
    assert producer.flush(PATIENCE) == 0
    return written


def test_a_group_shares_partitions_through_deaths_births_growth_and_a_restart(broker: Broker) -> None:
    broker.create_topic("orders", partitions=12)
    written = produce(broker, "orders", 12, 5)
    members = [Member(broker, "readers", ["orders"]) for _ in range(2)]
    doomed = DoomedMember(broker, "readers", "orders")
    try:
        wait_until(lambda: shared([*members, doomed], {"orders": 12}), "three members share 12 partitions")
        doomed.kill()
        wait_until(lambda: shared(members, {"orders": 12}), "two members take over from the killed one")
        members.append(Member(broker, "readers", ["orders"]))
        wait_until(lambda: shared(members, {"orders": 12}), "a new member gets its share")
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_partitions([NewPartitions("orders", 15)])["orders"].result(PATIENCE)
        wait_until(lambda: shared(members, {"orders": 15}), "new partitions are shared")
        broker.restart()
        written |= produce(broker, "orders", 15, 5)
        wait_until(lambda: written <= set().union(*(member.seen for member in members)), "every record is read")
        wait_until(lambda: shared(members, {"orders": 15}), "the partitions are shared after the restart")
        wait_until(lambda: committed(broker, "readers", 15), "what was read is committed")
    finally:
        doomed.kill()
        for member in members:
            member.close()


def committed(broker: Broker, group: str, partitions: int) -> bool:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    offsets = consumer.committed([TopicPartition("orders", index) for index in range(partitions)], timeout=PATIENCE)
    consumer.close()
    found = defaultdict(int, {each.partition: each.offset for each in offsets})
    return all(found[index] > 0 for index in range(partitions))


def test_a_regular_expression_finds_topics_that_come_later(broker: Broker) -> None:
    broker.create_topic("orders-eu", partitions=2)
    broker.create_topic("payments", partitions=2)
    members = [Member(broker, "by-name", ["^orders-.*"]) for _ in range(2)]
    try:
        wait_until(lambda: shared(members, {"orders-eu": 2}), "the expression finds the topic that is there")
        broker.create_topic("orders-us", partitions=4)
        wait_until(lambda: shared(members, {"orders-eu": 2, "orders-us": 4}), "the expression finds the new topic")
    finally:
        for member in members:
            member.close()


@pytest.mark.parametrize("strategy", ["cooperative-sticky", "range"])
def test_a_group_moves_to_the_new_protocol_and_back_member_by_member(broker: Broker, strategy: str) -> None:
    broker.create_topic("orders", partitions=6)
    old = {"group.protocol": "classic", "partition.assignment.strategy": strategy, "session.timeout.ms": 6_000}
    old["heartbeat.interval.ms"] = 300
    members = [Member(broker, "moving", ["orders"], **old) for _ in range(2)]
    try:
        wait_until(lambda: shared(members, {"orders": 6}), "two classic members share the topic")
        for settings in ({}, {}, old, old):
            members.append(Member(broker, "moving", ["orders"], **settings))
            wait_until(lambda: shared(members, {"orders": 6}), f"a member joins with {settings}")
            members.pop(0).close()
            wait_until(lambda: shared(members, {"orders": 6}), "an earlier member leaves")
    finally:
        for member in members:
            member.close()


@pytest.fixture
def patient_broker() -> Iterator[Broker]:
    """A broker that misses nobody, however slowly the machine brings back a member."""
    with Broker({**SETTINGS, "group.consumer.session.timeout.ms": 60_000}) as running:
        yield running


def test_a_static_member_comes_back_to_its_partitions(patient_broker: Broker) -> None:
    broker = patient_broker
    broker.create_topic("orders", partitions=4)
    stays = Member(broker, "static", ["orders"], **{"group.instance.id": "one"})
    goes = Member(broker, "static", ["orders"], **{"group.instance.id": "two"})
    wait_until(lambda: shared([stays, goes], {"orders": 4}), "two static members share the topic")
    had, kept = goes.owned, stays.owned
    goes.close()
    back = Member(broker, "static", ["orders"], **{"group.instance.id": "two"})
    try:
        wait_until(lambda: back.owned == had, "the member gets back what it had")
        assert stays.owned == kept
    finally:
        back.close()
        stays.close()
