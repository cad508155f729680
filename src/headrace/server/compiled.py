"""Brings compiled code into the broker, for the check of records and for recovery: from the cache, or built by another
process meanwhile.

Until then, and where machine code cannot be made or run, the same is done in Python, and a log line says so.
"""

import asyncio
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from typing import Final

import structlog

from headrace.kernels import native
from headrace.protocol import validation
from headrace.storage import plain

BUILD: Final = (sys.executable, "-P", "-m", "headrace.kernels.build")
"""-P: nothing is imported from the directory that the broker happens to run in, where others may be able to write."""
_PATIENCE_SECONDS: Final = 120.0

log = structlog.get_logger(__name__)


def load() -> bool:
    """Use what is in the cache; whether there was something."""
    try:
        validation.use_compiled(native.load(native.RECORDS), native.load_check())
        plain.use_compiled(native.load(native.HEADS))
    except native.Unusable:
        return False
    return True


async def build() -> None:
    """Compile in another process, keep the result for later starts, and use it."""
    reason = await run(BUILD)
    if not reason and load():
        log.info("record checks and log recovery compiled")
        return
    log.warning(
        "records are checked in Python, which slows produce requests and recovery down: it could not be compiled",
        reason=reason or "the compiled code cannot be loaded",
    )


async def run(command: tuple[str, ...]) -> str:
    """What went wrong, in the last line that the process wrote; empty if nothing did."""
    try:
        process = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE)
    except OSError as error:
        return str(error)
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            _, words = await process.communicate()
    except TimeoutError:
        return f"it took more than {_PATIENCE_SECONDS:.0f} s"
    finally:
        await _end(process)
    if process.returncode == 0:
        return ""
    lines = words.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"the compiler ended with code {process.returncode}"


async def _end(process: Process) -> None:
    if process.returncode is None:
        process.kill()
        await process.wait()
