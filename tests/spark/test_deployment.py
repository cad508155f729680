"""Executors that have no package of ours: made from a packed environment, on a standalone cluster and behind Spark
Connect, and what is said where they are not.
"""

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.spark.environments import bare_python, packed_environment, python_with_dependencies, zipped_project
from tests.support.spark.pipelines import PipelineProcess
from tests.support.spark.standalone import LEAN, connect_server, standalone
from tests.support.spark.topics import Topics

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.long]

UNPACKED = "./environment/bin/python"
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.executor.memory": "700m",
    "spark.executor.cores": "1",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": LEAN,
    "spark.executor.extraJavaOptions": LEAN,
}
JOB = """
import json, sys
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf
import headrace.spark


def origin():
    import headrace
    return headrace.__file__


place, settings, bootstrap, source, target, checkpoint, sent = json.loads(sys.argv[1])
builder = SparkSession.builder
builder = builder.remote(place) if place.startswith("sc:") else builder.master(place)
spark = builder.config(map=settings).getOrCreate()
if sent:
    spark.sparkContext.addPyFile(sent)
headrace.spark.register(spark)
brokers = {"kafka.bootstrap.servers": bootstrap}
stream = spark.readStream.format("headrace").options(**brokers, subscribe=source, startingOffsets="earliest").load()
writer = stream.select("key", "value").writeStream.format("headrace").options(**brokers, topic=target)
query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
query.awaitTermination()
rows = spark.read.format("headrace").options(**brokers, subscribe=target).load().select("value").collect()
(found,) = spark.range(1).select(udf(origin, useArrow=False)()).first()
print("result:", json.dumps([sorted(bytes(row.value).decode() for row in rows), found]))
spark.stop()
"""


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packed_environment(tmp_path_factory.mktemp("packed"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cluster whose nodes have nothing of ours."""
    with standalone(tmp_path_factory.mktemp("cluster"), workers=1, environment=outside()) as master:
        yield master


def outside(**more: str) -> dict[str, str]:
    """The environment of a process that knows nothing of the project."""
    ours = ("PYTHONPATH", "VIRTUAL_ENV")
    clean = {name: value for name, value in os.environ.items() if name not in ours and not name.startswith("PYSPARK")}
    return {**clean, **more}


class Job:
    """A copy of a topic by a stream on Spark, as a process that a user would start."""

    def __init__(self, directory: Path, topics: Topics) -> None:
        self._file = directory / "job.py"
        self._file.write_text(JOB)
        self._topics = topics
        self._source, self._target = topics.create(), topics.create()
        self._checkpoint = str(directory / "checkpoint")
        topics.fill(self._source, [b"one", b"two"])

    def run(
        self, place: str, settings: dict[str, str], sent: Path | None = None, **environment: str
    ) -> "subprocess.CompletedProcess[str]":
        """`sent` is a file for `addPyFile`."""
        paths = (self._topics.bootstrap, self._source, self._target, self._checkpoint)
        given = [place, settings, *paths, str(sent or "")]
        return subprocess.run(
            [sys.executable, str(self._file), json.dumps(given)],
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", **environment},
            cwd=self._file.parent,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )


def result_of(done: "subprocess.CompletedProcess[str]") -> tuple[list[str], str]:
    lines = [line for line in done.stdout.splitlines() if line.startswith("result: ")]
    assert len(lines) == 1, done.stderr[-6000:]
    values, origin = json.loads(lines[0].removeprefix("result: "))
    return values, origin


def test_executors_of_a_cluster_work_from_a_packed_environment(
    cluster: str, archive: Path, topics: Topics, tmp_path: Path
) -> None:
    settings = {**SETTINGS, "spark.archives": f"{archive}#environment"}
    values, origin = result_of(Job(tmp_path, topics).run(cluster, settings, PYSPARK_PYTHON=UNPACKED))
    assert values == ["one", "two"]
    assert "/worker-0/app-" in origin


def test_executors_of_a_cluster_that_lack_the_package_are_named(cluster: str, topics: Topics, tmp_path: Path) -> None:
    python = bare_python(tmp_path / "bare")
    done = Job(tmp_path, topics).run(cluster, SETTINGS, PYSPARK_PYTHON=str(python))
    assert done.returncode != 0
    assert f"({python}, Python 3." in done.stderr
    assert ": no module headrace, pyspark_headrace, " in done.stderr
    assert "spark.archives=environment.tar.gz#environment" in done.stderr


def test_a_package_sent_alone_lacks_the_compiled_ones_and_they_are_named(
    cluster: str, topics: Topics, tmp_path: Path
) -> None:
    python = bare_python(tmp_path / "bare")
    done = Job(tmp_path, topics).run(cluster, SETTINGS, zipped_project(tmp_path), PYSPARK_PYTHON=str(python))
    assert done.returncode != 0
    assert f"({python}, Python 3." in done.stderr
    assert "headrace is there, but no module " in done.stderr
    assert "numba, pyarrow: addPyFile and --py-files do not bring compiled packages" in done.stderr
    assert "spark.archives=environment.tar.gz#environment" in done.stderr


def test_a_package_sent_alone_is_enough_where_the_compiled_ones_are(
    cluster: str, topics: Topics, tmp_path: Path
) -> None:
    python = python_with_dependencies(tmp_path / "dependencies")
    done = Job(tmp_path, topics).run(cluster, SETTINGS, zipped_project(tmp_path), PYSPARK_PYTHON=str(python))
    values, origin = result_of(done)
    assert values == ["one", "two"]
    assert "headrace.zip" in origin


def test_a_connect_server_works_from_a_packed_environment(
    cluster: str, archive: Path, topics: Topics, tmp_path: Path
) -> None:
    """The server finds the environment, unpacked, in its path. So do executors, whose workers start in the directory of
    a session, and those of streams one above it.
    """
    with tarfile.open(archive) as file:
        file.extractall(tmp_path / "environment", filter="fully_trusted")
    settings = {
        **SETTINGS,
        "spark.archives": f"{archive}#environment",
        "spark.executorEnv.PATH": "./environment/bin:../environment/bin:/usr/bin:/bin",
    }
    environment = outside(PATH=f"{tmp_path / 'environment' / 'bin'}{os.pathsep}{os.environ['PATH']}")
    with connect_server(tmp_path, cluster, settings, environment) as remote:
        values, origin = result_of(Job(tmp_path, topics).run(remote, {}))
    assert values == ["one", "two"]
    assert "/worker-0/app-" in origin


def test_a_pipeline_says_what_a_connect_server_lacks(topics: Topics, tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text("name: small\nsources: {a: {topic: orders}}\nsinks: {out: {from: a, console: 5}}\n")
    python = bare_python(tmp_path / "bare")
    with connect_server(tmp_path, environment=outside(PYSPARK_PYTHON=str(python))) as remote:
        with PipelineProcess(file, "--bootstrap", topics.bootstrap, "--remote", remote) as run:
            assert run.ended() == 1
        assert f"the server of Spark Connect on {os.uname().nodename} ({python}, Python 3." in run.errors
        assert ": no module headrace, pyspark_headrace, " in run.errors
        assert "docs/spark-deployment.md" in run.errors
