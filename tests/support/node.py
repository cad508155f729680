"""`headrace node` as a process: the brokers of one machine, of which a test can have several."""

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from headrace.cli.node.control import SOCKET_NAME, ask
from headrace.net.ports import HeldPort

from .cli import command

READY_SECONDS = 120.0
STOP_SECONDS = 60.0


class NodeProcess:
    """A node with its own ports and data, which tells a service manager of its own when it is ready."""

    def __init__(
        self,
        data: Path,
        store: str,
        *,
        first_id: int,
        workers: int,
        rack: str,
        settings: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.data = data
        self.rack = rack
        self.brokers = range(first_id, first_id + workers)
        self.port = _free_row(workers)
        self.socket = data / SOCKET_NAME
        self._environment = dict(environment or {})
        self._arguments = [
            *("--workers", str(workers), "--id", str(first_id), "--listen", f"127.0.0.1:{self.port}"),
            *("--data", str(data), "--store", store, "--rack", rack),
            *(f"--set={name}={value}" for name, value in (settings or {}).items()),
        ]
        self._process: subprocess.Popen[str] | None = None
        self._inbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._inbox.bind("")  # the kernel chooses an abstract name
        self._inbox.settimeout(READY_SECONDS)

    def __enter__(self) -> Self:
        self.launch()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            children = self.children()
            for process in children:
                process.kill()
            self._process.kill()
            self._process.communicate()
            psutil.wait_procs(children, timeout=STOP_SECONDS)
        self._inbox.close()

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{self.port + n}" for n in range(len(self.brokers)))

    def launch(self) -> None:
        """Start it without waiting."""
        self.data.mkdir(parents=True, exist_ok=True)
        name = self._inbox.getsockname().decode()
        log = open(self.data / "node.log", "ab")  # noqa: SIM115 - the process has it
        with log:
            self._process = subprocess.Popen(
                command("node", *self._arguments, "--json"),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, **self._environment, "NOTIFY_SOCKET": f"@{name[1:]}"},
            )

    def wait_until_ready(self) -> None:
        """Returns when the service manager was told so, and the ready document has come."""
        while not (told := self._inbox.recv(4096).decode()).startswith("READY=1"):
            pass
        assert f"{len(self.brokers)} of {len(self.brokers)} brokers serve" in told
        assert self._process is not None
        assert self._process.stdout is not None
        ready: dict[str, Any] = json.loads(self._process.stdout.readline())
        assert ready == {"ready": True, "kafka": self.bootstrap, "control": str(self.socket)}

    def workers(self) -> dict[int, dict[str, Any]]:
        """What the control socket says of each, by broker."""
        return {w["broker"]: w for w in ask(self.socket, {"do": "describe"}, READY_SECONDS)["workers"]}

    def children(self) -> list[psutil.Process]:
        assert self._process is not None
        try:
            return psutil.Process(self._process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def stop(self) -> int:
        """SIGTERM; its exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        self._process.communicate(timeout=STOP_SECONDS)
        code, self._process = self._process.returncode, None
        return code

    def log(self) -> str:
        return (self.data / "node.log").read_text(errors="replace")


def _free_row(count: int) -> int:
    """The first of some ports next to each other that nobody listens on, held as long as this process lives."""
    for _ in range(100):
        held = [HeldPort()]
        try:
            held += [HeldPort(number=held[0].number + n) for n in range(1, count)]
        except OSError:
            held[0].release()
            continue
        for port in held:
            port.keep()
        return held[0].number
    raise AssertionError(f"no {count} ports in a row are free")


def all_ready(nodes: Iterable[NodeProcess]) -> None:
    for node in nodes:
        node.wait_until_ready()
