"""A cluster as one client sees it: its brokers' connections, who leads what, who coordinates which group."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from headrace.client.core.errors import ConnectionLost
from headrace.client.core.handshake import ConnectionSettings
from headrace.net.address import Address
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import CodedError, ErrorCode

from .connection import Connection
from .dialing import dial
from .retrying import retried

STALE_SECONDS: Final = 60.0
"""After this long leaders are asked for again when somebody wants to know."""
_MOST_IDLE: Final = 8
"""Connections for long requests that are kept per broker while nobody uses them."""
_MOST_LENT: Final = 512
_MOST_TOPICS: Final = 10_000


class Purpose(Enum):
    """Answers keep the order of their requests, so those that wait have connections of their own."""

    CONTROL = "control"
    PRODUCE = "produce"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicView:
    """A topic: the leader of each partition, -1 while there is none."""

    name: str
    leaders: tuple[int, ...]
    seen_at: float
    described: Any
    """The topic's part of the Metadata answer."""


class Cluster:
    """All that one client has open. `patience` is how many seconds a call goes on trying."""

    def __init__(self, bootstrap: Sequence[Address], settings: ConnectionSettings, *, patience: float = 10.0) -> None:
        self.patience = patience
        self.cluster_id = ""
        self.controller_id = -1
        self.brokers: dict[int, Address] = {}
        self._bootstrap = list(bootstrap)
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._open: dict[tuple[Address, Purpose], asyncio.Future[Connection]] = {}
        self._idle: dict[Address, list[Connection]] = {}
        self._lent: set[Connection] = set()
        self._topics: dict[str, TopicView] = {}
        self._coordinators: dict[str, int] = {}
        self._refreshes: dict[str, asyncio.Task[TopicView]] = {}
        self._answering: Address | None = None
        """The broker that was asked last for what any of them knows."""
        self._is_closed = False

    # Connections

    async def connection(self, address: Address, purpose: Purpose = Purpose.CONTROL) -> Connection:
        """The one connection to a broker for short requests of a kind."""
        key = address, purpose
        held = self._open.get(key)
        if held is not None and (not held.done() or _is_good(held)):
            return await asyncio.shield(held)
        self._require_open()
        opening = asyncio.ensure_future(dial(address, self._settings))
        opening.add_done_callback(_retrieve)
        self._open[key] = opening
        return await asyncio.shield(opening)

    def ready(self, node: int, purpose: Purpose) -> Connection | None:
        """The connection if it is there and good: for those who would rather not wait."""
        held = self._open.get((self.brokers.get(node, _NOWHERE), purpose))
        return held.result() if held is not None and held.done() and _is_good(held) else None

    async def to_node(self, node: int, purpose: Purpose = Purpose.CONTROL) -> Connection:
        """A connection to a broker by its number."""
        return await self.connection(self.address(node), purpose)

    def address(self, node: int) -> Address:
        """Where a broker is; `ConnectionLost` when that is not known, or there is no such broker."""
        address = self.brokers.get(node)
        if address is None:
            raise ConnectionLost(f"broker {node} is not known" if node >= 0 else "there is no leader for now")
        return address

    async def any(self) -> Connection:
        """A connection to a broker that answers: the one that did last time, or the next in turn."""
        reasons = []
        first = [self._answering] if self._answering is not None else []
        for address in dict.fromkeys([*first, *self.brokers.values(), *self._bootstrap]):
            try:
                connection = await self.connection(address)
            except ConnectionLost as error:
                reasons.append(str(error))
            else:
                self._answering = address
                return connection
        self._answering = None
        raise ConnectionLost(f"no broker answers: {'; '.join(reasons)}")

    @asynccontextmanager
    async def lent(self, node: int) -> AsyncIterator[Connection]:
        """A connection that nobody else uses meanwhile, for requests that wait at the broker."""
        address = self.address(node)
        connection = await self._take(address)
        self._lent.add(connection)
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        finally:
            self._lent.discard(connection)
            idle = self._idle.setdefault(address, [])
            if connection.is_usable() and not connection.in_flight and len(idle) < _MOST_IDLE and not self._is_closed:
                idle.append(connection)
            else:
                connection.close()

    async def _take(self, address: Address) -> Connection:
        idle = self._idle.get(address, [])
        while idle:
            connection = idle.pop()
            if connection.is_usable():
                return connection
            connection.close()
        self._require_open()
        if len(self._lent) >= _MOST_LENT:
            raise CodedError(ErrorCode.throttling_quota_exceeded, f"{_MOST_LENT} requests wait already; try again")
        return await dial(address, self._settings)

    def close(self) -> None:
        """End every connection; those who wait get `ConnectionLost`."""
        self._is_closed = True
        for refresh in self._refreshes.values():
            refresh.cancel()
        for held in self._open.values():
            if not held.done():
                held.cancel()
            elif _is_good(held, even_expired=True):
                held.result().close()
        for connection in [*self._lent, *(c for some in self._idle.values() for c in some)]:
            connection.close()
        self._open.clear()
        self._idle.clear()

    def _require_open(self) -> None:
        if self._is_closed:
            raise ConnectionLost("this client is closed")

    # Topics

    def known(self, topic: str) -> TopicView | None:
        """What is known of a topic, without asking."""
        view = self._topics.get(topic)
        return view if view is not None and self._loop.time() - view.seen_at < STALE_SECONDS else None

    async def topic(self, name: str) -> TopicView:
        """A topic with its leaders; `CodedError` when there is none. Who asks at the same time shares one request."""
        view = self.known(name)
        if view is not None:
            return view
        refresh = self._refreshes.get(name)
        if refresh is None:
            refresh = self._refreshes[name] = asyncio.ensure_future(self._refresh(name))
            refresh.add_done_callback(lambda _done: self._refreshes.pop(name, None))
            refresh.add_done_callback(_retrieve)
        return await asyncio.shield(refresh)

    def forget(self, topic: str) -> None:
        """Leaders of a topic are not where they were thought to be."""
        self._topics.pop(topic, None)

    async def _refresh(self, name: str) -> TopicView:
        async def attempt() -> TopicView:
            (found,) = (await self.metadata([name])).topics
            if found.error_code is not ErrorCode.none:
                raise CodedError(found.error_code, f"topic '{name}': {found.error_code.name.replace('_', ' ')}")
            return self._topics[name]

        return await retried(attempt, self.patience, lambda: None)

    async def metadata(self, topics: Iterable[str] | None) -> Any:
        """Kafka's answer about some topics, or all; what it says of brokers and leaders is kept."""
        asked = None if topics is None else [{"topic_id": None, "name": name} for name in topics]
        values = {"topics": asked, "allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
        answer = await (await self.any()).ask(ApiKey.METADATA, values)
        self._keep(answer)
        return answer

    def _keep(self, answer: Any) -> None:
        self.brokers = {int(b.node_id): Address(b.host, b.port) for b in answer.brokers} or self.brokers
        self.cluster_id = answer.cluster_id or self.cluster_id
        self.controller_id = int(answer.controller_id)
        now = self._loop.time()
        if len(self._topics) > _MOST_TOPICS:
            self._topics.clear()
        for topic in answer.topics:
            if topic.error_code is ErrorCode.none and topic.name is not None:
                leaders = {int(p.partition_index): int(p.leader_id) for p in topic.partitions}
                ordered = tuple(leaders.get(index, -1) for index in range(max(leaders, default=-1) + 1))
                self._topics[topic.name] = TopicView(name=topic.name, leaders=ordered, seen_at=now, described=topic)

    async def leader(self, topic: str, partition: int) -> int:
        """Who leads a partition; `CodedError` when there is no such partition."""
        view = await self.topic(topic)
        if not 0 <= partition < len(view.leaders):
            raise CodedError(
                ErrorCode.unknown_topic_or_partition,
                f"topic '{topic}' has partitions 0 to {len(view.leaders) - 1}, not {partition}",
            )
        return view.leaders[partition]

    # Asking

    async def ask_any(self, api_key: ApiKey, values: Mapping[str, Any]) -> Any:
        """An answer from any broker, without an error at its top."""

        async def attempt() -> Any:
            return checked(await (await self.any()).ask(api_key, values))

        return await retried(attempt, self.patience, lambda: None)

    async def ask_controller(self, api_key: ApiKey, values: Mapping[str, Any]) -> Any:
        """An answer from the controller, or from a broker that asks it for us."""

        async def attempt() -> Any:
            if not self.brokers:
                await self.metadata([])
            there = self.controller_id in self.brokers
            connection = await (self.to_node(self.controller_id) if there else self.any())
            return checked(await connection.ask(api_key, values))

        return await retried(attempt, self.patience, self._forget_controller)

    def _forget_controller(self) -> None:
        self.controller_id = -1

    async def coordinator(self, group: str) -> int:
        """The broker that coordinates a group."""
        found = self._coordinators.get(group)
        if found is not None and found in self.brokers:
            return found
        answer = checked(await (await self.any()).ask(ApiKey.FIND_COORDINATOR, {"key": group, "key_type": 0}))
        node = int(answer.node_id)
        self.brokers[node] = Address(answer.host, answer.port)
        if len(self._coordinators) > _MOST_TOPICS:
            self._coordinators.clear()
        self._coordinators[group] = node
        return node

    def forget_coordinator(self, group: str) -> None:
        self._coordinators.pop(group, None)

    async def ask_coordinator(self, group: str, api_key: ApiKey, values: Mapping[str, Any]) -> Any:
        """An answer from a group's coordinator, without an error at its top."""

        async def attempt() -> Any:
            connection = await self.to_node(await self.coordinator(group))
            return checked(await connection.ask(api_key, values))

        return await retried(attempt, self.patience, lambda: self.forget_coordinator(group))


_NOWHERE: Final = Address("", 0)


def _is_good(held: asyncio.Future[Connection], *, even_expired: bool = False) -> bool:
    if held.cancelled() or held.exception() is not None:
        return False
    return not held.result().is_closed if even_expired else held.result().is_usable()


def _retrieve(done: asyncio.Future[Any]) -> None:
    """So that a failure nobody waited for is not reported as forgotten."""
    if not done.cancelled():
        done.exception()


def checked(answer: Any) -> Any:
    """The answer, unless its own error code says otherwise."""
    code = getattr(answer, "error_code", ErrorCode.none)
    if code is not ErrorCode.none:
        raise CodedError(code, getattr(answer, "error_message", None) or "")
    return answer
