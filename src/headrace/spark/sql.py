"""A query of `headrace sql` on Spark: the same text, the same tables, the same rows of each."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pyarrow as pa

from headrace.client.columnar.cluster import Cluster, shared_cluster
from headrace.sql.definition import define
from headrace.sql.engine import EngineOptions
from headrace.sql.errors import SqlError
from headrace.sql.reading import FAIL, SKIP, snapshot
from headrace.sql.statement import DATABASE, portable_name

from .pipeline.failures import PipelineFailed, cause_of
from .pipeline.session import SparkTarget, open_session
from .tables import table_options

_SETTINGS: Final = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.ansi.doubleQuotedIdentifiers": "true",
    "spark.sql.globalTempDatabase": DATABASE,
}
"""Names in double quotes, as DuckDB has them, and the database that topics are in."""


@contextmanager
def run_query(options: EngineOptions, query: str, master: str) -> Iterator[pa.RecordBatchReader]:
    """The rows of a query; SqlError says what Spark has against it."""
    if options.on_bad in (SKIP, FAIL):
        raise SqlError("on Spark, bad records are kept: say WHERE _error IS NULL in the query")
    if options.files:
        raise SqlError("--files is for DuckDB; Spark reads what its own user may")
    if master.startswith("sc://"):
        raise SqlError("--master is local[*] or a standalone master such as spark://host:7077; not Spark Connect")
    with TemporaryDirectory(prefix="headrace-sql-") as directory:
        try:
            with open_session(SparkTarget(master=master), "headrace sql", _SETTINGS, Path(directory) / "log") as spark:
                for topic in mentioned(query, shared_cluster(options.client)):
                    _make_views(spark, shared_cluster(options.client), topic, options)
                yield _rows(spark, query)
        except PipelineFailed as error:
            raise SqlError(str(error)) from None


def mentioned(query: str, cluster: Cluster) -> list[str]:
    """The topics whose names are somewhere in a query, be it as the name of something else."""
    text = query.lower()
    return [one for one in cluster.topics() if any(_is_in(name, text) for name in (one, portable_name(one)))]


def _is_in(name: str, text: str) -> bool:
    return re.search(rf"(?<![\w.-]){re.escape(name.lower())}(?![\w-])", text.replace(f"{DATABASE}.", " ")) is not None


def _make_views(spark: Any, cluster: Cluster, topic: str, options: EngineOptions) -> None:
    definition = define(
        cluster,
        topic,
        options.declared.get(topic),
        options.registry,
        find_registry=options.find_registry,
        read_committed=options.read_committed,
    )
    now = snapshot(cluster, topic, read_committed=options.read_committed, begin=options.begin)
    isolation = "read_committed" if options.read_committed else "read_uncommitted"
    given = table_options(definition, {**options.client, "isolation.level": isolation}, now)
    frame = spark.read.format("headrace").options(**given).load()
    for name in dict.fromkeys((topic, portable_name(topic))):
        quoted = "`" + name + "`"
        frame.createOrReplaceTempView(quoted)
        frame.createOrReplaceGlobalTempView(quoted)


def _rows(spark: Any, query: str) -> pa.RecordBatchReader:
    try:
        table = spark.sql(query.strip().rstrip(";")).toArrow()
    except Exception as error:
        raise SqlError(" ".join(cause_of(error).split())) from None
    return table.to_reader()
