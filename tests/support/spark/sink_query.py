"""A query in a process of its own, to be killed: `python -m tests.support.spark.sink_query PLAN`, in JSON.

It copies a topic to another, in small batches, until it has copied all that was there when it started. Tasks can be
told to fail once, half-way, in their first attempt.
"""

import dataclasses
import json
import os
import sys
from collections.abc import Iterator
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What to copy, and what is to go wrong."""

    bootstrap: str
    source: str
    target: str
    checkpoint: str
    delivery: str = "auto"
    records_per_batch: int = 1000
    failing_batches: tuple[int, ...] = ()
    way: str = "stream"
    """`stream`, or `foreachBatch` with a series of batch writes."""


def session() -> Any:
    """Tasks get three attempts."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    return (
        SparkSession.builder.master("local[2,3]")
        .config("spark.driver.memory", "1g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )


def failing_once(plan: Plan, frame: Any) -> Any:
    """The same rows, from tasks that give half of them and fail, in their first attempt at some batches."""

    def some_or_all(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        batch = int(context.getLocalProperty("streaming.sql.batchId") or 0)
        fails = batch in plan.failing_batches and context.attemptNumber() == 0
        for rows in batches:
            if not fails:
                yield rows
            elif rows.num_rows:
                yield rows.slice(0, (rows.num_rows + 1) // 2)
                raise RuntimeError("this attempt was told to fail")

    return frame.mapInArrow(some_or_all, frame.schema) if plan.failing_batches else frame


def start(spark: Any, plan: Plan) -> Any:
    read = (
        spark.readStream.format("headrace")
        .option("kafka.bootstrap.servers", plan.bootstrap)
        .options(subscribe=plan.source, startingOffsets="earliest", maxOffsetsPerTrigger=str(plan.records_per_batch))
        .load()
        .select("key", "value")
    )
    frame = failing_once(plan, read).writeStream.option("checkpointLocation", plan.checkpoint)
    options = {"kafka.bootstrap.servers": plan.bootstrap, "topic": plan.target, "delivery": plan.delivery}
    if plan.way == "stream":
        frame = frame.format("headrace").options(**options)
    else:
        frame = frame.foreachBatch(lambda batch, number: _write(batch, number, options))
    return frame.trigger(availableNow=True).start()


def _write(batch: Any, number: int, options: dict[str, str]) -> None:
    series = {"txnAppId": f"copy to {options['topic']}", "txnVersion": str(number)}
    batch.write.format("headrace").mode("append").options(**options, **series).save()


def main() -> None:
    fields = json.loads(sys.argv[1])
    plan = Plan(**fields | {"failing_batches": tuple(fields["failing_batches"])})
    query = start(session(), plan)
    print("started", flush=True)  # noqa: T201
    query.awaitTermination()
    print("finished", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
