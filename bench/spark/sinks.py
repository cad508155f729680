"""Rows written by the sink, beside Spark's own sink and beside confluent-kafka in one process: the same records.

Each side writes to a topic of its own broker twice, of which the second time counts; what the topic has then is
counted.
"""

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from .. import machine
from ..model import CPU, Aim, BenchError, Figure, Measure, Of, Sample, Work
from ..setting import Server, Setting
from . import jars, orders, topics
from .jars import Part
from .session import driver

if TYPE_CHECKING:
    from confluent_kafka import Producer

ROWS: Final = 1_000_000
VALUE_SIZE: Final = 100
_RUNS: Final = 2
_DISTINCT: Final = 100_000
_FLUSH_SECONDS: Final = 60.0
_QUEUE_FULL_SECONDS: Final = 0.01
_POLL_EVERY: Final = 1000
_TEXTS: Final = ("CAST(id AS STRING) AS key", f"rpad(CAST(id AS STRING), {VALUE_SIZE}, 'x') AS value")
_ORDERS: Final = ("CAST(id AS STRING) AS key", f"{orders.FROM_ID} AS value")
_ALO: Final = "at-least-once"


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way to write rows to a topic from Spark."""

    sink: str = "headrace"
    columns: tuple[str, ...] = _TEXTS
    encoder: str = "the sink"
    options: dict[str, str] = field(default_factory=dict)
    has_registry: bool = False
    parts: tuple[Part, ...] = ()
    """What it needs beside PySpark."""


def write(setting: Setting, way: Way) -> Sample:
    """Rows per second until all are acknowledged, and the processor time of each in all processes."""
    for part in way.parts:
        jars.require(part)
    with ExitStack() as stack:
        server = stack.enter_context(topics.broker(setting))
        options = {"kafka.bootstrap.servers": server.bootstrap, "topic": topics.TOPIC, **way.options}
        descriptors = stack.enter_context(setting.directory()) / "orders.desc"
        descriptors.write_bytes(orders.descriptors())
        if way.has_registry:
            options["schema.registry.url"] = stack.enter_context(topics.registry(setting, server))
        for _ in range(_RUNS):
            cpu = driver().cpu_seconds() + server.cpu_seconds()
            seconds = driver().run(
                kind="write",
                format=way.sink,
                columns=way.columns,
                encoder=way.encoder,
                options=options,
                rows=ROWS,
                tasks=topics.PARTITIONS,
                descriptors=str(descriptors),
            )["seconds"]
            used = driver().cpu_seconds() + server.cpu_seconds() - cpu
        _check(server)
        return _sample(seconds, used)


def produce(setting: Setting) -> Sample:
    """The same records from a loop in Python over confluent-kafka's producer, on any core."""
    from confluent_kafka import Producer

    records = [(b"%d" % number, (b"%d" % number).ljust(VALUE_SIZE, b"x")) for number in range(_DISTINCT)]
    with topics.broker(setting) as server, machine.on_all_cores():
        settings = {"bootstrap.servers": server.bootstrap, "linger.ms": 5, "enable.idempotence": True, "log_level": 0}
        producer = Producer(settings | {"queue.buffering.max.messages": 200_000, "partitioner": "murmur2_random"})
        for _ in range(_RUNS):
            cpu, start = machine.cpu_seconds(os.getpid()) + server.cpu_seconds(), time.perf_counter()
            for _ in range(ROWS // _DISTINCT):
                _produce(producer, records)
            left = producer.flush(_FLUSH_SECONDS)
            seconds = time.perf_counter() - start
            used = machine.cpu_seconds(os.getpid()) + server.cpu_seconds() - cpu
            if left:
                raise BenchError(f"{left} records were never answered")
        _check(server)
    return _sample(seconds, used)


def _produce(producer: "Producer", records: list[tuple[bytes, bytes]]) -> None:
    send, poll = producer.produce, producer.poll
    for number, (key, value) in enumerate(records):
        while True:
            try:
                send(topics.TOPIC, value, key)
                break
            except BufferError:
                poll(_QUEUE_FULL_SECONDS)
        if number % _POLL_EVERY == 0:
            poll(0)


def _check(server: Server) -> None:
    found = topics.count_records(server)
    if found != _RUNS * ROWS:
        raise BenchError(f"{found} of {_RUNS * ROWS} records are in the topic")


def _sample(seconds: float, cpu: float) -> Sample:
    return {"rows": ROWS / seconds, CPU: cpu / ROWS * 1e6}


_FIGURE: Final = Figure(key="rows", label="rows", unit="/s", aim=Aim(of=Of.RATIO, bound=1.0, at_least=True))
_OWN_SINK: Final = "Spark's own Kafka sink"
_FORMATS: Final[tuple[tuple[str, str, str, tuple[Part, ...]], ...]] = (
    ("json-schema", "to_json", "to_json", ()),
    ("avro", "to_avro", "to_avro", (Part.AVRO,)),
    ("protobuf", "to_protobuf", "to_protobuf", (Part.PROTOBUF,)),
    ("protobuf", "google.protobuf", "google.protobuf in mapInArrow", ()),
)
"""What our sink makes of orders by itself, and what does it before Spark's."""


def works() -> list[Work]:
    return list(_works())


def _works() -> Iterator[Work]:
    own = partial(write, way=Way(sink="kafka", parts=(Part.CONNECTOR,)))
    for delivery in (_ALO, "exactly-once"):
        ours = Way(options={"delivery": delivery})
        words = f"Spark writes {VALUE_SIZE} B values, {delivery.replace('-', ' ')}"
        yield _work(f"spark-sink-{delivery}-client", words, "confluent-kafka in one Python process", ours, produce)
        yield _work(f"spark-sink-{delivery}-connector", words, f"{_OWN_SINK}, at least once", ours, own)
    for form, encoder, words, parts in _FORMATS:
        ours = Way(columns=_ORDERS, options={"format": form, "delivery": _ALO}, has_registry=True)
        theirs = Way(sink="kafka", columns=_ORDERS, encoder=encoder, parts=(Part.CONNECTOR, *parts))
        name = encoder.replace("google.protobuf", "python")
        yield _work(
            f"spark-sink-{form}-{name}",
            f"Spark writes orders, format={form}",
            f"{words}, then {_OWN_SINK}",
            ours,
            partial(write, way=theirs),
        )


def _work(name: str, title: str, against: str, ours: Way, theirs: Measure) -> Work:
    return Work(
        name=name,
        title=f"{title}, beside {against}",
        against=f"{against}, the same rows",
        figures=(_FIGURE,),
        broker=partial(write, way=ours),
        ceiling=theirs,
        cpu_unit="µs/row",
        rounds=2,
    )
