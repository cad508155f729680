"""Background tasks that fail without a reason, as a mistake in one of them would make it fail."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any
from unittest.mock import patch

from headrace.net.tasks import Tasks

Work = Callable[[], Coroutine[Any, Any, None]]


class Bugs:
    """The background tasks of all brokers, each of which can be made to fail."""

    def __init__(self) -> None:
        self._running: list[tuple[str, asyncio.Future[None]]] = []

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Tasks that are begun meanwhile can fail."""
        keep = Tasks.keep

        def keep_fallible(tasks: Tasks, name: str, work: Work, **terms: Any) -> "asyncio.Task[None]":
            return keep(tasks, name, lambda: self._run(name, work), **terms)

        with patch.object(Tasks, "keep", keep_fallible):
            yield

    def strike(self, rng: Random) -> str | None:
        """One of them fails now: its name."""
        if not self._running:
            return None
        name, bug = rng.choice(self._running)
        if not bug.done():
            bug.set_result(None)
        return name

    async def _run(self, name: str, work: Work) -> None:
        bug: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (name, bug)
        self._running.append(entry)
        running = asyncio.ensure_future(work())
        try:
            await asyncio.wait([running, bug], return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                raise RuntimeError(f"a mistake in {name!r}")
            running.result()
        finally:
            self._running.remove(entry)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
