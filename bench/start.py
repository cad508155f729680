"""Start, idle memory and the memory of connections, beside a Python that does nothing.

Start: from spawning `headrace broker` on an empty directory to its first answer (ApiVersions).
"""

import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from . import machine
from .frames import api_versions_frame
from .load import ask
from .model import Aim, BenchError, Figure, Of, Sample, Work
from .setting import Server, Setting

_IDLE_SECONDS: Final = 1.0
_CONNECTIONS: Final = 500
_BARE: Final = "import asyncio, uvloop"
_BARE_IDLE: Final = "import time; print('127.0.0.1:1', flush=True); time.sleep(60)"


def start_broker(setting: Setting) -> Sample:
    """One start; the first of a run is not counted, since it compiles."""
    _start_once(setting)
    return {"start": _start_once(setting)}


def _start_once(setting: Setting) -> float:
    with setting.directory() as data:
        start = time.perf_counter()
        with setting.running(setting.broker_command(data), data) as server, server.connect() as sock:
            ask(sock, api_versions_frame())
            return time.perf_counter() - start


def start_python(setting: Setting) -> Sample:
    with setting.directory() as directory:
        start = time.perf_counter()
        with setting.spawned([sys.executable, "-c", _BARE], directory) as process:
            try:
                if process.wait(30.0):
                    raise BenchError(f"python -c {_BARE!r} failed")
            except subprocess.TimeoutExpired as error:
                raise BenchError("a bare Python did not start in 30 s") from error
            return {"start": time.perf_counter() - start}


def idle_broker(setting: Setting) -> Sample:
    with setting.directory() as data:
        return _idle(setting, setting.broker_command(data), data)


def idle_python(setting: Setting) -> Sample:
    with setting.directory() as directory:
        return _idle(setting, [sys.executable, "-c", _BARE_IDLE], directory)


def _idle(setting: Setting, command: list[str], directory: Path) -> Sample:
    with setting.running(command, directory) as server:
        time.sleep(_IDLE_SECONDS)
        return {"rss": machine.resident_mb(server.pid), "pss": machine.proportional_mb(server.pid)}


def crowded_broker(setting: Setting) -> Sample:
    with setting.broker() as server:
        return _crowd(server)


def crowded_echo(setting: Setting) -> Sample:
    with setting.directory() as directory, setting.ceiling("echo", directory, "--reply", "16") as server:
        return _crowd(server)


def _crowd(server: Server) -> Sample:
    """Memory that each connection takes when it has asked once and asks no more."""
    with ExitStack() as sockets:
        ask(sockets.enter_context(server.connect()), api_versions_frame())
        before = machine.resident_mb(server.pid)
        for _ in range(_CONNECTIONS):
            ask(sockets.enter_context(server.connect()), api_versions_frame())
        grown = machine.resident_mb(server.pid) - before
    return {"kb": grown * 1e3 / _CONNECTIONS}


def works() -> list[Work]:
    return [
        Work(
            name="start",
            title="start to first answer",
            against=f"python -c '{_BARE}'",
            figures=(Figure(key="start", label="", unit="s", aim=Aim(of=Of.VALUE, bound=1.0, at_least=False)),),
            broker=start_broker,
            ceiling=start_python,
        ),
        Work(
            name="memory",
            title="memory, idle",
            against="a bare Python process",
            figures=(
                Figure(key="rss", label="RSS", unit="MB", aim=Aim(of=Of.VALUE, bound=120, at_least=False)),
                Figure(key="pss", label="PSS", unit="MB"),
            ),
            broker=idle_broker,
            ceiling=idle_python,
            rounds=1,
        ),
        Work(
            name="connections",
            title=f"memory of an idle connection, {_CONNECTIONS:,} open",
            against="bare uvloop echo",
            figures=(Figure(key="kb", label="RSS", unit="KB"),),
            broker=crowded_broker,
            ceiling=crowded_echo,
            rounds=1,
        ),
    ]
