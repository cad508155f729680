"""From sending a record to holding it as a reader, one at a time: a fetch waits at the end of the log while a record
is produced over another connection. Beside it a bare relay that writes to a file (and syncs it) on the way.

Once more while a third connection floods the broker with tiny requests, which tells how fair it is to the others.
"""

import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from . import flood, machine
from .frames import MIB, batch_of, check_fetched, fetch_frame, produce_frame, produce_reply_size, produced_offset
from .load import WARM_UP_SECONDS, ask, read_frame
from .model import CPU, Figure, Sample, Work
from .produce import RELAXED, TOPIC
from .setting import Server, Setting

_PACE_SECONDS: Final = 0.001
"""Between two records, so that the fetch has long been waiting."""
_MOST: Final = 20_000
_FIGURES: Final = (Figure(key="p50", label="p50", unit="ms"), Figure(key="p99", label="p99", unit="ms"))


def through_broker(setting: Setting, *, durable: bool) -> Sample:
    """One round of records through a fresh broker."""
    with setting.broker() as server:
        server.create_topic(TOPIC, {} if durable else RELAXED)
        return _measure(setting, server)


def through_flooded_broker(setting: Setting) -> Sample:
    """One round of records while another connection sends as many tiny requests as are answered."""
    with setting.broker() as server, setting.directory() as directory:
        server.create_topic(TOPIC, RELAXED)
        server.create_topic(flood.TOPIC, RELAXED)
        command = [sys.executable, "-m", "bench.flood", str(server.port)]
        with setting.running(command, directory, core=machine.CLIENT_CORE):
            sample = _measure(setting, server)
    del sample[CPU]
    return sample


def _measure(setting: Setting, server: Server) -> Sample:
    frame = produce_frame(TOPIC, batch_of(1, 100))
    with server.connect() as producer, server.connect() as consumer:
        fetched = ask(producer, frame)
        offset = produced_offset(fetched, TOPIC) + 1

        def once(number: int) -> float:
            consumer.sendall(fetch_frame(TOPIC, offset + number, MIB, max_wait_ms=5000))
            time.sleep(_PACE_SECONDS)
            start = time.perf_counter()
            producer.sendall(frame)
            reply = read_frame(consumer)
            took = time.perf_counter() - start
            check_fetched(reply, TOPIC)
            produced_offset(read_frame(producer), TOPIC)
            return took

        return _collect(setting, once, server.cpu_seconds)


def through_relay(setting: Setting, *, durable: bool) -> Sample:
    """One round of records through the bare relay."""
    frame = produce_frame(TOPIC, batch_of(1, 100))
    with setting.directory() as directory:
        arguments = ["--path", str(directory / "file"), "--frame", str(len(frame))]
        arguments += ["--reply", str(produce_reply_size(TOPIC)), *(["--sync"] if durable else [])]
        with (
            setting.ceiling("relay", directory, *arguments) as server,
            server.connect() as producer,
            server.connect() as consumer,
        ):
            return _collect(setting, partial(_relay_once, producer, consumer, frame), server.cpu_seconds)


def _relay_once(producer: socket.socket, consumer: socket.socket, frame: bytes, _: int) -> float:
    time.sleep(_PACE_SECONDS)
    start = time.perf_counter()
    producer.sendall(frame)
    read_frame(consumer)
    took = time.perf_counter() - start
    read_frame(producer)
    return took


def _collect(setting: Setting, once: Callable[[int], float], cpu: Callable[[], float]) -> Sample:
    warm = time.perf_counter() + WARM_UP_SECONDS
    number = 0
    while time.perf_counter() < warm:
        once(number)
        number += 1
    times: list[float] = []
    before, end = cpu(), time.perf_counter() + setting.seconds
    while time.perf_counter() < end and len(times) < _MOST:
        times.append(once(number))
        number += 1
    used = cpu() - before
    times.sort()
    return {
        "p50": times[len(times) // 2] * 1e3,
        "p99": times[min(len(times) * 99 // 100, len(times) - 1)] * 1e3,
        CPU: used / len(times) * 1e6,
    }


def _work(name: str, words: str, *, durable: bool) -> Work:
    return Work(
        name=name,
        title=f"produce to fetch, low load, {words}",
        against="bare relay through a file" + (", fdatasync each" if durable else ""),
        figures=_FIGURES,
        broker=partial(through_broker, durable=durable),
        ceiling=partial(through_relay, durable=durable),
        cpu_unit="µs/record",
    )


def works() -> list[Work]:
    return [
        _work("latency", "no fsync", durable=False),
        _work("latency-fsync", "fsync", durable=True),
        Work(
            name="latency-flooded",
            title="produce to fetch beside a flood of tiny requests, no fsync",
            against="",
            figures=_FIGURES,
            broker=through_flooded_broker,
        ),
    ]
