"""Background tasks, and an owner who notices when one of them fails.

What is to go on for as long as its owner does is *kept*: when it fails that is logged with its traceback, and it is
begun anew after a pause that grows with each failure. What is done *every* so many seconds is tried again the next
time when it fails. What is done once is *spawned*: its failure is logged. A failure
after which the process must not go on is *fatal*: its owner's owner is told, who ends the process.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

import structlog

FIRST_PAUSE_SECONDS: Final = 0.05
LONGEST_PAUSE_SECONDS: Final = 5.0
QUIET_SECONDS: Final = 60.0
"""After which a failure counts as the first one again."""

log = structlog.get_logger(__name__)

Work = Callable[[], Coroutine[Any, Any, None]]
Chore = Callable[[], Awaitable[None] | None]
Seconds = float | Callable[[], float]
IsFatal = Callable[[Exception], bool]
Fatal = Callable[[str, Exception], None]
"""Called with the name of a task and what it failed with."""


class Tasks:
    """The background tasks of one owner."""

    def __init__(self, on_fatal: Fatal | None = None) -> None:
        self._on_fatal = on_fatal
        self._tasks: set[asyncio.Task[Any]] = set()

    def keep(self, name: str, work: Work, *, is_fatal: IsFatal = lambda _: False) -> "asyncio.Task[None]":
        """Run work until it is cancelled or returns; begin it anew whenever it fails, unless that is fatal."""
        return self._begin(self._keep(name, work, is_fatal), name)

    def every(self, seconds: Seconds, name: str, chore: Chore) -> None:
        """Run a chore every so many seconds, first after that time. Seconds that can change are asked for each time."""
        wait = seconds if callable(seconds) else lambda: seconds
        self.keep(name, lambda: _repeat(wait, name, chore))

    def spawn(self, work: Coroutine[Any, Any, object]) -> None:
        """Run work once."""
        task = asyncio.get_running_loop().create_task(work, name=getattr(work, "__qualname__", ""))
        self._tasks.add(task)
        task.add_done_callback(self._spawned_ended)

    async def close(self) -> None:
        """End what is under way; returns when it has ended."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, work: Coroutine[Any, Any, Any], name: str) -> "asyncio.Task[Any]":
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # it is told elsewhere

    def _spawned_ended(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background task failed", task=task.get_name(), exc_info=error)

    async def _keep(self, name: str, work: Work, is_fatal: IsFatal) -> None:
        now = asyncio.get_running_loop().time
        pause = FIRST_PAUSE_SECONDS
        while True:
            began = now()
            try:
                await work()
            except Exception as error:
                if is_fatal(error):
                    self._report_fatal(name, error)
                    raise
                if now() - began > QUIET_SECONDS:
                    pause = FIRST_PAUSE_SECONDS
                log.exception("background task failed, it is begun anew", task=name, seconds=pause)
            else:
                log.warning("background task ended", task=name)
                return
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    def _report_fatal(self, name: str, error: Exception) -> None:
        if self._on_fatal is not None:
            self._on_fatal(name, error)


async def _repeat(wait: Callable[[], float], name: str, chore: Chore) -> None:
    while True:
        await asyncio.sleep(wait())
        try:
            result = chore()
            if result is not None:
                await result
        except Exception:
            log.exception("chore failed", chore=name)
