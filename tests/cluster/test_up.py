"""`headrace up --brokers 3`, from the first line to the last process; and brokers that cannot join a cluster."""

import json
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, Producer
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from headrace.cli.zookeeper import ZooKeeperServer
from headrace.config.properties import parse_properties
from tests.support.cli import command, environment
from tests.support.process import free_port, wait_for

pytestmark = pytest.mark.slow

READY_SECONDS = 120.0


class Command:
    """A command whose lines can be waited for; whatever is left of it is ended with it."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            command(*arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=directory,
        )
        self.errors: list[str] = []
        self._lines: queue.Queue[str] = queue.Queue()
        self._family: dict[int, psutil.Process] = {}
        self._readers = [
            threading.Thread(target=self._read, args=(stream, taken), daemon=True)
            for stream, taken in ((self.process.stdout, self._lines.put), (self.process.stderr, self.errors.append))
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: "Iterator[str]", taken: Callable[[str], None]) -> None:
        for line in stream:
            taken(line.rstrip())

    def first_line(self) -> str:
        return self._lines.get(timeout=READY_SECONDS)

    def says(self, words: str) -> bool:
        return any(words in line for line in self.errors)

    def family(self) -> list[psutil.Process]:
        """Its processes, also those that were there before."""
        if self.process.poll() is None:
            for child in psutil.Process(self.process.pid).children(recursive=True):
                self._family[child.pid] = child
        return list(self._family.values())

    def child(self, *words: str) -> psutil.Process:
        """The one child whose arguments have these words, one after another."""

        def fits(process: psutil.Process) -> bool:
            try:
                line = process.cmdline()
            except psutil.Error:
                return False
            return any(tuple(line[n : n + len(words)]) == words for n in range(len(line)))

        (found,) = [process for process in self.family() if fits(process)]
        return found

    def ended(self) -> int:
        code = self.process.wait(120)
        for reader in self._readers:
            reader.join(60)
        return code

    def close(self) -> None:
        for process in self.family():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.kill()
        self.process.wait(60)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Command]]:
    started: list[Command] = []

    def begin(*arguments: str) -> Command:
        started.append(Command(tmp_path, *arguments))
        return started[-1]

    yield begin
    for one in started:
        one.close()


def headrace(bootstrap: str, *arguments: str) -> str:
    return subprocess.run(
        command(*arguments), env=environment(bootstrap), capture_output=True, text=True, timeout=120, check=True
    ).stdout


def test_three_brokers_come_up_heal_and_go_together(start: Callable[..., Command]) -> None:
    up = start("up", "--brokers", "3", "--kafka-port", "0", "--http-port", "0", "--data", "d", "--json")
    ready = json.loads(up.first_line())
    kafka = ready["kafka"]
    wait_for("three brokers", lambda: brokers_of(kafka) == list(zip((1, 2, 3), kafka.split(","), strict=True)))
    headrace(kafka, "topic", "create", "orders", "--partitions", "3")
    victim = up.child("broker", "--id", "2")
    produce(kafka, range(100))
    victim.kill()
    produce(kafka, range(100, 200))
    wait_for("word of the death", lambda: up.says(f"headrace: broker 2 (pid {victim.pid}) was ended by SIGKILL"))
    wait_for("word of its return", lambda: up.says("is back"))
    wait_for("every replica in sync", lambda: is_well(kafka))
    assert consume(kafka, 200) == {b"%d" % number for number in range(200)}
    family = up.family()
    os.kill(up.process.pid, signal.SIGINT)
    assert up.ended() == 0
    assert not psutil.wait_procs(family, timeout=60)[1], "something was left over"
    assert not any("Traceback" in line for line in up.errors)


def brokers_of(bootstrap: str) -> list[tuple[int, str]]:
    view = json.loads(headrace(bootstrap, "cluster", "describe", "--json"))
    return [(broker["id"], f"{broker['host']}:{broker['port']}") for broker in view["brokers"]]


def is_well(bootstrap: str) -> bool:
    return bool(json.loads(headrace(bootstrap, "cluster", "describe", "--json"))["health"]["ok"])


def produce(bootstrap: str, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    failed: list[object] = []

    def delivered(error: object, _message: object) -> None:
        if error is not None:
            failed.append(error)

    for number in numbers:
        producer.produce("orders", b"%d" % number, key=b"%d" % number, on_delivery=delivered)
    assert producer.flush(180) == 0
    assert not failed


def consume(bootstrap: str, count: int) -> set[bytes]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "readers", "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    found: list[bytes] = []

    def enough() -> bool:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            found.append(message.value())
        return len(found) >= count

    try:
        wait_for("all records", enough)
    finally:
        consumer.close()
    assert len(found) == len(set(found))
    return set(found)


def test_a_broker_that_cannot_start_takes_the_cluster_with_it(start: Callable[..., Command]) -> None:
    up = start("up", "--brokers", "2", "--kafka-port", "0", "--http-port", "0", "--set", "num.partitions=some")
    assert up.ended() == 2
    assert sum("num.partitions" in line for line in up.errors) >= 1
    assert not up.says("started again")


def test_without_java_a_cluster_says_what_it_needs(
    start: Callable[..., Command], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    up = start("up", "--brokers", "3", "--kafka-port", "0", "--http-port", "0")
    assert up.ended() == 1
    assert up.errors == [
        "headrace: ZooKeeper needs Java, and there is no `java` here; install Java 17 or set JAVA_HOME, "
        "or use one that runs already: `headrace up --store zookeeper://HOST:PORT`"
    ]


def test_a_cluster_comes_up_on_a_zookeeper_that_runs_already(start: Callable[..., Command], tmp_path: Path) -> None:
    with ZooKeeperServer(tmp_path / "zookeeper") as server:
        store = f"zookeeper://{server.address}/shop"
        up = start("up", "--brokers", "2", "--kafka-port", "0", "--http-port", "0", "--store", store, "--json")
        ready = json.loads(up.first_line())
        assert ready["store"] == store
        wait_for("two brokers", lambda: len(brokers_of(ready["kafka"])) == 2)
        assert not any("zookeeper" in process.cmdline() for process in up.family())
        os.kill(up.process.pid, signal.SIGINT)
        assert up.ended() == 0


def test_a_store_for_a_cluster_is_zookeepers(start: Callable[..., Command]) -> None:
    up = start("up", "--brokers", "2", "--store", "sqlite")
    assert up.ended() == 2
    assert up.says("--store 'sqlite' is not zookeeper://")


def broker(start: Callable[..., Command], number: int, store: str, data: str) -> Command:
    listen = f"127.0.0.1:{free_port()}"
    session = "zookeeper.session.timeout.ms=6000"
    return start(
        *("broker", "--id", str(number), "--listen", listen, "--store", store, "--data", data, "--set", session)
    )


def test_a_broker_that_cannot_join_says_why_in_one_line(start: Callable[..., Command], tmp_path: Path) -> None:
    with ZooKeeperServer(tmp_path / "zookeeper") as server:
        store = f"zookeeper://{server.address}/one"
        first = broker(start, 1, store, "a")
        assert first.first_line().startswith("headrace ready kafka=")
        twin = broker(start, 1, store, "b")
        stranger = broker(start, 2, f"zookeeper://{server.address}/two", "c")
        assert stranger.first_line().startswith("headrace ready kafka=")
        assert twin.ended() == 1
        assert "headrace: broker 1 is alive at 127.0.0.1:" in twin.errors[-1]
        assert "give this one another --id" in twin.errors[-1]
        stranger.process.terminate()
        assert stranger.ended() == 0
        lost = broker(start, 2, store, "c")
        assert lost.ended() == 1
        assert "headrace: wrong data directory: c belongs to cluster" in lost.errors[-1]
        assert "--store to match" in lost.errors[-1]
    nobody = broker(start, 3, f"zookeeper://127.0.0.1:{free_port()}/one", "e")
    assert nobody.ended() == 3
    assert "headrace: --store: no ZooKeeper server answers at 127.0.0.1:" in nobody.errors[-1]


def test_a_broker_that_waits_for_its_cluster_can_be_stopped(start: Callable[..., Command], tmp_path: Path) -> None:
    waiting = broker(start, 1, f"zookeeper://127.0.0.1:{free_port()}", "a")
    wait_for("its data directory", (tmp_path / "a").exists)
    waiting.process.terminate()
    assert waiting.ended() == 0


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("--store redis://h:1", "is neither sqlite nor zookeeper://"),
        ("--store zookeeper://", "zookeeper.connect"),
        ("--store sqlite --set zookeeper.connect=h:1", "keep one of the two"),
    ],
)
def test_a_store_that_makes_no_sense_is_refused(start: Callable[..., Command], arguments: str, reason: str) -> None:
    process = start("broker", *arguments.split())
    assert process.ended() == 2
    assert reason in process.errors[-1]


def test_secured_brokers_speak_tls_with_each_other_and_keep_their_store_closed(start: Callable[..., Command]) -> None:
    up = start("up", "--secure", "--brokers", "3", "--kafka-port", "0", "--http-port", "0", "--data", "d", "--json")
    ready = json.loads(up.first_line())
    client = dict(parse_properties(Path(ready["client_file"]).read_text()))
    made = subprocess.run(
        command("topic", "create", "orders", "--replication-factor", "3", "-F", ready["client_file"]),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert made.stdout == "orders: created\n"
    errors: list[object] = []
    producer = Producer({**client, "acks": "all"})
    producer.produce("orders", b"x", on_delivery=lambda error, _: errors.append(error))
    assert (producer.flush(60), errors) == (0, [None])
    servers = ready["store"].removeprefix("zookeeper://").partition("/")[0]
    stranger = KazooClient(servers)
    stranger.start(60)
    try:
        with pytest.raises(NoAuthError):
            stranger.get_children("/headrace")
    finally:
        stranger.stop()
        stranger.close()
    assert client["sasl.password"] not in "".join(up.errors)
    lines = [" ".join(process.cmdline()) for process in up.family()]
    secrets = [path.read_text() for path in Path(ready["ca"]).parent.glob("*.password")]
    assert len(secrets) == 3
    assert not [line for line in lines if any(secret in line for secret in secrets)]
    up.process.send_signal(signal.SIGTERM)
    assert up.ended() == 0
