"""Deployed pipelines on real Spark, while their drivers, their services and a worker of their cluster are killed."""

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Producer

from headrace.client.admin import Admin
from headrace.client.columnar.cluster import Cluster
from headrace.client.columnar.model import LATEST, Range, TopicPartition
from headrace.client.columnar.reader import read_ranges
from headrace.spark.service.client import Deployments, View
from headrace.spark.service.model import SparkSettings
from tests.support.process import BrokerProcess
from tests.support.spark.environments import packed_environment
from tests.support.spark.services import Patience, ServiceProcess, arguments_of, sinks_of, until
from tests.support.spark.standalone import LEAN, connect_server, standalone

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1200)]

PIPELINE = """
name: doubled
trigger: 1 second
sources:
  numbers: {topic: numbers, startingOffsets: earliest, maxOffsetsPerTrigger: 200}
steps:
  doubled: {python: "steps.py:doubled"}
sinks:
  out: {from: doubled, topic: doubled, delivery: exactly-once}
"""
STEPS = """
from pyspark.sql.functions import udf
from helper import double


def doubled(numbers):
    return numbers.select(udf(double, "string")(numbers.value.cast("string")).alias("value"))
"""
HELPER = """
def double(number):
    return str(2 * int(number))
"""
FILES = {"pipeline.yaml": PIPELINE.encode(), "steps.py": STEPS.encode(), "helper.py": HELPER.encode()}


@pytest.fixture
def bootstrap(tmp_path: Path) -> Iterator[str]:
    with BrokerProcess(tmp_path / "broker", {"transaction.state.log.num.partitions": "4"}) as broker:
        Admin(broker.bootstrap).create_topics(["numbers", "doubled"], 2)
        yield broker.bootstrap


def deploy(bootstrap: str, settings: SparkSettings) -> None:
    with Cluster({"bootstrap.servers": bootstrap}) as cluster:
        Deployments(cluster).deploy("doubled", "pipeline.yaml", FILES, settings)


def send(bootstrap: str, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in numbers:
        producer.produce("numbers", value=str(number), partition=number % 2)
    assert producer.flush(60) == 0


def committed(bootstrap: str) -> Counter[int]:
    """What readers of committed records find in the topic that is written."""
    with Cluster({"bootstrap.servers": bootstrap}) as cluster:
        partitions = [TopicPartition("doubled", number) for number in range(2)]
        ends = cluster.offsets(dict.fromkeys(partitions, LATEST), read_committed=True)
        ranges = [Range(*where, 0, end) for where, end in ends.items() if end]
        found: Counter[int] = Counter()
        for batch in read_ranges(cluster, ranges, read_committed=True) if ranges else ():
            found.update(int(value) for value in batch.column("value").to_pylist())
        return found


def await_rows(bootstrap: str, count: int) -> Counter[int]:
    """What is committed as soon as there are so many."""
    patience = Patience()
    with Cluster({"bootstrap.servers": bootstrap}) as cluster:
        while (found := committed(bootstrap)).total() < count:
            lines = [line.text for line in Deployments(cluster).logs("doubled", 0, follow=False)]
            if patience.is_over((found.total(), len(lines))):
                raise AssertionError(f"{found.total()} of {count}\n" + "\n".join(lines[-60:]))
            time.sleep(0.5)
    return found


def expected(count: int) -> Counter[int]:
    return Counter({2 * number: 1 for number in range(count)})


def has_restarted(times: int) -> Callable[[View], bool]:
    return lambda view: view.status is not None and view.status.restarts >= times


def test_a_driver_that_is_killed_again_and_again_comes_back_and_every_row_is_there_once(
    bootstrap: str, tmp_path: Path
) -> None:
    with ServiceProcess(bootstrap, tmp_path / "data") as service:
        deploy(bootstrap, SparkSettings(master="local[2]"))
        for life in range(4):
            send(bootstrap, range(life * 500, (life + 1) * 500))
            await_rows(bootstrap, life * 500 + 150)  # so it dies in the middle of what was sent
            if life < 3:
                service.kill_driver()
                until(bootstrap, "doubled", has_restarted(life + 1))
        assert await_rows(bootstrap, 2000) == expected(2000)
        view = until(bootstrap, "doubled", lambda view: view.told == "running" and bool(sinks_of(view)))
        assert view.status is not None
        assert view.status.restarts == 3


def test_another_service_takes_over_from_one_that_died(bootstrap: str, tmp_path: Path) -> None:
    with ServiceProcess(bootstrap, tmp_path / "data") as first:
        deploy(bootstrap, SparkSettings(master="local[2]"))
        send(bootstrap, range(500))
        await_rows(bootstrap, 100)
        before = until(bootstrap, "doubled", lambda view: view.status is not None).status
        with ServiceProcess(bootstrap, tmp_path / "data") as second:
            (driver,) = first.drivers()
            assert not second.drivers()
            first.kill()
            os.kill(driver, signal.SIGKILL)  # with the machine
            send(bootstrap, range(500, 1000))
            assert await_rows(bootstrap, 1000) == expected(1000)
            after = until(bootstrap, "doubled", lambda view: view.told == "running").status
            assert before is not None
            assert after is not None
            assert after.service != before.service
            assert len(second.drivers()) == 1


def test_a_pipeline_on_a_cluster_outlives_a_worker_and_its_driver(bootstrap: str, tmp_path: Path) -> None:
    archive = packed_environment(tmp_path)
    conf = {
        "spark.archives": f"{archive}#environment",
        "spark.pyspark.python": "./environment/bin/python",
        "spark.executor.memory": "700m",
        "spark.executor.cores": "1",
        "spark.sql.shuffle.partitions": "2",
        "spark.executor.extraJavaOptions": LEAN,
    }
    ours = ("PYTHONPATH", "VIRTUAL_ENV")
    clean = {name: text for name, text in os.environ.items() if name not in ours and not name.startswith("PYSPARK")}
    with (
        standalone(tmp_path, workers=2, environment=clean) as master,
        ServiceProcess(bootstrap, tmp_path / "data") as service,
    ):
        deploy(bootstrap, SparkSettings(master=master, conf=conf))
        send(bootstrap, range(500))
        await_rows(bootstrap, 200)
        kill_worker(tmp_path / "worker-1")
        send(bootstrap, range(500, 1000))
        await_rows(bootstrap, 700)
        service.kill_driver()
        send(bootstrap, range(1000, 1500))
        assert await_rows(bootstrap, 1500) == expected(1500)


def test_a_pipeline_behind_spark_connect_outlives_its_driver(bootstrap: str, tmp_path: Path) -> None:
    with connect_server(tmp_path) as remote, ServiceProcess(bootstrap, tmp_path / "data") as service:
        deploy(bootstrap, SparkSettings(remote=remote))
        send(bootstrap, range(500))
        await_rows(bootstrap, 150)
        service.kill_driver()
        until(bootstrap, "doubled", has_restarted(1))
        send(bootstrap, range(500, 1000))
        assert await_rows(bootstrap, 1000) == expected(1000)


def kill_worker(directory: Path) -> None:
    """End a worker of the cluster at once; it is one of this process's."""
    (worker,) = [
        one
        for one in psutil.Process().children(recursive=True)
        if str(directory) in arguments_of(one) and "org.apache.spark.deploy.worker.Worker" in arguments_of(one)
    ]
    worker.kill()
