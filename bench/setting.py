"""Where a run takes place: its options, its directory, and the servers it starts and ends."""

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Timer
from types import MappingProxyType
from typing import Final

from . import frames, load, machine
from .model import BenchError

_READY: Final = re.compile(r"127\.0\.0\.1:(\d+)")
_START_SECONDS: Final = 30.0
_STOP_SECONDS: Final = 15.0
_SOCKET_SECONDS: Final = 20.0


Secure = Callable[[socket.socket], socket.socket]


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server process that is ready."""

    process: "subprocess.Popen[str]"
    port: int
    secure: "Secure | None" = None
    """Puts TLS around a socket, where the server wants it."""

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def cpu_seconds(self) -> float:
        return machine.cpu_seconds(self.pid)

    def connect(self) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=_SOCKET_SECONDS)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock if self.secure is None else self.secure(sock)

    def create_topic(self, topic: str, settings: dict[str, str], partitions: int = 1) -> None:
        with self.connect() as sock:
            frames.check_created(load.ask(sock, frames.create_topic_frame(topic, settings, partitions)), topic)


@dataclass(slots=True, kw_only=True)
class Setting:
    """The options of a run, and what it needs to start servers."""

    seconds: float
    rounds: int
    root: Path
    profile: Path | None = None
    """Where a profiled broker writes what it found; None when it runs as it is."""
    listen: str = "127.0.0.1:0"
    settings: Mapping[str, str] = field(default_factory=dict)
    """Of every broker."""
    secure: Secure | None = None
    keystore: str | None = None
    """What TLS servers show: a PEM file."""
    _count: int = field(default=0, init=False)

    @contextmanager
    def directory(self) -> Iterator[Path]:
        """A fresh directory on the disk, gone afterwards with all that was written and not yet synced."""
        self._count += 1
        path = self.root / str(self._count)
        path.mkdir()
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    @contextmanager
    def broker(self, settings: Mapping[str, str] = MappingProxyType({})) -> Iterator[Server]:
        """A fresh broker with its default settings, but for those named, as `headrace broker` starts it."""
        with self.directory() as data, self.running(self.broker_command(data, settings), data) as server:
            yield replace(server, secure=self.secure)

    def broker_command(self, data: Path, settings: Mapping[str, str] = MappingProxyType({})) -> list[str]:
        given = [part for name, value in {**self.settings, **settings}.items() for part in ("--set", f"{name}={value}")]
        command = [sys.executable, "-m"]
        command += ["headrace.cli"] if self.profile is None else ["bench.profiled", str(self.profile)]
        return [*command, "broker", "--listen", self.listen, "--data", str(data / "data"), *given]

    @contextmanager
    def ceiling(self, name: str, directory: Path, *arguments: str) -> Iterator[Server]:
        """A bare server of `bench.ceilings`, over TLS where brokers speak that."""
        secured = [] if self.keystore is None else ["--keystore", self.keystore]
        command = [sys.executable, "-m", f"bench.ceilings.{name}", *arguments, *secured]
        with self.running(command, directory) as server:
            yield replace(server, secure=self.secure)

    @contextmanager
    def running(self, command: list[str], directory: Path, *, core: int = machine.SERVER_CORE) -> Iterator[Server]:
        """A process that has said it is ready, ended afterwards."""
        with self.spawned(command, directory, core=core) as process:
            yield wait_ready(process, directory)

    @contextmanager
    def spawned(
        self, command: list[str], directory: Path, *, core: int = machine.SERVER_CORE
    ) -> Iterator["subprocess.Popen[str]"]:
        """A process on one core, its stderr in a file of the directory; ended afterwards.

        Modules are compiled once in a run and kept, as they are after a program's first start.
        """
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = str(self.root / "bytecode")
        with open(directory / "stderr", "w") as errors, machine.on_core(core):
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
            )
        try:
            yield process
        finally:
            stop(process)


@contextmanager
def a_setting(seconds: float, rounds: int, parent: Path | None) -> Iterator[Setting]:
    """A setting with a temporary directory of its own."""
    root = Path(tempfile.mkdtemp(prefix="headrace-bench-", dir=parent))
    try:
        yield Setting(seconds=seconds, rounds=rounds, root=root)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def wait_ready(process: "subprocess.Popen[str]", directory: Path, seconds: float = _START_SECONDS) -> Server:
    """The server, once it has said that it is ready."""
    assert process.stdout is not None
    too_late = Timer(seconds, process.kill)
    too_late.start()
    try:
        for line in process.stdout:
            found = _READY.search(line)
            if found is not None:
                return Server(process=process, port=int(found[1]))
    finally:
        too_late.cancel()
    errors = (directory / "stderr").read_text()[-2000:]
    raise BenchError(f"a server did not start: {process.args!r}\n{errors}")


def stop(process: "subprocess.Popen[str]") -> None:
    """End a process: politely, then not."""
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
