"""A broker killed again and again while the columnar client writes and reads: nothing lost, doubled or out of order."""

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.client.admin import Admin
from headrace.client.columnar import LATEST, Cluster, Range, TopicPartition, Writer, read_ranges
from tests.process import BrokerProcess

pytestmark = pytest.mark.slow

TOPIC = "t"
PARTITIONS = 3
ROWS = 200_000
CHUNK = 2_000
PATIENT = {
    "default.api.timeout.ms": "60000",
    "delivery.timeout.ms": "60000",
    "retry.backoff.ms": "20",
    "retry.backoff.max.ms": "100",
    "batch.size": "20000",
}


@contextmanager
def killed_while(broker: BrokerProcess, seed: int) -> Iterator[list[float]]:
    """The broker dies and comes back at random times, for as long as the block runs; gives the times of death."""
    chance = random.Random(seed)
    stop = threading.Event()
    deaths: list[float] = []

    def kill() -> None:
        while not stop.wait(0.1 + 0.4 * chance.random()):
            broker.kill()
            deaths.append(time.monotonic())
            broker.start()

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield deaths
    finally:
        stop.set()
        thread.join()


def rows_from(start: int) -> pa.RecordBatch:
    """Rows whose keys say their partition and whose values their place in it."""
    numbers = range(start, start + CHUNK)
    return pa.record_batch(
        {
            "value": [b"%d" % (n // PARTITIONS) for n in numbers],
            "partition": pa.array([n % PARTITIONS for n in numbers], pa.int32()),
        }
    )


def expected(number: int) -> list[int]:
    return list(range(len(range(number, ROWS, PARTITIONS))))


@pytest.mark.long  # whether the writer outlasts two deaths of the broker depends on the machine
def test_a_broker_killed_while_written_to_and_read_has_every_record_once_in_order(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker, Cluster({"bootstrap.servers": broker.bootstrap, **PATIENT}) as cluster:
        assert Admin(broker.bootstrap).create_topics([TOPIC], PARTITIONS, 1) == {TOPIC: None}
        assert cluster.partitions([TOPIC]) == {TOPIC: PARTITIONS}
        with killed_while(broker, 7) as deaths:
            with Writer(cluster) as writer:
                for start in range(0, ROWS, CHUNK):
                    writer.write(rows_from(start), TOPIC)
                    if start % (20 * CHUNK) == 0:
                        writer.flush()
            died_writing = len(deaths)
            places = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
            ends = cluster.offsets(dict.fromkeys(places, LATEST))
            found: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
            for _ in range(3):
                found = {number: [] for number in range(PARTITIONS)}
                ranges = [Range(TOPIC, number, 0, ends[places[number]] or 0) for number in range(PARTITIONS)]
                for rows in read_ranges(cluster, ranges):
                    found[rows["partition"][0].as_py()] += map(int, rows["value"].to_pylist())
    assert sum(writer.written.values()) == ROWS
    assert died_writing >= 2, "the writer was done before the broker died twice"
    for number in range(PARTITIONS):
        assert found[number] == expected(number)
