"""Log lines that repeat: the first is written, those that follow at once are counted."""

import re
import time
from collections import Counter
from collections.abc import Callable, MutableMapping
from typing import Any, Final

import structlog

WINDOW_SECONDS: Final = 10.0
MOST_OF_EVENT: Final = 20
"""Lines of one event in a window, whatever they are about."""
_MOST_SUBJECTS: Final = 2_000
_MEASURES: Final = frozenset({"seconds", "count", "repeated", "timestamp", "exc_info", "bytes", "offset"})
"""What differs each time, and says nothing of what a line is about."""
_EXEMPT: Final = frozenset({"debug", "critical"})
_BOUNDED: Final = frozenset({"audit"})
"""Events that are bounded where they come from. Each audited action has to be there: else who makes a noise first could
then do anything unseen."""
_DIGITS: Final = re.compile(r"\d+")


class Repeats:
    """A processor of structlog: the same event of the same subject passes once in `WINDOW_SECONDS`, and no event more
    than `MOST_OF_EVENT` times. What was held back is told by the next line of the event that passes, as `repeated`.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._passed_at: dict[tuple[str, str], float] = {}
        self._held: Counter[tuple[str, str]] = Counter()
        """By event and subject, since the last one that passed."""
        self._recent: dict[str, list[float]] = {}
        """When lines of an event passed, within the window."""

    def __call__(self, _logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        name = str(event.get("event", ""))
        if method in _EXEMPT or name in _BOUNDED:
            return event
        now = self._now()
        key = (name, _subject(event))
        passed_at = self._passed_at.get(key)
        recent = [at for at in self._recent.get(name, ()) if now - at < WINDOW_SECONDS]
        if (passed_at is not None and now - passed_at < WINDOW_SECONDS) or len(recent) >= MOST_OF_EVENT:
            self._held[key if passed_at is not None else (name, "")] += 1
            raise structlog.DropEvent
        self._forget_old(now)
        self._passed_at[key] = now
        self._recent[name] = [*recent, now]
        repeated = self._held.pop(key, 0) + self._held.pop((name, ""), 0)
        if repeated:
            event["repeated"] = repeated
        return event

    def _forget_old(self, now: float) -> None:
        """So that a flood about ever new subjects takes no memory."""
        if len(self._passed_at) < _MOST_SUBJECTS:
            return
        for key, at in list(self._passed_at.items()):
            if now - at >= WINDOW_SECONDS:
                del self._passed_at[key]
                if held := self._held.pop(key, 0):
                    self._held[key[0], ""] += held


def _subject(event: MutableMapping[str, Any]) -> str:
    """What a line is about: all it says but what it measures. Numbers in a reason are not what it is about."""
    parts = []
    for name, value in event.items():
        if name != "event" and name not in _MEASURES:
            parts.append(f"{name}={_DIGITS.sub('#', str(value)) if name == 'reason' else value}")
    return " ".join(parts)
