"""`headrace pipeline run` as a user meets it: a process that is watched, stopped, killed and started again."""

import signal
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from .pipelines import PipelineProcess

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
