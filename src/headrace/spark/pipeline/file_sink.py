"""Batches of a query as Parquet files, by Spark's own file sink: a file counts once it is in `_spark_metadata`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..errors import QueryError

_LOG: Final = "_spark_metadata"


@dataclass(frozen=True, slots=True)
class FileSink:
    """A directory of Parquet files. Needs Spark's JVM, so there is none behind Spark Connect."""

    path: str
    partition_by: Sequence[str]
    options: Mapping[str, str]

    def add(self, rows: Any, batch: int) -> None:
        """Write a batch, unless the log has it already."""
        spark = rows.sparkSession
        jvm = spark._jvm
        sinks = jvm.org.apache.spark.sql.execution.streaming.sinks
        parquet = jvm.org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat()
        columns = jvm.PythonUtils.toSeq(list(self.partition_by))
        options = jvm.PythonUtils.toScalaMap(dict(self.options))
        sinks.FileStreamSink(spark._jsparkSession, self.path, parquet, columns, options).addBatch(batch, rows._jdf)


def require_own_files(spark: Any, path: str, checkpoint: str) -> None:
    """`QueryError` where a query that starts anew, from batch 0, would write to files of another one.

    Spark takes a batch whose number is in the log for one that is written, and would leave it out.
    """
    if names_in(spark, f"{checkpoint}/offsets"):
        return
    batches = [
        int(number) for name in names_in(spark, f"{path}/{_LOG}") if (number := name.partition(".")[0]).isdigit()
    ]
    if batches:
        raise QueryError(
            f"{path} has batches up to {max(batches)} of an earlier query, and this one, whose checkpoint is new, "
            "would count from 0: Spark would take its batches for written and leave them out. Give another directory, "
            "or move the files away"
        )


def names_in(spark: Any, directory: str) -> list[str]:
    """What a directory has, wherever Spark can reach it; nothing if it is not there."""
    path = spark._jvm.org.apache.hadoop.fs.Path(directory)
    files = path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    return [status.getPath().getName() for status in files.listStatus(path)] if files.exists(path) else []
