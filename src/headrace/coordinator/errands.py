"""What a coordinator has done beside the requests: shards loaded, markers sent, offsets of deleted topics dropped."""

from collections.abc import Coroutine
from typing import Any

from headrace.net.tasks import Tasks


class Errands:
    """Work that runs until it ends, or until whoever wanted it done closes."""

    def __init__(self) -> None:
        self.is_closed = False
        self._tasks = Tasks()

    def spawn(self, work: Coroutine[Any, Any, object]) -> None:
        """Let work run; once closed, it is dropped unbegun."""
        if self.is_closed:
            work.close()
            return
        self._tasks.spawn(work)

    async def cancel(self) -> None:
        """End what is under way; returns when it has ended."""
        await self._tasks.close()
