"""Queries that read a replicated topic while its leaders change: every record once, in order, and no query fails."""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from confluent_kafka import Producer

from headrace.ops.operations import Operations
from headrace.protocol.topic_partition import TopicPartition
from tests.support.faults.load import IMPATIENT
from tests.support.faults.view import View
from tests.support.process import ClusterProcesses, wait_for
from tests.support.spark.gates import Gate
from tests.support.spark.held import held_source

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

PARTITIONS = 3
REPLICAS = [(1, 2, 3), (2, 3, 1), (3, 1, 2)]
ROWS = 15_000
PATIENCE = 180.0
PADDING = b" " * 1_000
SMALL = {"kafka.max.partition.fetch.bytes": "100000", "kafka.fetch.max.bytes": "300000"}
"""So that a task fetches often."""

Disturb = Callable[[ClusterProcesses, View], None]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    with ClusterProcesses(tmp_path_factory.mktemp("cluster"), 3) as cluster:
        yield cluster


@pytest.fixture
def view(cluster: ClusterProcesses, request: pytest.FixtureRequest) -> Iterator[View]:
    """A topic of this test, each broker leading a partition; afterwards all brokers are there again."""
    topic = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    view = View(cluster.bootstrap, topic)
    view.create(REPLICAS, min_insync_replicas="2")
    yield view
    cluster.start(number for number, broker in cluster.brokers.items() if not broker.is_running)
    view.wait_until_in_sync()


def kill_a_leader(cluster: ClusterProcesses, view: View) -> None:
    """It stays away."""
    cluster[view.leader(0)].kill()


def kill_and_restart(cluster: ClusterProcesses, view: View) -> None:
    leader = view.leader(1)
    cluster[leader].kill()
    view.wait_for_other_leader(leader, 1)
    cluster[leader].start()


def move_and_elect(cluster: ClusterProcesses, view: View) -> None:
    """Every partition gets another leader, as planned, with the moment's records on their way."""
    with Operations(cluster.bootstrap) as operations:
        targets = {TopicPartition(view.topic, number): (*held[1:], held[0]) for number, held in enumerate(REPLICAS)}
        assert not any(operations.reassign(targets).values())
        wait_for("the moves", lambda: not operations.moving())
        operations.elect(list(targets))
    wait_for("the preferred leaders", lambda: all(view.leader(n) == held[1] for n, held in enumerate(REPLICAS)))


def pause_a_leader(cluster: ClusterProcesses, view: View) -> None:
    """A machine that hangs: its connections stay, and nothing is answered."""
    leader = view.leader(2)
    cluster[leader].pause()
    view.wait_for_other_leader(leader, 2)
    cluster[leader].resume()


DISTURBANCES = [kill_a_leader, kill_and_restart, move_and_elect, pause_a_leader]


class Feed:
    """Numbers to each partition, acknowledged by the ISR."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, **IMPATIENT}
        )
        self._topic = topic
        self.count = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._go_on)

    def send(self, count: int) -> None:
        for number in range(self.count, self.count + count):
            value = b"%d" % (number // PARTITIONS) + PADDING
            self._producer.produce(self._topic, value, partition=number % PARTITIONS)
        self.count += count
        assert self._producer.flush(PATIENCE) == 0

    def expected(self) -> dict[int, list[int]]:
        return {number: list(range(len(range(number, self.count, PARTITIONS)))) for number in range(PARTITIONS)}

    def __enter__(self) -> Self:
        """Write without end, in the background."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _go_on(self) -> None:
        while not self._is_over.wait(0.02):
            self.send(60)


def by_partition(rows: list[Any]) -> dict[int, list[int]]:
    """Values in the order of arrival."""
    found: dict[int, list[int]] = defaultdict(list)
    for row in rows:
        found[row.partition].append(int(row.value))
    return dict(found)


@pytest.mark.parametrize("disturb", DISTURBANCES)
def test_a_batch_reads_each_record_once_in_order_while_leaders_change(
    spark: Any, cluster: ClusterProcesses, view: View, tmp_path: Path, disturb: Disturb
) -> None:
    feed = Feed(cluster.bootstrap, view.topic)
    feed.send(ROWS)
    spark.dataSource.register(held_source(tmp_path))
    frame = (
        spark.read.format("held")
        .option("kafka.bootstrap.servers", cluster.bootstrap)
        .options(subscribe=view.topic, **SMALL)
        .load()
        .select("partition", "value")
    )
    with Gate(tmp_path, rows=0).meanwhile(lambda: disturb(cluster, view)):
        rows = frame.collect()
    assert by_partition(rows) == feed.expected()


def grows(query: Any, rows: list[Any]) -> Callable[[], bool]:
    """Whether there are so many more rows than now that some of them were written since; or the query failed."""
    enough = len(rows) + 600
    return lambda: len(rows) > enough or not query.isActive


@pytest.mark.parametrize("group", ["", "followers"])
def test_a_stream_reads_each_record_once_in_order_while_leaders_change(
    spark: Any, cluster: ClusterProcesses, view: View, tmp_path: Path, group: str
) -> None:
    rows: list[Any] = []
    stream = (
        spark.readStream.format("headrace")
        .option("kafka.bootstrap.servers", cluster.bootstrap)
        .options(subscribe=view.topic, startingOffsets="earliest", maxOffsetsPerTrigger="3000", **SMALL)
        .options(**{"group": group} if group else {})
        .load()
        .select("partition", "value")
    )
    feed = Feed(cluster.bootstrap, view.topic)
    query = (
        stream.writeStream.foreachBatch(lambda batch, _number: rows.extend(batch.collect()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        with feed:
            for disturb in DISTURBANCES:
                wait_for("more rows", grows(query, rows), PATIENCE)
                disturb(cluster, view)
                wait_for("rows after it", grows(query, rows), PATIENCE)
                cluster.start(number for number, broker in cluster.brokers.items() if not broker.is_running)
                view.wait_until_in_sync()
                assert query.isActive, query.exception()
        query.processAllAvailable()
    finally:
        query.stop()
    assert by_partition(rows) == feed.expected()
