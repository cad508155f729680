"""How the rows of a sink leave Spark."""

import json
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from typing import Any

from .building import BOOTSTRAP, BuiltSink
from .model import Declaration, ToConsole, ToFiles, ToFunction, ToTopic
from .places import declared_path

BatchFunction = Callable[[Any, int], None]


def writer_for(built: BuiltSink, declaration: Declaration, bootstrap: str, checkpoint: str) -> Any:
    """A writer of the stream of a sink's rows, to be given a name and a trigger, and started."""
    writer, output = built.rows.writeStream, built.sink.output
    match output:
        case ToTopic():
            options = {BOOTSTRAP: bootstrap, **output.options}
            if built.sink.mode == "update":
                return writer.foreachBatch(_to_topic(options, checkpoint))
            return writer.format("headrace").options(**options)
        case ToFiles():
            path = declared_path(declaration, output.path)
            writer = writer.format("parquet").options(**output.options).option("path", path)
            return writer.partitionBy(*output.partition_by) if output.partition_by else writer
        case ToFunction():
            return writer.foreachBatch(output.function)
        case ToConsole():
            return writer.foreachBatch(_to_console(output.rows))


def _to_topic(options: Mapping[str, str], checkpoint: str) -> BatchFunction:
    """Writes each batch to a topic: for mode `update`, in which Spark does not let a Python sink be.

    The sink knows a batch that it has written by the query and the number. The query's id is kept in its checkpoint, so
    that a new checkpoint, which counts from 0 again, is another query.
    """
    query: list[str] = []

    def write(rows: Any, batch: int) -> None:
        if not query:
            query.append(_query_id(rows.sparkSession, checkpoint))
        version = {"txnAppId": query[0], "txnVersion": str(batch)}
        rows.write.format("headrace").mode("append").options(**options, **version).save()

    return write


def _query_id(spark: Any, checkpoint: str) -> str:
    return str(json.loads(spark.read.text(f"{checkpoint}/metadata").first()[0])["id"])


def _to_console(limit: int) -> BatchFunction:
    """Prints the first rows of a batch to stderr; Spark's own console sink would write to Spark's log."""

    def show(rows: Any, _batch: int) -> None:
        with redirect_stdout(sys.stderr):
            rows.show(limit, truncate=False)

    return show
