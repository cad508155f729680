"""A cluster for the works that need one: ZooKeeper and brokers in processes of their own, which may be killed.

The brokers share the machine with each other, with ZooKeeper and with the load, so no core belongs to anyone.
"""

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from headrace.cli.zookeeper import Ensemble

from . import load, machine, wire
from .model import BenchError
from .setting import Server, Setting, wait_ready

SESSION_MS: Final = 2_000
_METADATA: Final = (3, 12)
_CREATE_TOPICS: Final = (19, 7)
_DESCRIBE_LOG_DIRS: Final = (35, 4)
_TOPIC_EXISTS: Final = 36
_TIMEOUT: Final = timedelta(seconds=60)
_SOCKET_SECONDS: Final = 120.0
_PAUSE_SECONDS: Final = 0.1
_START_SECONDS: Final = 180.0
_HEAP_MB: Final = 512


class BrokerCluster:
    """Brokers, known by their numbers from 1, and their ZooKeeper."""

    def __init__(self, setting: Setting, directory: Path, settings: Mapping[str, str]) -> None:
        self.servers: dict[int, Server] = {}
        """Those that live."""
        self._setting = setting
        self._directory = directory
        self._settings = {"zookeeper.session.timeout.ms": str(SESSION_MS), **settings}
        self._stack = ExitStack()
        self._ensemble = Ensemble(directory, 1, heap_mb=_HEAP_MB)

    def open(self, brokers: int) -> None:
        with machine.on_all_cores():
            self._stack.enter_context(self._ensemble)
        numbers = range(1, brokers + 1)
        for number, process in [(number, self._launch(number)) for number in numbers]:
            self.servers[number] = wait_ready(process, self._place(number), _START_SECONDS)

    def close(self) -> None:
        """End all at once: nobody waits for the end of a benchmark."""
        for number in list(self.servers):
            self.kill(number)
        self._stack.close()

    @property
    def bootstrap(self) -> str:
        return ",".join(server.bootstrap for server in self.servers.values())

    def start(self, number: int) -> None:
        """Start a broker that was killed, on what it had written."""
        self.servers[number] = wait_ready(self._launch(number), self._place(number), _START_SECONDS)

    def kill(self, number: int) -> None:
        """End a broker with SIGKILL."""
        process = self.servers.pop(number).process
        process.kill()
        process.wait()

    def cpu_seconds(self) -> float:
        """Processor time that the living brokers have used."""
        return sum(server.cpu_seconds() for server in self.servers.values())

    def resident_mb(self) -> float:
        """Memory of a living broker, on average."""
        return sum(machine.resident_mb(server.pid) for server in self.servers.values()) / len(self.servers)

    def _launch(self, number: int) -> "subprocess.Popen[str]":
        place = self._place(number)
        place.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "headrace.cli", "broker", "--listen", "127.0.0.1:0", "--data"]
        command += [str(place / "data"), "--id", str(number), "--store", self._ensemble.url("/bench")]
        command += [part for name, value in self._settings.items() for part in ("--set", f"{name}={value}")]
        process = self._stack.enter_context(self._setting.spawned(command, place))
        machine.free(process.pid)
        return process

    def _place(self, number: int) -> Path:
        return self._directory / str(number)


@contextmanager
def a_cluster(
    setting: Setting, brokers: int = 3, settings: Mapping[str, str] = MappingProxyType({})
) -> Iterator[BrokerCluster]:
    """A fresh cluster, ended afterwards."""
    with setting.directory() as directory:
        cluster = BrokerCluster(setting, directory, settings)
        try:
            cluster.open(brokers)
            yield cluster
        finally:
            cluster.close()


class Asker:
    """One connection to one broker, for questions that are answered one after another."""

    def __init__(self, server: Server) -> None:
        self._sock = socket.create_connection(("127.0.0.1", server.port), timeout=_SOCKET_SECONDS)

    def __enter__(self) -> "Asker":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._sock.close()

    def metadata(self) -> Any:
        """Everything this broker knows of the cluster."""
        return self._ask(
            _METADATA,
            topics=None,
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )

    def partitions(self) -> list[Any]:
        """All partitions of all topics."""
        return [partition for topic in self.metadata().topics for partition in topic.partitions]

    def controller(self) -> int:
        return int(self.metadata().controller_id)

    def create_topics(
        self, names: Iterable[str], *, partitions: int, replicas: int, settings: Mapping[str, str]
    ) -> list[int]:
        """The error codes of one request."""
        configs = [
            wire.nested(*_CREATE_TOPICS, "CreatableTopicConfig")(name=name, value=value)
            for name, value in settings.items()
        ]
        topics = [
            wire.nested(*_CREATE_TOPICS, "CreatableTopic")(
                name=name,
                num_partitions=partitions,
                replication_factor=replicas,
                assignments=(),
                configs=tuple(configs),
            )
            for name in names
        ]
        answer = self._ask(_CREATE_TOPICS, topics=tuple(topics), timeout=_TIMEOUT, validate_only=False)
        return [int(topic.error_code) for topic in answer.topics]

    def logs(self) -> int:
        """How many logs this broker has opened."""
        return sum(len(topic.partitions) for topic in self._held())

    def sizes(self, topic: str) -> dict[int, int]:
        """The bytes that this broker holds of the partitions of a topic."""
        partitions = (partition for one in self._held() if one.name == topic for partition in one.partitions)
        return {partition.partition_index: int(partition.partition_size) for partition in partitions}

    def _held(self) -> list[Any]:
        answer = self._ask(_DESCRIBE_LOG_DIRS, topics=None)
        return [topic for result in answer.results for topic in result.topics]

    def _ask(self, api: tuple[int, int], **values: Any) -> Any:
        return wire.decoded(*api, load.ask(self._sock, wire.framed(*api, **values))[4:])


def create_until_done(
    cluster: BrokerCluster,
    names: Sequence[str],
    *,
    partitions: int = 1,
    replicas: int = 3,
    settings: Mapping[str, str] = MappingProxyType({}),
    seconds: float = 120.0,
) -> float:
    """Ask for topics until they are there, as a client does; the seconds that took."""
    begin = time.perf_counter()
    codes: list[int] = []
    while time.perf_counter() - begin < seconds:
        with Asker(next(iter(cluster.servers.values()))) as asker:
            codes = asker.create_topics(names, partitions=partitions, replicas=replicas, settings=settings)
        if all(code in (0, _TOPIC_EXISTS) for code in codes):
            return time.perf_counter() - begin
        time.sleep(_PAUSE_SECONDS)
    raise BenchError(f"topics could not be created in {seconds:.0f} s: error codes {sorted(set(codes))}")


def seconds_until(what: str, holds: Callable[[], bool], *, seconds: float = 300.0) -> float:
    """How long it takes until something holds."""
    begin = time.perf_counter()
    while not holds():
        if time.perf_counter() - begin > seconds:
            raise BenchError(f"not after {seconds:.0f} s: {what}")
        time.sleep(_PAUSE_SECONDS)
    return time.perf_counter() - begin
