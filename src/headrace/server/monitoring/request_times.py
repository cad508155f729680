"""Where the time of requests goes, by API: plain integers, added to once per turn of a connection.

A connection serves what it has read in turns of up to 64 requests, and reads the clock twice in each, however many
there are. Of each request is told apart:

-   queue: from when it was read until its turn; most are served in the turn in which they are read;
-   local: its share of the turn;
-   remote: from then until its answer was there, for those that had to wait: for the disk, for followers, for records
    to arrive, for a group. Requests other than Produce and Fetch run in tasks of their own: that is here, too;
-   send: what it took to hand the answer to the system, where that is more than one call for a few bytes: ranges of
    logs, and clients that are slow to take them;
-   total: from its turn until its answer was handed to the system; of one that had to wait, until it was there.

Most turns are quick, and all their requests are answered at once: those are only counted, without a look for buckets.
"""

from collections.abc import Iterator
from typing import Final

from headrace.metrics.histogram import Histogram

FAST_NS: Final = 64_000
"""A turn that is longer is not quick: the upper bound of the first bucket that is exported."""


class ApiTimes:
    """The requests of one API. Those of quick turns are `fast`; all else is in the histograms, in which what is below
    `FAST_NS` may be counted in the first bucket."""

    __slots__ = (
        "fast",
        "fast_ns",
        "fast_total_ns",
        "local",
        "name",
        "queue",
        "remote",
        "send",
        "total",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.fast = 0
        self.fast_ns = 0
        """Of their turns."""
        self.fast_total_ns = 0
        """Of each of them together: those of one turn are answered at its end."""
        self.queue = Histogram()
        self.local = Histogram()
        self.remote = Histogram()
        self.send = Histogram()
        self.total = Histogram()
        """Of those that were answered at once; of those that had to wait it is `remote`."""

    @property
    def requests(self) -> int:
        """How many have come."""
        return self.fast + self.local.count

    def served(self, count: int, nanoseconds: int, queued_ns: int) -> None:
        """So many were served in a turn, in so much time together."""
        self.local.add(nanoseconds // count, count)
        self.queue.add(queued_ns, count)

    def sent(self, count: int, sending_ns: int) -> None:
        """So many answers were handed to the system."""
        self.send.add(sending_ns, count)

    def phases(self) -> Iterator[tuple[str, Histogram, int, int]]:
        """Each part of the time: its name, its histogram, and the number and the sum of what is below `FAST_NS`."""
        yield "queue", self.queue, self.fast, 0
        yield "local", self.local, self.fast, self.fast_ns
        yield "remote", self.remote, 0, 0
        yield "send", self.send, self.fast, 0


class RequestTimes:
    """Of all APIs that were asked for."""

    def __init__(self) -> None:
        self._by_name: dict[str, ApiTimes] = {}

    def of(self, name: str) -> ApiTimes:
        """Of one API, by its name."""
        found = self._by_name.get(name)
        if found is None:
            found = self._by_name[name] = ApiTimes(name)
        return found

    def all(self) -> list[ApiTimes]:
        """Of each API that was asked for at least once."""
        return [times for times in self._by_name.values() if times.requests]
