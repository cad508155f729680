"""A runner: the process that runs one deployed pipeline, a `headrace pipeline run-deployed` of its own.

What it is to run goes to its standard input as one line of JSON, so that no credentials stand on a command line; its
standard input closes with this process, which ends it. Its standard output has events, both outputs have lines to log.
"""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any, Final

COMMAND: Final = ("-m", "headrace.cli", "pipeline", "run-deployed")
MOST_LINE: Final = 4_000
LOG_BYTES: Final = 16 << 20
"""Of Spark's own log, of which one older part is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerRequest:
    """What a runner is to run."""

    file: str
    name: str
    bootstrap: str
    master: str
    remote: str | None
    conf: Mapping[str, str]
    checkpoint: str
    runner_id: str
    lease: str
    client: Mapping[str, str]
    """Settings of a client of the cluster that keeps the lease."""
    dead: Sequence[str]

    def encode(self) -> bytes:
        """As the first line of a runner's standard input."""
        return json.dumps(asdict(self)).encode() + b"\n"


def decode_request(line: bytes) -> RunnerRequest:
    """What `encode` made."""
    return RunnerRequest(**json.loads(line))


@dataclass(frozen=True, slots=True)
class Said:
    """Something a runner has said: an event, or a line."""

    pipeline: str
    runner: str
    event: Mapping[str, Any] | None
    line: str = ""


@dataclass(frozen=True, slots=True)
class Ended:
    """A runner's process is gone."""

    pipeline: str
    runner: str
    code: int
    last_words: str


Inbox = SimpleQueue[Said | Ended]


class Runner:
    """The process; what it says goes to an inbox."""

    def __init__(self, request: RunnerRequest, directory: Path, inbox: Inbox) -> None:
        self.id = request.runner_id
        self.log: Path | None = None
        """Spark's own log."""
        self._name = request.name
        self._inbox = inbox
        self._last = ""
        self._process = subprocess.Popen(
            [sys.executable, *COMMAND],
            cwd=directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
        )
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(request.encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # It is dead already, which its end tells.
        self._thread = threading.Thread(target=self._look_after, name=f"runner-{request.name}", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> None:
        """Ask it to stop when its current batches are done."""
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    def join(self) -> None:
        """Return when it has ended and all that it said is in the inbox."""
        self._thread.join()

    def bound_log(self) -> None:
        """Begin Spark's log anew where it has grown large; what it was is kept beside it, once."""
        try:
            if self.log is not None and self.log.stat().st_size > LOG_BYTES:
                self.log.with_suffix(".log.1").write_bytes(self.log.read_bytes()[-LOG_BYTES:])
                with self.log.open("r+b") as file:
                    file.truncate(0)  # Spark appends, and goes on from the beginning.
        except OSError:
            return

    def _look_after(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        errors = threading.Thread(target=self._read_lines, args=(self._process.stderr,), daemon=True)
        errors.start()
        for line in _lines(self._process.stdout):
            self._take(line)
        errors.join()
        code = self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert stream is not None
            try:
                stream.close()
            except BrokenPipeError:
                pass
        self._inbox.put(Ended(self._name, self.id, code, self._last))

    def _take(self, line: str) -> None:
        try:
            event = json.loads(line)
        except ValueError:
            event = None
        if isinstance(event, dict) and "event" in event:
            if event["event"] == "started":
                self.log = Path(str(event.get("log")))
            self._inbox.put(Said(self._name, self.id, event, _told(event)[:MOST_LINE]))
        elif line:
            self._inbox.put(Said(self._name, self.id, None, line[:MOST_LINE]))

    def _read_lines(self, stream: IO[bytes]) -> None:
        for line in _lines(stream):
            if line:
                self._last = line[:MOST_LINE].removeprefix("headrace: ")
                self._inbox.put(Said(self._name, self.id, None, line[:MOST_LINE]))


def _lines(stream: IO[bytes]) -> Iterator[str]:
    """Lines as text, each of a bounded length, whatever is written."""
    while line := stream.readline(1 << 20):
        yield line.decode(errors="replace").rstrip()


def _told(event: Mapping[str, Any]) -> str:
    """An event as a line of the log; nothing for those that are no news."""
    match event.get("event"):
        case "phase":
            return str(event.get("phase"))
        case "started":
            return f"runs on {event.get('spark')}, checkpoint {event.get('checkpoint')}"
        case "progress" if event.get("problem"):
            return f"{event.get('sink')}: {event.get('state')}: {event.get('problem')}"
        case _:
            return ""
