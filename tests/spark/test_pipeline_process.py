"""`headrace pipeline run` as a user meets it: a process that is watched, stopped, killed and started again."""

import signal
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer

from headrace.client.admin import Admin
from headrace.spark.pipeline.files import committed_files
from tests.support.process import BrokerProcess
from tests.support.spark.pipelines import PipelineProcess

pytestmark = pytest.mark.slow

TICKING = """
name: ticking
trigger: 1 second
steps:
  ticks:
    python: steps.py:ticks
    with: {rate: 50}
  odd:
    python: steps.py:odd
sinks:
  files: {from: odd, parquet: out}
"""
STEPS = """
from pyspark.sql.functions import udf
from helper import is_odd


def ticks(spark, rate):
    return spark.readStream.format("rate").option("rowsPerSecond", rate).load()


def odd(ticks):
    return ticks.where(udf(is_odd, "boolean")("value"))
"""
HELPER = """
def is_odd(number):
    return number % 2 == 1
"""


@pytest.fixture
def ticking(tmp_path: Path) -> Path:
    """A pipeline of Spark's own ticks, with a function from a module beside it."""
    (tmp_path / "steps.py").write_text(STEPS)
    (tmp_path / "helper.py").write_text(HELPER)
    file = tmp_path / "pipeline.yaml"
    file.write_text(TICKING)
    return file


def java_of(pid: int) -> list[psutil.Process]:
    return [child for child in psutil.Process(pid).children(recursive=True) if child.name() == "java"]


@pytest.mark.long
def test_a_pipeline_stops_cleanly_and_goes_on_where_it_stopped(ticking: Path) -> None:
    with PipelineProcess(ticking) as first:
        started = first.event("started")
        assert started["sinks"] == ["files"]
        moved = first.until(lambda event: event["event"] == "progress" and event["rows_out"] > 0)
        assert moved["rows_in"] >= moved["rows_out"]
        assert first.stop(signal.SIGINT) == 0
        assert first.event("ended")["sinks"][0]["state"] == "stopped"
    with PipelineProcess(ticking) as second:
        again = second.until(lambda event: event["event"] == "progress" and event["rows_out"] > 0)
        assert again["batch"] > moved["batch"]
        assert second.stop(signal.SIGTERM) == 0
    values = pq.read_table(ticking.parent / "out").column("value").to_pylist()
    assert sorted(values) == list(range(1, 2 * len(values), 2))
    assert (ticking.parent / ".headrace" / "ticking" / "spark.log").stat().st_size > 0


@pytest.mark.long
def test_one_runner_at_a_time_and_the_next_one_waits_for_a_killed_ones_spark(ticking: Path) -> None:
    with PipelineProcess(ticking) as first:
        first.event("started")
        with PipelineProcess(ticking) as second:
            assert second.ended() == 1
            assert f"runs already (process {first.pid})" in second.errors
        spark = java_of(first.pid)
        first.kill()
    with PipelineProcess(ticking) as third:
        third.event("started")
        assert not any(process.is_running() for process in spark)
        assert third.stop() == 0


@pytest.mark.long
def test_a_stop_while_spark_starts_leaves_nothing_behind(ticking: Path) -> None:
    with PipelineProcess(ticking) as first:
        assert first.event("phase")["phase"].startswith("starting Spark")
        assert first.stop(signal.SIGINT) == 0
        assert first.event("ended")["sinks"] == []
        assert first.errors == "stopping as soon as Spark has started; once more ends it at once\n"
    with PipelineProcess(ticking) as second:
        second.event("started")
        assert second.stop() == 0


NUMBERS = """
name: numbers
restart: {delay: 1 second, maxDelay: 2 seconds}
sources:
  numbers:
    topic: numbers
    startingOffsets: earliest
    kafkaConsumer.pollTimeoutMs: 3000
steps:
  parsed: {sql: SELECT CAST(CAST(value AS STRING) AS BIGINT) AS number FROM numbers}
sinks:
  files: {from: parsed, parquet: out}
  copies: {from: numbers, topic: copies}
"""


def send(bootstrap: str, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in numbers:
        producer.produce("numbers", value=str(number))
    assert producer.flush(60) == 0


def has_read(rows: int) -> Any:
    return lambda event: event["event"] == "progress" and event["rows_in"] >= rows


@pytest.mark.long
def test_a_pipeline_outlives_its_broker_and_does_not_claim_to_run_meanwhile(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(NUMBERS)
    with BrokerProcess(tmp_path / "data") as broker:
        Admin(broker.bootstrap).create_topics(["numbers", "copies"], 1)
        send(broker.bootstrap, range(5))
        with PipelineProcess(file, "--bootstrap", broker.bootstrap) as run:
            run.until(has_read(5))
            broker.kill()
            gone = run.until(lambda event: event.get("state") in ("unreachable", "restarting"))
            assert gone["lag"] is None
            assert "no broker answers" in gone["problem"]
            assert gone["last_progress"] is not None
            if gone["state"] == "unreachable":
                run.until(lambda event: event.get("state") == "restarting")
            broker.start()
            send(broker.bootstrap, range(5, 12))
            again = run.until(has_read(12))
            assert (again["state"], again["problem"]) == ("running", None)
            assert again["restarts"] >= 1
            assert run.stop() == 0
    written = pq.read_table(committed_files(tmp_path / "out")).column("number").to_pylist()
    assert sorted(written) == list(range(12))
