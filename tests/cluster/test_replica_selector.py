"""A consumer that says where it is reads from the replica next to it, and loses nothing when that goes."""

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.process import ClusterProcesses, wait_for

pytestmark = pytest.mark.slow

SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    """Broker 1 in rack a, broker 2 in rack b."""
    settings = {"replica.selector.class": SELECTOR, "default.replication.factor": "2", "min.insync.replicas": "1"}
    with ClusterProcesses(tmp_path_factory.mktemp("nearby"), 0, settings=settings) as processes:
        processes.add(1, rack="a")
        processes.add(2, rack="b")
        yield processes


class Reader:
    """A consumer of one partition, and the brokers that it has fetched from."""

    def __init__(self, cluster: ClusterProcesses, rack: str, topic: str) -> None:
        self.debug: list[str] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": f"unused-{rack}",
                "enable.auto.commit": False,
                "client.rack": rack,
                "fetch.wait.max.ms": 100,
                "debug": "fetch",
                "log_level": 7,
                "logger": self,
            }
        )
        self._consumer.assign([TopicPartition(topic, 0, 0)])
        self.values: list[bytes] = []

    def log(self, _level: int, _format: str, *arguments: Any) -> None:
        """As a `logging.Logger`, which the client library writes to."""
        self.debug.append(str(arguments))

    def reads(self, count: int) -> bool:
        message = self._consumer.poll(0.1)
        if message is not None:
            assert message.error() is None, message.error()
            self.values.append(message.value())
        return len(self.values) >= count

    def was_sent_to(self, broker: int) -> bool:
        self._consumer.poll(0)
        return any(f"to {broker} (leader is" in line and "preferred replica updated" in line for line in self.debug)

    def close(self) -> None:
        self._consumer.close()


def produce(cluster: ClusterProcesses, topic: str, values: range) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for value in values:
        producer.produce(topic, b"%d" % value, partition=0)
    assert producer.flush(60) == 0


def make_topic(cluster: ClusterProcesses, name: str) -> str:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic(name, 1, replica_assignment=[[1, 2]])])[name].result(60)
    return name


def test_a_consumer_reads_from_the_replica_in_its_rack_until_that_is_gone(cluster: ClusterProcesses) -> None:
    topic = make_topic(cluster, "near")
    produce(cluster, topic, range(100))
    reader = Reader(cluster, "b", topic)
    try:
        wait_for("a hundred records", lambda: reader.reads(100))
        wait_for("word of the replica nearby", lambda: reader.was_sent_to(2))
        produce(cluster, topic, range(100, 150))
        wait_for("fifty more", lambda: reader.reads(150))
        cluster[2].kill()
        produce(cluster, topic, range(150, 200))
        wait_for("the rest, from the leader", lambda: reader.reads(200))
    finally:
        reader.close()
        if not cluster[2].is_running:
            cluster[2].start()
    assert reader.values == [b"%d" % value for value in range(200)]


def test_a_consumer_near_the_leader_stays_with_it(cluster: ClusterProcesses) -> None:
    topic = make_topic(cluster, "leaders")
    produce(cluster, topic, range(10))
    reader = Reader(cluster, "a", topic)
    try:
        wait_for("ten records", lambda: reader.reads(10))
        assert not reader.was_sent_to(2)
    finally:
        reader.close()
