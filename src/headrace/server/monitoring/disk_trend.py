"""When the disk will be full, if it goes on as it did in the last half hour."""

from collections import deque
from math import inf
from typing import Final

SAMPLE_SECONDS: Final = 10.0
_KEPT: Final = 180
"""Samples of half an hour."""
_LEAST: Final = 3


class DiskTrend:
    """Free bytes over time, and the straight line that fits them best."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque(maxlen=_KEPT)

    def note(self, now: float, free_bytes: int) -> None:
        """So many bytes are free now; to be called every `SAMPLE_SECONDS`."""
        self._samples.append((now, free_bytes))

    def full_in(self) -> float:
        """Seconds until the disk is full by its trend; infinite while it does not fill, or before the second sample."""
        if len(self._samples) < _LEAST:
            return inf
        count = len(self._samples)
        mean_time = sum(time for time, _ in self._samples) / count
        mean_free = sum(free for _, free in self._samples) / count
        spread = sum((time - mean_time) ** 2 for time, _ in self._samples)
        if not spread:
            return inf
        slope = sum((time - mean_time) * (free - mean_free) for time, free in self._samples) / spread
        return self._samples[-1][1] / -slope if slope < 0 else inf
