"""A million delayed messages pending: what the broker and the mover take for them, and what they mean for others.

The mover (`headrace schedule run`) has the core of the clients. What waits is due in ten minutes to two hours, so that
nothing of it is moved meanwhile; messages that are due soon are sent beside it.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Final

from headrace.client import Consumer, Producer

from . import machine
from .model import Aim, BenchError, Figure, Of, Sample, Work
from .setting import Server, Setting, stop

TOPIC: Final = "later"
PENDING: Final = 1_000_000
_BURST: Final = 100_000
_PROBES: Final = 100
_VALUE: Final = bytes(n * 131 % 251 for n in range(100))
_SETTINGS: Final = {"queue.buffering.max.messages": 500_000, "log_level": 0}
_SECONDS: Final = 120.0
_QUIET_SECONDS: Final = 5.0


@contextmanager
def _mover(server: Server) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "headrace.cli", "schedule", "run", "--bootstrap", server.bootstrap]
    with machine.on_core(machine.CLIENT_CORE):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise BenchError("the mover did not start")
        yield process
    finally:
        stop(process)


def _received(consumer: Consumer[bytes], count: int) -> list[float]:
    """When each of so many messages was there."""
    found: list[float] = []
    deadline = time.monotonic() + _SECONDS
    while len(found) < count:
        if time.monotonic() > deadline:
            raise BenchError(f"{len(found)} of {count} delayed messages came within {_SECONDS:.0f} s")
        batch = consumer.receive_many(None, 1.0)
        found += [time.time()] * len(batch)
    return found


def _send_pending(producer: Producer) -> float:
    """Messages per second from the first to the last acknowledgement."""
    start = time.perf_counter()
    for number in range(PENDING):
        producer.send(TOPIC, _VALUE, deliver_after=600 + number % 6600)
    producer.flush()
    return PENDING / (time.perf_counter() - start)


def _lateness(producer: Producer, consumer: Consumer[bytes]) -> list[float]:
    """Milliseconds by which each message is late that is due soon; none may be early."""
    late = []
    for number in range(_PROBES):
        due = time.time() + 0.5 + number % 10 / 10
        producer.deliver(TOPIC, b"probe", deliver_after=due - time.time())
        (there,) = _received(consumer, 1)
        late.append((there - due) * 1000)
    if min(late) < 0:
        raise BenchError(f"a message came {-min(late):.1f} ms early")
    return late


def _burst(producer: Producer, consumer: Consumer[bytes]) -> float:
    """Messages per second that reach their topic where all are due at once."""
    due = time.time() + 10
    for _ in range(_BURST):
        producer.send(TOPIC, _VALUE, deliver_after=due - time.time())
    producer.flush()
    last = max(_received(consumer, _BURST))
    return _BURST / (last - due)


def pending(setting: Setting) -> Sample:
    """What a million pending messages take."""
    with setting.directory() as data, ExitStack() as stack:
        command = setting.broker_command(data)
        server = stack.enter_context(setting.running(command, data))
        server.create_topic(TOPIC, {})
        producer = Producer(server.bootstrap, settings=_SETTINGS)
        consumer = stack.enter_context(closing(Consumer(TOPIC, group="bench", bootstrap=server.bootstrap)))
        mover = stack.enter_context(_mover(server))
        _lateness(producer, consumer)
        broker_before, mover_before = machine.resident_mb(server.pid), machine.resident_mb(mover.pid)
        rate = _send_pending(producer)
        time.sleep(_QUIET_SECONDS)
        late = _lateness(producer, consumer)
        broker_after, mover_after = machine.resident_mb(server.pid), machine.resident_mb(mover.pid)
        again = _restarted_mover(stack, server, mover, producer, consumer)
        burst = _burst(producer, consumer)
        producer.close()
        consumer.close()
        restart = _restarted_broker(setting, data, server)
    return {
        "rate": rate,
        "broker": broker_after - broker_before,
        "mover": mover_after - mover_before,
        "late": median(late),
        "late_p99": quantiles(late, n=100)[-1],
        "burst": burst,
        "again": again,
        "restart": restart,
    }


def _restarted_mover(
    stack: ExitStack, server: Server, mover: "subprocess.Popen[str]", producer: Producer, consumer: Consumer[bytes]
) -> float:
    """Seconds from the start of a mover, after one that was killed, to the first message by it."""
    mover.kill()
    mover.wait()
    producer.deliver(TOPIC, b"waiting", deliver_after=0.2)
    started = time.time()
    stack.enter_context(_mover(server))
    return _received(consumer, 1)[0] - started


def _restarted_broker(setting: Setting, data: Path, server: Server) -> float:
    """Seconds from the start of a broker, after kill -9, until it serves."""
    server.process.kill()
    server.process.wait()
    start = time.perf_counter()
    with setting.running(setting.broker_command(data), data):
        return time.perf_counter() - start


def works() -> list[Work]:
    return [
        Work(
            name="delays",
            title=f"{PENDING:,} delayed messages of 100 B pending",
            against="",
            figures=(
                Figure(key="rate", label="sent", unit="msg/s"),
                Figure(
                    key="broker",
                    label="memory of the broker for them",
                    unit="MB",
                    aim=Aim(of=Of.VALUE, bound=100, at_least=False),
                ),
                Figure(
                    key="mover",
                    label="memory of the mover for them",
                    unit="MB",
                    aim=Aim(of=Of.VALUE, bound=50, at_least=False),
                ),
                Figure(key="late", label="another message late by, median", unit="ms"),
                Figure(key="late_p99", label="another message late by, p99", unit="ms"),
                Figure(key="burst", label=f"{_BURST:,} due at once, delivered", unit="msg/s"),
                Figure(key="again", label="mover killed: start to next delivery", unit="s"),
                Figure(key="restart", label="broker killed: start to ready", unit="s"),
            ),
            broker=pending,
            rounds=1,
        )
    ]
