"""Work that is done concurrently, but for one key in its order; and how far a partition has come with it."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from ..messages import Message


class Progress:
    """One partition: which of its messages are being handled, and the position up to which all of them have been."""

    __slots__ = ("_done", "_last", "_open", "is_over", "position", "running")

    def __init__(self) -> None:
        self.position: int | None = None
        self.running = 0
        """Handlers at work on it, and records on their way because of them."""
        self.is_over = False
        """Whether the partition goes to another member: none of its messages begins any more."""
        self._open: deque[int] = deque()
        self._done: set[int] = set()
        self._last = -1

    def follows(self, offset: int) -> bool:
        """Whether a message comes after all that were taken; one that does not is of a topic that was made anew."""
        if offset <= self._last:
            return False
        self._last = offset
        return True

    def begin(self, offset: int) -> None:
        """A message is open."""
        self._open.append(offset)

    def finish(self, offset: int) -> None:
        """It has been handled."""
        open_, done = self._open, self._done
        if open_[0] != offset:
            done.add(offset)
            return
        open_.popleft()
        while open_ and open_[0] in done:
            offset = open_.popleft()
            done.remove(offset)
        self.position = offset + 1


class Work(NamedTuple):
    """A message to be handled, and whose progress it is."""

    message: Message[Any]
    progress: Progress


class Lanes:
    """So many at a time, each key in one of them: those of a key wait for the one before."""

    def __init__(self, concurrency: int, handle: Callable[[Work], Awaitable[None]]) -> None:
        self._concurrency = concurrency
        self._handle = handle
        self._ready: deque[Work] = deque()
        self._behind: dict[bytes, deque[Work]] = {}
        """Of each key that is being handled or ready: those that wait for it."""
        self._is_ready = asyncio.Event()
        self.is_ending = False
        """Whether all of it is cancelled, and not one that is handled alone."""

    async def run(self) -> None:
        """Handle what is put in until cancelled, or until handling raises."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._concurrency):
                group.create_task(self._lane())
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                self.is_ending = True

    def put(self, work: Work) -> None:
        key = work.message.key
        if self._concurrency > 1 and key is not None:
            behind = self._behind.get(key)
            if behind is not None:
                behind.append(work)
                return
            self._behind[key] = deque()
        self._ready.append(work)
        if not self._is_ready.is_set():
            self._is_ready.set()

    async def _lane(self) -> None:
        while True:
            while self._ready:
                work = self._ready.popleft()
                try:
                    await self._handle(work)
                except asyncio.CancelledError as error:
                    if self.is_ending:
                        raise
                    raise RuntimeError(f"what handles {work.message} was cancelled") from error
                if self._concurrency > 1:
                    self._release(work.message.key)
            self._is_ready.clear()
            await self._is_ready.wait()

    def _release(self, key: bytes | None) -> None:
        """The next of this key may come."""
        if key is None:
            return
        behind = self._behind.get(key)
        if behind:
            self._ready.append(behind.popleft())
            self._is_ready.set()
        else:
            self._behind.pop(key, None)
