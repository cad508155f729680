"""What the broker does on its own, again and again: deadlines of connections, flushes by time, retention, checkpoints.

Each chore runs on the loop in its own task; one that fails is logged and tried again the next time.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import structlog

log = structlog.get_logger(__name__)

Chore = Callable[[], Awaitable[None] | None]
Seconds = float | Callable[[], float]


class Housekeeping:
    """Runs chores at their intervals until stopped."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def every(self, seconds: Seconds, name: str, chore: Chore) -> None:
        """Run a chore every so many seconds, first after that time. Seconds that can change are asked for each time."""
        wait = seconds if callable(seconds) else lambda: seconds
        self._tasks.append(asyncio.get_running_loop().create_task(self._repeat(wait, name, chore), name=name))

    def always(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Run something that waits by itself for what it has to do."""
        self._tasks.append(asyncio.get_running_loop().create_task(work, name=name))

    async def stop(self) -> None:
        """Ends all chores; one that runs is cancelled where it waits."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def _repeat(self, wait: Callable[[], float], name: str, chore: Chore) -> None:
        while True:
            await asyncio.sleep(wait())
            try:
                result = chore()
                if result is not None:
                    await result
            except Exception:
                log.exception("chore failed", chore=name)
