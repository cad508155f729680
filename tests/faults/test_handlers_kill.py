"""Handlers under load whose processes are killed with -9, one after another, and their brokers, too."""

import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import pytest

from headrace.client import Producer
from headrace.client.admin import Admin
from headrace.client.dead_letters import DeadLetters
from headrace.client.reader import RecordReader
from tests.support.process import BrokerProcess, ClusterProcesses

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

COUNT: Final = 20_000
KEYS: Final = 100
KILLS: Final = 8
SETTINGS: Final = {"group.initial.rebalance.delay.ms": "0"}
PROGRAM: Final = """
import os
from headrace.client import Message
from headrace.client.handlers import App, Outbox, Retry

app = App(settings={"session.timeout.ms": 6000, "heartbeat.interval.ms": 500, "transaction.timeout.ms": 10000})


@app.subscribe("numbers", group="g", delivery="DELIVERY", concurrency=8, retry=Retry(in_place=20, backoff=0.001))
async def handle(message: Message[int], out: Outbox) -> None:
    if message.value % 500 == 0 and os.urandom(1)[0] < 128:
        raise ConnectionError("now and then")
    out.send("seen", message.value, key=message.key)
"""


POISON: Final = """
from headrace.client.handlers import App, Outbox, Retry

app = App(settings={"session.timeout.ms": 6000, "heartbeat.interval.ms": 500, "transaction.timeout.ms": 10000})


@app.subscribe(
    "numbers",
    group="g",
    delivery="DELIVERY",
    concurrency=8,
    retry=Retry(in_place=2, backoff=0.001, delays=(1, 2)),
    dead_letter=True,
)
async def handle(number: int, out: Outbox) -> None:
    out.send("seen", number)
    if number % 2:
        raise ValueError(f"{number} is poison")
"""


@contextmanager
def workers(
    directory: Path, bootstrap: str, delivery: str, program: str = PROGRAM
) -> Iterator["subprocess.Popen[str]"]:
    (directory / "program.py").write_text(program.replace("DELIVERY", delivery))
    command = [sys.executable, "-m", "headrace.cli", "worker", "run", "program:app", "--processes", "3"]
    environment = {**os.environ, "HEADRACE_BOOTSTRAP": bootstrap}
    process = subprocess.Popen(command, cwd=directory, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "headrace ready workers=3\n"
        yield process
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(each) for each in found]


def produce(bootstrap: str, count: int = COUNT) -> None:
    with Producer(bootstrap) as producer:
        for number in range(count):
            producer.send("numbers", number, key=str(number % KEYS))
            if number % 20 == 0:
                time.sleep(0.02)


def seen(bootstrap: str, topic: str = "seen") -> list[int]:
    """Numbers that readers of committed messages see, in their order in each partition."""
    admin = Admin(bootstrap)
    partitions = admin.partition_numbers(topic)
    starts, ends = admin.start_offsets(topic, partitions), admin.end_offsets(topic, partitions, committed_only=True)
    settings = {"isolation.level": "read_committed"}
    with closing(RecordReader(bootstrap, topic, starts, ends, settings).messages()) as messages:
        return [int(message.value()) for message in messages if message is not None]


@contextmanager
def brokers(directory: Path, kills: str) -> Iterator[tuple[str, Callable[[], None]]]:
    """The brokers' address, and what kills one of them and starts it again: each of three leads and coordinates."""
    if kills == "a-broker-of-three":
        with ClusterProcesses(directory, 3, settings=SETTINGS) as cluster:
            victims = itertools.cycle(cluster.brokers.values())
            yield cluster.bootstrap, lambda: restart(next(victims))
    else:
        with BrokerProcess(directory / "data", SETTINGS) as broker:
            yield broker.bootstrap, lambda: restart(broker)


def restart(broker: BrokerProcess) -> None:
    broker.kill()
    time.sleep(1.0)
    broker.start()


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
@pytest.mark.parametrize("kills", ["workers-alone", "the-broker", "a-broker-of-three"])
def test_no_number_is_missed_and_exactly_once_none_comes_twice(tmp_path: Path, delivery: str, kills: str) -> None:
    chance = random.Random(7)
    with brokers(tmp_path, kills) as (bootstrap, kill_broker):
        Admin(bootstrap).create_topics(["numbers", "seen"], partitions=6)
        with workers(tmp_path, bootstrap, delivery) as process:
            load = threading.Thread(target=produce, args=(bootstrap,))
            load.start()
            for kill in range(KILLS):
                time.sleep(chance.uniform(1.0, 3.0))
                if kills != "workers-alone" and kill % 2 == 1:
                    kill_broker()
                elif found := children(process.pid):
                    os.kill(chance.choice(found), signal.SIGKILL)
            load.join()
            deadline = time.monotonic() + 180
            while len(set(seen(bootstrap))) < COUNT and time.monotonic() < deadline:
                time.sleep(1.0)
            time.sleep(2.0)
        numbers = seen(bootstrap)
    assert set(numbers) == set(range(COUNT))
    if delivery == "exactly-once":
        assert [number for number, times in Counter(numbers).items() if times > 1] == []
        for key in range(KEYS):
            assert [number for number in numbers if number % KEYS == key] == list(range(key, COUNT, KEYS))


LETTERS: Final = "numbers.g.dead-letter"
POISONED: Final = 4000


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_poison_is_tried_as_often_as_said_and_becomes_whole_letters_that_go_back_once(
    tmp_path: Path, delivery: str
) -> None:
    """While workers, and then those who put letters back, are killed."""
    chance = random.Random(11)
    poison = list(range(1, POISONED, 2))
    with BrokerProcess(tmp_path / "data", SETTINGS) as broker:
        bootstrap = broker.bootstrap
        admin = Admin(bootstrap)
        admin.create_topics(["numbers", "seen", "again"], partitions=3)
        with workers(tmp_path, bootstrap, delivery, POISON) as process:
            load = threading.Thread(target=produce, args=(bootstrap, POISONED))
            load.start()
            for _ in range(4):
                time.sleep(chance.uniform(1.0, 3.0))
                if found := children(process.pid):
                    os.kill(chance.choice(found), signal.SIGKILL)
            load.join()
            deadline = time.monotonic() + 180
            while time.monotonic() < deadline and not (
                len(set(seen(bootstrap))) == POISONED // 2 and len(set(seen(bootstrap, LETTERS))) == len(poison)
            ):
                time.sleep(1.0)
        letters = list(DeadLetters(admin, bootstrap, LETTERS))
        assert set(seen(bootstrap)) == set(range(0, POISONED, 2))
        assert {int(letter.value or b"") for letter in letters} == set(poison)
        for letter in letters:
            assert letter.about["attempts"] == "4"
            assert letter.reason == f"ValueError: {int(letter.value or b'')} is poison"
            assert letter.key == str(int(letter.value or b"") % KEYS).encode()
            assert (letter.topic, letter.about["group"]) == ("numbers", "g")
            assert letter.timestamp.timestamp() * 1000 - int(letter.about["timestamp"]) >= 3000
        if delivery == "exactly-once":
            assert len(letters) == len(poison)
            assert sorted(seen(bootstrap)) == list(range(0, POISONED, 2))
        command = [sys.executable, "-m", "headrace.cli", "dlq", "redrive", LETTERS, "--all", "--to", "again"]
        environment = {**os.environ, "HEADRACE_BOOTSTRAP": bootstrap}
        for _ in range(5):
            with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as redrive:
                time.sleep(chance.uniform(1.5, 3.5))
                redrive.kill()
        assert subprocess.run(command, env=environment, check=False, timeout=120).returncode == 0
        assert sorted(seen(bootstrap, "again")) == sorted(int(letter.value or b"") for letter in letters)
        assert list(DeadLetters(admin, bootstrap, LETTERS)) == []
