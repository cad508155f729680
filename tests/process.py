"""A broker in a process of its own, to be stopped or killed."""

import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

START_SECONDS = 60.0
STOP_SECONDS = 30.0


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class BrokerProcess:
    """`headrace broker` on one port and one data directory, through any number of deaths."""

    def __init__(self, data: Path, **settings: str) -> None:
        self.port = free_port()
        self.bootstrap = f"127.0.0.1:{self.port}"
        self._data = data
        self._settings = [f"--set={name}={value}" for name, value in settings.items()]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "BrokerProcess":
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

    def start(self) -> None:
        """Start it and wait for its ready line."""
        command = [
            sys.executable,
            "-m",
            "headrace.cli",
            "broker",
            "--listen",
            self.bootstrap,
            "--data",
            str(self._data),
        ]
        self._process = subprocess.Popen([*command, *self._settings], stdout=subprocess.PIPE, stderr=sys.stderr)
        self._wait_until_ready()

    def kill(self) -> None:
        """End it at once, with SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """End it as a service manager does; returns its exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, number: int) -> int:
        assert self._process is not None
        process, self._process = self._process, None
        assert process.stdout is not None
        process.stdout.close()
        process.send_signal(number)
        return process.wait(STOP_SECONDS)

    def _wait_until_ready(self) -> None:
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
                raise AssertionError(f"the broker did not get ready: {line!r}")
            line += chunk
        assert line.startswith(b"headrace ready kafka="), line
