"""Spark for a pipeline, as far as it goes without Spark."""

import logging

from pyspark.logger import PySparkLogger

from headrace.spark.pipeline.session import SparkTarget, keep_quiet, settings_for


def test_an_error_that_is_told_in_python_is_not_printed_with_javas_traceback() -> None:
    keep_quiet()
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        assert not PySparkLogger.getLogger(name).isEnabledFor(logging.ERROR)
    assert logging.getLogger("other").isEnabledFor(logging.ERROR)


def test_what_a_user_sets_comes_before_what_pipelines_start_from() -> None:
    declared = {"spark.sql.session.timeZone": "Europe/Berlin", "spark.executor.memory": "2g"}
    settings = settings_for(SparkTarget(master="local[2]"), "shop", declared, cores=2)
    assert (settings["spark.sql.session.timeZone"], settings["spark.executor.memory"]) == ("Europe/Berlin", "2g")
    assert settings["spark.master"] == "local[2]"
