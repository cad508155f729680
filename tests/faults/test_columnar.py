"""A broker killed again and again while the columnar client writes and reads: nothing lost, doubled or out of order."""

import random
import threading
import time
from pathlib import Path
from typing import Self

import pyarrow as pa
import pytest

from headrace.client.admin import Admin
from headrace.client.columnar import LATEST, Cluster, Range, TopicPartition, Writer, read_ranges
from tests.support.process import BrokerProcess

pytestmark = pytest.mark.slow

TOPIC = "t"
PARTITIONS = 3
ROWS = 200_000
CHUNK = 2_000
PATIENT = {
    "default.api.timeout.ms": "120000",
    "delivery.timeout.ms": "120000",
    "retry.backoff.ms": "20",
    "retry.backoff.max.ms": "100",
    "batch.size": "20000",
}


class Deaths:
    """A broker that dies at the word of the one who uses it, and comes back while that one goes on."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self._coming_back = threading.Thread()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._wait()

    def die(self) -> None:
        """End it now; it is back some time later."""
        self._wait()
        self._broker.kill()
        self._coming_back = threading.Thread(target=self._broker.start)
        self._coming_back.start()

    def _wait(self) -> None:
        if self._coming_back.ident is not None:
            self._coming_back.join()


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


def test_a_broker_killed_while_written_to_and_read_has_every_record_once_in_order(tmp_path: Path) -> None:
    chance = random.Random(7)
    with BrokerProcess(tmp_path) as broker, Cluster({"bootstrap.servers": broker.bootstrap, **PATIENT}) as cluster:
        assert Admin(broker.bootstrap).create_topics([TOPIC], PARTITIONS, 1) == {TOPIC: None}
        assert cluster.partitions([TOPIC]) == {TOPIC: PARTITIONS}
        with Deaths(broker) as deaths:
            with Writer(cluster) as writer:
                for start in range(0, ROWS, CHUNK):
                    writer.write(rows_from(start), TOPIC)
                    if start % (25 * CHUNK) == 0:
                        time.sleep(chance.random() * 0.1)
                        deaths.die()
            places = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
            ends = cluster.offsets(dict.fromkeys(places, LATEST))
            ranges = [Range(TOPIC, number, 0, ends[places[number]] or 0) for number in range(PARTITIONS)]
            for _ in range(3):
                found: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
                for count, rows in enumerate(read_ranges(cluster, ranges)):
                    found[rows["partition"][0].as_py()] += map(int, rows["value"].to_pylist())
                    if count == 0:
                        deaths.die()
                for number in range(PARTITIONS):
                    assert found[number] == expected(number)
    assert sum(writer.written.values()) == ROWS
