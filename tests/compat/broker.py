"""The `headrace` command as the suite uses it: a broker of its own on loopback, and `headrace produce`."""

import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_READY = "headrace ready kafka="
_COMMAND = Path(sys.executable).parent / "headrace"
_START_SECONDS = 20.0
_STOP_SECONDS = 10.0
_TOOL_SECONDS = 30.0


class BrokerError(RuntimeError):
    """There is no broker to ask, or no longer; the message tells what was seen last."""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _ready_address(process: subprocess.Popen[str], log: Path) -> str:
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
                return line.removeprefix(_READY).split()[0]
    except queue.Empty:
        pass
    raise BrokerError(f"no line '{_READY}...' from the broker: {log.read_text(errors='replace')[-500:]}")


@contextmanager
def running_broker(directory: Path) -> Iterator[str]:
    """The address of a broker that runs as long as the context; its log stays in `directory`."""
    log = directory / "broker.log"
    arguments = ["broker", "--listen", f"127.0.0.1:{_free_port()}", "--data", str(directory / "data")]
    with log.open("w") as stderr:
        process = subprocess.Popen([str(_COMMAND), *arguments], stdout=subprocess.PIPE, stderr=stderr, text=True)
    try:
        yield _ready_address(process, log)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def produce_with_tool(bootstrap: str, topic: str, pairs: Sequence[tuple[bytes, bytes]]) -> None:
    """Send (key, value) pairs with `headrace produce`, which chooses the partitions."""
    command = [str(_COMMAND), "produce", topic, "--bootstrap", bootstrap, "--key-separator", ":"]
    lines = b"".join(key + b":" + value + b"\n" for key, value in pairs)
    done = subprocess.run(command, input=lines, capture_output=True, timeout=_TOOL_SECONDS, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"headrace produce exited with {done.returncode}: {done.stderr.decode(errors='replace')}")
