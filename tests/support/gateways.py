"""Gateways in processes of their own, and the examples of the documents."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)


class GatewayProcess:
    """`headrace gateway`, through any number of deaths."""

    def __init__(self, bootstrap: str, log: Path, *options: str, port: int = 0) -> None:
        self._arguments = ["gateway", "--bootstrap", bootstrap, "--http", f"127.0.0.1:{port}", *options]
        self._log = log
        self._process: subprocess.Popen[str] | None = None
        self.url = ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self.kill()

    def start(self) -> None:
        """Start it and wait for its ready line; on another port than before, unless it was given one."""
        with open(self._log, "a") as errors:
            command = [sys.executable, "-m", "headrace.cli", *self._arguments]
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith("headrace ready http="), (line, self._log.read_text()[-2000:])
        self.url = line.strip().partition("http=")[2]

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """End it at once."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """End it as a service manager does; its exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, number: int) -> int:
        assert self._process is not None
        process, self._process = self._process, None
        assert process.stdout is not None
        process.send_signal(number)
        process.stdout.close()
        return process.wait(60)


class Example(NamedTuple):
    """A command of a document, and what it is said to print."""

    document: str
    command: str
    expected: str


def examples(document: str) -> Iterator[Example]:
    """Commands that ask a gateway, in their order."""
    for block in _BLOCK.findall((ROOT / document).read_text()):
        if "curl" not in block:
            continue
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, expected = part.partition("\n")
            while command.endswith("\\"):
                more, _, expected = expected.partition("\n")
                command += "\n" + more
            yield Example(document, command, expected.strip())


def matches(expected: str, printed: str) -> bool:
    """Whether something was printed as expected; … stands for anything."""
    pattern = ".*".join(re.escape(part) for part in expected.split("…"))
    return re.fullmatch(pattern, printed.strip(), re.DOTALL) is not None


class Shell:
    """Runs commands one after the other; variables that one sets are there for the next."""

    def __init__(self) -> None:
        self._set: list[str] = []

    def run(self, command: str) -> str:
        if re.match(r"[A-Z]+=", command):
            name, _, _ = command.partition("=")
            value = self._output(command + f'; printf "%s" "${name}"')
            self._set.append(f"{name}='{value}'")
            return ""
        return self._output(command)

    def _output(self, command: str) -> str:
        script = "\n".join([*self._set, command])
        done = subprocess.run(["bash", "-c", script], check=False, capture_output=True, text=True, timeout=120)
        return done.stdout
