"""Time as an argument, so that a test can own it."""

import time
from typing import Protocol


class Clock(Protocol):
    """What code below the server knows of time."""

    def now_ms(self) -> int:
        """Wall-clock time in milliseconds since 1970, as record timestamps have it. May jump."""
        ...

    def monotonic(self) -> float:
        """Seconds that only grow, for durations and deadlines."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()
