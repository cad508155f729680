"""Start and idle memory, beside a Python that does nothing.

Start: from spawning `headrace broker` on an empty directory to its first answer (ApiVersions).
"""

import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from . import machine
from .frames import api_versions_frame
from .load import ask
from .model import Aim, BenchError, Figure, Of, Sample, Work
from .setting import Setting, spawn, stop, wait_ready

_IDLE_SECONDS: Final = 1.0
_BARE: Final = "import asyncio, uvloop"
_BARE_IDLE: Final = "import time; print('127.0.0.1:1', flush=True); time.sleep(60)"


def start_broker(setting: Setting) -> Sample:
    with setting.directory() as data:
        start = time.perf_counter()
        process = spawn(setting.broker_command(data), data)
        try:
            with wait_ready(process, data).connect() as sock:
                ask(sock, api_versions_frame())
            return {"start": time.perf_counter() - start}
        finally:
            stop(process)


def start_python(setting: Setting) -> Sample:
    with setting.directory() as directory:
        start = time.perf_counter()
        process = spawn([sys.executable, "-c", _BARE], directory)
        try:
            if process.wait(30.0):
                raise BenchError(f"python -c {_BARE!r} failed")
            return {"start": time.perf_counter() - start}
        except subprocess.TimeoutExpired as error:
            raise BenchError("a bare Python did not start in 30 s") from error
        finally:
            stop(process)


def idle_broker(setting: Setting) -> Sample:
    with setting.directory() as data:
        return _idle(setting.broker_command(data), data)


def idle_python(setting: Setting) -> Sample:
    with setting.directory() as directory:
        return _idle([sys.executable, "-c", _BARE_IDLE], directory)


def _idle(command: list[str], directory: Path) -> Sample:
    process = spawn(command, directory)
    try:
        wait_ready(process, directory)
        time.sleep(_IDLE_SECONDS)
        return {"rss": machine.resident_mb(process.pid), "pss": machine.proportional_mb(process.pid)}
    finally:
        stop(process)


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
    ]
