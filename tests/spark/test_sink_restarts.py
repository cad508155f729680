"""A query that is killed, and tasks that fail: nothing is missing, and with transactions nothing is there twice, on our
cluster and on Apache Kafka.
"""

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import Producer

from headrace.client.admin import Admin
from headrace.client.columnar.cluster import Cluster
from headrace.client.columnar.model import LATEST, TopicPartition
from headrace.testing import Broker
from tests.support.process import wait_for
from tests.support.spark.records import values
from tests.support.spark.sink_query import Plan

pytestmark = pytest.mark.long


KILLS = int(os.environ.get("HEADRACE_SINK_KILLS", "2"))
RECORDS = 3000
FINISH_SECONDS = 600


class Run:
    """The query in a process group of its own."""

    def __init__(self, plan: Plan) -> None:
        command = [sys.executable, "-m", "tests.support.spark.sink_query", json.dumps(dataclasses.asdict(plan))]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True, text=True)

    def wait_for(self, word: str) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip() == word:
                return
        raise AssertionError(f"the query ended with {self._process.wait()} before it had {word}")

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def kill(self, *, with_jvm: bool) -> None:
        """The Python driver alone leaves its JVM and workers behind for a moment."""
        if with_jvm:
            os.killpg(self._process.pid, signal.SIGKILL)
        else:
            self._process.kill()
        self._process.wait()

    def close(self) -> None:
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def _run(plan: Plan) -> None:
    run = Run(plan)
    try:
        run.wait_for("finished")
    finally:
        run.close()


def _plan(bootstrap: str, place: Path, **more: object) -> Plan:
    """A topic of numbers to copy, and an empty one."""
    unique = uuid.uuid4().hex[:8]
    source, target = f"sink-in-{unique}", f"sink-out-{unique}"
    admin = Admin(bootstrap)
    for name, partitions in ((source, 2), (target, 3)):
        assert not any(admin.create_topics([name], partitions).values())
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    for number in range(RECORDS):
        producer.produce(source, key=str(number % 97), value=str(number), partition=number % 2)
    assert producer.flush(60) == 0
    plan = Plan(bootstrap=bootstrap, source=source, target=target, checkpoint=str(place / "checkpoint"))
    return dataclasses.replace(plan, **more)  # type: ignore[arg-type]


def _counts(plan: Plan) -> Counter[int]:
    """How often each number was committed, once all were: markers come after the answer to who commits."""
    found: Counter[int] = Counter()

    def has_all() -> bool:
        found.clear()
        found.update(int(value or b"-1") for value in values(plan.bootstrap, plan.target, read_committed=True))
        return len(found) >= RECORDS

    with suppress(AssertionError):  # what is missing is told by who compares
        wait_for("every record is committed", has_all)
    return found


def _killed_often(plan: Plan, kills: int, seed: int) -> None:
    """Kill the query in the middle of its batches, sometimes leaving its JVM and workers behind, then let it finish."""
    chance = random.Random(seed)
    for number in range(kills):
        run = Run(plan)
        try:
            run.wait_for("started")
            _wait_for_growth(plan, run)
            time.sleep(chance.uniform(0, 1.5))  # to any point of the batches and commits that now follow each other
            run.kill(with_jvm=number % 2 == 0)
        finally:
            if number % 2 == 0:
                run.close()
    _run(plan)


def _wait_for_growth(plan: Plan, run: Run) -> None:
    with Cluster({"bootstrap.servers": plan.bootstrap}) as cluster:
        before = _size(cluster, plan.target)
        while _size(cluster, plan.target) == before and run.is_running:
            time.sleep(0.05)


def _size(cluster: Cluster, topic: str) -> int:
    paths = [TopicPartition(topic, number) for number in range(cluster.partitions([topic])[topic])]
    return sum(end or 0 for end in cluster.offsets(dict.fromkeys(paths, LATEST)).values())


@pytest.mark.timeout(1200)
def test_a_query_that_is_killed_leaves_nothing_out(tmp_path: Path, broker: Broker) -> None:
    plan = _plan(broker.bootstrap, tmp_path, delivery="at-least-once", records_per_batch=300)
    _killed_often(plan, KILLS, seed=1)
    assert set(_counts(plan)) == set(range(RECORDS))


@pytest.mark.timeout(1200)
def test_tasks_that_fail_half_way_are_tried_again_and_leave_nothing_out(tmp_path: Path, broker: Broker) -> None:
    plan = _plan(broker.bootstrap, tmp_path, delivery="at-least-once", records_per_batch=1000, failing_batches=(0, 2))
    _run(plan)
    assert set(_counts(plan)) == set(range(RECORDS))


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("delivery", "way"), [("exactly-once", "stream"), ("auto", "stream"), ("exactly-once", "foreachBatch")]
)
def test_a_query_that_is_killed_writes_each_record_once(
    tmp_path: Path, bootstrap: str, delivery: str, way: str
) -> None:
    plan = _plan(bootstrap, tmp_path, delivery=delivery, records_per_batch=300, way=way)
    _killed_often(plan, KILLS, seed=2)
    assert _counts(plan) == Counter(range(RECORDS))


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("way", ["stream", "foreachBatch"])
def test_tasks_that_fail_half_way_write_each_record_once(tmp_path: Path, bootstrap: str, way: str) -> None:
    plan = _plan(
        bootstrap, tmp_path, delivery="exactly-once", records_per_batch=500, failing_batches=(0, 2, 3), way=way
    )
    _run(plan)
    assert _counts(plan) == Counter(range(RECORDS))
