"""What a coordinator has done beside the requests: shards loaded, markers sent, offsets of deleted topics dropped."""

import asyncio
from collections.abc import Coroutine
from typing import Any


class Errands:
    """Work that runs until it ends, or until whoever wanted it done closes."""

    def __init__(self) -> None:
        self.is_closed = False
        self._tasks: set[asyncio.Task[object]] = set()

    def spawn(self, work: Coroutine[Any, Any, object]) -> None:
        """Let work run; once closed, it is dropped unbegun."""
        if self.is_closed:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def cancel(self) -> None:
        """End what is under way; returns when it has ended."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
