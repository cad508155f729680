"""The sink while brokers are killed that coordinate its transactions, keep its decisions and lead its topics: readers
of committed records see each row once, and no query fails.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.client.columnar.cluster import Cluster
from headrace.client.columnar.model import LATEST, TopicPartition
from headrace.spark.sink.options import DECISIONS_TOPIC
from tests.support.faults.view import View
from tests.support.process import ClusterProcesses, wait_for
from tests.support.spark.gates import Gate
from tests.support.spark.held import held_source
from tests.support.spark.records import values

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

ROWS = 20_000
TASKS = 4
REPLICAS = [(1, 2, 3), (2, 3, 1), (3, 1, 2)]
SETTINGS = {"transaction.state.log.num.partitions": "6", "offsets.topic.num.partitions": "3"}
TRANSACTIONS = "__transaction_state"
PATIENCE = 400.0
AWAY_SECONDS = 8


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    with ClusterProcesses(tmp_path_factory.mktemp("cluster"), 3, settings=SETTINGS) as cluster:
        yield cluster


@pytest.fixture
def view(cluster: ClusterProcesses, request: pytest.FixtureRequest) -> Iterator[View]:
    """A topic to write to, each broker leading a partition; afterwards all brokers are there again."""
    view = View(cluster.bootstrap, "".join(letter if letter.isalnum() else "-" for letter in request.node.name))
    view.create(REPLICAS, min_insync_replicas="2")
    yield view
    cluster.start(number for number, broker in cluster.brokers.items() if not broker.is_running)
    for topic in view.admin.list_topics(timeout=PATIENCE).topics:
        View(cluster.bootstrap, topic).wait_until_in_sync()


def numbers(spark: Any, width: int = 1) -> Any:
    """Rows of a number each, with blanks up to a width."""
    key = "CAST(id AS STRING)"
    padded = f"rpad({key}, greatest({width}, length({key})), ' ')"
    return spark.range(0, ROWS, 1, TASKS).selectExpr(f"{key} AS key", f"{padded} AS value")


def save(frame: Any, view: View, bootstrap: str, kind: str = "headrace", **options: str) -> None:
    (
        frame.write.format(kind)
        .mode("append")
        .option("kafka.bootstrap.servers", bootstrap)
        .options(topic=view.topic, delivery="exactly-once", **options)
        .save()
    )


def ends(bootstrap: str, view: View, *, read_committed: bool = False) -> list[int]:
    partitions = [TopicPartition(view.topic, number) for number in range(len(REPLICAS))]
    with Cluster({"bootstrap.servers": bootstrap}) as cluster:
        found = cluster.offsets(dict.fromkeys(partitions, LATEST), read_committed=read_committed)
    return [found[where] or 0 for where in partitions]


def committed(bootstrap: str, view: View) -> Counter[int]:
    """What readers are shown once the coordinators have told every leader, which they do after they have answered."""
    wait_for("no open transaction", lambda: ends(bootstrap, view) == ends(bootstrap, view, read_committed=True))
    return Counter(int(value or b"-1") for value in values(bootstrap, view.topic, read_committed=True))


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_batch_is_written_once_when_a_broker_dies_among_its_writes(
    spark: Any, cluster: ClusterProcesses, view: View, tmp_path: Path, number: int
) -> None:
    gate = Gate(tmp_path, rows=3_500)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "500")  # or none is written before all came

    def strike() -> None:
        wait_for("some rows", lambda: sum(ends(cluster.bootstrap, view)) > 0)
        cluster[number].kill()

    with gate.meanwhile(strike):
        save(gate.through(numbers(spark, width=4_000)), view, cluster.bootstrap)
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert committed(cluster.bootstrap, view) == Counter(range(ROWS))


@pytest.mark.parametrize("series", [{}, {"txnAppId": "a series", "txnVersion": "1"}])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_batch_is_written_once_when_a_broker_dies_between_decision_and_commit(
    spark: Any, cluster: ClusterProcesses, view: View, tmp_path: Path, number: int, series: dict[str, str]
) -> None:
    spark.dataSource.register(held_source(tmp_path))
    gate = Gate(tmp_path, rows=0)
    options = {name: f"{value}{number}" for name, value in series.items()}
    with gate.meanwhile(cluster[number].kill):
        save(numbers(spark), view, cluster.bootstrap, "held", **options)
    assert committed(cluster.bootstrap, view) == Counter(range(ROWS))


def test_a_decided_batch_is_committed_once_the_cluster_is_back_however_long_a_call_may_take(
    spark: Any, cluster: ClusterProcesses, view: View, tmp_path: Path
) -> None:
    spark.dataSource.register(held_source(tmp_path))
    coming_back = threading.Timer(AWAY_SECONDS, cluster.start, [list(cluster.brokers)])

    def go_away() -> None:
        for broker in cluster.brokers.values():
            broker.kill()
        coming_back.start()

    options = {"kafka.default.api.timeout.ms": str(AWAY_SECONDS * 250)}
    with Gate(tmp_path, rows=0).meanwhile(go_away):
        save(numbers(spark), view, cluster.bootstrap, "held", **options)
    coming_back.join()
    assert committed(cluster.bootstrap, view) == Counter(range(ROWS))


class Killer:
    """Kills the broker that matters in one way or another, and starts it again, a little later."""

    def __init__(self, cluster: ClusterProcesses, view: View, seed: int) -> None:
        self._cluster = cluster
        self._views = [view, View(cluster.bootstrap, TRANSACTIONS), View(cluster.bootstrap, DECISIONS_TOPIC)]
        self._chance = random.Random(seed)

    def strike(self, round_: int) -> None:
        view = self._views[round_ % len(self._views)]
        time.sleep(self._chance.uniform(0, 1.5))  # to any point of the batches that follow each other
        broker = self._cluster[view.leader(0)]
        broker.kill()
        time.sleep(self._chance.uniform(0, 3))  # short of a session, or longer: it comes back, or is replaced
        broker.start()
        for one in self._views:
            one.wait_until_in_sync()


@pytest.mark.parametrize("way", ["stream", "foreachBatch"])
def test_a_stream_is_copied_once_while_brokers_are_killed_again_and_again(
    spark: Any, cluster: ClusterProcesses, view: View, tmp_path: Path, way: str
) -> None:
    source = View(cluster.bootstrap, f"{view.topic}-source")
    source.create(REPLICAS, min_insync_replicas="2")
    save(numbers(spark), source, cluster.bootstrap, txnAppId=source.topic, txnVersion="0")
    stream = (
        spark.readStream.format("headrace")
        .option("kafka.bootstrap.servers", cluster.bootstrap)
        .options(subscribe=source.topic, startingOffsets="earliest", maxOffsetsPerTrigger="500")
        .option("kafka.isolation.level", "read_committed")
        .load()
        .select("key", "value")
    )
    query = start(stream, way, view, cluster.bootstrap, tmp_path / "checkpoint")
    killer = Killer(cluster, view, seed=3)
    try:
        for round_ in range(6):
            wait_for("a batch", grows(query), PATIENCE)
            killer.strike(round_)
        query.processAllAvailable()
        assert query.isActive, query.exception()
    finally:
        query.stop()
    assert committed(cluster.bootstrap, view) == Counter(range(ROWS))


def start(stream: Any, way: str, view: View, bootstrap: str, checkpoint: Path) -> Any:
    writer = stream.writeStream.option("checkpointLocation", str(checkpoint))
    if way == "stream":
        options = {"kafka.bootstrap.servers": bootstrap, "topic": view.topic, "delivery": "exactly-once"}
        return writer.format("headrace").options(**options).start()

    def write(batch: Any, number: int) -> None:
        save(batch, view, bootstrap, txnAppId=view.topic, txnVersion=str(number))

    return writer.foreachBatch(write).start()


def grows(query: Any) -> Callable[[], bool]:
    """Whether the query has finished another batch since, or failed."""

    def batch() -> int:
        return -1 if query.lastProgress is None else int(query.lastProgress["batchId"])

    before = batch()
    return lambda: batch() > before or not query.isActive
