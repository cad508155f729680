"""Moves what followers and leaders have to tell each other: one link for each leader this broker follows.

A request waits at the leader until there is something to say. When this broker has something to tell meanwhile it sends
the next request at once; the leader then answers the first, so at most a few are under way.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

import structlog

from headrace.net.network import Link
from headrace.protocol.errors import ProtocolViolation

from .inflow import Inflow, Key
from .partition import Partition

MAX_WAIT_MS: Final = 500
MOST_UNDER_WAY: Final = 3
FIRST_RETRY_SECONDS: Final = 0.05
LAST_RETRY_SECONDS: Final = 1.0

log = structlog.get_logger(__name__)

Ask = Callable[[Link, bytearray], Awaitable[memoryview]]
"""Sends the body of a replication request over a link; the body of the answer."""
Connect = Callable[[int], Awaitable[Link]]
"""A link to a broker that knows us; `OSError` where there is none."""


class Fetcher:
    """Follows one leader."""

    def __init__(self, leader: int, connect: Connect, ask: Ask, max_bytes: int) -> None:
        self.leader = leader
        self._connect = connect
        self._ask = ask
        self._max_bytes = max_bytes
        self._news = asyncio.Event()
        self.inflow = Inflow(asyncio.get_running_loop().call_later, self._news.set)

    async def run(self) -> None:
        """Follow until cancelled. A link that breaks is made anew."""
        pause = FIRST_RETRY_SECONDS
        while True:
            try:
                link = await self._connect(self.leader)
            except OSError as error:
                log.info("a leader cannot be reached", leader=self.leader, reason=str(error))
                await asyncio.sleep(pause)
                pause = min(pause * 2, LAST_RETRY_SECONDS)
                continue
            pause = FIRST_RETRY_SECONDS
            try:
                await self._converse(link)
            except (OSError, ProtocolViolation) as error:
                log.info("the link to a leader broke", leader=self.leader, reason=str(error))
                await asyncio.sleep(pause)
            finally:
                link.close()

    async def _converse(self, link: Link) -> None:
        self.inflow.begin()
        under_way: deque[asyncio.Future[memoryview]] = deque()
        try:
            while True:
                self._news.clear()
                if not under_way or (self.inflow.has_news and len(under_way) < MOST_UNDER_WAY):
                    body = self.inflow.request(MAX_WAIT_MS, self._max_bytes)
                    under_way.append(asyncio.ensure_future(self._ask(link, body)))
                await self._something(under_way)
                while under_way and under_way[0].done():
                    self.inflow.take(under_way.popleft().result())
        finally:
            for future in under_way:
                future.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)

    async def _something(self, under_way: "deque[asyncio.Future[memoryview]]") -> None:
        """Returns when an answer is there, or something to tell that can be told."""
        first = under_way[0]
        if first.done() or len(under_way) >= MOST_UNDER_WAY:
            await asyncio.wait([first])
            return
        news = asyncio.ensure_future(self._news.wait())
        try:
            waiting: list[asyncio.Future[Any]] = [first, news]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            news.cancel()


class Fetchers:
    """Follows all leaders of the partitions that this broker does not lead."""

    def __init__(
        self,
        connect: Connect,
        ask: Ask,
        spawn: Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"],
        *,
        max_bytes: int,
    ) -> None:
        self._connect = connect
        self._ask = ask
        self._spawn = spawn
        self._max_bytes = max_bytes
        self._by_leader: dict[int, tuple[Fetcher, asyncio.Task[None]]] = {}
        self._leaders: dict[Key, int] = {}

    def follow(self, key: Key, partition: Partition, leader: int) -> None:
        """Follow a partition's leader; what was followed before is left."""
        if self._leaders.get(key, leader) != leader:
            self.leave(key)
        known = self._by_leader.get(leader)
        if known is None:
            fetcher = Fetcher(leader, self._connect, self._ask, self._max_bytes)
            known = self._by_leader[leader] = (fetcher, self._spawn(fetcher.run()))
        self._leaders[key] = leader
        known[0].inflow.add(key, partition)

    def leave(self, key: Key) -> None:
        """Follow a partition no more."""
        leader = self._leaders.pop(key, None)
        if leader is None:
            return
        fetcher, task = self._by_leader[leader]
        fetcher.inflow.remove(key)
        if not len(fetcher.inflow):
            del self._by_leader[leader]
            task.cancel()

    def close(self) -> None:
        """Follow nobody any more."""
        for _, task in self._by_leader.values():
            task.cancel()
        self._by_leader.clear()
        self._leaders.clear()
