"""PostgreSQL -> topic -> PostgreSQL with updates and deletes, while the pipeline, the database and the broker are
killed: both tables are equal at the end, and so is what the topic amounts to.
"""

import json
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from headrace.client.admin import Admin
from headrace.client.columnar.cluster import Cluster
from headrace.client.columnar.model import LATEST, Range, TopicPartition
from headrace.client.columnar.reader import read_ranges
from tests.support.postgres import Postgres, postgres
from tests.support.process import BrokerProcess
from tests.support.spark import pipelines
from tests.support.spark.pipelines import Event, PipelineProcess

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1800)]

PARTITIONS = 2
PATIENCE_SECONDS = 400.0
PIPELINE = """
name: copying
trigger: 500 milliseconds
restart: {on: any, delay: 1 second, maxDelay: 5 seconds}
sources:
  changes:
    connector: postgres
    dsn: ${POSTGRES}
    table: public.orders
    maxRowsPerBatch: 500
  log:
    topic: orders-changes
    startingOffsets: earliest
    maxOffsetsPerTrigger: 1000
    format: json
    schema: name STRING, cents DECIMAL(10,2)
    metadata: [key, offset, tombstone]
steps:
  keyed:
    sql: SELECT to_json(struct(id)) AS id_text, name, cents, _op = 'd' AS gone FROM changes
  rows:
    sql: SELECT from_json(CAST(key AS STRING), 'id BIGINT').id AS id, name, cents, offset, tombstone FROM log
sinks:
  to_topic:
    from: keyed
    topic: orders-changes
    key: id_text
    value: to_json(struct(name, cents))
    tombstone: gone
    delivery: exactly-once
  to_table:
    from: rows
    connector: postgres
    dsn: ${POSTGRES}
    table: public.copies
    key: [id]
    delete: tombstone
    order: offset
"""
COLUMNS = "(id bigint PRIMARY KEY, name text, cents numeric(10,2))"


class Shop:
    """Transactions on the table, some rolled back, until it is told to stop."""

    def __init__(self, dsn: str, seed: int) -> None:
        self._dsn = dsn
        self._chance = random.Random(seed)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self.transactions = 0

    def __enter__(self) -> "Shop":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._over.is_set():
            try:
                with psycopg.connect(self._dsn) as connection:
                    while not self._over.wait(0.2):
                        self._transaction(connection)
            except psycopg.Error:
                time.sleep(0.2)  # It was killed; what was not committed never was.

    def _transaction(self, connection: "psycopg.Connection[tuple[object, ...]]") -> None:
        chance = self._chance
        for _ in range(chance.randint(1, 5)):
            number = chance.randint(1, 300)
            if chance.random() < 0.3:
                connection.execute("DELETE FROM orders WHERE id = %s", (number,))
            else:
                name = None if chance.random() < 0.1 else f"{chance.random()} 'quoted' \\ and ünïcode"
                connection.execute(
                    "INSERT INTO orders VALUES (%s, %s, %s) "
                    "ON CONFLICT (id) DO UPDATE SET name = excluded.name, cents = excluded.cents",
                    (number, name, chance.randint(0, 10**6) / 100),
                )
        connection.rollback() if chance.random() < 0.1 else connection.commit()
        self.transactions += 1


def topic_as_table(bootstrap: str) -> dict[int, tuple[object, object]]:
    """What committed records amount to."""
    rows: dict[int, tuple[object, object]] = {}
    with Cluster({"bootstrap.servers": bootstrap}) as cluster:
        partitions = [TopicPartition("orders-changes", number) for number in range(PARTITIONS)]
        ends = cluster.offsets(dict.fromkeys(partitions, LATEST), read_committed=True)
        ranges = [Range(*where, 0, end) for where, end in ends.items() if end]
        for batch in read_ranges(cluster, ranges, read_committed=True) if ranges else ():
            for key, value in zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True):
                number = json.loads(key)["id"]
                if value is None:
                    rows.pop(number, None)
                else:
                    fields = json.loads(value)
                    rows[number] = fields.get("name"), float(fields["cents"])
    return rows


def await_equal(server: Postgres) -> None:
    """Return when both tables are equal."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    query = "SELECT * FROM {} ORDER BY id"
    while (orders := server.run(query.format("orders"))) != (copies := server.run(query.format("copies"))):
        if time.monotonic() > deadline:
            different = sorted(set(orders) ^ set(copies), key=str)
            raise AssertionError(f"{len(orders)} orders, {len(copies)} copies, different: {different[:20]}")
        time.sleep(1)


def has_written(sink: str) -> Callable[[Event], bool]:
    return lambda event: event.get("sink") == sink and event["rows_out"] > 0


def test_a_table_is_copied_through_a_topic_whatever_is_killed_in_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipelines, "SILENT_SECONDS", 600.0)
    file = tmp_path / "pipeline.yaml"
    file.write_text(PIPELINE)
    chance = random.Random(5)
    with (
        postgres() as server,
        BrokerProcess(tmp_path / "broker", {"transaction.state.log.num.partitions": "4"}) as broker,
    ):
        server.run(f"CREATE TABLE orders {COLUMNS}")
        server.run(f"CREATE TABLE copies {COLUMNS}")
        server.run("INSERT INTO orders SELECT n, 'there before', n FROM generate_series(1, 100) AS n")
        Admin(broker.bootstrap).create_topics(["orders-changes"], PARTITIONS)
        environment = {"POSTGRES": server.dsn}
        with Shop(server.dsn, seed=3) as shop:
            for life in range(2):
                with PipelineProcess(file, "--bootstrap", broker.bootstrap, environment=environment) as run:
                    run.until(has_written("to_topic"))
                    run.until(has_written("to_table"))
                    time.sleep(chance.random() * 6)  # so that it dies anywhere in a batch
                    if life == 0:
                        server.kill()
                        server.start()
                        run.until(lambda event: event.get("restarts", 0) > 0 and event["state"] == "running")
                    if life == 1:
                        broker.kill()
                        broker.start()
                        time.sleep(10)
                    run.kill()
        assert shop.transactions > 100
        with PipelineProcess(file, "--bootstrap", broker.bootstrap, environment=environment) as run:
            run.event("started")
            await_equal(server)
            found = topic_as_table(broker.bootstrap)
            assert found == {row[0]: (row[1], float(row[2])) for row in server.run("SELECT * FROM orders")}
            assert run.stop() == 0
