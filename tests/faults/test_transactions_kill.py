"""Brokers, coordinators and the copier are killed while a topic is copied: each record is there once, in order."""

import dataclasses
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Self

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from headrace.coordinator.runtime.partitions import partition_of
from tests.support.faults.copier import Task, transformed
from tests.support.faults.load import IMPATIENT, wait_for_equal_replicas
from tests.support.faults.view import View
from tests.support.process import ClusterProcesses, wait_for

PARTITIONS = 3
SOURCE, TARGET = "orders", "copies"
TRANSACTIONS, OFFSETS = "__transaction_state", "__consumer_offsets"
SHARDS = 3
SETTINGS = {
    "transaction.state.log.num.partitions": str(SHARDS),
    "offsets.topic.num.partitions": str(SHARDS),
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}
REPLICAS = [(1, 2, 3), (2, 3, 1), (3, 1, 2)]
KINDS = ("transaction coordinator", "copier", "leader", "group coordinator", "copier and leader", "controller")
PROGRESS_SECONDS = 120.0


class Keeper:
    """Runs a copier, and starts it again whenever it is killed or gives up, until it has copied everything."""

    def __init__(self, task: Task) -> None:
        self._command = [sys.executable, "-m", "tests.support.faults.copier", json.dumps(dataclasses.asdict(task))]
        self.copied = 0
        self.notes: Counter[str] = Counter()
        """What the copier said beside its progress, and how often."""
        self.starts = 0
        self._is_over = False
        self._process = self._start()
        self._thread = threading.Thread(target=self._keep)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over = True
        self._process.kill()
        self._thread.join()

    def kill(self) -> None:
        self._process.kill()

    def wait(self) -> None:
        """Returns when everything was copied."""
        self._thread.join(2 * PROGRESS_SECONDS)
        assert not self._thread.is_alive(), f"{self.copied} copied; {dict(self.notes)}"

    def _start(self) -> subprocess.Popen[str]:
        self.starts += 1
        return subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)

    def _keep(self) -> None:
        while True:
            with self._process as process:
                assert process.stdout is not None
                for line in process.stdout:
                    self._heard(line.strip())
            if process.returncode == 0 or self._is_over:
                return
            self._process = self._start()

    def _heard(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        if word == "copied":
            self.copied = int(rest)
        else:
            self.notes[line] += 1
            print(line)  # noqa: T201 - shown when a test fails


class Killer:
    """Kills what a kind says, each kind once, in any order, before any comes again."""

    def __init__(self, cluster: ClusterProcesses, keeper: Keeper, task: Task, chance: Random) -> None:
        self._cluster = cluster
        self._keeper = keeper
        self._task = task
        self._chance = chance
        self._kinds: list[str] = []
        self._views = {topic: View(cluster.bootstrap, topic) for topic in (TARGET, TRANSACTIONS, OFFSETS)}
        self.killed: list[str] = []

    def run(self, count: int, feed: Callable[[int], None]) -> None:
        """So many kills, each while a part of the records is copied; each broker is back before the next."""
        part = self._task.records // (count + 1)
        for number in range(count):
            feed(part)
            goal = int((number + self._chance.uniform(0.1, 0.5)) * part)
            wait_for(f"{goal} records copied after {self.killed}", partial(self._has_copied, goal), PROGRESS_SECONDS)
            time.sleep(self._chance.uniform(0, 0.05))  # to any point of a transaction
            self._kill(self._next_kind())
        feed(self._task.records - count * part)

    def _has_copied(self, goal: int) -> bool:
        return self._keeper.copied >= goal

    def _next_kind(self) -> str:
        if not self._kinds:
            self._kinds = self._chance.sample(KINDS, len(KINDS))
        return self._kinds.pop()

    def _kill(self, kind: str) -> None:
        self.killed.append(kind)
        number = -1 if kind == "copier" else self._broker(kind)
        if kind.startswith("copier"):
            self._keeper.kill()
        if number >= 0:
            broker = self._cluster[number]
            broker.kill()
            time.sleep(self._chance.uniform(0, 3))  # short of a session, or longer: it comes back, or is replaced
            broker.start()

    def _broker(self, kind: str) -> int:
        target = self._views[TARGET]
        if kind == "controller":
            return target.controller()
        if kind.endswith("leader"):
            return target.leader(self._chance.randrange(PARTITIONS))
        topic = TRANSACTIONS if kind == "transaction coordinator" else OFFSETS
        return self._views[topic].leader(partition_of(self._task.name, SHARDS))


class Feeder:
    """Writes numbers to the source, as many as it is told to, in turn to each partition."""

    def __init__(self, bootstrap: str) -> None:
        settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, **IMPATIENT}
        self._producer = Producer(settings)
        self._count = 0
        self.written: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}

    def __call__(self, count: int) -> None:
        for number in range(self._count, self._count + count):
            value, partition = b"%d" % number, number % PARTITIONS
            self.written[partition].append(value)
            self._producer.produce(SOURCE, value, partition=partition)
        self._count += count
        assert self._producer.flush(PROGRESS_SECONDS) == 0


def read(bootstrap: str, isolation: str) -> dict[int, list[bytes]]:
    """What a reader is shown of each partition of the target, in order."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "readers",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            **IMPATIENT,
        }
    )
    consumer.assign([TopicPartition(TARGET, partition, 0) for partition in range(PARTITIONS)])
    found: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}
    ended: set[int] = set()
    deadline = time.monotonic() + PROGRESS_SECONDS
    while len(ended) < PARTITIONS:
        assert time.monotonic() < deadline, f"only partitions {ended} could be read to their end"
        for message in consumer.consume(1_000, timeout=1):
            if message.error() is None:
                found[message.partition()].append(message.value() or b"")
            elif message.error().code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
    consumer.close()
    return found


def is_all_stable(bootstrap: str) -> bool:
    """Whether the target's partitions end for readers of committed records where they end for all others."""
    ends = []
    for isolation in ("read_committed", "read_uncommitted"):
        consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "ends", "isolation.level": isolation, **IMPATIENT}
        )
        places = [TopicPartition(TARGET, partition) for partition in range(PARTITIONS)]
        ends.append([consumer.get_watermark_offsets(place, PROGRESS_SECONDS)[1] for place in places])
        consumer.close()
    return ends[0] == ends[1]


def run_copy(directory: Path, *, records: int, batch: int, kills: int, seed: int) -> None:
    with ClusterProcesses(directory, 3, settings=SETTINGS) as cluster:
        for topic in (SOURCE, TARGET):
            View(cluster.bootstrap, topic).create(REPLICAS, min_insync_replicas="2")
        feed = Feeder(cluster.bootstrap)
        task = Task(
            bootstrap=cluster.bootstrap,
            source=SOURCE,
            target=TARGET,
            partitions=PARTITIONS,
            records=records,
            batch=batch,
        )
        with Keeper(task) as keeper:
            killer = Killer(cluster, keeper, task, Random(seed))
            killer.run(kills, feed)
            keeper.wait()
        print(Counter(killer.killed), f"copiers: {keeper.starts}", dict(keeper.notes))  # noqa: T201 - `pytest -s`
        assert keeper.starts > sum(kind.startswith("copier") for kind in killer.killed)
        check(cluster, {partition: [*map(transformed, values)] for partition, values in feed.written.items()})


def check(cluster: ClusterProcesses, expected: dict[int, list[bytes]]) -> None:
    # Markers come after the answer to who commits; one that never came would hold back readers for ever.
    wait_for("every transaction is ended", lambda: is_all_stable(cluster.bootstrap))
    committed = read(cluster.bootstrap, "read_committed")
    for partition, values in expected.items():
        twice = {value: count for value, count in Counter(committed[partition]).items() if count > 1}
        missing = set(values) - set(committed[partition])
        assert (twice, missing) == ({}, set()), f"partition {partition}"
        assert committed[partition] == values, f"partition {partition} is out of order"
    everything = read(cluster.bootstrap, "read_uncommitted")
    aborted = {partition: Counter(everything[partition]) - Counter(values) for partition, values in expected.items()}
    assert any(aborted.values())
    assert all(set(aborted[partition]) <= set(expected[partition]) for partition in expected)
    assert all(not Counter(expected[partition]) - Counter(everything[partition]) for partition in expected)
    wait_for_equal_replicas(cluster, TARGET, dict.fromkeys(range(PARTITIONS), 3))


@pytest.mark.slow
def test_a_copy_in_transactions_is_exact_when_brokers_and_the_copier_are_killed(tmp_path: Path) -> None:
    run_copy(tmp_path, records=5_000, batch=100, kills=3, seed=17)


@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_a_copy_of_a_hundred_thousand_records_is_exact_in_forty_kills(tmp_path: Path) -> None:
    run_copy(tmp_path, records=100_000, batch=500, kills=40, seed=6)
