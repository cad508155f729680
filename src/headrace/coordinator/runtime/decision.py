"""One decision of a coordinator: what an event comes to, in the order in which it takes effect.

An event is a request, a timer that expires, or the end of loading. Whoever decides looks at the state, changes none of
it that has a record, and returns a `Decision`. The shard that holds the state then

1.  appends the records as one batch; if that fails nothing has happened,
2.  applies the changes to memory, and sets the timers,
3.  sends the replies, and whatever else is to follow, once the records are committed.

So memory never says what the log does not, and no client learns what a crash could take back.
"""

import asyncio
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, NamedTuple

from headrace.protocol.errors import CodedError

from .batches import Pair


class CoordinatorRecord(NamedTuple):
    """A record of the internal topic; a value of None is a tombstone."""

    key: bytes
    value: bytes | None


class Reply(NamedTuple):
    """The answer to a request that waits, by the token that came with it."""

    token: object
    values: Mapping[str, Any]
    """In the field names of the response's newest version."""


class Timer(NamedTuple):
    """Expires at a time (milliseconds of the clock's monotonic time) under a name; None cancels it."""

    name: Hashable
    at_ms: int | None


class Decision:
    """The effects of one request or timer: records, changes of memory, timers, replies."""

    __slots__ = ("_changes", "follow_ups", "now_ms", "records", "replies", "timers")

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.records: list[Pair] = []
        self.timers: list[Timer] = []
        self.replies: list[Reply] = []
        self.follow_ups: list[Callable[[], None]] = []
        """Called once the records are committed, while what they say still holds here."""
        self._changes: list[Callable[[], None]] = []

    def record(self, key: bytes, value: bytes | None) -> None:
        """Append a record."""
        self.records.append((key, value))

    def when_written(self, change: Callable[[], None]) -> None:
        """Change memory as the records say, once they are written."""
        self._changes.append(change)

    def reply(self, token: object | None, values: Mapping[str, Any]) -> None:
        """Answer a request once the records are committed; without a token nobody waits."""
        if token is not None:
            self.replies.append(Reply(token, values))

    def wake(self, name: Hashable, after_ms: int) -> None:
        """Set a timer, instead of any that was set under this name."""
        self.timers.append(Timer(name, self.now_ms + after_ms))

    def cancel(self, name: Hashable) -> None:
        """Cancel a timer."""
        self.timers.append(Timer(name, None))

    def extend(self, other: "Decision") -> None:
        """Decide this too, after what was decided before."""
        self.records += other.records
        self.timers += other.timers
        self.replies += other.replies
        self.follow_ups += other.follow_ups
        self._changes += other._changes

    def take_effect(self) -> None:
        """Change memory: the records are written."""
        changes, self._changes = self._changes, []
        for change in changes:
            change()


def deliver(replies: Iterable[Reply], error: CodedError | None = None) -> None:
    """Resolve the futures of requests; cancelled ones are skipped."""
    for reply in replies:
        token = reply.token
        assert isinstance(token, asyncio.Future)
        if token.done():
            continue
        if error is None:
            token.set_result(reply.values)
        else:
            token.set_exception(error)
