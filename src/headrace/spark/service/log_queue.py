"""Lines on their way to the topic of logs: bounded in memory and in rate, and what is left out is counted."""

from collections import deque
from collections.abc import Callable
from typing import Final

from .store import LogLine

LINES_PER_SECOND: Final = 100
BURST: Final = 1_000
MOST_WAITING: Final = 10_000
"""Lines that are kept while no broker takes them."""


class LogQueue:
    """Of one service, for all its pipelines. A pipeline that prints without end takes nothing from the others."""

    def __init__(self, service: str, clock_ms: Callable[[], int]) -> None:
        self._service = service
        self._clock_ms = clock_ms
        self._waiting: deque[LogLine] = deque()
        self._tokens: dict[str, tuple[float, int]] = {}
        self._left_out: dict[str, int] = {}

    def add(self, pipeline: str, text: str) -> None:
        """Take a line, unless there were too many."""
        now = self._clock_ms()
        tokens, last = self._tokens.get(pipeline, (float(BURST), now))
        tokens = min(tokens + (now - last) * LINES_PER_SECOND / 1000, BURST)
        if tokens < 1 or len(self._waiting) >= MOST_WAITING:
            self._left_out[pipeline] = self._left_out.get(pipeline, 0) + 1
            self._tokens[pipeline] = (tokens, now)
            return
        self._tokens[pipeline] = (tokens - 1, now)
        self._tell_of_left_out(pipeline, now)
        self._waiting.append(LogLine(pipeline=pipeline, time_ms=now, service=self._service, text=text))

    def take(self, most: int = 500) -> list[LogLine]:
        """The next lines to write; `give_back` if that fails."""
        now = self._clock_ms()
        if not self._waiting:
            for pipeline in list(self._left_out):
                self._tell_of_left_out(pipeline, now)
        return [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]

    def give_back(self, lines: list[LogLine]) -> None:
        """Lines that could not be written."""
        self._waiting.extendleft(reversed(lines))

    def _tell_of_left_out(self, pipeline: str, now: int) -> None:
        count = self._left_out.pop(pipeline, 0)
        if count:
            text = f"... {count:,} lines left out: more than {LINES_PER_SECOND} a second, or no broker took them"
            self._waiting.append(LogLine(pipeline=pipeline, time_ms=now, service=self._service, text=text))
