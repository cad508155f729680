"""The time by which messages are moved: the earlier of this machine's and the brokers', so that no clock that is ahead,
or is set ahead, sends anything early.

Of the brokers it is known what time it was when one of them appended a record; since then a clock that nobody sets has
counted on.
"""

import time
from collections.abc import Callable
from typing import Final

_FRESH_SECONDS: Final = 60.0


class ClusterClock:
    """Times are ms since 1970. Without word of a broker, or none within the last minute, it `is_stale`."""

    def __init__(self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._told_at: float | None = None
        self._ahead_ms = 0.0
        """How far the brokers' time was ahead of the clock that nobody sets."""

    @property
    def is_stale(self) -> bool:
        return self._told_at is None or self._monotonic() - self._told_at > _FRESH_SECONDS

    def now_ms(self) -> int:
        """The time; this machine's alone while nothing is known of the brokers'."""
        local = self._wall() * 1000
        if self._told_at is None:
            return int(local)
        return int(min(local, self._monotonic() * 1000 + self._ahead_ms))

    def appended_at(self, time_ms: int) -> None:
        """A broker has just said that it appended a record then."""
        self._told_at = self._monotonic()
        self._ahead_ms = time_ms - self._told_at * 1000
