"""Notices that this process stood still for so long that its session may be over.

Who is woken after that (a stopped process, a machine that slept) still believes what was true before: that it leads.
It would answer clients by a log that others have left behind, and the news of its lost session comes only after what
was waiting in its sockets. So the pulse is felt before any request is served.
"""

from collections.abc import Callable
from typing import Final

BEATS: Final = 8
"""In the time of a session, where nothing else beats."""


class Pulse:
    """Beats with whatever happens; calls `stalled` at the first beat after a pause longer than a session."""

    __slots__ = ("_last", "_longest", "_now", "_stalled")

    def __init__(self, now: Callable[[], float], longest: float, stalled: Callable[[float], None]) -> None:
        self._now = now
        self._longest = longest
        self._stalled = stalled
        self._last = now()

    def beat(self) -> None:
        """This process is at work."""
        now = self._now()
        pause = now - self._last
        self._last = now
        if pause > self._longest:
            self._stalled(pause)
