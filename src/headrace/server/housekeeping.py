"""What the broker does on its own, again and again: deadlines of connections, flushes by time, retention, checkpoints.

Each chore runs on the loop in its own task; one that fails is logged and tried again the next time.
"""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from headrace.net.tasks import Tasks, Work

log = structlog.get_logger(__name__)

Chore = Callable[[], Awaitable[None] | None]
Seconds = float | Callable[[], float]


class Housekeeping:
    """Runs chores at their intervals until stopped."""

    def __init__(self) -> None:
        self._tasks = Tasks()

    def every(self, seconds: Seconds, name: str, chore: Chore) -> None:
        """Run a chore every so many seconds, first after that time. Seconds that can change are asked for each time."""
        wait = seconds if callable(seconds) else lambda: seconds
        self._tasks.keep(name, lambda: self._repeat(wait, name, chore))

    def always(self, name: str, work: Work) -> None:
        """Run something that waits by itself for what it has to do."""
        self._tasks.keep(name, work)

    async def stop(self) -> None:
        """Ends all chores; one that runs is cancelled where it waits."""
        await self._tasks.close()

    async def _repeat(self, wait: Callable[[], float], name: str, chore: Chore) -> None:
        while True:
            await asyncio.sleep(wait())
            try:
                result = chore()
                if result is not None:
                    await result
            except Exception:
                log.exception("chore failed", chore=name)
