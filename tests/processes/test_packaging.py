"""The commands of units and of Compose as processes: as they stand, but for addresses and directories."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

import psutil
import pytest

from headrace.cli.zookeeper import ZooKeeperServer
from headrace.client.admin import Admin
from headrace.ops.operations import Operations
from tests.support.cli import command
from tests.support.packaging import PACKAGING, Unit, compose, composed, settings_file
from tests.support.process import free_port, wait_for

pytestmark = pytest.mark.slow

PATIENCE: Final = 90.0
WATCHDOG_SECONDS: Final = 2.0
METRICS: Final = {"headrace.metrics.listener": "127.0.0.1:0"}
"""The port that metrics have by themselves may be another test's."""


class Manager:
    """systemd's part: a socket that services tell of themselves, and a process with the environment of its unit."""

    def __init__(self, watchdog_seconds: float = WATCHDOG_SECONDS) -> None:
        self._watchdog_seconds = watchdog_seconds
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("")
        self.process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            children = psutil.Process(self.process.pid).children(recursive=True) if self.is_up else []
            self.process.kill()
            for child in children:
                child.kill()
            self.process.communicate()
        self._socket.close()

    @property
    def is_up(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self, words: list[str], environment: Mapping[str, str], directory: Path) -> subprocess.Popen[str]:
        name = self._socket.getsockname().decode()
        told = {"NOTIFY_SOCKET": f"@{name[1:]}", "WATCHDOG_USEC": str(int(self._watchdog_seconds * 1e6))}
        self.process = subprocess.Popen(
            words,
            env={**os.environ, **environment, **told},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=(directory / "errors").open("w"),
            text=True,
        )
        return self.process

    def wait_for(self, line: str) -> str:
        """The first message with a line that begins like this."""
        deadline = time.monotonic() + PATIENCE
        while (left := deadline - time.monotonic()) > 0:
            self._socket.settimeout(left)
            message = self._socket.recv(4096).decode()
            if any(each.startswith(line) for each in message.splitlines()):
                return message
        raise TimeoutError(f"{line} was not said")

    def wait_for_silence(self) -> None:
        """Returns when nothing was said for the watchdog's time, which is when systemd acts."""
        self._socket.settimeout(self._watchdog_seconds)
        try:
            while True:
                self._socket.recv(4096)
        except TimeoutError:
            return

    def stop(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        self.wait_for("STOPPING=1")
        return self.process.wait(PATIENCE)


@pytest.fixture
def manager() -> Iterator[Manager]:
    with Manager() as running:
        yield running


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server.address


def unit_command(name: str, tmp_path: Path) -> tuple[list[str], dict[str, str]]:
    """A unit's command and environment, with the directories of a system under `tmp_path`."""
    unit = Unit(PACKAGING / "systemd" / name)
    words = command(*unit.command()[1:])
    roots = re.compile(r"^/(etc|run|var/lib|var/cache)/headrace")
    for root in ("etc", "run", "var/lib", "var/cache"):
        (tmp_path / root / "headrace").mkdir(parents=True)
    moved = {key: roots.sub(lambda found: str(tmp_path) + found[0], value) for key, value in unit.environment().items()}
    return [roots.sub(lambda found: str(tmp_path) + found[0], word) for word in words], moved


def write_settings(path: Path, template: str, changes: Mapping[str, str]) -> None:
    settings = {**settings_file(PACKAGING / "systemd" / template), **METRICS, **changes}
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))


def test_the_unit_of_a_broker_is_ready_answers_its_watchdog_and_stops(
    manager: Manager, zookeeper: str, tmp_path: Path
) -> None:
    words, environment = unit_command("headrace-broker@.service", tmp_path)
    port = free_port()
    changes = {"listeners": f"PLAINTEXT://127.0.0.1:{port}", "zookeeper.connect": f"{zookeeper}/unit"}
    write_settings(tmp_path / "etc/headrace/broker-1.properties", "broker.properties", changes)
    manager.start(words, environment, tmp_path)
    assert f"broker 1 serves at 127.0.0.1:{port}" in manager.wait_for("READY=1")
    for _ in range(3):
        manager.wait_for("WATCHDOG=1")
    assert (tmp_path / "var/lib/headrace/broker-1/meta.properties").exists()
    assert manager.stop() == 0


def test_the_unit_of_a_gateway_is_ready_answers_its_watchdog_and_stops(manager: Manager, tmp_path: Path) -> None:
    words, environment = unit_command("headrace-gateway.service", tmp_path)
    file = settings_file(PACKAGING / "systemd" / "gateway.env")
    port = free_port()
    options = file["OPTIONS"].replace(":8080", f":{port}").split()
    environment |= {"HEADRACE_BOOTSTRAP": f"127.0.0.1:{free_port()}"}
    manager.start([*words[: words.index("$OPTIONS")], *options], environment, tmp_path)
    assert f"the gateway serves at http://127.0.0.1:{port}" in manager.wait_for("READY=1")
    for _ in range(2):
        manager.wait_for("WATCHDOG=1")
    assert manager.stop() == 0


STUCK = """
import asyncio, sys, threading
from headrace.cli import main, service_manager

ready = service_manager.ServiceManager.ready

def stuck_soon(self, status=""):
    ready(self, status)
    asyncio.get_running_loop().call_later(0.2, threading.Event().wait)

service_manager.ServiceManager.ready = stuck_soon
main.main()
"""


def test_a_loop_that_stands_still_is_silent_and_its_traceback_is_in_the_journal(
    manager: Manager, tmp_path: Path
) -> None:
    _, environment = unit_command("headrace-broker@.service", tmp_path)
    broker = ["broker", "--listen", "127.0.0.1:0", "--data", str(tmp_path / "data")]
    broker += [f"--set={name}={value}" for name, value in METRICS.items()]
    process = manager.start([sys.executable, "-c", STUCK, *broker], environment, tmp_path)
    manager.wait_for("READY=1")
    manager.wait_for_silence()
    assert manager.is_up
    service = Unit(PACKAGING / "systemd" / "headrace-broker@.service")["Service"]
    process.send_signal(signal.Signals[service["WatchdogSignal"]])
    assert process.wait(PATIENCE) == -signal.SIGABRT
    journal = (tmp_path / "errors").read_text()
    assert "Fatal Python error: Aborted" in journal
    assert "in wait" in journal
    manager.start(command(*broker), environment, tmp_path)
    manager.wait_for("READY=1")
    assert manager.stop() == 0


def test_the_unit_of_a_node_ends_a_broker_that_falls_silent_and_starts_it_again(
    manager: Manager, zookeeper: str, tmp_path: Path
) -> None:
    words, environment = unit_command("headrace-node.service", tmp_path)
    listener = {"listeners": f"PLAINTEXT://127.0.0.1:{free_port()}", "zookeeper.connect": f"{zookeeper}/node"}
    write_settings(
        tmp_path / "etc/headrace/node.properties",
        "node.properties",
        {**listener, "zookeeper.session.timeout.ms": "2000"},
    )
    node = manager.start([*words, "--workers", "1"], environment, tmp_path)
    assert "1 of 1 brokers serve" in manager.wait_for("READY=1")
    (worker,) = psutil.Process(node.pid).children()
    worker.suspend()
    assert "not ready: 101" in manager.wait_for("STATUS=0 of 1 brokers serve")
    manager.wait_for("STATUS=1 of 1 brokers serve")
    journal = (tmp_path / "errors").read_text()
    for number in ("SIGABRT", "SIGKILL"):
        assert f"broker 101 (pid {worker.pid}) does not answer the watchdog; it is ended by {number}\n" in journal
    assert manager.stop() == 0


class Machine:
    """Where the services of Compose have addresses of their own on one machine."""

    def __init__(self, zookeeper: str, directory: Path) -> None:
        self._zookeeper = zookeeper
        self._directory = directory
        self._ports = {port: free_port() for port in ("9092", "9093", "9094", "8080")}
        self.bootstrap = ",".join(f"127.0.0.1:{self._ports[port]}" for port in ("9092", "9093", "9094"))

    def moved(self, name: str, word: str) -> str:
        """A word of a service's command, as it has to be here."""
        word = re.sub(r"\b(?:broker-\d|0\.0\.0\.0|127\.0\.0\.1):(\d+)", self._address, word)
        word = re.sub(r"(zookeeper-\d:2181,?)+", self._zookeeper, word)
        word = word.replace("/etc/headrace/", f"{PACKAGING / 'compose'}/")
        return word.replace("/var/lib/headrace", str(self._directory / name / "data"))

    def _address(self, found: re.Match[str]) -> str:
        return f"127.0.0.1:{self._ports.get(found[1]) or free_port()}"


def test_compose_is_a_cluster_of_three_with_a_gateway_that_is_healthy(zookeeper: str, tmp_path: Path) -> None:
    machine = Machine(zookeeper, tmp_path)
    with ExitStack() as held:
        managers = [held.enter_context(Manager()) for _ in composed()]
        for manager, (name, words) in zip(managers, composed().items(), strict=True):
            (tmp_path / name).mkdir()
            manager.start(command(*(machine.moved(name, word) for word in words)), {}, tmp_path / name)
        for manager in managers:
            manager.wait_for("READY=1")
        Admin(machine.bootstrap).create_topics(["orders"])
        with Operations(machine.bootstrap) as operations:
            orders = [partition for partition in operations.view().partitions if partition.topic == "orders"]
        assert (len(orders), {len(partition.replicas) for partition in orders}) == (6, {3})

        check = compose()["services"]["gateway"]["healthcheck"]["test"]
        probe = [sys.executable, *(machine.moved("gateway", word) for word in check[2:])]
        wait_for(
            "the gateway is healthy", lambda: subprocess.run(probe, capture_output=True, check=False).returncode == 0
        )
        assert [manager.stop() for manager in managers] == [0, 0, 0, 0]
        assert subprocess.run(probe, capture_output=True, check=False).returncode != 0
