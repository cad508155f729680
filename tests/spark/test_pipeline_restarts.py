"""A pipeline whose driver is killed again and again: what went in comes out, each record once, as files and in a topic,
on our cluster and on Apache Kafka.
"""

import random
import threading
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer

from headrace.spark.pipeline.files import committed_files
from tests.support.spark.pipelines import PipelineProcess
from tests.support.spark.records import values, wait_until_decided
from tests.support.spark.standalone import LEAN
from tests.support.spark.topics import Topics

pytestmark = [pytest.mark.slow, pytest.mark.long]

RESTARTS = 10
PARTITIONS = 3
BATCH = 700
PIPELINE = """
name: restarts
sources:
  numbers:
    topic: {source}
    startingOffsets: earliest
    maxOffsetsPerTrigger: {batch}
steps:
  texts:
    sql: SELECT CAST(CAST(value AS STRING) AS BIGINT) AS number, partition, offset FROM numbers
sinks:
  files: {{from: texts, parquet: out}}
  copies: {{from: numbers, topic: {target}, delivery: exactly-once}}
"""


class Sender:
    """Sends one number after the other in the background, as many as it was told to in all."""

    def __init__(self, topics: Topics, topic: str) -> None:
        self.sent: list[int] = []
        self._topic = topic
        self._wanted = 0
        self._over = threading.Event()
        self._producer = Producer({"bootstrap.servers": topics.bootstrap, "linger.ms": 10, "enable.idempotence": True})
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def send_more(self, count: int) -> None:
        self._wanted += count

    def close(self) -> None:
        """Return when all is sent and acknowledged."""
        self._over.set()
        self._thread.join()
        assert self._producer.flush(30) == 0

    def _run(self) -> None:
        while not self._over.wait(0.05):
            for number in range(len(self.sent), min(len(self.sent) + 40, self._wanted)):
                self._producer.produce(self._topic, value=str(number), partition=number % PARTITIONS)
                self.sent.append(number)
            self._producer.poll(0)


def run_and_kill(file: Path, arguments: list[str], dice: random.Random) -> None:
    """Let the pipeline come as far as the dice say, then end it with SIGKILL."""
    with PipelineProcess(file, *arguments) as run:
        run.event("started")
        for _ in range(dice.choice((0, 1, 1, 2))):
            run.event("progress")
        threading.Event().wait(dice.uniform(0, 1))
        run.kill()


@pytest.mark.timeout(1800)
def test_ten_killed_drivers_lose_nothing_and_double_nothing(
    bootstrap: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    dice = random.Random(7)
    topics = Topics(bootstrap, request.node.name)
    source, target = topics.create(PARTITIONS), topics.create(PARTITIONS)
    file = tmp_path / "pipeline.yaml"
    file.write_text(PIPELINE.format(batch=BATCH, source=source, target=target))
    arguments = ["--bootstrap", bootstrap, "--conf", f"spark.driver.extraJavaOptions={LEAN}"]
    with closing(Sender(topics, source)) as sender:
        for _ in range(RESTARTS):
            sender.send_more(4 * BATCH)
            run_and_kill(file, arguments, dice)
    with PipelineProcess(file, *arguments, "--once") as last:
        assert last.ended() == 0, last.errors
    written = pq.read_table(committed_files(tmp_path / "out")).column("number").to_pylist()
    assert sorted(written) == sender.sent
    wait_until_decided(bootstrap, target)
    assert sorted(int(value or b"-1") for value in values(bootstrap, target, read_committed=True)) == sender.sent
