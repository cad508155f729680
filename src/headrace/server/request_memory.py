"""Bounds what requests take that have come in part or wait to be served: `queued.max.request.bytes`.

A connection's buffer grows as bytes really come, never because of a length that was announced. Before it grows it asks
here. While there is no more to give, connections that need more are not read, in the order in which they came; those
whose requests fit into what they have go on. Nobody waits for ever:

- What is empty is given back before anything is read into it, as long as somebody waits.
- The first of those who wait may have what its request needs, whatever others hold, so that it ends. So all together
  take at most one largest request (`socket.request.max.bytes`) more than the limit.
- Who holds memory while others wait, and sends slower than `LEAST_RATE`, is closed after `PATIENCE_SECONDS`.
- The last quarter is for small requests: those who send large ones leave it to the others.

What a large request had goes back to the system a piece at a time (`Unmapping`).
"""

import mmap
from asyncio import AbstractEventLoop, TimerHandle
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

import structlog

LOOK_SECONDS: Final = 0.05
"""How often it is looked for what can be taken back, while somebody waits."""
PATIENCE_SECONDS: Final = 5.0
LEAST_RATE: Final = 64 * 1024
SMALL: Final = 1 << 20
"""Bytes of a request up to which it may take of the last quarter."""
UNMAPPED_AT_ONCE: Final = 512 << 10
"""Bytes that the system is given back before others have their turn: 0.03 ms."""
_REPORT_SECONDS: Final = 5.0
_SETTING: Final = "queued.max.request.bytes"

log = structlog.get_logger(__name__)


class Holder(Protocol):
    """A connection, as much of it as matters here."""

    peer: str
    requests: int

    @property
    def held_bytes(self) -> int:
        """Of a request that has come in part."""
        ...

    @property
    def is_incomplete(self) -> bool:
        """Whether the client has to send more before anything can be served."""
        ...

    def give_back(self) -> None:
        """Let go of a buffer that nothing is in."""
        ...

    def read_on(self) -> None:
        """There may be memory now."""
        ...

    def close(self) -> None: ...


class _Progress:
    """How a holder gets on while others wait."""

    __slots__ = ("held", "requests", "since")

    def __init__(self, holder: Holder, now: float) -> None:
        self.requests, self.held, self.since = holder.requests, holder.held_bytes, now


class Share:
    """The part of the memory that one connection has."""

    __slots__ = ("_holder", "_memory")

    def __init__(self, memory: "RequestMemory", holder: Holder) -> None:
        self._memory = memory
        self._holder = holder

    @property
    def is_short(self) -> bool:
        return self._memory.is_short

    def take(self, more: int, frame: int, *, is_needed: bool) -> bool:
        return self._memory.take(self._holder, more, frame, is_needed=is_needed)

    def give(self, size: int) -> None:
        self._memory.give(self._holder, size)

    def unmap(self, place: mmap.mmap) -> None:
        self._memory.unmapping.add(place)


class Unmapping:
    """Gives places of large requests back to the system, a piece in each turn of the loop."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._places: deque[mmap.mmap] = deque()

    @property
    def pending(self) -> int:
        """Bytes that are still to be given back."""
        return sum(map(len, self._places))

    def add(self, place: mmap.mmap) -> None:
        """Nobody needs the place any longer, but for a request that may still be served from it."""
        self._places.append(place)
        if len(self._places) == 1:
            self._loop.call_soon(self._unmap_piece)

    def _unmap_piece(self) -> None:
        place = self._places.popleft()
        left, pause = len(place) - UNMAPPED_AT_ONCE, 0.0
        try:
            if left > 0:
                place.resize(left)
                self._places.appendleft(place)
            else:
                place.close()
        except BufferError:  # it is still read
            self._places.append(place)
            pause = LOOK_SECONDS
        except (OSError, SystemError):  # this system cannot do it in pieces
            pass
        if self._places:
            self._loop.call_later(pause, self._unmap_piece) if pause else self._loop.call_soon(self._unmap_piece)


class RequestMemory:
    """The memory for requests of all connections of a broker."""

    def __init__(self, loop: AbstractEventLoop, limit: Callable[[], int]) -> None:
        self._loop = loop
        self._limit = limit
        self.used = 0
        """Bytes that buffers have beyond what each connection has anyway."""
        self.waits = 0
        """How often a connection had to wait, since the start."""
        self._taken: dict[Holder, int] = {}
        self._waiting: dict[Holder, tuple[int, int]] = {}
        """How much each wants next, and for a request of which size, in the order in which they came."""
        self._first: Holder | None = None
        """The one that may exceed the limit, for one request."""
        self._first_requests = 0
        """How many it had sent before."""
        self._progress: dict[Holder, _Progress] = {}
        self._look: TimerHandle | None = None
        self._reports_at = 0.0
        self.unmapping = Unmapping(loop)

    @property
    def waiting(self) -> int:
        """Connections that are not read for want of memory."""
        return len(self._waiting)

    def share_of(self, holder: Holder) -> "Share":
        """What the buffer of a connection is given."""
        return Share(self, holder)

    @property
    def is_short(self) -> bool:
        """Whether a connection waits for memory, or still holds more than its share."""
        return self._look is not None

    def take(self, holder: Holder, more: int, frame: int, *, is_needed: bool) -> bool:
        """Whether a buffer may grow by so much for a request of that size."""
        may_exceed = is_needed and holder is self._first and holder.requests == self._first_requests
        if not may_exceed and not self._fits(more, frame):
            return False
        self.used += more
        self._taken[holder] = self._taken.get(holder, 0) + more
        return True

    def give(self, holder: Holder, size: int) -> None:
        """A buffer has become smaller."""
        left = self._taken.pop(holder, 0) - size
        self.used -= size
        if left > 0:
            self._taken[holder] = left

    def wait(self, holder: Holder, sizes: tuple[int, int]) -> None:
        """A connection needs so much more for a request of that size, and is not read until `read_on` is called."""
        self.waits += 1
        self._waiting[holder] = sizes
        if self._look is None:
            self._report()
            self._look = self._loop.call_later(0, self._look_again)

    def forget(self, holder: Holder) -> None:
        """A connection was closed."""
        self.used -= self._taken.pop(holder, 0)
        self._waiting.pop(holder, None)
        self._progress.pop(holder, None)
        if holder is self._first:
            self._first = None

    def _fits(self, more: int, frame: int) -> bool:
        limit = self._limit()
        return limit < 0 or self._used_by_others + more <= (limit if 0 < frame <= SMALL else limit - limit // 4)

    @property
    def _used_by_others(self) -> int:
        """What all have but the one that may exceed the limit: it takes nothing from them."""
        return self.used if self._first is None else self.used - self._taken.get(self._first, 0)

    def _look_again(self) -> None:
        self._look = None
        for holder in list(self._taken):
            holder.give_back()
        if self._first is not None and self._first.requests != self._first_requests:
            self._first = None
        if self._waiting:
            self._close_slow()
        else:
            self._progress.clear()
        self._let_on()
        if self._waiting or self._first is not None:
            self._look = self._loop.call_later(LOOK_SECONDS, self._look_again)

    def _let_on(self) -> None:
        granted = 0
        for holder, (more, frame) in list(self._waiting.items()):
            if self._first is None and (self.used <= self._limit() or self._holds_most(holder)):
                self._first, self._first_requests = holder, holder.requests
            elif holder is not self._first and not self._fits(granted + more, frame):
                continue
            del self._waiting[holder]
            granted += more
            holder.read_on()

    def _holds_most(self, holder: Holder) -> bool:
        """Whether no other who waits holds more: where more is taken than there is, its end frees most of it."""
        taken = self._taken.get(holder, 0)
        return all(self._taken.get(other, 0) <= taken for other in self._waiting)

    def _close_slow(self) -> None:
        now = self._loop.time()
        for holder in list(self._taken):
            if holder in self._waiting or not holder.is_incomplete:
                self._progress.pop(holder, None)
                continue
            before = self._progress.get(holder)
            if before is None or before.requests != holder.requests:
                self._progress[holder] = _Progress(holder, now)
                continue
            seconds = now - before.since
            if seconds >= PATIENCE_SECONDS and holder.held_bytes - before.held < LEAST_RATE * seconds:
                log.warning(
                    "connection closed",
                    peer=holder.peer,
                    reason="it sent a large request too slowly while others waited for memory; "
                    "see queued.max.request.bytes",
                )
                holder.close()

    def _report(self) -> None:
        now = self._loop.time()
        if now >= self._reports_at:
            self._reports_at = now + _REPORT_SECONDS
            log.warning("requests wait for memory", used=self.used, limit=self._limit(), setting=_SETTING)
