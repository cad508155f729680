"""REST beside a bare ASGI application on the same server: publish, publish in hundreds, fetch, and answers from memory.

A fixed number of connections ask one request after the other; then requests come at half the rate that this gave, each
at its time whatever became of those before, and the time from when one was due to its answer is what its caller waits.
The gateway has the server's core; its broker and the load share the other.
"""

import asyncio
import ctypes
import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import uvloop

from . import machine
from .load import WARM_UP_SECONDS
from .model import CPU, Aim, BenchError, Figure, Of, Sample, Work
from .produce import RELAXED
from .setting import Server, Setting

CONNECTIONS: Final = 64
TOPIC: Final = "bench"
_RECORD: Final = b"x" * 100
_PATH: Final = f"/api/v1/topics/{TOPIC}/messages"
_MOST_WAITING: Final = 20_000
_TURN_NS: Final = 500_000
"""How often requests that are due are sent: more often than timers of the event loop go off without spinning, which
would keep the broker from the core that it shares with the load."""


def http_request(method: str, path: str, body: bytes = b"", content_type: str = "") -> bytes:
    """A whole request, ready to send again and again."""
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}"]
    if content_type:
        lines.append(f"Content-Type: {content_type}")
    return "\r\n".join([*lines, "", ""]).encode() + body


SINGLE: Final = http_request("POST", _PATH, _RECORD, "text/plain")
HUNDRED: Final = http_request(
    "POST", _PATH, json.dumps({"messages": [{"value": "x" * 98} for _ in range(100)]}).encode(), "application/json"
)
FETCH: Final = http_request("GET", f"/api/v1/topics/{TOPIC}/partitions/0/messages?offset=0&limit=100&max_bytes=20000")
LOOKUP: Final = http_request("GET", "/healthz")


class Asker(asyncio.Protocol):
    """A connection that sends one request at a time and calls back with each answer's body."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._received = bytearray()
        self._left = -1
        self._transport: asyncio.Transport | None = None
        self.answer: asyncio.Future[int] | None = None
        self.size = 0
        self.body = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's are no subclass of it

    def ask(self) -> "asyncio.Future[int]":
        assert self._transport is not None
        self.answer = asyncio.get_running_loop().create_future()
        self._transport.write(self._request)
        return self.answer

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._left < 0:
            end = self._received.find(b"\r\n\r\n")
            if end < 0:
                return
            at = self._received.find(b"content-length: ")
            self.size = int(self._received[at + 16 : self._received.find(b"\r", at)])
            self._left = end + 4 + self.size
        if len(self._received) >= self._left:
            self._finish()

    def _finish(self) -> None:
        status = int(self._received[9:12])
        self.body = bytes(self._received[self._left - self.size : self._left])
        del self._received[: self._left]
        self._left = -1
        answer, self.answer = self.answer, None
        if answer is not None and not answer.done():
            if status == 200:
                answer.set_result(self.size)
            else:
                answer.set_exception(BenchError(f"an answer was {status}: {self.body[:300]!r}"))

    def connection_lost(self, error: Exception | None) -> None:
        if self.answer is not None and not self.answer.done():
            self.answer.set_exception(BenchError(f"the connection was lost: {error}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    rate: float
    cpu: float
    p50: float
    p99: float


async def _open(port: int, request: bytes, count: int) -> list[Asker]:
    loop = asyncio.get_running_loop()
    return [(await loop.create_connection(lambda: Asker(request), "127.0.0.1", port))[1] for _ in range(count)]


async def _closed(askers: list[Asker], seconds: float) -> int:
    """How many answers came while each connection asked again at once."""
    end = time.perf_counter() + seconds
    count = 0

    async def one(asker: Asker) -> None:
        nonlocal count
        while time.perf_counter() < end:
            await asker.ask()
            count += 1

    await asyncio.gather(*map(one, askers))
    return count


@contextmanager
def every(nanoseconds: int, call: Callable[[], None]) -> Iterator[None]:
    """Have the event loop call something again and again; it sleeps in between."""
    libc = ctypes.CDLL(None, use_errno=True)
    timer = libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
    if timer < 0:
        raise OSError(ctypes.get_errno(), "no timer")
    loop = asyncio.get_running_loop()

    def due() -> None:
        os.read(timer, 8)
        call()

    try:
        pause_and_first = (ctypes.c_long * 4)(0, nanoseconds, 0, nanoseconds)
        if libc.timerfd_settime(timer, 0, ctypes.byref(pause_and_first), None):
            raise OSError(ctypes.get_errno(), "the timer was not set")
        loop.add_reader(timer, due)
        yield
    finally:
        loop.remove_reader(timer)
        os.close(timer)


async def _paced(askers: list[Asker], rate: float, seconds: float) -> list[float]:
    """How long each request took from when it was due; one that finds no connection free waits for one."""
    free, due, took = deque(askers), deque[float](), list[float]()
    loop = asyncio.get_running_loop()
    finished = loop.create_future()
    start = loop.time()
    total = int(rate * seconds)
    made = 0

    def turn() -> None:
        nonlocal made
        while made < total and start + made / rate <= loop.time():
            due.append(start + made / rate)
            made += 1
        while due and free:
            _send(free.popleft(), due.popleft())
        if len(due) > _MOST_WAITING and not finished.done():
            finished.set_exception(BenchError("half the load is more than is answered"))

    def _send(asker: Asker, at: float) -> None:
        def done(answer: "asyncio.Future[int]") -> None:
            if answer.exception() is not None:
                if not finished.done():
                    finished.set_exception(answer.exception() or BenchError("no answer"))
                return
            took.append(loop.time() - at)
            free.append(asker)
            if due:
                _send(free.popleft(), due.popleft())
            if len(took) == total and not finished.done():
                finished.set_result(None)

        asker.ask().add_done_callback(done)

    with every(_TURN_NS, turn):
        await finished
    return took


async def _measure(server: Server, request: bytes, seconds: float, connections: int) -> Measured:
    askers = await _open(server.port, request, connections)
    await _closed(askers, WARM_UP_SECONDS)
    before, start = server.cpu_seconds(), time.perf_counter()
    count = await _closed(askers, seconds)
    taken, cpu = time.perf_counter() - start, server.cpu_seconds() - before
    took = sorted(await _paced(askers, count / taken / 2, seconds))
    for asker in askers:
        asker._transport.close()  # type: ignore[union-attr]
    return Measured(rate=count / taken, cpu=cpu / count, p50=took[len(took) // 2], p99=took[int(len(took) * 0.99)])


@contextmanager
def gateway(setting: Setting) -> Iterator[Server]:
    """A gateway to a fresh broker that has the topic."""
    with setting.directory() as data:
        command = setting.broker_command(data)
        with setting.running(command, data, core=machine.CLIENT_CORE) as broker:
            broker.create_topic(TOPIC, RELAXED)
            asked = ["gateway", "--bootstrap", broker.bootstrap, "--http", "127.0.0.1:0"]
            with (
                setting.directory() as own,
                setting.running([sys.executable, "-m", "headrace.cli", *asked], own) as server,
            ):
                yield server


def _sample(measured: Measured, per_request: int) -> Sample:
    return {
        "rate": measured.rate * per_request,
        "p50": measured.p50 * 1000,
        "p99": measured.p99 * 1000,
        CPU: measured.cpu / per_request * 1e6,
    }


def through_gateway(setting: Setting, request: bytes, per_request: int, connections: int) -> Sample:
    """One round against a gateway with its broker."""

    async def work(server: Server) -> Measured:
        (asker,) = await _open(server.port, HUNDRED, 1)
        for _ in range(5):
            await asker.ask()
        asker._transport.close()  # type: ignore[union-attr]
        return await _measure(server, request, setting.seconds, connections)

    with gateway(setting) as server:
        return _sample(uvloop.run(work(server)), per_request)


def through_bare(setting: Setting, request: bytes, per_request: int, connections: int, reply: int) -> Sample:
    """One round against the bare application."""
    with setting.directory() as directory, setting.ceiling("asgi", directory, "--reply", str(reply)) as server:
        return _sample(uvloop.run(_measure(server, request, setting.seconds, connections)), per_request)


def _work(
    name: str,
    title: str,
    request: bytes,
    reply: int,
    *,
    per_request: int = 1,
    aim: float | None = None,
    connections: int = CONNECTIONS,
) -> Work:
    unit = "req/s" if per_request == 1 else "records/s"
    bound = None if aim is None else Aim(of=Of.RATIO, bound=aim, at_least=True)
    return Work(
        name=name,
        title=title,
        against="a bare ASGI application on the same server that answers as many bytes",
        figures=(
            Figure(key="rate", label="", unit=unit, aim=bound),
            Figure(key="p50", label="p50 at half load", unit="ms"),
            Figure(key="p99", label="p99 at half load", unit="ms"),
        ),
        broker=lambda setting: through_gateway(setting, request, per_request, connections),
        ceiling=lambda setting: through_bare(setting, request, per_request, connections, reply),
        cpu_unit="µs/req" if per_request == 1 else "µs/record",
    )


def works() -> list[Work]:
    """REST, each kind of request beside the bare application."""
    return [
        _work("http-publish", "REST publish, one record", SINGLE, 80, aim=0.5),
        _work("http-publish-100", "REST publish, 100 records", HUNDRED, 7500, per_request=100, connections=16),
        _work("http-fetch", "REST fetch, 100 records", FETCH, 21_000, per_request=100, connections=16),
        _work("http-lookup", "REST, answered from memory", LOOKUP, 15, aim=0.7),
    ]
