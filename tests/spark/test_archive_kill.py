"""An archive whose driver, workers and brokers are killed again and again, while the schema changes: the table has what
the topic has, each record once, whoever reads it.
"""

import io
import json
import os
import random
import signal
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import fastavro
import psutil
import pyarrow as pa
import pyarrow.dataset
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

import headrace.lake
from headrace.client.admin import Admin
from headrace.client.columnar import read_arrow
from headrace.lake.opening import FORMATS, Lake
from headrace.lake.tables.delta import DeltaTable
from tests.support.gateways import GatewayProcess
from tests.support.metrics import scrape
from tests.support.process import ClusterProcesses, free_port, wait_for
from tests.support.spark.pipelines import PipelineProcess

pytestmark = pytest.mark.long

KILLS = int(os.environ.get("HEADRACE_ARCHIVE_KILLS", "10"))
PARTITIONS = 3
GROWTH_SECONDS = 400.0
COLUMNS = ["_partition", "_offset", "_key", "_value", "_timestamp"]
VERSIONS: list[list[dict[str, Any]]] = [
    [{"name": "id", "type": "int"}, {"name": "note", "type": "string"}],
    [
        {"name": "id", "type": "long"},
        {"name": "note", "type": "string"},
        {
            "name": "extra",
            "type": ["null", {"type": "record", "name": "Extra", "fields": [{"name": "x", "type": "float"}]}],
            "default": None,
        },
    ],
    [{"name": "id", "type": "long"}, {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []}],
]
"""Fields that come, grow and go."""


@dataclass(slots=True)
class Story:
    """What is written to a topic."""

    bootstrap: str
    registry: str
    topic: str
    chance: random.Random
    version: int = 0
    count: int = 0
    ids: dict[int, int] = field(default_factory=dict)

    def make(self) -> None:
        admin = Admin(self.bootstrap, timeout=60.0)
        configs = {"retention.ms": "-1"}  # the records' times are long ago
        assert admin.create_topics([self.topic], PARTITIONS, configs=configs)[self.topic] is None
        body = json.dumps({"compatibility": "NONE"}).encode()
        self._ask("PUT", f"config/{self.topic}-value", body)

    def write(self, records: int, *, keys: int | None = None) -> None:
        """So many records, one in two hundred of which cannot be decoded; with `keys` some delete their key."""
        schema = self._schema()
        producer = Producer({"bootstrap.servers": self.bootstrap, "enable.idempotence": True, "linger.ms": 5})
        for _ in range(records):
            number = self.count
            self.count += 1
            key = f"k{self.chance.randrange(keys) if keys else number % 97}".encode()
            producer.produce(
                self.topic,
                key=key,
                value=self._value(schema, number, keys is not None),
                partition=hash_of(key) % PARTITIONS,
                headers=[("n", str(number).encode())],
                timestamp=1_767_225_600_000 + number * 60_000,
            )
            producer.poll(0)
        assert producer.flush(120) == 0

    def _value(self, schema: Any, number: int, may_delete: bool) -> bytes | None:
        if may_delete and self.chance.random() < 0.2:
            return None
        if not may_delete and number % 200 == 7:
            return b"not framed"
        values = {"id": number, "note": f"note {number}", "extra": {"x": 0.5} if number % 2 else None, "tags": ["a"]}
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, {one["name"]: values[one["name"]] for one in VERSIONS[self.version]})
        return b"\0" + self.ids[self.version].to_bytes(4, "big") + out.getvalue()

    def _schema(self) -> Any:
        schema = {"type": "record", "name": "Event", "fields": VERSIONS[self.version]}
        if self.version not in self.ids:
            body = json.dumps({"schema": json.dumps(schema)}).encode()
            self.ids[self.version] = self._ask("POST", f"subjects/{self.topic}-value/versions", body)["id"]
        return fastavro.parse_schema(schema)

    def _ask(self, method: str, path: str, body: bytes) -> Any:
        request = urllib.request.Request(
            f"{self.registry}/{path}", body, {"Content-Type": "application/json"}, method=method
        )
        for _ in range(60):
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    return json.loads(answer.read())
            except OSError:
                time.sleep(0.5)
        raise AssertionError(f"the registry does not answer: {path}")


def report(words: str) -> None:
    """What `pytest -s` shows."""
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


def hash_of(key: bytes) -> int:
    return sum(key)


@contextmanager
def setting(directory: Path) -> Iterator[tuple[ClusterProcesses, GatewayProcess]]:
    processes = ClusterProcesses(directory / "cluster", 3)
    for broker in processes.brokers.values():
        broker.metrics = f"127.0.0.1:{free_port()}"
    with (
        processes as cluster,
        GatewayProcess(cluster.bootstrap, directory / "gateway.log") as gateway,
    ):
        yield cluster, gateway


class Archiving:
    """An archive that is started again whenever it has ended."""

    def __init__(self, story: Story, lake: Lake, cluster: ClusterProcesses, *options: str) -> None:
        self._arguments = [
            "--to", lake.path, "--format", lake.format, "--bootstrap", story.bootstrap, "--every", "1 second",
            "--values", "avro", "--registry", story.registry, "--compact-every", "7", "--file-size", "1m", *options,
        ]  # fmt: skip
        self._story = story
        self._lake = lake
        self._cluster = cluster
        self._run: PipelineProcess | None = None
        self.starts = 0

    def __enter__(self) -> "Archiving":
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def ensure(self) -> PipelineProcess:
        if self._run is not None and not self._run.is_running:
            self._end()
        if self._run is None:
            self._run = PipelineProcess(self._story.topic, *self._arguments, command="archive")
            self.starts += 1
        return self._run

    def _end(self) -> None:
        if self._run is not None:
            java = self._java()
            self._run.__exit__(None, None, None)
            for process in java:
                if process.is_running():
                    process.kill()
            self._run = None

    def _java(self) -> list[psutil.Process]:
        assert self._run is not None
        try:
            return [one for one in psutil.Process(self._run.pid).children(recursive=True) if one.name() == "java"]
        except psutil.NoSuchProcess:
            return []

    def covered(self) -> dict[int, int]:
        snapshot = self._lake.table(self._story.topic).snapshot()
        return {} if snapshot is None else {one: snapshot.state.end(one) or 0 for one in snapshot.state.offsets}

    def wait_for_growth(self) -> None:
        before = self.covered()

        def has_grown() -> bool:
            self.ensure()
            return self.covered() != before

        wait_for("the table grows", has_grown, GROWTH_SECONDS)

    def wait_until_all_is_there(self) -> None:
        with_ends = read_arrow(self._story.topic, bootstrap=self._story.bootstrap, columns=["partition", "offset"])
        found = with_ends.group_by("partition").aggregate([("offset", "max")]).to_pylist()
        ends = {row["partition"]: row["offset_max"] + 1 for row in found}

        def has_all() -> bool:
            self.ensure()
            return self.covered() == ends

        wait_for("the table has all of the topic", has_all, GROWTH_SECONDS)

    def kill(self, what: str) -> None:
        run = self.ensure()
        if what == "driver":
            run.kill()  # Its JVM and workers go on for a moment.
        elif what == "machine":
            for process in [*self._java(), *psutil.Process(run.pid).children(recursive=True)]:
                with_no_error(process.kill)
            run.kill()
        elif what == "worker":
            for process in workers_of(run.pid)[:2]:
                with_no_error(process.kill)
        else:
            number = int(what)
            self._cluster[number].kill()
            time.sleep(1)
            self._cluster.start([number])


def with_no_error(call: Any) -> None:
    try:
        call()
    except psutil.NoSuchProcess:
        return


def workers_of(pid: int) -> list[psutil.Process]:
    """Python processes below Spark's JVM."""
    java = [one for one in psutil.Process(pid).children(recursive=True) if one.name() == "java"]
    return [one for jvm in java for one in jvm.children(recursive=True) if "python" in one.name()]


def kinds_of_kills(chance: random.Random) -> list[str]:
    kinds = (["driver", "machine", "worker", "worker", "1", "driver", "worker", "2", "machine", "3"] * KILLS)[:KILLS]
    chance.shuffle(kinds)
    return kinds


def expected(topic: str, bootstrap: str) -> list[tuple[Any, ...]]:
    table = read_arrow(topic, bootstrap=bootstrap, columns=["partition", "offset", "key", "value", "timestamp"])
    return sorted(tuple(row.values()) for row in table.to_pylist())


def of_arrow(table: pa.Table, columns: Sequence[str] = COLUMNS) -> list[tuple[Any, ...]]:
    return sorted(tuple(row[name] for name in columns) for row in table.select(columns).to_pylist())


def by_engines(lake: Lake, topic: str, *, bad: bool = False) -> dict[str, pa.Table]:
    """The table as others read it."""
    table = lake.bad_table(topic) if bad else lake.table(topic)
    snapshot = table.snapshot()
    assert snapshot is not None
    names = [f"{table.place.url}/{one.name}" for one in snapshot.files()]
    found = {
        "duckdb": duckdb.execute(
            "SET timezone = 'UTC'; SELECT * FROM read_parquet($1, union_by_name = true, hive_partitioning = false)",
            [names],
        ).to_arrow_table(),
        "pyarrow": pyarrow.dataset.dataset(names, schema=snapshot.columns).to_table(),
    }
    if isinstance(table, DeltaTable):
        import deltalake

        found["deltalake"] = deltalake.DeltaTable(table.place.url).to_pyarrow_table()
    if lake.format == "iceberg":
        found["pyiceberg"] = snapshot.handle.scan().to_arrow()
    return found


def decoded(story: Story, value: bytes) -> dict[str, Any] | None:
    """What a value is, by an independent reader."""
    version = {number: version for version, number in story.ids.items()}.get(int.from_bytes(value[1:5], "big"))
    if value[:1] != b"\0" or version is None:
        return None
    schema = fastavro.parse_schema({"type": "record", "name": "Event", "fields": VERSIONS[version]})
    found = fastavro.schemaless_reader(io.BytesIO(value[5:]), schema, None)
    assert isinstance(found, dict)
    return {name: found.get(name) for name in ("id", "note", "extra", "tags")}


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("format", FORMATS)
def test_a_table_has_what_the_topic_has_whatever_was_killed(tmp_path: Path, format: str) -> None:
    chance = random.Random(f"{format}-{KILLS}")
    lake = Lake(path=str(tmp_path / "lake"), format=format)
    with setting(tmp_path) as (cluster, gateway):
        story = Story(cluster.bootstrap, gateway.url, "events", chance)
        story.make()
        story.write(500)
        with Archiving(story, lake, cluster) as archiving:
            archiving.ensure()
            for number, kind in enumerate(kinds_of_kills(chance)):
                if number in (KILLS // 3, 2 * KILLS // 3):
                    story.version += 1
                story.write(chance.randint(200, 1000))
                archiving.wait_for_growth()
                story.write(chance.randint(100, 500))
                time.sleep(chance.uniform(0, 2.5))  # to any point of the batch that comes
                report(f"{format}: kill {number + 1} of {KILLS}: {kind}")
                archiving.kill(kind)
            story.write(1000)
            archiving.wait_until_all_is_there()
            assert archiving.ensure().stop(signal.SIGTERM) == 0
        whole = expected(story.topic, story.bootstrap)
        assert len(whole) >= story.count
        bad = [row for row in whole if decoded(story, row[3]) is None]
        good = [row for row in whole if decoded(story, row[3]) is not None]
        for engine, table in by_engines(lake, story.topic).items():
            assert of_arrow(table) == good, engine
            fields = of_arrow(table, ["_partition", "_offset", "id", "note", "extra", "tags"])
            assert fields == [(*row[:2], *(decoded(story, row[3]) or {}).values()) for row in good], engine
        for engine, table in by_engines(lake, story.topic, bad=True).items():
            assert of_arrow(table) == bad, engine
        report(f"{format}: {len(whole)} records, {len(bad)} bad, {archiving.starts} starts")
        check_live_and_archived(story, lake, cluster)


def check_live_and_archived(story: Story, lake: Lake, cluster: ClusterProcesses) -> None:
    """All offsets, most of them deleted behind the archive; brokers send the new ones alone."""
    story.write(700)
    whole = expected(story.topic, story.bootstrap)
    snapshot = lake.table(story.topic).snapshot()
    assert snapshot is not None
    ends = {one: snapshot.state.end(one) or 0 for one in range(PARTITIONS)}
    admin = AdminClient({"bootstrap.servers": story.bootstrap})
    deleted = [TopicPartition(story.topic, one, end - 50) for one, end in ends.items()]
    for future in admin.delete_records(deleted).values():
        future.result(60)
    live = sum(len(row[3] or b"") + len(row[2]) for row in whole if row[1] >= ends[row[0]])
    before = sent(cluster, story.topic)
    table = headrace.lake.read(story.topic, archive=lake.path, bootstrap=story.bootstrap)
    names = ["partition", "offset", "key", "value", "timestamp"]
    assert sorted(tuple(row[name] for name in names) for row in table.select(names).to_pylist()) == whole
    wait_for("brokers count what they sent", lambda: sent(cluster, story.topic) > before)
    bytes_sent = sent(cluster, story.topic) - before
    report(f"{lake.format}: brokers sent {bytes_sent:.0f} bytes for {live} of keys and values that are not archived")
    assert bytes_sent < 4 * live


def sent(cluster: ClusterProcesses, topic: str) -> float:
    return sum(
        scrape(f"http://{broker.metrics}").values.get(
            ("headrace_topic_bytes_out_total", frozenset({("topic", topic)})), 0.0
        )
        for broker in cluster.brokers.values()
    )


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("format", FORMATS)
def test_rows_by_key_are_those_of_a_model_whatever_was_killed(tmp_path: Path, format: str) -> None:
    chance = random.Random(f"{format}-keys")
    lake = Lake(path=str(tmp_path / "lake"), format=format)
    with setting(tmp_path) as (cluster, gateway):
        story = Story(cluster.bootstrap, gateway.url, "customers", chance)
        story.make()
        with Archiving(story, lake, cluster, "--upsert") as archiving:
            archiving.ensure()
            for number, kind in enumerate(kinds_of_kills(chance)):
                story.version = 3 * number // KILLS
                story.write(chance.randint(200, 600), keys=400)
                archiving.wait_for_growth()
                story.write(chance.randint(50, 200), keys=400)
                time.sleep(chance.uniform(0, 2.5))
                report(f"{format}, rows by key: kill {number + 1} of {KILLS}: {kind}")
                archiving.kill(kind)
            story.write(300, keys=400)
            archiving.wait_until_all_is_there()
            assert archiving.ensure().stop(signal.SIGTERM) == 0
        model: dict[bytes, bytes] = {}
        for _, _, key, value, _ in expected(story.topic, story.bootstrap):
            model.pop(key, None)
            if value is not None:
                model[key] = value
        for engine, table in by_engines(lake, story.topic).items():
            assert of_arrow(table, ["_key", "_value"]) == sorted(model.items()), engine
            ids = of_arrow(table, ["_key", "id"])
            assert ids == sorted((key, (decoded(story, value) or {})["id"]) for key, value in model.items()), engine
        report(f"{format}: {len(model)} rows of {story.count} records, {archiving.starts} starts")
