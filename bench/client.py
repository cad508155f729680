"""Through confluent-kafka, as a user sees it: the client is the larger part of the work, so there is no ceiling."""

import time
from collections.abc import Callable
from functools import partial
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from .frames import batch_up_to
from .model import CPU, BenchError, Figure, Sample, Work
from .produce import RELAXED, TOPIC, fill
from .setting import Setting

_FLUSH_SECONDS: Final = 30.0
_QUEUE_FULL_SECONDS: Final = 0.01
_POLL_EVERY: Final = 1000
_CONSUME: Final = 10_000
_FILL_BYTES: Final = 400_000_000
_BATCH_SIZE: Final = 64 * 1024


def produce(setting: Setting, *, value_size: int, durable: bool) -> Sample:
    """Records per second from the first `produce` to the last delivery report."""
    value = bytes(n * 131 % 251 for n in range(value_size))
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: object) -> None:
        if error is not None:
            failures.append(error)

    with setting.broker() as server:
        server.create_topic(TOPIC, {} if durable else RELAXED)
        producer = Producer(
            {
                "bootstrap.servers": server.bootstrap,
                "linger.ms": 5,
                "queue.buffering.max.messages": 200_000,
                "log_level": 0,
            }
        )
        producer.produce(TOPIC, value, on_delivery=delivered)
        producer.flush(_FLUSH_SECONDS)
        cpu, start = server.cpu_seconds(), time.perf_counter()
        count = _produce_until(producer, value, start + setting.seconds, delivered)
        left = producer.flush(_FLUSH_SECONDS)
        seconds, used = time.perf_counter() - start, server.cpu_seconds() - cpu
    if failures or left:
        raise BenchError(f"{left} records were never answered, {len(failures)} failed: {failures[:1]}")
    return _sample(count, value_size, seconds, used)


def _produce_until(
    producer: Producer, value: bytes, deadline: float, delivered: Callable[[KafkaError | None, object], None]
) -> int:
    count = 0
    send, poll = producer.produce, producer.poll
    while time.perf_counter() < deadline:
        for _ in range(_POLL_EVERY):
            try:
                send(TOPIC, value, on_delivery=delivered)
                count += 1
            except BufferError:
                poll(_QUEUE_FULL_SECONDS)
        poll(0)
    return count


def consume(setting: Setting, *, value_size: int) -> Sample:
    """Records per second from the first one on, from the page cache."""
    batch = batch_up_to(_BATCH_SIZE, value_size)
    count = _FILL_BYTES // len(batch.data)
    with setting.broker() as server:
        server.create_topic(TOPIC, RELAXED)
        fill(server, TOPIC, batch, count)
        consumer = Consumer(
            {"bootstrap.servers": server.bootstrap, "group.id": "bench", "enable.auto.commit": False, "log_level": 0}
        )
        try:
            consumer.assign([TopicPartition(TOPIC, 0, 0)])
            _take(consumer, 1)
            cpu, start = server.cpu_seconds(), time.perf_counter()
            taken = _take(consumer, batch.records * count - 1, start + setting.seconds)
            seconds, used = time.perf_counter() - start, server.cpu_seconds() - cpu
        finally:
            consumer.close()
    return _sample(taken, value_size, seconds, used)


def _take(consumer: Consumer, most: int, deadline: float | None = None) -> int:
    taken = 0
    while taken < most and (deadline is None or time.perf_counter() < deadline):
        messages = consumer.consume(min(_CONSUME, most - taken), 10.0)
        if not messages:
            raise BenchError("no record came for 10 s")
        if messages[-1].error() is not None:
            raise KafkaException(messages[-1].error())
        taken += len(messages)
    return taken


def _sample(count: int, value_size: int, seconds: float, cpu: float) -> Sample:
    size = count * value_size
    return {"records": count / seconds, "rate": size / seconds / 1e6, CPU: cpu / (size / 1e9)}


def _work(name: str, title: str, measure: Callable[[Setting], Sample]) -> Work:
    return Work(
        name=name,
        title=title,
        against="",
        figures=(
            Figure(key="records", label="", unit="records/s"),
            Figure(key="rate", label="", unit="MB/s"),
        ),
        broker=measure,
        cpu_unit="s/GB",
        rounds=2,
    )


def works() -> list[Work]:
    return [
        _work(
            f"client-produce-{words}{'-fsync' if durable else ''}",
            f"confluent-kafka produces, {value_size:,} B records, {'fsync' if durable else 'no fsync'}",
            partial(produce, value_size=value_size, durable=durable),
        )
        for value_size, words in ((100, "100b"), (1000, "1k"))
        for durable in (False, True)
    ] + [
        _work(
            f"client-consume-{words}",
            f"confluent-kafka consumes, {value_size:,} B records",
            partial(consume, value_size=value_size),
        )
        for value_size, words in ((100, "100b"), (1000, "1k"))
    ]
