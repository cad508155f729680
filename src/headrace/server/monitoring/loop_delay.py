"""How late the event loop is: whoever asks a broker waits at least that long, and no other number shows it."""

import asyncio
from collections import deque
from collections.abc import Callable
from time import perf_counter_ns
from typing import Final

from headrace.metrics.histogram import Histogram

PROBE_SECONDS: Final = 0.05
_KEPT: Final = 400
"""Delays of the last 20 seconds."""
_PERCENTILE: Final = 0.99


class LoopDelay:
    """Asks to be called every `PROBE_SECONDS`, and counts how much later that is."""

    def __init__(self, now_ns: Callable[[], int] = perf_counter_ns) -> None:
        self._now_ns = now_ns
        self._latest: deque[int] = deque(maxlen=_KEPT)
        self.delays = Histogram()

    async def probe(self) -> None:
        """Count until cancelled."""
        loop, now_ns, pause_ns = asyncio.get_running_loop(), self._now_ns, int(PROBE_SECONDS * 1e9)
        while True:
            called = loop.create_future()
            due = now_ns() + pause_ns
            timer = loop.call_later(PROBE_SECONDS, called.set_result, None)
            try:
                await called
            finally:
                timer.cancel()
            self.note(now_ns() - due)

    def note(self, delay_ns: int) -> None:
        """Count one delay. Timers of the loop count in milliseconds, and may come a little early."""
        delay_ns = max(delay_ns, 0)
        self.delays.add(delay_ns)
        self._latest.append(delay_ns)

    @property
    def p99_seconds(self) -> float:
        """What 99 of 100 delays of the last 20 seconds are not above; 0 before there are any."""
        ordered = sorted(self._latest)
        return ordered[int(len(ordered) * _PERCENTILE)] / 1e9 if ordered else 0.0
