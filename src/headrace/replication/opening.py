"""Logs that are opened off the loop, several at once: after a crash their tails have to be read and checked.

Partitions are served as soon as their own log is open; until then clients are told to try again. What is to come of a
log may change while it is being opened: its owner asks when it is told that the log is there.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

import structlog

from headrace.net.clock import Clock
from headrace.protocol.topic_partition import TopicPartition
from headrace.storage.manager import ClosedLog
from headrace.storage.recovery import LogState, RecoveryProgress

REPORT_SECONDS: Final = 5.0

RunInBackground = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a function on a thread, beside others."""

log = structlog.get_logger(__name__)


class Opened(NamedTuple):
    """How the opening of a log ended: with its state, or with what stands in the way."""

    log: ClosedLog
    state: LogState | None
    error: Exception | None


class Openings:
    """Opens logs on threads, `at_once` at a time, and hands each over on the loop."""

    def __init__(
        self, run: RunInBackground, clock: Clock, *, at_once: Callable[[], int], opened: Callable[[Opened], None]
    ) -> None:
        self._run = run
        self._clock = clock
        self._at_once = at_once
        self._opened = opened
        self._waiting: deque[ClosedLog] = deque()
        self._running: dict[TopicPartition, RecoveryProgress] = {}
        self._futures: dict[asyncio.Future[LogState], None] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._began = 0.0
        self._reported = 0.0
        self._done = 0
        self._done_bytes = 0
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._waiting) + len(self._running)

    @property
    def progress(self) -> tuple[int, int]:
        """Logs, and bytes of them, that were checked since the last time that there was nothing to open."""
        return self._done, self._done_bytes + sum(progress.bytes for progress in self._running.values())

    def begin(self, closed: ClosedLog, *, first: bool = False) -> None:
        """Queue a log to be opened; ahead of the queue where requests wait for it."""
        if not len(self):
            self._began = self._reported = self._clock.monotonic()
            self._done = self._done_bytes = 0
            self._idle.clear()
            log.info("log recovery started", reason="logs were not closed: what was written last is checked")
        if first:
            self._waiting.appendleft(closed)
        else:
            self._waiting.append(closed)
        self._start_some()

    async def wait(self, seconds: float) -> None:
        """Returns when all are open, or after so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return

    def report(self) -> None:
        """Log how far it has come, when that was not done for a while."""
        now = self._clock.monotonic()
        if len(self) and now - self._reported >= REPORT_SECONDS:
            self._reported = now
            log.info(
                "log recovery running",
                recovered=self._done,
                left=len(self),
                checked_bytes=self.progress[1],
                seconds=round(now - self._began, 1),
            )

    def close(self) -> None:
        """Open no more; what is being read is given up."""
        self._is_closed = True
        self._waiting.clear()
        for progress in self._running.values():
            progress.is_cancelled = True
        for future in self._futures:
            future.cancel()

    def _start_some(self) -> None:
        while self._waiting and len(self._running) < self._at_once():
            closed = self._waiting.popleft()
            progress = self._running[closed.key] = RecoveryProgress()
            future = asyncio.ensure_future(self._run(lambda c=closed, p=progress: c.open(p)))  # type: ignore[misc]
            self._futures[future] = None
            future.add_done_callback(lambda ended, c=closed: self._ended(c, ended))  # type: ignore[misc]

    def _ended(self, closed: ClosedLog, future: "asyncio.Future[LogState]") -> None:
        self._futures.pop(future, None)
        progress = self._running.pop(closed.key)
        if future.cancelled() or self._is_closed:
            return
        self._done += 1
        self._done_bytes += progress.bytes
        error = future.exception()
        try:
            if error is None:
                self._opened(Opened(closed, future.result(), None))
            elif isinstance(error, Exception):
                self._opened(Opened(closed, None, error))
            else:
                raise error
        finally:
            self._start_some()
            if not len(self):
                self._finish()

    def _finish(self) -> None:
        self._idle.set()
        log.info(
            "log recovery finished",
            partitions=self._done,
            checked_bytes=self._done_bytes,
            seconds=round(self._clock.monotonic() - self._began, 1),
        )
