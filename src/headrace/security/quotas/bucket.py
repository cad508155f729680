"""A rate, and what has been used of it: a bucket that the rate fills, and that may be in debt.

What was used is known only when it has been used. So nothing is refused for being too large: it is taken out, and
while the bucket is below zero its owner waits, exactly as long as the rate needs to pay the debt. This is the throttle
time of Kafka (`(value - bound) / bound * window`), with another window: Kafka averages over `quota.window.num` samples
and so lets a client send ten seconds' worth at once, and then nothing for ten seconds. Here a bucket holds a tenth of
that time (`BURST`), so that over the time Kafka averages over a client stays within 10 % of its quota, evenly.
"""

from typing import Final

BURST: Final = 0.1
"""How much of the time that rates are averaged over may be used at once."""


class Bucket:
    """What one entity has left of one quota."""

    __slots__ = ("_at", "_least", "_level", "burst", "rate")

    def __init__(self, rate: float, *, burst_seconds: float, most_debt_seconds: float, now: float) -> None:
        self.rate = rate
        self.burst = rate * burst_seconds
        """What may be used at once."""
        self._least = -rate * most_debt_seconds
        """Debts beyond it are forgiven: nobody waits for days because of one request."""
        self._level = self.burst
        self._at = now

    def charge(self, amount: float, now: float) -> float:
        """Take out what was used; the seconds until the bucket is out of debt, 0 where it is in none."""
        level = min(self._level_at(now) - amount, self.burst)
        if level >= 0:
            self._level = level
            return 0.0
        self._level = level = max(level, self._least)
        return -level / self.rate

    def take_some(self, seconds: float, now: float) -> float:
        """Take out what the bucket fills with in so many seconds, or what there is."""
        level = self._level_at(now)
        taken = max(min(level, self.rate * seconds), 0.0)
        self._level = level - taken
        return taken

    def room(self, now: float) -> float:
        """What can be taken out before debts are forgiven: who gives back more than this gives what was never taken."""
        return self._level_at(now) - self._least

    def pause(self, now: float) -> float:
        """The seconds until the bucket is out of debt."""
        level = self._level_at(now)
        return 0.0 if level >= 0 else -level / self.rate

    def is_full(self, now: float) -> bool:
        """Whether nothing of it has been used lately: it could as well be a new one."""
        return self._level_at(now) >= self.burst

    def _level_at(self, now: float) -> float:
        if now > self._at:
            self._level = min(self._level + (now - self._at) * self.rate, self.burst)
            self._at = now
        return self._level
