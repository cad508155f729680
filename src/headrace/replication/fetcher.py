"""Replica fetchers: one link to each leader that this broker follows.

A request waits at the leader until there is something to say. When this broker has something to tell meanwhile it sends
the next request at once; the leader then answers the first, so at most a few are under way.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

import structlog

from headrace.protocol.errors import CodedError, ProtocolViolation

from .partition import Partition
from .replica_fetch_state import Key, ReplicaFetchState
from .throttle import ReplicationThrottle

MAX_WAIT_MS: Final = 500
MOST_UNDER_WAY: Final = 3
FIRST_RETRY_SECONDS: Final = 0.05
LAST_RETRY_SECONDS: Final = 1.0

log = structlog.get_logger(__name__)

Ask = Callable[[int, bytearray], Awaitable[memoryview]]
"""Sends a replication request to a broker; its answer, or `OSError`."""
Keep = Callable[[str, Callable[[], Coroutine[Any, Any, None]]], "asyncio.Task[None]"]
"""Runs something under a name until it is cancelled, and begins it anew when it fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetcherTerms:
    """What all fetchers of this broker share: sessions, its registration's epoch, limits."""

    new_session: Callable[[], int]
    broker_epoch: Callable[[], int]
    max_bytes: int
    slowly: tuple[ReplicationThrottle, int] | None = None
    """The throttle for replicas that catch up, and this broker's id."""


class Fetcher:
    """Fetches, from one leader, all partitions that this broker follows there."""

    def __init__(self, leader: int, ask: Ask, terms: FetcherTerms) -> None:
        self.leader = leader
        self._ask = ask
        self._max_bytes = terms.max_bytes
        self._wake = asyncio.Event()
        """Set when an answer is there, or something to tell."""
        later = asyncio.get_running_loop().call_later
        self.fetch_state = ReplicaFetchState(later, self._wake.set, terms.new_session, terms.broker_epoch, terms.slowly)

    async def run(self) -> None:
        """Follow until cancelled. A session that breaks is begun anew."""
        pause = FIRST_RETRY_SECONDS
        while True:
            began = asyncio.get_running_loop().time()
            try:
                await self._converse()
            except (OSError, ProtocolViolation, CodedError) as error:
                log.info("a leader cannot be followed", leader=self.leader, reason=str(error))
            lasted = asyncio.get_running_loop().time() - began
            pause = FIRST_RETRY_SECONDS if lasted > LAST_RETRY_SECONDS else min(pause * 2, LAST_RETRY_SECONDS)
            await asyncio.sleep(pause)

    async def _converse(self) -> None:
        self.fetch_state.begin()
        under_way: deque[asyncio.Future[memoryview]] = deque()
        try:
            while True:
                self._wake.clear()
                if not under_way or (self.fetch_state.has_news and len(under_way) < MOST_UNDER_WAY):
                    under_way.append(self._request())
                await self._wake.wait()
                while under_way and under_way[0].done():
                    self.fetch_state.take(under_way.popleft().result())
        finally:
            for future in under_way:
                future.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)

    def _request(self) -> "asyncio.Future[memoryview]":
        """The answer to the next request, which is sent now."""
        body = self.fetch_state.request(MAX_WAIT_MS, self._max_bytes)
        answer = asyncio.ensure_future(self._ask(self.leader, body))
        answer.add_done_callback(lambda _: self._wake.set())
        return answer


class Fetchers:
    """The fetchers of all partitions that this broker follows, one for each leader."""

    def __init__(self, ask: Ask, keep: Keep, terms: FetcherTerms) -> None:
        self._ask = ask
        self._keep = keep
        self._terms = terms
        self._by_leader: dict[int, tuple[Fetcher, asyncio.Task[None]]] = {}
        self._leaders: dict[Key, int] = {}

    def follow(self, key: Key, partition: Partition, leader: int) -> None:
        """Follow a partition's leader; what was followed before is left."""
        if self._leaders.get(key, leader) != leader:
            self.leave(key)
        known = self._by_leader.get(leader)
        if known is None:
            fetcher = Fetcher(leader, self._ask, self._terms)
            known = self._by_leader[leader] = (fetcher, self._keep(f"follow broker {leader}", fetcher.run))
        self._leaders[key] = leader
        known[0].fetch_state.add(key, partition)

    def leave(self, key: Key) -> None:
        """Follow a partition no more."""
        leader = self._leaders.pop(key, None)
        if leader is None:
            return
        fetcher, task = self._by_leader[leader]
        fetcher.fetch_state.remove(key)
        if not len(fetcher.fetch_state):
            del self._by_leader[leader]
            task.cancel()

    def tell_again(self) -> None:
        """Send every position to every leader again: this broker is registered under another epoch."""
        for fetcher, _ in self._by_leader.values():
            fetcher.fetch_state.tell_all()

    def close(self) -> None:
        """Stop every fetcher."""
        for _, task in self._by_leader.values():
            task.cancel()
        self._by_leader.clear()
        self._leaders.clear()
