"""Which topics match the expressions that groups are subscribed to, found a few at a time.

With a hundred thousand topics an expression takes from half a second to minutes, in which others have to be served. So
a group asks for what is known; what takes longer is found meanwhile, and counts with a later heartbeat:
Kafka resolves expressions in the background, too. Names that were looked at once are not looked at again.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any, Final

from headrace.cluster.image import ClusterImage
from headrace.coordinator.patterns import topic_matcher
from headrace.protocol.patterns import Pattern

STEPS_PER_SLICE: Final = 200_000
"""What is spent on matching before other work runs (see `Pattern.cost`): at most some 5 ms."""
_MOST_KEPT: Final = 1_000
"""Expressions; the least recently used one is resolved again when a group asks."""

Spawn = Callable[[Coroutine[Any, Any, None]], None]


class _Search:
    """How far the names have been looked at for one expression."""

    __slots__ = ("is_running", "matched", "pattern", "position", "topics", "version")

    def __init__(self, pattern: Pattern) -> None:
        self.pattern = pattern
        self.matched: set[str] = set()
        self.position = 0
        """Of the next name to look at."""
        self.is_running = False
        self.version = -1
        self.topics: frozenset[str] = frozenset()
        """The topics that match, as of a version of the names."""


class Resolver:
    """Finds the topics of an image whose whole names match expressions. As in Kafka the cluster's own are no exception:
    clients leave them out."""

    def __init__(self, image: ClusterImage, spawn: Spawn) -> None:
        self._image = image
        self._spawn = spawn
        self._names: list[str] = []
        """Every name that was ever seen, in the order of their coming."""
        self._seen: set[str] = set()
        self._version = -1
        self._searches: OrderedDict[str, _Search] = OrderedDict()

    def topics(self, regex: str) -> frozenset[str] | None:
        """The topics that match now; None where they are still being looked for. `CodedError` for a bad expression."""
        self._take_names()
        search = self._searches.get(regex)
        if search is None:
            search = self._searches[regex] = _Search(topic_matcher(regex))
            if len(self._searches) > _MOST_KEPT:
                self._searches.popitem(last=False)
        self._searches.move_to_end(regex)
        if not search.is_running and not self._advance(search):
            search.is_running = True
            self._spawn(self._finish(search))
        return None if search.is_running else self._topics_of(search)

    def _take_names(self) -> None:
        if self._version == self._image.topics_version:
            return
        self._version = self._image.topics_version
        names = self._image.names()
        if len(self._names) > 2 * len(names) + STEPS_PER_SLICE:
            self._names, self._seen = [], set()
            self._searches.clear()
        fresh = [name for name in names if name not in self._seen]
        self._names += fresh
        self._seen.update(fresh)

    def _advance(self, search: _Search) -> bool:
        """Look at as many names as one slice allows; whether these were all."""
        names, pattern, steps = self._names, search.pattern, STEPS_PER_SLICE
        while search.position < len(names) and steps > 0:
            name = names[search.position]
            if pattern.matches(name):
                search.matched.add(name)
            search.position += 1
            steps -= pattern.cost(name)
        return search.position == len(names)

    async def _finish(self, search: _Search) -> None:
        is_done = False
        try:
            while not is_done:
                await asyncio.sleep(0)
                is_done = self._advance(search)
        finally:
            search.is_running = False

    def _topics_of(self, search: _Search) -> frozenset[str]:
        if search.version != self._version:
            search.version = self._version
            search.topics = frozenset(search.matched & self._image.names())
        return search.topics
