"""Durations counted in buckets of powers of two: plain integers, cheap to add to, exact in their sum and count."""

from typing import Final

MICROSECOND: Final = 1_000
"""In nanoseconds, in which durations are given."""
BUCKETS: Final = 26
"""The last takes everything from 16.8 s on."""


class Histogram:
    """Counts of durations. Bucket `i` counts those below `2**i` microseconds and not below half of that."""

    __slots__ = ("counts", "sum_ns")

    def __init__(self) -> None:
        self.counts = [0] * BUCKETS
        self.sum_ns = 0

    def add(self, nanoseconds: int, count: int = 1) -> None:
        """Count `count` durations of so many nanoseconds."""
        number = (nanoseconds // MICROSECOND).bit_length()
        self.counts[number if number < BUCKETS else BUCKETS - 1] += count
        self.sum_ns += nanoseconds * count

    @property
    def count(self) -> int:
        """How many durations there are."""
        return sum(self.counts)

    @property
    def sum_seconds(self) -> float:
        """All of them together."""
        return self.sum_ns / 1e9


def upper_seconds(bucket: int) -> float:
    """What the durations in a bucket are below; not of the last, which has no bound."""
    return float((1 << bucket) / 1e6)
