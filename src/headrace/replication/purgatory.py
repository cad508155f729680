"""Where requests wait: a produce for the high watermark to pass it, a fetch for bytes to arrive.

Both wait on partitions, and are woken by them; the caller sets the deadline. Nothing here knows of time or sockets.
"""

from collections import deque
from collections.abc import Callable, Iterable
from math import inf
from typing import Protocol

from headrace.protocol.errors import CodedError, ErrorCode

Committed = Callable[[CodedError | None], None]
"""Called once: with None when the records are committed, with the error when they will not be."""


class CommitQueue:
    """Produce requests of one partition that wait for an offset, in the order of their offsets."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Committed, float]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def wait(self, end_offset: int, committed: Committed, deadline: float = inf) -> None:
        """`committed` is called when the offset that counts reaches `end_offset`."""
        self._waiting.append((end_offset, committed, deadline))

    def advance(self, offset: int) -> None:
        waiting = self._waiting
        while waiting and waiting[0][0] <= offset:
            waiting.popleft()[1](None)

    def fail(self, error: CodedError) -> None:
        """Fail every waiting request with the error."""
        waiting, self._waiting = self._waiting, deque()
        for _, committed, _ in waiting:
            committed(error)

    def expire(self, now: float) -> None:
        """Those whose time is over get REQUEST_TIMED_OUT: their records may be committed later, or not."""
        expired = [committed for _, committed, deadline in self._waiting if deadline <= now]
        if expired:
            self._waiting = deque(entry for entry in self._waiting if entry[2] > now)
        for committed in expired:
            committed(CodedError(ErrorCode.request_timed_out))


class FetchablePartition(Protocol):
    """What a fetch can wait on: a partition, or one as a share group reads it."""

    watchers: dict["DelayedFetch", None]

    @property
    def high_watermark(self) -> int: ...
    @property
    def last_stable_offset(self) -> int: ...


class DelayedFetch:
    """A fetch that found too few bytes and waits on its partitions until `is_ready` says so of one that has moved."""

    __slots__ = ("_done", "_is_ready", "_wake", "_watched")

    def __init__(
        self,
        watched: Iterable[FetchablePartition],
        is_ready: Callable[[FetchablePartition], bool],
        wake: Callable[[], None],
    ) -> None:
        self._watched = list(watched)
        self._is_ready = is_ready
        self._wake = wake
        self._done = False
        for partition in self._watched:
            partition.watchers[self] = None

    def poke(self, partition: FetchablePartition) -> None:
        """Something changed on a partition."""
        if not self._done and self._is_ready(partition):
            self.finish()

    def finish(self) -> None:
        """Wake the fetch now, ready or not; once."""
        if not self._done:
            self.cancel()
            self._wake()

    def cancel(self) -> None:
        """Forget the fetch: its connection is gone."""
        self._done = True
        for partition in self._watched:
            partition.watchers.pop(self, None)
