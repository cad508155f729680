"""Spark for a pipeline: on this machine, on a cluster, or behind Spark Connect; its own noise in a file."""

import logging
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ..registration import RegistrationError, register
from .failures import PipelineFailed, cause_of

DEFAULTS: Final[Mapping[str, str]] = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "false",
}
"""What every pipeline starts from: state that may outgrow memory and that arbitrary functions may keep (RocksDB, its
changes alone written with each batch), times that mean the same on every machine; the last one Spark would switch off
by itself, with a warning."""

_ON_THIS_MACHINE: Final[Mapping[str, str]] = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
_ERRORS_TWICE: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkTarget:
    """Where Spark is: a `master` to start with (`local[*]`, `spark://host:7077`), or a `remote` to talk to."""

    master: str = "local[*]"
    remote: str | None = None

    @property
    def is_local(self) -> bool:
        return self.remote is None and self.master.startswith("local")

    @property
    def is_connect(self) -> bool:
        """Whether Spark runs elsewhere, behind Spark Connect."""
        return self.remote is not None

    def __str__(self) -> str:
        return self.remote or self.master


def settings_for(target: SparkTarget, name: str, declared: Mapping[str, str], cores: int) -> dict[str, str]:
    """All settings of a session, a user's own before ours."""
    if target.remote is not None:
        return {**DEFAULTS, **declared}
    settings = {"spark.app.name": name, "spark.master": target.master, **DEFAULTS, **_ON_THIS_MACHINE}
    if target.is_local:
        # Spark's 200 partitions of a shuffle mean 200 tasks and 200 state stores for each batch, whatever its size.
        settings |= {"spark.sql.shuffle.partitions": str(max(cores, 2)), "spark.driver.host": "127.0.0.1"}
    return settings | dict(declared)


@contextmanager
def open_session(
    target: SparkTarget, name: str, declared: Mapping[str, str], log: Path, lock: int | None = None
) -> Iterator[Any]:
    """A session with the source registered, stopped at the end; PipelineFailed if there is no Spark to be had."""
    keep_quiet()
    settings = settings_for(target, name, declared, os.cpu_count() or 1)
    spark = _connect(target.remote, settings) if target.remote is not None else _launch(settings, log, lock)
    try:
        _register(spark)
        yield spark
    finally:
        _stop(spark)


def keep_quiet() -> None:
    """Let PySpark print no traceback of Java's beside an error that is raised, and told, in Python."""
    from pyspark.logger import PySparkLogger

    for name in _ERRORS_TWICE:
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)


def _register(spark: Any) -> None:
    try:
        register(spark)
    except RegistrationError as error:
        raise PipelineFailed(str(error)) from error


def _connect(remote: str, settings: Mapping[str, str]) -> Any:
    from pyspark.sql import SparkSession

    try:
        spark = SparkSession.builder.remote(remote).getOrCreate()
        for name, value in settings.items():
            spark.conf.set(name, value)
        return spark
    except Exception as error:
        raise PipelineFailed(f"Spark Connect at {remote} does not answer or refuses: {cause_of(error)}") from error


def _launch(settings: Mapping[str, str], log: Path, lock: int | None) -> Any:
    """A session in a new JVM, which writes to `log`, holds `lock`, and does not hear the terminal's Ctrl-C."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    conf = SparkConf(loadDefaults=False)
    conf.setAll(list(settings.items()))
    with log.open("ab") as output:
        kept = () if lock is None else (lock,)
        process = {"stdout": output, "stderr": output, "pass_fds": kept, "process_group": 0}
        try:
            gateway = launch_gateway(conf, process)
            SparkContext(conf=conf, gateway=gateway)
        except Exception as error:
            raise PipelineFailed(_no_spark(error, log)) from error
    return SparkSession.builder.getOrCreate()


def _no_spark(error: Exception, log: Path) -> str:
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        return "Spark needs Java 17 or later and there is none: install it, or set JAVA_HOME"
    return f"Spark does not start: {cause_of(error)}; its log is {log}"


def _stop(spark: Any) -> None:
    """Stop Spark, or leave it: what fails here, fails after all work is done."""
    try:
        spark.stop()
    except Exception:
        return
