"""Limits on how fast replicas that are not in sync catch up, so that those who are served do not suffer.

A broker has one limit as a leader and one as a follower (`leader.replication.throttled.rate`,
`follower.replication.throttled.rate`), each shared by all its links. They hold for the replicas that a topic names
(`leader.replication.throttled.replicas`, `follower.replication.throttled.replicas`) for as long as these are not in
the ISR: a replica that is in sync is never held back, as producers wait for it.

What has come is counted after it came, as a debt that the rate pays off; so the average keeps to the rate whatever the
size of an answer. Time is an argument.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

from .partition import Partition

CREDIT_SECONDS: Final = 1.0
"""How much may come at once after a time in which nothing came, and at most with one answer."""
LEAST_BYTES: Final = 64 * 1024
PATIENCE_SECONDS: Final = 1.0
"""How long a partition that is asked for may keep others waiting: one that has everything is answered much later."""
LONGEST_PAUSE: Final = 1.0
"""After which the rate is looked at again, as it may have been changed."""
NO_LIMIT: Final = 2**63 - 1

Key: TypeAlias = tuple[bytes, int]
Later = Callable[[float, Callable[[], None]], object]
"""Calls something after some seconds."""


class ReplicationThrottle:
    """One limit of one broker, in bytes a second."""

    def __init__(self, rate: Callable[[], int], now: Callable[[], float]) -> None:
        self._rate = rate
        self.now = now
        self._debt = 0.0
        """In bytes; below zero it is credit."""
        self._reckoned_at = now()

    @property
    def is_on(self) -> bool:
        return self._rate() < NO_LIMIT

    @property
    def most_bytes(self) -> int:
        """The bytes that one answer may have."""
        return max(int(self._rate() * CREDIT_SECONDS), LEAST_BYTES)

    def took(self, size: int) -> None:
        """Count bytes that were received or sent."""
        if self.is_on:
            self._reckon()
            self._debt += size

    def pause(self) -> float:
        """The seconds until more may be received or sent."""
        if not self.is_on:
            return 0.0
        self._reckon()
        return max(self._debt, 0.0) / self._rate()

    def _reckon(self) -> None:
        now, rate = self.now(), self._rate()
        self._debt = max(self._debt - (now - self._reckoned_at) * rate, -CREDIT_SECONDS * rate)
        self._reckoned_at = now


def is_named(names: frozenset[str], index: int, broker: int) -> bool:
    """Whether a topic's list of throttled replicas (`0:1,2:3`, or `*`) has a partition on a broker."""
    return "*" in names or f"{index}:{broker}" in names


class SlowLane:
    """The partitions of one link that catch up under a limit: asked for one at a time, when the limit allows it."""

    def __init__(
        self, throttle: ReplicationThrottle, broker_id: int, later: Later, notify: Callable[[Key], None]
    ) -> None:
        self.throttle = throttle
        self._broker_id = broker_id
        self._later = later
        self._notify = notify
        self._waiting: dict[Key, None] = {}
        self._pending: Key | None = None
        self._asked_at = 0.0
        self._looks_again = False

    def takes(self, partition: Partition) -> bool:
        """Whether a partition has to wait its turn."""
        return (
            self.throttle.is_on
            and self._broker_id not in partition.state.isr
            and is_named(partition.rules.throttled_followers, partition.index, self._broker_id)
        )

    def put(self, key: Key) -> None:
        """Let a partition wait until it may be asked for."""
        self._free(key)
        self._waiting[key] = None
        self._next()

    def drop(self, key: Key) -> None:
        """A partition is not to wait any more."""
        self._waiting.pop(key, None)
        self._free(key)
        self._next()

    def answered(self, key: Key, size: int) -> None:
        """The leader has sent so much of a partition."""
        if key == self._pending:
            self.throttle.took(size)
            self._free(key)
            self._next()

    def clear(self) -> None:
        """Forget all requests, pending and waiting."""
        self._waiting.clear()
        self._pending = None

    def is_asking(self, key: Key) -> bool:
        return key == self._pending

    def _free(self, key: Key) -> None:
        if key == self._pending:
            self._pending = None

    def _next(self) -> None:
        if not self._waiting or self._looks_again:
            return
        pause = self.throttle.pause()
        if self._pending is not None:
            pause = max(pause, self._asked_at + PATIENCE_SECONDS - self.throttle.now())
        if pause > 0:
            self._looks_again = True
            self._later(min(pause, LONGEST_PAUSE), self._look_again)
            return
        key = next(iter(self._waiting))
        del self._waiting[key]
        self._pending, self._asked_at = key, self.throttle.now()
        self._notify(key)

    def _look_again(self) -> None:
        self._looks_again = False
        self._next()
