"""Delayed messages and schedules while movers, and the brokers under them, are killed with -9."""

import itertools
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from headrace.client import Producer
from headrace.client.admin import Admin
from headrace.client.delays.schedules import TIME_HEADER, Schedule, Schedules
from headrace.client.reader import RecordReader
from tests.support.process import BrokerProcess, ClusterProcesses

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

COUNT: Final = 10_000
LONGEST_SECONDS: Final = 20.0
KILLS: Final = 10
STEADY: Final = 5
"""So many times one second apart: the schedule runs again."""
PATIENCE_SECONDS: Final = 180.0
SETTINGS: Final = {"group.initial.rebalance.delay.ms": "0"}


class MoverProcess:
    """`headrace schedule run`, through any number of deaths."""

    def __init__(self, bootstrap: str) -> None:
        self._command = [sys.executable, "-m", "headrace.cli", "schedule", "run", "--bootstrap", bootstrap]
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline().startswith("headrace ready mover=")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@contextmanager
def brokers(directory: Path, kills: str) -> Iterator[tuple[str, Callable[[], None]]]:
    """The brokers' address, and what kills one of them and starts it again."""
    if kills == "a-broker-of-three":
        with ClusterProcesses(directory, 3, settings=SETTINGS) as cluster:
            victims = itertools.cycle(cluster.brokers.values())
            yield cluster.bootstrap, lambda: restart(next(victims))
    else:
        with BrokerProcess(directory / "data", SETTINGS) as broker:
            yield broker.bootstrap, lambda: restart(broker)


def restart(victim: BrokerProcess | MoverProcess) -> None:
    victim.kill()
    time.sleep(1.0)
    victim.start()


def produce(bootstrap: str, chance: random.Random) -> None:
    with Producer(bootstrap) as producer:
        for number in range(COUNT):
            seconds = chance.uniform(0.01, LONGEST_SECONDS)
            due_ms = int((time.time() + seconds) * 1000)
            producer.send("later", f"{number}:{due_ms}", deliver_after=seconds)
            if number % 20 == 0:
                time.sleep(0.03)


def seen(bootstrap: str, topic: str) -> list[Any]:
    """Records that readers of committed messages see."""
    admin = Admin(bootstrap)
    partitions = admin.partition_numbers(topic)
    starts, ends = admin.start_offsets(topic, partitions), admin.end_offsets(topic, partitions, committed_only=True)
    settings = {"isolation.level": "read_committed"}
    with closing(RecordReader(bootstrap, topic, starts, ends, settings).messages()) as messages:
        return [message for message in messages if message is not None]


def tick_times(bootstrap: str) -> list[int]:
    """The times that the schedule's messages were meant for, in ms since 1970, from the first to the last."""
    return sorted(int(dict(record.headers())[TIME_HEADER]) for record in seen(bootstrap, "ticks"))


def ticks_again(times: list[int], since_ms: int) -> bool:
    """Whether the schedule has come every second for a while since then."""
    later = [time_ms for time_ms in times if time_ms > since_ms]
    return any(last - first == (STEADY - 1) * 1000 for first, last in zip(later, later[STEADY - 1 :], strict=False))


@pytest.mark.parametrize("kills", ["movers-alone", "the-broker", "a-broker-of-three"])
def test_each_delayed_message_comes_once_and_never_early_whoever_is_killed(tmp_path: Path, kills: str) -> None:
    chance = random.Random(7)
    with ExitStack() as stack:
        bootstrap, kill_broker = stack.enter_context(brokers(tmp_path, kills))
        admin = Admin(bootstrap)
        admin.create_topics(["later", "ticks"], partitions=3)
        Schedules(admin, bootstrap, "ticks").create(Schedule(name="tick", cron="* * * * * *", value=b"t"))
        movers = [MoverProcess(bootstrap) for _ in range(2)]
        for mover in movers:
            stack.callback(mover.kill)
            mover.start()
        load = threading.Thread(target=produce, args=(bootstrap, random.Random(8)))
        load.start()
        for kill in range(KILLS):
            time.sleep(chance.uniform(1.0, 4.0))
            if kills != "movers-alone" and kill % 2:
                kill_broker()
            else:
                restart(chance.choice(movers))
        last_kill_ms = int(time.time() * 1000)
        load.join()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(records := seen(bootstrap, "later")) < COUNT and time.monotonic() < deadline:
            time.sleep(1.0)
        while not ticks_again(tick_times(bootstrap), last_kill_ms) and time.monotonic() < deadline:
            time.sleep(1.0)
        records, times = seen(bootstrap, "later"), tick_times(bootstrap)
    values = [record.value().decode().split(":") for record in records]
    counts = Counter(int(number) for number, _ in values)
    assert set(counts) == set(range(COUNT))
    assert [number for number, times in counts.items() if times > 1] == []
    late = sorted(record.timestamp()[1] - int(due_ms) for record, (_, due_ms) in zip(records, values, strict=True))
    assert late[0] >= 0
    sys.stdout.write(f"{kills}: late by {late[len(late) // 2]} ms in the middle, {late[-1]} ms at most\n")
    assert len(set(times)) == len(times)
    assert ticks_again(times, last_kill_ms)
