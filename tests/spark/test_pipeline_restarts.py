"""A pipeline whose driver is killed again and again: what went in comes out, each record once."""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer

from headrace.spark.pipeline.files import committed_files
from headrace.testing import Broker

from .pipelines import PipelineProcess
from .standalone import LEAN

pytestmark = [pytest.mark.slow, pytest.mark.long]

RESTARTS = 10
PARTITIONS = 3
PIPELINE = """
name: restarts
sources:
  numbers:
    topic: numbers
    startingOffsets: earliest
    maxOffsetsPerTrigger: 700
steps:
  texts:
    sql: SELECT CAST(CAST(value AS STRING) AS BIGINT) AS number, partition, offset FROM numbers
sinks:
  files: {from: texts, parquet: out}
"""


@contextmanager
def numbers_sent(bootstrap: str) -> Iterator[list[int]]:
    """Send one number after the other within the block; the list has all of them when it is over."""
    sent: list[int] = []
    over = threading.Event()
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 10, "enable.idempotence": True})

    def send() -> None:
        while not over.wait(0.05):
            for number in range(len(sent), len(sent) + 40):
                producer.produce("numbers", value=str(number), partition=number % PARTITIONS)
                sent.append(number)
            producer.poll(0)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield sent
    finally:
        over.set()
        sender.join()
        assert producer.flush(30) == 0


def run_and_kill(file: Path, arguments: list[str], dice: random.Random) -> None:
    """Let the pipeline come as far as the dice say, then end it with SIGKILL."""
    with PipelineProcess(file, *arguments) as run:
        run.event("started")
        for _ in range(dice.choice((0, 1, 1, 2))):
            run.event("progress")
        threading.Event().wait(dice.uniform(0, 1))
        run.kill()


@pytest.mark.timeout(1800)
def test_ten_killed_drivers_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    dice = random.Random(7)
    file = tmp_path / "pipeline.yaml"
    file.write_text(PIPELINE)
    with Broker() as broker:
        broker.create_topic("numbers", PARTITIONS)
        arguments = ["--bootstrap", broker.bootstrap, "--conf", f"spark.driver.extraJavaOptions={LEAN}"]
        with numbers_sent(broker.bootstrap) as sent:
            for _ in range(RESTARTS):
                run_and_kill(file, arguments, dice)
        with PipelineProcess(file, *arguments, "--once") as last:
            assert last.ended() == 0, last.errors
    written = pq.read_table(committed_files(tmp_path / "out")).column("number").to_pylist()
    assert sorted(written) == sent
