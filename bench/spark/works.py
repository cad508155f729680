"""Reading a topic into Spark: in a batch, in a stream, and how late a stream's rows are."""

import atexit
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from threading import Event, Thread, Timer
from typing import IO, Any, Final

from .. import machine
from ..model import Aim, BenchError, Figure, Of, Sample, Work
from ..produce import RELAXED
from ..setting import Server, Setting
from . import connector

TOPIC: Final = "bench"
ROWS: Final = 4_000_000
PARTITIONS: Final = 4
ROW_BYTES: Final = 108
RATE: Final = 10_000
WARM_BATCHES: Final = 10
_ANSWER_SECONDS: Final = 240.0
"""For a task of the driver, or its start: on a new machine loops are compiled meanwhile."""


class Driver:
    """The process that has the Spark session."""

    def __init__(self, jars: Path | None) -> None:
        environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        with machine.on_all_cores():
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.spark.driver", str(jars or "")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=environment,
            )
        self._answer()

    def run(self, **task: Any) -> dict[str, Any]:
        """What a task of the driver answers."""
        print(json.dumps(task), file=self._pipe(self._process.stdin), flush=True)
        return self._answer()

    def close(self) -> None:
        self._pipe(self._process.stdin).close()
        self._process.wait(60)

    def _answer(self) -> dict[str, Any]:
        too_late = Timer(_ANSWER_SECONDS, self._process.kill)
        too_late.start()
        try:
            line = next((line for line in self._pipe(self._process.stdout) if line.startswith("{")), None)
        finally:
            too_late.cancel()
        if line is None:
            raise BenchError("Spark ended, or took too long; run `python -m bench.spark.driver ''` to see why")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise BenchError(f"Spark: {answer['error']}")
        return answer

    @staticmethod
    def _pipe(pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None
        return pipe


@cache
def driver() -> Driver:
    """One session for all works: it takes seconds to start."""
    started = Driver(connector.jars())
    atexit.register(started.close)
    return started


@contextmanager
def filled(setting: Setting) -> Iterator[Server]:
    """A broker with a topic of `ROWS` records of 100 bytes, on all cores as Spark is."""
    from headrace.client.columnar import Cluster, Writer

    from .synthetic import BATCH_ROWS, rows

    with ExitStack() as stack:
        server = stack.enter_context(setting.broker())
        machine.free(server.pid)
        server.create_topic(TOPIC, RELAXED, PARTITIONS)
        cluster = Cluster({"bootstrap.servers": server.bootstrap})
        stack.callback(cluster.close)
        writer = Writer(cluster)
        batch = rows(BATCH_ROWS).select(["key", "value"])
        for _ in range(ROWS // BATCH_ROWS):
            writer.write(batch, TOPIC)
        writer.close()
        yield server


def _options(server: Server) -> dict[str, str]:
    return {"kafka.bootstrap.servers": server.bootstrap, "subscribe": TOPIC, "startingOffsets": "earliest"}


def _rates(seconds: float, count: float = ROWS) -> Sample:
    return {"rows": count / seconds, "bytes": count * ROW_BYTES / seconds / 1e6}


def read(setting: Setting, *, form: str = "headrace") -> Sample:
    """A batch read of the whole topic, the second of two: the first compiles and warms."""
    with filled(setting) as server:
        for _ in range(2):
            seconds = driver().run(kind="batch", format=form, options=_options(server))["seconds"]
        return _rates(seconds)


def read_synthetic(_setting: Setting) -> Sample:
    options = {"rows": str(ROWS), "partitions": str(PARTITIONS)}
    for _ in range(2):
        seconds = driver().run(kind="batch", format="synthetic", options=options)["seconds"]
    return _rates(seconds)


def stream(setting: Setting) -> Sample:
    """One micro-batch over everything that the topic has."""
    with filled(setting) as server, setting.directory() as directory:
        found = driver().run(
            kind="stream", format="headrace", options=_options(server), checkpoint=str(directory / "checkpoint")
        )
        return _rates(found["seconds"], found["rows"])


def stream_synthetic(setting: Setting) -> Sample:
    with setting.directory() as directory:
        found = driver().run(
            kind="stream",
            format="synthetic",
            options={"rows": str(ROWS), "rate": "0"},
            checkpoint=str(directory / "checkpoint"),
        )
        return _rates(found["seconds"], found["rows"])


def _ages(setting: Setting, form: str, options: dict[str, str]) -> Sample:
    with setting.directory() as directory:
        found = driver().run(
            kind="ages",
            format=form,
            options=options,
            path=str(directory / "ages"),
            checkpoint=str(directory / "checkpoint"),
            warm=WARM_BATCHES,
            seconds=max(setting.seconds * 3, 3),
        )
    ages = sorted(found["ages"])
    if not ages:
        raise BenchError("no rows came out of the stream")
    return {"p50": ages[len(ages) // 2], "p99": ages[min(int(len(ages) * 0.99), len(ages) - 1)]}


def lateness(setting: Setting) -> Sample:
    """Produced at a steady rate, read by a stream that runs as fast as it can."""
    with setting.broker() as server:
        machine.free(server.pid)
        server.create_topic(TOPIC, RELAXED, PARTITIONS)
        over = Event()
        producing = Thread(target=_produce_steadily, args=(server.bootstrap, over))
        producing.start()
        try:
            return _ages(setting, "headrace", _options(server) | {"startingOffsets": "latest"})
        finally:
            over.set()
            producing.join()


def _produce_steadily(bootstrap: str, over: Event) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 1, "log_level": 0})
    tick = 0.01
    due = time.perf_counter()
    while not over.is_set():
        for _ in range(int(RATE * tick)):
            producer.produce(TOPIC, bytes(100))
        producer.poll(0)
        due += tick
        time.sleep(max(due - time.perf_counter(), 0))
    producer.flush(10)


def lateness_synthetic(setting: Setting) -> Sample:
    return _ages(setting, "synthetic", {"rate": str(RATE)})


_RATES: Final = (
    Figure(key="rows", label="rows", unit="/s", aim=Aim(of=Of.RATIO, bound=0.5, at_least=True)),
    Figure(key="bytes", label="", unit="MB/s"),
)


def works() -> list[Work]:
    found = [
        Work(
            name="spark-read",
            title="Spark, batch read of a topic",
            against="a source that yields the same Arrow batch again and again",
            figures=_RATES,
            broker=read,
            ceiling=read_synthetic,
            rounds=2,
        ),
        Work(
            name="spark-stream",
            title="Spark, one micro-batch over a topic",
            against="a stream that makes its rows up",
            figures=_RATES,
            broker=stream,
            ceiling=stream_synthetic,
            rounds=2,
        ),
        Work(
            name="spark-lateness",
            title=f"Spark, age of a stream's rows at {RATE:,} a second",
            against="a stream that makes its rows up at the same rate",
            figures=(Figure(key="p50", label="p50", unit="ms"), Figure(key="p99", label="p99", unit="ms")),
            broker=lateness,
            ceiling=lateness_synthetic,
            rounds=2,
        ),
    ]
    if connector.can_be_fetched():
        own = Figure(key="rows", label="rows", unit="/s", aim=Aim(of=Of.RATIO, bound=1.0, at_least=True))
        found.append(
            Work(
                name="spark-connector",
                title="Spark, batch read beside Spark's own Kafka connector",
                against="Spark's own connector, reading the same topic from the same kind of broker",
                figures=(own, _RATES[1]),
                broker=read,
                ceiling=lambda setting: read(setting, form="kafka"),
                rounds=2,
            )
        )
    return found
