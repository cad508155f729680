"""`headrace zookeeper`: ZooKeeper for development, out of jars that are on the machine.

Nothing listens beyond loopback. A production cluster has a ZooKeeper of its own, which brokers are given with
`--store zookeeper://...`.
"""

import os
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from types import TracebackType
from typing import Annotated, Final, Self

import typer

from headrace.net.address import Address
from headrace.net.ports import free_ports

from .console import Failure, examples, note, say, say_json
from .listening import friendly_bind, stop_with_stdin
from .options import Json
from .zookeeper_jars import find_jars

HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 2181
START_SECONDS: Final = 120.0
STOP_SECONDS: Final = 10.0
_MAIN: Final = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_POLL_SECONDS: Final = 0.05
_ASK_SECONDS: Final = 10.0
_PR_SET_PDEATHSIG: Final = 1

# Short ticks, so that leaders are missed and sessions end after seconds; sessions may last from 1 s to a minute.
_SETTINGS: Final = {
    "tickTime": "500",
    "initLimit": "20",
    "syncLimit": "10",
    "minSessionTimeout": "1000",
    "maxSessionTimeout": "60000",
    "maxClientCnxns": "0",
    "clientPortAddress": HOST,
    "quorumListenOnAllIPs": "false",
    "admin.enableServer": "false",
    "4lw.commands.whitelist": "ruok, srvr, mntr",
    "autopurge.purgeInterval": "1",
}


def find_java() -> str:
    """The `java` command; a failure in words where there is none."""
    home = os.environ.get("JAVA_HOME")
    java = which("java", path=os.path.join(home, "bin")) if home else None
    java = java or which("java")
    if java is None:
        raise Failure(
            "ZooKeeper needs Java, and there is no `java` here; install Java 17 or set JAVA_HOME, "
            "or use one that runs already: `headrace up --store zookeeper://HOST:PORT`"
        )
    return java


@dataclass(frozen=True, slots=True, kw_only=True)
class EnsembleMember:
    """A server as the others of its ensemble know it: its number and where it takes part in their talk."""

    number: int
    quorum_port: int
    election_port: int

    def line(self) -> str:
        return f"server.{self.number}={HOST}:{self.quorum_port}:{self.election_port}"


class _Scoped(ABC):
    """What is started by a `with` and ends with it."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def stop(self) -> None: ...


class ZooKeeperServer(_Scoped):
    """One server process on one data directory, through any number of deaths.

    It dies with the thread that started it, so that nothing is left over however that ends.
    """

    def __init__(
        self, data: Path, port: int = 0, *, number: int = 1, members: Sequence[EnsembleMember] = (), heap_mb: int = 96
    ) -> None:
        self.port = port or free_ports(1)[0]
        self.address = f"{HOST}:{self.port}"
        self.number = number
        self._data = data
        self._members = members
        self._heap_mb = heap_mb
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process; 0 where there is none."""
        return 0 if self._process is None else self._process.pid

    def start(self) -> None:
        """Start it and wait until it serves; stop it again should that fail."""
        self.launch()
        try:
            self.wait_until_serving()
        except BaseException:
            self.kill()
            raise

    def launch(self) -> None:
        """Start it without waiting, as the first servers of an ensemble must be."""
        _refuse_taken(self.port)
        config = self._write_config()
        command = [find_java(), *self._java_options(), "-cp", _class_path(find_jars()), _MAIN, str(config)]
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
                preexec_fn=_killed_with_parent(),  # noqa: PLW1509 - one system call, made before exec
            )

    def wait_until_serving(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while self.mode() == "":
            if self._process is None or self._process.poll() is not None:
                raise Failure(f"ZooKeeper on {self.address} ended while starting: {self._last_words()}")
            if time.monotonic() > deadline:
                raise Failure(f"ZooKeeper on {self.address} does not serve; {self.log} may tell why")
            time.sleep(_POLL_SECONDS)

    @property
    def log(self) -> Path:
        """Where it writes what is wrong."""
        return self._data / "zookeeper.log"

    def mode(self) -> str:
        """`standalone`, `leader` or `follower`; empty while it does not serve."""
        for line in self.ask("srvr").splitlines():
            if line.startswith("Mode: "):
                return line.removeprefix("Mode: ").strip()
        return ""

    def ask(self, word: str) -> str:
        """The answer to one of its four-letter words; empty where there is none."""
        answer = b""
        try:
            with socket.create_connection((HOST, self.port), _ASK_SECONDS) as link:
                link.sendall(word.encode())
                while part := link.recv(4096):
                    answer += part
        except OSError:
            return ""
        return answer.decode(errors="replace")

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """End it in order; safe to call twice."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once, as kill -9 does."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _write_config(self) -> Path:
        state = self._data / "state"
        state.mkdir(parents=True, exist_ok=True)
        self._data.chmod(
            0o700
        )  # a cluster's secret and what checks its passwords are in there, and ZooKeeper's files open
        settings = {**_SETTINGS, "dataDir": str(state.resolve()), "clientPort": str(self.port)}
        lines = [f"{name}={value}" for name, value in settings.items()] + [member.line() for member in self._members]
        (state / "myid").write_text(f"{self.number}\n")
        config = self._data / "zoo.cfg"
        config.write_text("\n".join(lines) + "\n")
        return config

    def _java_options(self) -> list[str]:
        return [
            "-Xms16m",
            f"-Xmx{self._heap_mb}m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-Dlog4j2.level=warn",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-Dzookeeper.preAllocSize=1024",
        ]

    def _last_words(self) -> str:
        """The errors in its log, shortened: what it wrote before it ended."""
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        told = [line for line in lines if not line.startswith("at ")][-3:]
        return "; ".join(told)[-400:] or f"it wrote nothing to {self.log}"


class Ensemble(_Scoped):
    """Servers that elect a leader: one, or three of which any one may die."""

    def __init__(self, data: Path, servers: int = 3, ports: Sequence[int] = (), *, heap_mb: int = 96) -> None:
        ports = ports or free_ports(servers)
        members = _members(servers) if servers > 1 else []
        self.servers = [
            ZooKeeperServer(data / f"zookeeper-{n + 1}", ports[n], number=n + 1, members=members, heap_mb=heap_mb)
            for n in range(servers)
        ]

    @property
    def addresses(self) -> str:
        """The servers as clients are given them."""
        return ",".join(server.address for server in self.servers)

    def url(self, path: str = "") -> str:
        """The value for a broker's `--store`."""
        return f"zookeeper://{self.addresses}{path}"

    def start(self) -> None:
        """Start all and wait until all serve; stop them again should that fail."""
        with ExitStack() as undo:
            for server in self.servers:
                server.launch()
                undo.callback(server.kill)
            for server in self.servers:
                server.wait_until_serving()
            undo.pop_all()

    def stop(self) -> None:
        """End all; safe to call twice."""
        for server in self.servers:
            server.stop()

    def leader(self) -> ZooKeeperServer:
        """The server that leads now; a failure where none does for long."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            for server in self.servers:
                if server.mode() in ("leader", "standalone"):
                    return server
            time.sleep(_POLL_SECONDS)
        raise Failure(f"none of {self.addresses} leads")


def _refuse_taken(port: int) -> None:
    """What ZooKeeper itself says of a port in use is a page of Java."""
    with friendly_bind(Address(HOST, port), "ZooKeeper on"), socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((HOST, port))


def _members(servers: int) -> list[EnsembleMember]:
    ports = free_ports(2 * servers)
    return [
        EnsembleMember(number=n + 1, quorum_port=ports[2 * n], election_port=ports[2 * n + 1]) for n in range(servers)
    ]


def _class_path(jars: Sequence[Path]) -> str:
    return os.pathsep.join(str(jar) for jar in jars)


def _killed_with_parent() -> Callable[[], None]:
    """What a child calls to be killed when its parent ends, however that ends."""
    import ctypes

    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def register(app: typer.Typer) -> None:
    app.command(
        epilog=examples(
            "headrace zookeeper --data ./zookeeper",
            "headrace zookeeper --servers 3 --port 2181 --data /tmp/zookeeper",
        )
    )(zookeeper)


def zookeeper(
    port: Annotated[
        int, typer.Option(min=0, max=65533, help="The first server's port, the others follow; 0 takes free ones.")
    ] = DEFAULT_PORT,
    servers: Annotated[int, typer.Option(min=1, max=3, help="How many: one, or three that survive one's death.")] = 1,
    data: Annotated[Path, typer.Option("--data", help="Where they keep their state.")] = Path("zookeeper"),
    json: Json = False,
    with_stdin: Annotated[bool, typer.Option("--stop-with-stdin", hidden=True)] = False,
) -> None:
    """Run ZooKeeper for development, on 127.0.0.1, in the foreground until SIGTERM or Ctrl-C."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _interrupt)
    if with_stdin:
        stop_with_stdin()
    ensemble = Ensemble(data, servers, [port + n for n in range(servers)] if port else ())
    try:
        ensemble.start()
        say_json({"ready": True, "zookeeper": ensemble.url()}) if json else say(
            f"headrace ready zookeeper={ensemble.url()}"
        )
        _wait_for_all(ensemble)
    except KeyboardInterrupt:
        note("headrace: ZooKeeper stopped")
    finally:
        ensemble.stop()


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _wait_for_all(ensemble: Ensemble) -> None:
    """Returns when no server is left: an ensemble goes on without one."""
    for server in ensemble.servers:
        while server.is_running():
            time.sleep(_POLL_SECONDS * 4)
    raise Failure("every ZooKeeper server has ended")
