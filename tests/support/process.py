"""Brokers in processes of their own, to be stopped, killed or paused: one, or a cluster with its ZooKeeper."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from headrace.cli.zookeeper import Ensemble
from headrace.net.address import is_loopback
from headrace.net.ports import free_ports

START_SECONDS = 120.0
STOP_SECONDS = 60.0
SESSION_MS = 2_000


def free_port() -> int:
    """A port that nobody listens on, and that nobody else is given while the tests run."""
    return free_ports(1)[0]


@dataclass(frozen=True, slots=True)
class Site:
    """Where a process runs: its address, and the words before its command that bring it there."""

    host: str = "127.0.0.1"
    prefix: tuple[str, ...] = ()
    has_metrics: bool = True
    """False where the release that runs there has none."""


class BrokerProcess:
    """`headrace broker` on one port and one data directory, through any number of deaths."""

    def __init__(
        self,
        data: Path,
        settings: Mapping[str, str] | None = None,
        *,
        options: Iterable[str] = (),
        log: Path | None = None,
        site: Site = Site(),  # noqa: B008 - a value
        metrics: str | None = "off",
    ) -> None:
        """Without `metrics` none are served: the port that they would have by themselves may be another test's."""
        self.metrics = metrics if site.has_metrics else None
        """None where the next start is of a release without metrics."""
        self.port = free_port()
        self.bootstrap = f"{site.host}:{self.port}"
        self.prefix = site.prefix
        """The words before its command, from its next start on."""
        self._is_near = is_loopback(site.host)
        self._data = data
        self._log = log
        self._options = [*options]
        self.settings = dict(settings or {})
        """From its next start on."""
        self._process: subprocess.Popen[bytes] | None = None
        self._is_paused = False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self.kill()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it was started, and neither ended by us nor by itself; one that is paused runs."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it and wait for its ready line."""
        self.launch()
        self.wait_until_ready()

    def launch(self) -> None:
        """Start it without waiting."""
        assert not self.is_running
        command = [*self.prefix, sys.executable, "-m", "headrace.cli", "broker"]
        place = ["--listen", self.bootstrap, "--data", str(self._data)]
        if self.metrics is not None:
            place += ["--metrics", self.metrics]
        if not self._is_near:
            place.append("--allow-anonymous")
        given = [*self._options, *(f"--set={name}={value}" for name, value in self.settings.items())]
        with ExitStack() as held:
            errors = sys.stderr if self._log is None else held.enter_context(open(self._log, "ab"))
            self._process = subprocess.Popen([*command, *place, *given], stdout=subprocess.PIPE, stderr=errors)
        self._is_paused = False

    def wait_until_ready(self) -> None:
        """Returns after its ready line; an `AssertionError` shows what it wrote where there is none."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        deadline = time.monotonic() + START_SECONDS
        line = b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([process.stdout], [], [], max(deadline - time.monotonic(), 0))
            chunk = os.read(process.stdout.fileno(), 1024) if ready else b""
            if not chunk:
                self.kill()
                raise AssertionError(f"the broker did not get ready: {line!r} {self._last_words()}")
            line += chunk
        assert line.startswith(b"headrace ready kafka="), line

    def kill(self) -> None:
        """End it at once, with SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """End it as a service manager does; returns its exit code."""
        return self._end(signal.SIGTERM)

    def pause(self) -> None:
        """Let it do nothing more, as a machine that hangs, until `resume`."""
        os.kill(self.pid, signal.SIGSTOP)
        self._is_paused = True

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)
        self._is_paused = False

    def _end(self, number: int) -> int:
        assert self._process is not None
        process, self._process = self._process, None
        assert process.stdout is not None
        process.stdout.close()
        process.send_signal(number)
        if self._is_paused:
            process.send_signal(signal.SIGCONT)
            self._is_paused = False
        return process.wait(STOP_SECONDS)

    def _last_words(self) -> str:
        return "" if self._log is None else self._log.read_text(errors="replace")[-2_000:]


class ClusterProcesses:
    """ZooKeeper servers and brokers, each a process that a test can end, start again, pause and resume.

    Brokers are known by their numbers, from 1. Their logs are in `<data>/broker-<number>.log`.
    """

    def __init__(
        self,
        data: Path,
        brokers: int = 3,
        *,
        servers: int = 1,
        settings: Mapping[str, str] | None = None,
        sites: Mapping[int, Site] | None = None,
        reach: Callable[[str], str] = str,
    ) -> None:
        """`sites` say where brokers run, if not here; `reach` how they know ZooKeeper's servers, if not as we do."""
        self._data = data
        self._sites = sites or {}
        self._settings = {
            "zookeeper.session.timeout.ms": str(SESSION_MS),
            "default.replication.factor": str(min(brokers, 3)),
            "min.insync.replicas": "2" if brokers >= 3 else "1",
            "offsets.topic.num.partitions": "4",
            **(settings or {}),
        }
        self.zookeeper = Ensemble(data, servers)
        self.store = f"zookeeper://{reach(self.zookeeper.addresses)}/cluster"
        self.brokers: dict[int, BrokerProcess] = {}
        for number in range(1, brokers + 1):
            self._new_broker(number)

    def __enter__(self) -> Self:
        try:
            self.zookeeper.start()
            self.start(self.brokers)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def bootstrap(self) -> str:
        """The brokers that a client is told of, running or not."""
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    def __getitem__(self, number: int) -> BrokerProcess:
        return self.brokers[number]

    def add(self, number: int, *, rack: str | None = None) -> BrokerProcess:
        """One more broker, started."""
        broker = self._new_broker(number, rack)
        broker.start()
        return broker

    def start(self, numbers: Iterable[int]) -> None:
        """Start brokers, all at once, and wait until each is ready."""
        wanted = [self.brokers[number] for number in numbers]
        for broker in wanted:
            broker.launch()
        for broker in wanted:
            broker.wait_until_ready()

    def log(self, number: int) -> str:
        """What a broker has written so far."""
        return self._log_path(number).read_text(errors="replace")

    def data_of(self, number: int) -> Path:
        """Where a broker keeps its logs."""
        return self._data / f"data-{number}"

    def close(self) -> None:
        """End everything, without ceremony."""
        for broker in self.brokers.values():
            if broker.is_running:
                broker.kill()
        self.zookeeper.stop()

    def _new_broker(self, number: int, rack: str | None = None) -> BrokerProcess:
        options = ["--id", str(number), "--store", self.store, *([] if rack is None else ["--rack", rack])]
        broker = BrokerProcess(
            self.data_of(number),
            self._settings,
            options=options,
            log=self._log_path(number),
            site=self._sites.get(number, Site()),
        )
        self.brokers[number] = broker
        return broker

    def _log_path(self, number: int) -> Path:
        return self._data / f"broker-{number}.log"


def wait_for(what: str, holds: Callable[[], bool], seconds: float = START_SECONDS) -> None:
    """Returns when something holds; fails when it does not for long."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"{what}: not after {seconds:g} s"
        time.sleep(0.05)
