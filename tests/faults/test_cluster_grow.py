"""A cluster grows by a broker and loses another in order, under load: clients notice nothing."""

import json
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.support.faults.load import Load, wait_for_equal_replicas
from tests.support.faults.view import View
from tests.support.process import ClusterProcesses, wait_for
from tests.support.simulation.commands import by_broker, described, run

PARTITIONS = 12
MOVED = 6
RECORDS = 100
RECORD = bytes(10_000)
RATE = 1_000_000
CREDIT_SECONDS = 1.0
"""What may come at once after a time in which nothing came."""


def fill(bootstrap: str, load: Load) -> None:
    """Something to move."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 50})
    for number in range(RECORDS):
        for partition in range(PARTITIONS):
            value = b"filling %d %d %s" % (partition, number, RECORD)
            load.history.send("filling", "orders", partition, [value.decode()])
            producer.produce("orders", value, partition=partition)
    assert producer.flush(60) == 0


def is_level(counts: Mapping[int, int]) -> bool:
    """Whether each broker is within a tenth of the mean, or within one of it where a tenth is less."""
    mean = sum(counts.values()) / len(counts)
    return all(abs(count - mean) <= max(1.0, mean / 10) for count in counts.values())


def bytes_of(cluster: ClusterProcesses, broker: int) -> int:
    return sum(path.stat().st_size for path in cluster.data_of(broker).glob("orders-*/*.log"))


def move_half(cluster: ClusterProcesses, directory: Path) -> float:
    """Give broker 4 a replica of half the partitions, under a limit; the bytes a second that it got."""
    names = [{"topic": "orders", "partition": index, "replicas": [4, 2, 3]} for index in range(MOVED)]
    plan = directory / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": names}))
    began = time.monotonic()
    moved = run(cluster, "reassign", "--file", str(plan), "--throttle", str(RATE), "--wait")
    assert moved["state"] == "moved"
    return (bytes_of(cluster, 4) - RATE * CREDIT_SECONDS) / (time.monotonic() - began)


@pytest.mark.long
def test_a_broker_is_added_and_another_removed_under_load(tmp_path: Path) -> None:
    with ClusterProcesses(tmp_path, 3) as cluster:
        view = View(cluster.bootstrap, "orders")
        view.create([(1, 2, 3)] * PARTITIONS, min_insync_replicas="2")
        with Load(cluster.bootstrap, "orders", PARTITIONS, producers=1) as load:
            fill(cluster.bootstrap, load)
            load.wait_for_answers(time.monotonic())
            cluster.add(4)
            rate = move_half(cluster, tmp_path)
            print(f"moved at {rate:.0f} bytes a second, limited to {RATE}")  # noqa: T201 - `pytest -s` shows it
            assert rate <= RATE
            run(cluster, "rebalance", "--wait")
            view_of_four = described(cluster)
            assert is_level(by_broker(view_of_four, "replicas"))
            assert is_level(by_broker(view_of_four, "leads"))
            load.wait_for_answers(time.monotonic())
            run(cluster, "drain", "1", "--wait")
            assert by_broker(described(cluster), "replicas")[1] == 0
            assert cluster.brokers.pop(1).stop() == 0
            wait_for("broker 1 is forgotten", lambda: 1 not in by_broker(described(cluster), "leads"))
            run(cluster, "rebalance", "--wait")
            view_of_three = described(cluster)
            assert is_level(by_broker(view_of_three, "replicas"))
            assert is_level(by_broker(view_of_three, "leads"))
            load.wait_for_answers(time.monotonic())
            load.wait_for_reader()
        assert load.problems() == []
        wait_for_equal_replicas(cluster, "orders", dict.fromkeys(range(PARTITIONS), 3))
