"""What an application counts of its requests: by method, route and status, and how long they took."""

from collections import Counter
from collections.abc import Callable
from time import perf_counter_ns
from typing import Final

from headrace.metrics.histogram import Histogram

UNMATCHED: Final = "unmatched"
"""The route of what no route is for: paths that callers make up must not become series."""
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class HttpCounts:
    """Plain integers, read by who renders them."""

    def __init__(self, now_ns: Callable[[], int] = perf_counter_ns) -> None:
        self.now_ns = now_ns
        self.requests: Counter[tuple[str, str, int]] = Counter()
        """By method, route and status."""
        self.durations: dict[str, Histogram] = {}
        """By route."""
        self.pending = 0
        self.websockets = 0

    def answered(self, method: str, route: str, status: int, nanoseconds: int) -> None:
        """A request was answered, after so long."""
        self.requests[method if method in _METHODS else "other", route, status] += 1
        durations = self.durations.get(route)
        if durations is None:
            durations = self.durations[route] = Histogram()
        durations.add(nanoseconds)
