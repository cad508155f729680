"""A Spark session of its own process, which runs one query after another as it is told, a line of JSON each."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.avro.functions import from_avro, to_avro
from pyspark.sql.protobuf.functions import from_protobuf, to_protobuf
from pyspark.sql.streaming import StreamingQuery

from headrace.lake.archiving import ArchiveOptions
from headrace.lake.opening import Lake
from headrace.spark.archive.sink import ArchiveSink

from . import orders
from .synthetic import AgeSink, SyntheticSource

_WARM_SECONDS: Final = 90.0


def session(jars: list[str]) -> SparkSession:
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("headrace-bench")
        .config("spark.driver.memory", "1500m")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.session.timeZone", "UTC")
    )
    if jars:
        builder = builder.config("spark.jars", ",".join(jars))
    spark = builder.getOrCreate()
    spark.dataSource.register(SyntheticSource)
    spark.dataSource.register(AgeSink)
    return spark


def timed_batch(spark: SparkSession, task: dict[str, Any]) -> dict[str, float]:
    """Seconds to bring every row of a source into Spark."""
    start = time.perf_counter()
    frame: DataFrame = spark.read.format(task["format"]).options(**task["options"]).load()
    frame.write.format("noop").mode("overwrite").save()
    return {"seconds": time.perf_counter() - start}


def timed_stream(spark: SparkSession, task: dict[str, Any]) -> dict[str, float]:
    """Seconds of the one batch that a stream needs for everything there is, and its rows."""
    frame = spark.readStream.format(task["format"]).options(**task["options"]).load()
    writing = frame.writeStream.format("noop").option("checkpointLocation", task["checkpoint"])
    query = writing.trigger(availableNow=True).start()
    query.awaitTermination()
    progress = [p for p in query.recentProgress if p.numInputRows]
    took = sum(p.durationMs["addBatch"] for p in progress) / 1000
    return {"seconds": took, "rows": sum(p.numInputRows for p in progress)}


def timed_archive(spark: SparkSession, task: dict[str, Any]) -> dict[str, float]:
    """Seconds of the one batch that brings topics into tables, or into Spark's own files."""
    frame = spark.readStream.format("headrace").options(**task["options"]).load()
    form, checkpoint = task["format"], task["checkpoint"]
    if form.endswith("-table"):
        lake = Lake(path=task["path"], format=form.removesuffix("-table"))
        options = ArchiveOptions(lake=lake, compression=task["compression"])
        sink = ArchiveSink(options, {}, checkpoint)
        writing = frame.writeStream.foreachBatch(lambda rows, number: sink.add(rows, number) and None)
    else:
        writing = frame.writeStream.format(form).option("path", task["path"]).option("compression", task["compression"])
    query = writing.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    return {"seconds": sum(p.durationMs.get("addBatch", 0) for p in query.recentProgress) / 1000}


def ages(spark: SparkSession, task: dict[str, Any]) -> dict[str, Any]:
    """How old rows were when they came out of a running stream."""
    path = Path(task["path"])
    path.mkdir()
    frame = spark.readStream.format(task["format"]).options(**task["options"]).load()
    writing = frame.writeStream.format("ages").option("path", str(path))
    query = writing.option("checkpointLocation", task["checkpoint"]).start()
    try:
        _wait_for_batches(query, task["warm"])
        for old in path.iterdir():
            old.unlink()
        query.awaitTermination(int(task["seconds"]))
    finally:
        query.stop()
    return {"ages": [age for file in path.iterdir() for age in json.loads(file.read_text() or "[]")]}


def _wait_for_batches(query: StreamingQuery, count: int) -> None:
    """The first batches start workers and have all that came meanwhile to read: theirs are not the ages of a stream."""
    deadline = time.monotonic() + _WARM_SECONDS
    while query.isActive and time.monotonic() < deadline:
        progress = query.lastProgress
        if progress is not None and progress.batchId >= count:
            return
        time.sleep(0.2)
    raise TimeoutError(f"the stream made no {count} batches within {_WARM_SECONDS:g} s: {query.exception()}")


Decoder = Callable[[DataFrame, dict[str, Any]], DataFrame]


def _with_value(frame: DataFrame, value: Any) -> DataFrame:
    return frame.withColumn("value", value)


DECODERS: dict[str, Decoder] = {
    "the source": lambda frame, _: frame,
    "from_json": lambda frame, _: _with_value(frame, f.from_json(f.col("value").cast("string"), orders.DDL)),
    "from_avro": lambda frame, _: _with_value(frame, from_avro("value", orders.AVRO)),
    "from_avro behind the head": lambda frame, _: _with_value(
        frame, from_avro(f.expr("substring(value, 6)"), orders.AVRO)
    ),
    "from_protobuf": lambda frame, task: _with_value(
        frame, from_protobuf("value", orders.MESSAGE, task["descriptors"])
    ),
    "google.protobuf": lambda frame, _: frame.select("value").mapInArrow(
        orders.messages_to_columns, f"value STRUCT<{orders.DDL.replace(' ', ': ').replace(',:', ',')}>"
    ),
}
"""What makes orders of the values of a source."""

ENCODERS: dict[str, Decoder] = {
    "the sink": lambda frame, _: frame,
    "to_json": lambda frame, _: _with_value(frame, f.to_json("value")),
    "to_avro": lambda frame, _: _with_value(frame, to_avro("value", orders.AVRO)),
    "to_protobuf": lambda frame, task: _with_value(frame, to_protobuf("value", orders.MESSAGE, task["descriptors"])),
    "google.protobuf": lambda frame, _: frame.mapInArrow(orders.columns_to_messages, "key STRING, value BINARY"),
}
"""What makes the values of a sink of orders."""


def timed_orders(spark: SparkSession, task: dict[str, Any]) -> dict[str, Any]:
    """Seconds to read every field of every order of a topic, and what they come to."""
    start = time.perf_counter()
    frame = spark.read.format(task["format"]).options(**task["options"]).load()
    row = DECODERS[task["decoder"]](frame, task).selectExpr(*orders.CHECKSUM).collect()[0]
    return {"seconds": time.perf_counter() - start, "rows": row.rows, "checksum": row.checksum}


def timed_write(spark: SparkSession, task: dict[str, Any]) -> dict[str, float]:
    """Seconds to write rows that Spark makes up."""
    start = time.perf_counter()
    frame = spark.range(0, task["rows"], 1, task["tasks"]).selectExpr(*task["columns"])
    writing = ENCODERS[task["encoder"]](frame, task).write.format(task["format"]).mode("append")
    writing.options(**task["options"]).save()
    return {"seconds": time.perf_counter() - start}


TASKS = {
    "orders": timed_orders,
    "write": timed_write,
    "batch": timed_batch,
    "stream": timed_stream,
    "archive": timed_archive,
    "ages": ages,
}


def main() -> None:
    spark = session(sys.argv[1:])
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        try:
            answer: dict[str, Any] = TASKS[task["kind"]](spark, task)
        except Exception as error:
            answer = {"error": str(error)[-2000:]}
        print(json.dumps(answer), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
