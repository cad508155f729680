"""Streams that idle for longer than their cluster remembers anything, attempts that come too late, and batches that
take longer than a transaction may."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.client.columnar.cluster import Cluster
from headrace.client.columnar.prepared import describe_transactions, open_transactions
from headrace.client.columnar.writer import Writer
from headrace.spark.sink.commit import PREFIX, suffix_of, transactional_id
from headrace.testing import Broker
from tests.support.process import wait_for
from tests.support.spark.gates import Gate
from tests.support.spark.queries import started
from tests.support.spark.records import values, wait_until_decided
from tests.support.spark.topics import Topics

pytestmark = pytest.mark.long

FORGETFUL = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    "transactional.id.expiration.ms": "5000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "200",
    "producer.id.expiration.ms": "5000",
}
PATIENCE = 240.0


@pytest.fixture(scope="module")
def forgetful() -> Iterator[Broker]:
    with Broker(FORGETFUL) as broker:
        yield broker


@pytest.fixture
def topics(forgetful: Broker, request: pytest.FixtureRequest) -> Topics:
    return Topics(forgetful.bootstrap, request.node.name)


@pytest.fixture
def cluster(forgetful: Broker) -> Iterator[Cluster]:
    with Cluster({"bootstrap.servers": forgetful.bootstrap}) as cluster:
        yield cluster


def copying(spark: Any, topics: Topics, source: str, target: str, place: Path) -> Any:
    stream = (
        spark.readStream.format("headrace")
        .option("kafka.bootstrap.servers", topics.bootstrap)
        .options(subscribe=source, startingOffsets="earliest")
        .load()
        .select("key", "value")
    )
    options = {"kafka.bootstrap.servers": topics.bootstrap, "topic": target, "delivery": "exactly-once"}
    writer = stream.writeStream.format("headrace").options(**options).option("checkpointLocation", str(place))
    return started(writer.start, lambda query: query.processAllAvailable())


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


def committed(topics: Topics, topic: str) -> Counter[int]:
    wait_until_decided(topics.bootstrap, topic)
    return Counter(int(value or b"-1") for value in values(topics.bootstrap, topic, read_committed=True))


def test_a_stream_that_idles_for_longer_than_anything_is_remembered_writes_each_record_once(
    spark: Any, topics: Topics, cluster: Cluster, tmp_path: Path
) -> None:
    source, target = topics.create(partitions=2), topics.create()
    query = copying(spark, topics, source, target, tmp_path)
    name = f"{PREFIX}-{query.id}"
    try:
        for first in range(0, 300, 100):
            topics.fill(source, numbers(first, first + 100))
            query.processAllAvailable()
            assert committed(topics, target) == Counter(range(first + 100))
            wait_for("all is forgotten", lambda: describe_transactions(cluster, [name])[name] is None, PATIENCE)
    finally:
        query.stop()


def test_an_attempt_that_writes_when_its_batch_is_committed_does_not_hold_readers_of_an_idle_stream(
    spark: Any, topics: Topics, cluster: Cluster, tmp_path: Path
) -> None:
    source, target = topics.create(), topics.create()
    topics.fill(source, numbers(0, 10))
    query = copying(spark, topics, source, target, tmp_path)
    try:
        batch = query.lastProgress["batchId"]
        late = Writer(cluster, transactional_id=transactional_id(query.id, query.runId, suffix_of("late", batch)))
        late.begin()
        late.write(pa.table({"value": [b"-1"]}), target)
        late.flush()
        assert open_transactions(cluster, PREFIX)
        wait_for("it is ended", lambda: not open_transactions(cluster, PREFIX), PATIENCE)
        assert query.lastProgress["batchId"] == batch
    finally:
        query.stop()
    assert committed(topics, target) == Counter(range(10))


def test_a_batch_that_takes_longer_than_a_transaction_may_is_written_once(
    spark: Any, topics: Topics, cluster: Cluster, tmp_path: Path
) -> None:
    target, gate = topics.create(), Gate(tmp_path, rows=0)

    def one_after_the_other(batches: Iterator[Any]) -> Iterator[Any]:
        """The second task begins when the cluster has aborted what the first one wrote."""
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        if context.partitionId() == 1:
            gate.stand(1)
        yield from batches

    def until_aborted() -> None:
        wait_for("the first task has written", lambda: bool(values(topics.bootstrap, target)), PATIENCE)
        wait_for("the cluster aborts it", lambda: not open_transactions(cluster, PREFIX), PATIENCE)

    rows = spark.range(0, 1000, 1, 2).selectExpr("CAST(id AS STRING) AS value")
    options = {"kafka.bootstrap.servers": topics.bootstrap, "topic": target, "delivery": "exactly-once"}
    writer = rows.mapInArrow(one_after_the_other, rows.schema).write.format("headrace").mode("append")
    with gate.meanwhile(until_aborted):
        writer.options(**options).option("kafka.transaction.timeout.ms", "3000").save()
    assert committed(topics, target) == Counter(range(1000))
