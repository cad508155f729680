"""`headrace.spark.register`: the source works whatever Python the path has, and workers that lack it are told of."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.spark import RegistrationError, register
from tests.support.spark.environments import bare_python
from tests.support.spark.topics import Topics

EXECUTOR_PYTHON = "spark.sql.execution.pyspark.python"

JOB = """
import sys
from pyspark.sql import SparkSession
import headrace.spark

settings = {"spark.ui.enabled": "false", "spark.driver.memory": "1g", "spark.driver.host": "127.0.0.1"}
spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
headrace.spark.register(spark)
rows = spark.read.format("headrace").option("kafka.bootstrap.servers", sys.argv[1]).option("subscribe", sys.argv[2])
print("values:", [bytes(row.value) for row in rows.load().collect()])
spark.stop()
"""


def test_a_job_finds_the_source_whatever_python_is_first_in_the_path(topics: Topics, tmp_path: Path) -> None:
    orders = topics.create()
    topics.fill(orders, [b"one"])
    job = tmp_path / "job.py"
    job.write_text(JOB)
    path = f"{bare_python(tmp_path / 'bare').parent}{os.pathsep}/usr/bin{os.pathsep}/bin"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK")}
    environment |= {"PATH": path, "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [sys.executable, str(job), topics.bootstrap, orders]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert "values: [b'one']" in done.stdout, done.stderr[-4000:]


def test_executors_that_lack_the_package_are_told_of_with_what_to_do(spark: Any, tmp_path: Path) -> None:
    python = bare_python(tmp_path / "bare")
    spark.conf.set(EXECUTOR_PYTHON, str(python))
    try:
        with pytest.raises(RegistrationError) as refused:
            register(spark)
    finally:
        spark.conf.unset(EXECUTOR_PYTHON)
        spark.sparkContext.pythonExec = sys.executable
    message = str(refused.value)
    assert f"({python}, Python 3." in message
    assert ": no module " in message
    assert "numba, pyarrow" in message
    assert "spark.archives=environment.tar.gz#environment" in message


def test_executors_without_any_python_are_told_of(spark: Any, tmp_path: Path) -> None:
    spark.conf.set(EXECUTOR_PYTHON, "./environment/bin/python")
    try:
        with pytest.raises(RegistrationError, match=r"Cannot run program \"./environment/bin/python\""):
            register(spark)
        register(spark, check=False)
    finally:
        spark.conf.unset(EXECUTOR_PYTHON)
        spark.sparkContext.pythonExec = sys.executable


def test_a_session_whose_workers_have_all_is_registered_without_a_job(spark: Any) -> None:
    context = spark.sparkContext
    context.setJobGroup("register", "")
    register(spark)
    assert context.statusTracker().getJobIdsForGroup("register") == []
