"""The SDK beside programs written by hand on confluent-kafka that promise the same: at least once, failures noticed.

Handlers do nothing, on one core with their consumer: what is measured is what stands around them. A call of request and
reply goes over two topics and back, with the caller and the function in processes of their own.
"""

import asyncio
import itertools
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from confluent_kafka import Consumer as BareConsumer
from confluent_kafka import KafkaError
from confluent_kafka import Producer as BareProducer

from headrace.client import Consumer, Producer, Rpc
from headrace.client.handlers import App, Worker

from .model import CPU, Aim, BenchError, Figure, Of, Sample, Work
from .produce import RELAXED, TOPIC
from .setting import Server, Setting

_VALUE: Final = bytes(n * 131 % 251 for n in range(100))
_CHUNK: Final = 500
_FILLED: Final = 1_000_000
_FLUSH_SECONDS: Final = 60.0
_LOOK: Final = 5000
_SETTINGS: Final[dict[str, Any]] = {"queue.buffering.max.messages": 500_000, "log_level": 0}
_CALLS: Final = 32


def produce(setting: Setting, *, bare: bool) -> Sample:
    """Records per second from the first that is sent to the last that is acknowledged."""
    with setting.broker() as server:
        server.create_topic(TOPIC, RELAXED)
        send, finish = (_bare_producer if bare else _sdk_producer)(server)
        send()
        finish()
        start = time.perf_counter()
        used = time.process_time()
        count = 0
        while time.perf_counter() < start + setting.seconds:
            for _ in range(_CHUNK):
                send()
            count += _CHUNK
        finish()
        seconds, used = time.perf_counter() - start, time.process_time() - used
    return {"records": count / seconds, CPU: used / count * 1e6}


def _sdk_producer(server: Server) -> tuple[Callable[[], None], Callable[[], None]]:
    producer = Producer(server.bootstrap, settings=_SETTINGS)
    return partial(producer.send, TOPIC, _VALUE), producer.flush


def _bare_producer(server: Server) -> tuple[Callable[[], None], Callable[[], None]]:
    failures: list[KafkaError] = []
    settings = {
        "bootstrap.servers": server.bootstrap,
        "enable.idempotence": True,
        "compression.type": "lz4",
        "linger.ms": 5,
    }
    producer = BareProducer({**settings, **_SETTINGS})

    def delivered(error: KafkaError | None, _record: object) -> None:
        if error is not None:
            failures.append(error)

    def send() -> None:
        while True:
            try:
                producer.produce(TOPIC, _VALUE, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)

    def finish() -> None:
        if producer.flush(_FLUSH_SECONDS) or failures:
            raise BenchError(f"records were not delivered: {failures[:1]}")

    return send, finish


def _fill(server: Server) -> None:
    server.create_topic(TOPIC, RELAXED)
    with Producer(server.bootstrap, settings=_SETTINGS) as producer:
        for number in range(_FILLED):
            producer.send(TOPIC, _VALUE, key=str(number % 1000))


def consume(setting: Setting, *, bare: bool) -> Sample:
    """Records per second, each handled before its offset is stored."""
    with setting.broker() as server:
        _fill(server)
        values = (_bare_values if bare else _sdk_values)(server)
        next(values)
        start, used = time.perf_counter(), time.process_time()
        count = 0
        for count, _ in enumerate(itertools.islice(values, _FILLED - 1), 1):
            if not count % _LOOK and time.perf_counter() > start + setting.seconds:
                break
        seconds, used = time.perf_counter() - start, time.process_time() - used
        values.close()
    return {"records": count / seconds, CPU: used / count * 1e6}


def _sdk_values(server: Server) -> Any:
    with Consumer(TOPIC, group="bench", bootstrap=server.bootstrap) as consumer:
        for message in consumer:
            yield message.value


def _bare_values(server: Server) -> Any:
    settings = {"bootstrap.servers": server.bootstrap, "group.id": "bench", "auto.offset.reset": "earliest"}
    ours = {"enable.auto.offset.store": False, "fetch.queue.backoff.ms": 20, "log_level": 0}
    consumer = BareConsumer({**settings, **ours})
    try:
        consumer.subscribe([TOPIC])
        while True:
            record = consumer.poll(1.0)
            if record is None:
                continue
            if record.error() is not None:
                raise BenchError(str(record.error()))
            yield record.value()
            consumer.store_offsets(record)
    finally:
        consumer.close()


def handle(setting: Setting, *, concurrency: int) -> Sample:
    """Messages per second that a handler is called with which does nothing."""
    with setting.broker() as server:
        _fill(server)
        count, seconds, used = asyncio.run(_handled(server, setting.seconds, concurrency))
    return {"records": count / seconds, "per core": count / used, CPU: used / count * 1e6}


async def _handled(server: Server, seconds: float, concurrency: int) -> tuple[int, float, float]:
    app, count = App(server.bootstrap), 0
    stop = asyncio.Event()

    @app.subscribe(TOPIC, group="bench", concurrency=concurrency)
    async def nothing(_value: bytes) -> None:
        nonlocal count
        count += 1

    worker = asyncio.create_task(Worker(app).run(stop))
    while not count:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    first, start, used = count, time.perf_counter(), time.process_time()
    while time.perf_counter() < start + seconds and count < _FILLED:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    taken, spent, used = count - first, time.perf_counter() - start, time.process_time() - used
    stop.set()
    await worker
    return taken, spent, used


def call(setting: Setting) -> Sample:
    """How long a call takes, alone and with others at the same time."""
    with setting.broker() as server:
        server.create_topic("echo", RELAXED, 4)
        serving = subprocess.Popen(
            [sys.executable, "-c", _SERVER, server.bootstrap], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
        )
        try:
            assert serving.stdout is not None
            serving.stdout.readline()
            alone, many, rate = asyncio.run(_calls(server, setting.seconds))
        finally:
            serving.terminate()
            serving.wait()
    return {**_quantiles("alone", alone), **_quantiles("many", many), "rate": rate}


_SERVER: Final = """
import asyncio, sys
from headrace.client.handlers import App, Worker

app = App(sys.argv[1])


@app.serve("echo")
async def echo(value: bytes) -> bytes:
    return value


asyncio.run(Worker(app).run(on_ready=lambda: print("ready", flush=True)))
"""


async def _calls(server: Server, seconds: float) -> tuple[list[float], list[float], float]:
    async with Rpc(server.bootstrap) as rpc:

        async def ask(took: list[float], until: float) -> None:
            while time.perf_counter() < until:
                began = time.perf_counter()
                await rpc.call("echo", _VALUE, reply=bytes, timeout=30)
                took.append(time.perf_counter() - began)

        await rpc.call("echo", _VALUE, reply=bytes, timeout=30)
        alone: list[float] = []
        await ask(alone, time.perf_counter() + seconds)
        many: list[float] = []
        began = time.perf_counter()
        await asyncio.gather(*(ask(many, began + seconds) for _ in range(_CALLS)))
        return alone, many, len(many) / (time.perf_counter() - began)


def _quantiles(name: str, took: list[float]) -> Sample:
    ordered = sorted(took)
    return {
        f"{name} p50": ordered[len(ordered) // 2] * 1000,
        f"{name} p99": ordered[int(len(ordered) * 0.99)] * 1000,
    }


def _beside(name: str, title: str, against: str, measure: Callable[..., Sample]) -> Work:
    return Work(
        name=name,
        title=title,
        against=against,
        figures=(Figure(key="records", label="", unit="records/s", aim=Aim(of=Of.RATIO, bound=0.9, at_least=True)),),
        broker=partial(measure, bare=False),
        ceiling=partial(measure, bare=True),
        cpu_unit="µs/record",
    )


def _handling(concurrency: int) -> Work:
    return Work(
        name=f"sdk-handlers-{concurrency}",
        title=f"handlers that do nothing, {concurrency} at a time, 100 B records",
        against="",
        figures=(
            Figure(key="records", label="", unit="records/s"),
            Figure(
                key="per core",
                label="for each second of processor time",
                unit="records",
                aim=Aim(of=Of.VALUE, bound=100_000, at_least=True),
            ),
        ),
        broker=partial(handle, concurrency=concurrency),
        cpu_unit="µs/record",
    )


def works() -> list[Work]:
    """Sending, receiving, handling, calling."""
    return [
        _beside("sdk-produce", "the SDK sends, 100 B records", "confluent-kafka, delivery reports read", produce),
        _beside(
            "sdk-consume", "the SDK receives, 100 B records", "confluent-kafka, offsets stored one by one", consume
        ),
        _handling(1),
        _handling(16),
        Work(
            name="sdk-rpc",
            title=f"request and reply, one call at a time and {_CALLS}",
            against="",
            figures=(
                Figure(key="alone p50", label="alone, p50", unit="ms"),
                Figure(key="alone p99", label="alone, p99", unit="ms"),
                Figure(key="many p50", label="many, p50", unit="ms"),
                Figure(key="many p99", label="many, p99", unit="ms"),
                Figure(key="rate", label="many", unit="calls/s"),
            ),
            broker=call,
        ),
    ]
