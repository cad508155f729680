"""Spark's own Declarative Pipelines read topics through the source, which they find by themselves."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.spark.standalone import HOME, LEAN
from tests.support.spark.topics import Topics

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.long]

SPECIFICATION = """
name: shop
storage: file://{storage}
libraries:
  - glob:
      include: transformations/**
"""
TRANSFORMATIONS = """
from pyspark import pipelines as dp


@dp.table
def orders():
    return (
        spark.readStream.format("headrace")
        .option("kafka.bootstrap.servers", "{bootstrap}")
        .option("subscribe", "{topic}")
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr("CAST(CAST(value AS STRING) AS BIGINT) AS number")
    )


@dp.materialized_view
def sums():
    return spark.read.table("orders").selectExpr("sum(number) AS total", "count(*) AS orders")
"""


def test_a_declarative_pipeline_reads_topics_and_goes_on(topics: Topics, tmp_path: Path) -> None:
    topic = topics.create(2)
    (tmp_path / "transformations").mkdir()
    (tmp_path / "spark-pipeline.yml").write_text(SPECIFICATION.format(storage=tmp_path / "storage"))
    code = TRANSFORMATIONS.format(bootstrap=topics.bootstrap, topic=topic)
    (tmp_path / "transformations" / "orders.py").write_text(code)
    topics.fill(topic, (b"%d" % number for number in range(10)))
    run_declared(tmp_path)
    topics.fill(topic, (b"%d" % number for number in range(10, 15)))
    run_declared(tmp_path)
    (row,) = pq.read_table(tmp_path / "spark-warehouse" / "sums").to_pylist()
    assert row == {"total": sum(range(15)), "orders": 15}


def run_declared(directory: Path) -> None:
    """`spark-pipelines run`, with a catalog that survives it."""
    settings = {
        "spark.sql.catalogImplementation": "hive",
        "spark.driver.extraJavaOptions": LEAN,
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
    }
    arguments = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    result = subprocess.run(
        [str(HOME / "bin" / "spark-pipelines"), "run", *arguments],
        cwd=directory,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, "SPARK_HOME": str(HOME)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
