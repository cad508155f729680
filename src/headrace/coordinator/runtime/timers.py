"""The timers of a shard, on a scheduler that is given.

Most timers are put off long before they expire: each heartbeat does. So putting one off only notes the new time, and
the scheduled call finds it when it comes, and schedules itself again.
"""

from collections.abc import Callable, Hashable
from typing import Protocol

from headrace.net.clock import Clock


class Handle(Protocol):
    """A scheduled call."""

    def cancel(self) -> None: ...


class Scheduler(Protocol):
    """Calls functions later. An event loop is one."""

    def call_later(self, delay: float, callback: Callable[[], None], /) -> Handle:
        """Call after so many seconds."""
        ...


class _Timer:
    __slots__ = ("call_ms", "due_ms", "handle")

    def __init__(self, due_ms: int) -> None:
        self.due_ms = due_ms
        self.call_ms = due_ms
        self.handle: Handle | None = None


class Timers:
    """Calls `expired(key, name)` when a timer is due; a key has any number of timers, each with a name."""

    def __init__(self, scheduler: Scheduler, clock: Clock, expired: Callable[[str, Hashable], None]) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._expired = expired
        self._by_key: dict[str, dict[Hashable, _Timer]] = {}

    def __len__(self) -> int:
        return sum(len(timers) for timers in self._by_key.values())

    def set(self, key: str, name: Hashable, at_ms: int | None) -> None:
        """Expire at a time, instead of any that was set under this name; None for not at all."""
        timers = self._by_key.setdefault(key, {})
        timer = timers.get(name)
        if at_ms is None:
            if timer is not None:
                self._stop(timers.pop(name))
            if not timers:
                del self._by_key[key]
        elif timer is None:
            timers[name] = timer = _Timer(at_ms)
            self._start(key, name, timer)
        else:
            timer.due_ms = at_ms
            if at_ms < timer.call_ms:
                self._stop(timer)
                self._start(key, name, timer)

    def cancel(self, key: str) -> None:
        """Cancel all timers of a key."""
        for timer in self._by_key.pop(key, {}).values():
            self._stop(timer)

    def clear(self) -> None:
        """Cancel all timers."""
        for key in list(self._by_key):
            self.cancel(key)

    def _start(self, key: str, name: Hashable, timer: _Timer) -> None:
        timer.call_ms = timer.due_ms
        delay = max(timer.due_ms / 1000 - self._clock.monotonic(), 0.0)
        timer.handle = self._scheduler.call_later(delay, lambda: self._fire(key, name, timer))

    def _stop(self, timer: _Timer) -> None:
        if timer.handle is not None:
            timer.handle.cancel()
            timer.handle = None

    def _fire(self, key: str, name: Hashable, timer: _Timer) -> None:
        timer.handle = None
        if timer.due_ms / 1000 > self._clock.monotonic():
            self._start(key, name, timer)
            return
        self.set(key, name, None)
        self._expired(key, name)
