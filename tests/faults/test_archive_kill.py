"""Who archives is killed again and again, at any moment, while records come and a field is added: the tables have each
record once. As `tests/spark/test_archive_kill.py`, without Spark, so with many more kills in the same time.
"""

import dataclasses
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from headrace.client.admin import Admin
from headrace.client.columnar import read_arrow
from headrace.lake.opening import FORMATS, Lake
from headrace.testing import Broker
from tests.support.faults.archiver import ArchiverTask

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(1200)]

KILLS = int(os.environ.get("HEADRACE_ARCHIVE_KILLS", "20"))
SCHEMAS = ("n INT", "n BIGINT, inner STRUCT<a: STRING>")


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


def produce(broker: Broker, topic: str, chance: random.Random, first: int, count: int, version: int) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(first, first + count):
        value: dict[str, Any] = {"n": number} | ({"inner": {"a": f"a{number}"}} if version else {})
        text = b"broken" if number % 50 == 3 else json.dumps(value).encode()
        key = chance.randrange(200)
        producer.produce(
            topic,
            key=b"k%d" % key,
            value=None if chance.random() < 0.1 else text,
            partition=key % 3,
            headers=[("n", b"%d" % number)],
        )
        producer.poll(0)
    assert producer.flush(60) == 0


def run(task: ArchiverTask) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.support.faults.archiver", json.dumps(dataclasses.asdict(task))]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def killed_often(broker: Broker, task: ArchiverTask, chance: random.Random) -> None:
    count = 0
    for number in range(KILLS):
        version = int(number >= KILLS // 2)
        produce(broker, task.topic, chance, count, 400, version)
        count += 400
        process = run(dataclasses.replace(task, schema=SCHEMAS[version]))
        assert process.stdout is not None
        try:
            if chance.random() < 0.7:
                before = written(task)
                while process.poll() is None and written(task) == before:
                    time.sleep(0.002)
                time.sleep(chance.uniform(0, 0.15))  # to any point of writing, committing and noting it
            else:
                process.stdout.readline()
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
    process = run(dataclasses.replace(task, schema=SCHEMAS[1]))
    out, _ = process.communicate(timeout=300)
    assert out.endswith("all\n")


def written(task: ArchiverTask) -> int:
    return sum(len(names) for _, _, names in os.walk(task.path))


def rows(lake: Lake, topic: str, columns: list[str], *, bad: bool = False) -> list[tuple[Any, ...]]:
    table = lake.bad_table(topic) if bad else lake.table(topic)
    snapshot = table.snapshot()
    assert snapshot is not None
    found = [row for batch in table.read(snapshot, snapshot.files(), columns) for row in batch.to_pylist()]
    return sorted(tuple(row[name] for name in columns) for row in found)


def made(broker: Broker, directory: Path, format: str, mode: str) -> ArchiverTask:
    topic = f"{format}-{mode}"
    assert Admin(broker.bootstrap, timeout=60.0).create_topics([topic], 3)[topic] is None
    return ArchiverTask(
        bootstrap=broker.bootstrap,
        topic=topic,
        path=str(directory / "lake"),
        format=format,
        note=str(directory / "note"),
        schema=SCHEMAS[0],
        mode=mode,
    )


@pytest.mark.parametrize("format", FORMATS)
def test_each_record_is_in_its_table_once(broker: Broker, tmp_path: Path, format: str) -> None:
    task = made(broker, tmp_path, format, "append")
    killed_often(broker, task, random.Random(format))
    whole = read_arrow(task.topic, bootstrap=broker.bootstrap, headers=True)
    names = ["partition", "offset", "key", "value", "headers"]
    expected = sorted(tuple(row[name] for name in names) for row in whole.select(names).to_pylist())
    lake = Lake(path=task.path, format=format)
    columns = ["_partition", "_offset", "_key", "_value", "_headers"]
    assert rows(lake, task.topic, columns) == [row for row in expected if row[3] != b"broken"]
    assert rows(lake, task.topic, columns, bad=True) == [row for row in expected if row[3] == b"broken"]
    fields = {row[:2]: row[2:] for row in rows(lake, task.topic, ["_partition", "_offset", "n", "inner"])}
    for partition, offset, _, value, _ in expected:
        if value is not None and value != b"broken":
            told = json.loads(value)
            assert fields[partition, offset] == (told["n"], told.get("inner"))


@pytest.mark.parametrize("format", FORMATS)
def test_rows_by_key_are_those_of_a_model(broker: Broker, tmp_path: Path, format: str) -> None:
    task = made(broker, tmp_path, format, "upsert")
    killed_often(broker, task, random.Random(format))
    model: dict[bytes, bytes] = {}
    whole = read_arrow(task.topic, bootstrap=broker.bootstrap).select(["partition", "offset", "key", "value"])
    for _, _, key, value in sorted(tuple(row.values()) for row in whole.to_pylist()):
        if value != b"broken":
            model.pop(key, None)
            model |= {} if value is None else {key: value}
    assert rows(Lake(path=task.path, format=format), task.topic, ["_key", "_value"]) == sorted(model.items())
