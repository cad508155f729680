"""When to try again what has failed."""

from math import inf

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0


class Backoff:
    """When to try something again: after a second, then after twice as long each time, up to a minute.

    After a minute in which nothing was tried it begins anew. What is tried before it is due, because of news from the
    controller, changes nothing: news may come all the time, and would put the next try off for as long as they do.
    """

    __slots__ = ("_due", "_pause", "is_fault")

    def __init__(self) -> None:
        self.is_fault = True
        """Whether something is broken, and not only short for a while."""
        self._due = -inf
        self._pause = FIRST_PAUSE

    def is_due(self, now: float) -> bool:
        return now >= self._due

    def wait(self, now: float, longest: float = LONGEST_PAUSE) -> None:
        """It is tried now."""
        if not self.is_due(now):
            return
        if now > self._due + LONGEST_PAUSE:
            self._pause = FIRST_PAUSE
        self._due = now + min(self._pause, longest)
        self._pause = min(2 * self._pause, longest)
