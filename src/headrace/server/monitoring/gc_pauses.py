"""How long garbage collections keep everyone waiting."""

import gc
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, Final

from headrace.metrics.histogram import Histogram

_GENERATIONS: Final = 3


class GcPauses:
    """Pauses by generation, while it listens."""

    def __init__(self, now_ns: Callable[[], int] = perf_counter_ns) -> None:
        self._now_ns = now_ns
        self._began = 0
        self.pauses = [Histogram() for _ in range(_GENERATIONS)]

    def listen(self) -> None:
        """Measure from now on."""
        gc.callbacks.append(self._collecting)

    def close(self) -> None:
        """Measure no more."""
        if self._collecting in gc.callbacks:
            gc.callbacks.remove(self._collecting)

    def _collecting(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            self._began = self._now_ns()
        elif self._began:
            self.pauses[info["generation"]].add(self._now_ns() - self._began)
            self._began = 0
