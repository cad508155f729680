"""The alarms of a shard's groups, on a scheduler that is given.

Most alarms are put off long before they ring: each heartbeat does. So putting one off only notes the new time, and
the timer that was set finds it when it goes off, and sets itself again.
"""

from collections.abc import Callable, Hashable
from typing import Protocol

from headrace.net.clock import Clock


class Handle(Protocol):
    """A call that is to come."""

    def cancel(self) -> None: ...


class Scheduler(Protocol):
    """Calls functions later. An event loop is one."""

    def call_later(self, delay: float, callback: Callable[[], None], /) -> Handle:
        """Call after so many seconds."""
        ...


class _Alarm:
    __slots__ = ("due_ms", "handle", "timer_ms")

    def __init__(self, due_ms: int) -> None:
        self.due_ms = due_ms
        self.timer_ms = due_ms
        self.handle: Handle | None = None


class Alarms:
    """Rings `ring(group id, name)` when an alarm is due."""

    def __init__(self, scheduler: Scheduler, clock: Clock, ring: Callable[[str, Hashable], None]) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._ring = ring
        self._by_group: dict[str, dict[Hashable, _Alarm]] = {}

    def __len__(self) -> int:
        return sum(len(alarms) for alarms in self._by_group.values())

    def set(self, group_id: str, name: Hashable, at_ms: int | None) -> None:
        """Ring at a time, instead of any that was set under this name; None for not at all."""
        alarms = self._by_group.setdefault(group_id, {})
        alarm = alarms.get(name)
        if at_ms is None:
            if alarm is not None:
                self._stop(alarms.pop(name))
            if not alarms:
                del self._by_group[group_id]
        elif alarm is None:
            alarms[name] = alarm = _Alarm(at_ms)
            self._start(group_id, name, alarm)
        else:
            alarm.due_ms = at_ms
            if at_ms < alarm.timer_ms:
                self._stop(alarm)
                self._start(group_id, name, alarm)

    def forget(self, group_id: str) -> None:
        """Take back all alarms of a group."""
        for alarm in self._by_group.pop(group_id, {}).values():
            self._stop(alarm)

    def clear(self) -> None:
        for group_id in list(self._by_group):
            self.forget(group_id)

    def _start(self, group_id: str, name: Hashable, alarm: _Alarm) -> None:
        alarm.timer_ms = alarm.due_ms
        delay = max(alarm.due_ms / 1000 - self._clock.monotonic(), 0.0)
        alarm.handle = self._scheduler.call_later(delay, lambda: self._fire(group_id, name, alarm))

    def _stop(self, alarm: _Alarm) -> None:
        if alarm.handle is not None:
            alarm.handle.cancel()
            alarm.handle = None

    def _fire(self, group_id: str, name: Hashable, alarm: _Alarm) -> None:
        alarm.handle = None
        if alarm.due_ms / 1000 > self._clock.monotonic():
            self._start(group_id, name, alarm)
            return
        self.set(group_id, name, None)
        self._ring(group_id, name)
