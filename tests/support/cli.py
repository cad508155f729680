"""The command line: called in this process, and as a process."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from headrace.cli.main import app
from headrace.testing import Broker

Run = Callable[..., Result]
Headrace = Callable[..., "subprocess.CompletedProcess[bytes]"]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """The command, called in this process; nothing of its user's environment and profiles counts."""
    for name in [name for name in os.environ if name.startswith("HEADRACE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    # A command sets up the logs of its process, which this one is not: lines would go to a stream that is soon closed.
    monkeypatch.setattr("structlog.configure", lambda **_: None)
    runner = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"})

    def invoke(*arguments: str, stdin: str | bytes | None = None) -> Result:
        return runner.invoke(app, list(arguments), input=stdin, prog_name="headrace")

    return invoke


@pytest.fixture(scope="session")
def cluster() -> Iterator[Broker]:
    """A broker for the commands to talk to."""
    with Broker({"auto.create.topics.enable": False}) as broker:
        yield broker


@pytest.fixture
def headrace(cluster: Broker, run: Run, monkeypatch: pytest.MonkeyPatch) -> Headrace:
    """The command with `cluster` for its broker, with bytes in and out as of a process."""
    monkeypatch.setenv("HEADRACE_BOOTSTRAP", cluster.bootstrap)

    def call(*arguments: str, stdin: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
        result = run(*arguments, stdin=stdin)
        return subprocess.CompletedProcess(arguments, result.exit_code, result.stdout_bytes, result.stderr_bytes)

    return call


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "headrace.cli", *arguments]


def environment(bootstrap: str = "") -> dict[str, str]:
    return {**os.environ, "HEADRACE_BOOTSTRAP": bootstrap} if bootstrap else dict(os.environ)
