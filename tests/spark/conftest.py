"""One Spark session and one broker for all tests of a run: each takes seconds to start."""

import os
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.spark.pipeline.loading import load
from headrace.spark.pipeline.paths import paths_of
from headrace.spark.pipeline.progress import SinkProgress
from headrace.spark.pipeline.run import RunOptions, run_with
from headrace.testing import Broker
from tests.support.apache_kafka import ApacheKafka
from tests.support.gateways import GatewayProcess
from tests.support.maven import Unavailable
from tests.support.process import ClusterProcesses
from tests.support.spark.pipelines import RunPipeline, Silent, pipeline_settings
from tests.support.spark.topics import Topics


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/spark/" in item.nodeid:
            item.add_marker(pytest.mark.slow)


@contextmanager
def _headrace(directory: Path) -> Iterator[str]:
    with ClusterProcesses(directory, 3, settings={"transaction.state.log.num.partitions": "6"}) as cluster:
        yield cluster.bootstrap


@contextmanager
def _apache_kafka(directory: Path) -> Iterator[str]:
    try:
        kafka = ApacheKafka(directory)
    except Unavailable as reason:
        pytest.skip(f"Apache Kafka is not to be had here: {reason}")
    with kafka:
        yield kafka.bootstrap


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """A session with two cores in this process, with modest memory; workers run the same Python."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    session = (
        SparkSession.builder.master("local[2]")
        .appName("headrace-tests")
        .config("spark.driver.memory", "1g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """A broker whose logs are cut by hand only, so that tests decide when records expire, also those of past years."""
    with Broker({"log.retention.ms": -1}) as broker:
        yield broker


@pytest.fixture(scope="session")
def registry(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a gateway, which is a schema registry."""
    with GatewayProcess(broker.bootstrap, tmp_path_factory.mktemp("gateway") / "log") as gateway:
        yield gateway.url


@pytest.fixture(
    scope="session",
    params=[
        pytest.param(_headrace, id="headrace"),
        pytest.param(_apache_kafka, id="apache-kafka", marks=pytest.mark.kafka),
    ],
)
def bootstrap(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a cluster that has transactions: three brokers of ours, and Apache Kafka."""
    with request.param(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def topics(broker: Broker, request: pytest.FixtureRequest) -> Topics:
    """Topics of one test."""
    return Topics(broker.bootstrap, request.node.name)


@pytest.fixture
def run(spark: Any, topics: Topics, tmp_path: Path) -> Iterator[RunPipeline]:
    """Run a pipeline, given as text, over what is there now."""

    def once(text: str, file: str = "pipeline.yaml") -> list[SinkProgress]:
        path = tmp_path / file
        path.write_text(textwrap.dedent(text))
        declaration = load(path)
        options = RunOptions(bootstrap=topics.bootstrap, once=True)
        return run_with(spark, declaration, paths_of(declaration, None), options, Silent())

    with pipeline_settings(spark):
        yield once
