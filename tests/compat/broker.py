"""The `headrace` command as the suite uses it: a broker of its own on loopback, and `headrace produce`."""

import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

_READY = "headrace ready kafka="
_COMMAND = Path(sys.executable).parent / "headrace"
_START_SECONDS = 20.0
_STOP_SECONDS = 10.0
_TOOL_SECONDS = 30.0
_SETTINGS: Final = {
    "group.initial.rebalance.delay.ms": 0,
    "group.consumer.min.session.timeout.ms": 6000,
    "group.consumer.session.timeout.ms": 6000,
    "group.consumer.min.heartbeat.interval.ms": 500,
    "group.consumer.heartbeat.interval.ms": 1000,
}


WITH_ACLS: Final = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
"""Settings with which ACLs can be kept, and the suite may do everything."""


class BrokerError(RuntimeError):
    """There is no broker to ask, or no longer; the message tells what was seen last."""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_ready(process: subprocess.Popen[str], log: Path) -> None:
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    stdout = process.stdout
    assert stdout is not None

    def listen() -> None:
        for line in stdout:
            lines.put(line)
        lines.put("")

    threading.Thread(target=listen, daemon=True).start()
    try:
        while line := lines.get(timeout=_START_SECONDS):
            if line.startswith(_READY):
                return
    except queue.Empty:
        pass
    raise BrokerError(f"no line '{_READY}...' from the broker: {log.read_text(errors='replace')[-500:]}")


class OwnBroker:
    """A broker on loopback that runs while its context does; it can be restarted on its data and its port.

    Groups form at once, and members of either protocol are missed after six seconds; `log` tells what it said.
    """

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None, address: str = "") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.log = directory / "broker.log"
        self.address = address or f"127.0.0.1:{_free_port()}"
        self._data = directory / "data"
        self._settings = {**_SETTINGS, **(settings or {})}
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop(kill=False)

    def restart(self, *, kill: bool) -> None:
        """Stop it, or kill it, and return once it serves again."""
        self._stop(kill=kill)
        self._start()

    def _start(self) -> None:
        command = [str(_COMMAND), "broker", "--listen", self.address, "--data", str(self._data), "--metrics", "off"]
        command += [text for name, value in self._settings.items() for text in ("--set", f"{name}={value}")]
        with self.log.open("a") as stderr:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
        try:
            _wait_ready(self._process, self.log)
        except BaseException:  # a context that was not entered is not left either
            self._stop(kill=True)
            raise

    def _stop(self, *, kill: bool) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def produce_with_tool(bootstrap: str, topic: str, pairs: Sequence[tuple[bytes, bytes]]) -> None:
    """Send (key, value) pairs with `headrace produce`, which chooses the partitions."""
    command = [str(_COMMAND), "produce", topic, "--bootstrap", bootstrap, "--key-separator", ":"]
    lines = b"".join(key + b":" + value + b"\n" for key, value in pairs)
    done = subprocess.run(command, input=lines, capture_output=True, timeout=_TOOL_SECONDS, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"headrace produce exited with {done.returncode}: {done.stderr.decode(errors='replace')}")
