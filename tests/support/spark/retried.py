"""A write whose tasks have twins, in a process of its own: `python -m tests.support.spark.retried JSON`, with a `Plan`.

In ways `job` and `stream` a stage is run again. Rows are shuffled before they are written, on two executors with one
core each, both of which have shuffle files: they are read by more than one task. When task 0 has written some of its
rows, task 1 kills its own executor and with it shuffle files that are still needed, so Spark runs the first stage again
and then the second, all of it, with attempts counted from 0. Task 0 of the first time still runs, and is the first to
report. Its twin begins to write only after that, before the driver commits.

In way `speculation` Spark starts a copy of task 0, which has written some of its rows, and ends it when the copy is
done.
"""

import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import psutil

_PATIENCE: Final = 300.0
_MOMENT: Final = 3.0
"""What comes out of a task is written by another process, and its report is on its way; nobody tells when."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What to write, from a topic to another, and how."""

    bootstrap: str
    source: str
    target: str
    master: str
    place: str
    way: str


def session(master: str, *, speculates: bool) -> Any:
    """Two executors, both there before anything is run."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    lean = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    settings = {
        "spark.driver.memory": "700m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": lean,
        "spark.executor.memory": "500m",
        "spark.executor.cores": "1",
        "spark.executor.extraJavaOptions": lean,
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
        "spark.cores.max": "2",
        "spark.locality.wait": "0",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.adaptive.enabled": "false",
        "spark.speculation": str(speculates).lower(),
        "spark.speculation.interval": "100ms",
        "spark.speculation.multiplier": "1.01",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.minTaskRuntime": "500ms",
    }
    builder = SparkSession.builder.master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def misfortune(place: Path, way: str) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """What tasks of the second stage do with their rows; they tell each other by files."""

    wait_for = partial(_wait_for, place)

    def is_first(task: int) -> bool:
        try:
            (place / f"task-{task}").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def survivor(batches: list[Any]) -> Iterator[Any]:
        yield batches[0].slice(0, 10)
        (place / "some-written").touch()
        wait_for("twin-started")
        yield batches[0].slice(10)
        yield from batches[1:]
        (place / "survivor-ended").touch()

    def twin(batches: list[Any]) -> Iterator[Any]:
        (place / "twin-started").touch()
        wait_for("survivor-ended")
        time.sleep(_MOMENT)
        yield from batches
        time.sleep(_MOMENT)
        (place / "twin-wrote").touch()

    def loser(batches: list[Any]) -> Iterator[Any]:
        yield batches[0].slice(0, 10)
        (place / "some-written").touch()
        wait_for("never")

    def winner(batches: list[Any]) -> Iterator[Any]:
        wait_for("some-written")
        yield from batches
        (place / "twin-wrote").touch()

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        task = context.partitionId()
        rows = [batch for batch in batches if batch.num_rows]
        if way == "speculation":
            yield from rows if task else loser(rows) if is_first(task) else winner(rows)
        elif task == 0:
            yield from survivor(rows) if is_first(task) else twin(rows)
        elif task == 1 and is_first(task):
            wait_for("some-written")
            time.sleep(_MOMENT)
            _executor().kill()
        else:
            wait_for("twin-wrote")
            yield from rows

    return run


def _wait_for(place: Path, name: str) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not (place / name).exists():
        assert time.monotonic() < deadline, name
        time.sleep(0.05)


def _executor() -> psutil.Process:
    """The JVM that this worker belongs to."""
    return next(one for one in psutil.Process().parents() if "CoarseGrainedExecutorBackend" in " ".join(one.cmdline()))


def write(spark: Any, plan: Plan) -> None:
    target = {"kafka.bootstrap.servers": plan.bootstrap, "topic": plan.target, "delivery": "exactly-once"}
    reader = spark.readStream if plan.way == "stream" else spark.read
    rows = (
        reader.format("headrace")
        .option("kafka.bootstrap.servers", plan.bootstrap)
        .options(subscribe=plan.source, startingOffsets="earliest", minPartitions="4")
        .load()
        .select("key", "value")
        .repartition(4, "value")
    )
    rows = rows.mapInArrow(misfortune(Path(plan.place), plan.way), rows.schema)
    if plan.way != "stream":
        rows.write.format("headrace").mode("append").options(**target).save()
        return
    checkpoint = {"checkpointLocation": f"{plan.place}/checkpoint"}
    query = rows.writeStream.format("headrace").options(**target, **checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()


def main() -> None:
    plan = Plan(**json.loads(sys.argv[1]))
    write(session(plan.master, speculates=plan.way == "speculation"), plan)
    print("finished", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
