"""Reading a topic into Spark: in a batch, in a stream, and how late a stream's rows are."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Final

from ..model import Aim, BenchError, Figure, Of, Sample, Work
from ..setting import Server, Setting
from . import archives, formats, jars, sinks, topics
from .session import driver
from .topics import PARTITIONS, TOPIC

ROWS: Final = 4_000_000
ROW_BYTES: Final = 108
RATE: Final = 10_000
WARM_BATCHES: Final = 10


@contextmanager
def filled(setting: Setting) -> Iterator[Server]:
    """A broker with a topic of `ROWS` records of 100 bytes."""
    from .synthetic import BATCH_ROWS, rows

    with topics.broker(setting) as server:
        topics.fill(server, rows(BATCH_ROWS).select(["key", "value"]), ROWS)
        yield server


def _options(server: Server) -> dict[str, str]:
    return {"kafka.bootstrap.servers": server.bootstrap, "subscribe": TOPIC, "startingOffsets": "earliest"}


def _rates(seconds: float, count: float = ROWS) -> Sample:
    return {"rows": count / seconds, "bytes": count * ROW_BYTES / seconds / 1e6}


def read(setting: Setting, *, form: str = "headrace") -> Sample:
    """A batch read of the whole topic, the second of two: the first compiles and warms."""
    if form == "kafka":
        jars.require(jars.Part.CONNECTOR)
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
    with topics.broker(setting) as server:
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
    return [*found, *formats.works(), *sinks.works(), *archives.works(filled, ROWS, ROW_BYTES)]
