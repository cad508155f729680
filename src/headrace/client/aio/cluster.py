"""A cluster as one client sees it: connections to brokers, leaders of partitions, coordinators of groups."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from enum import Enum
from typing import Any, Final

from headrace.health import HealthReport
from headrace.net.address import Address
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import CodedError, ErrorCode, ProtocolViolation
from headrace.protocol.peer import VERSION

from ..core.errors import AuthenticationRefused, ConnectionLost
from ..core.groups import find_coordinator_request, read_coordinator
from ..core.handshake import ConnectionSettings
from ..core.health import DESCRIBE_HEALTH, describe_health_request, read_health
from ..core.health import VERSION as HEALTH_VERSION
from ..core.metadata import (
    UNKNOWN_TOPIC_TRIES,
    CoordinatorKind,
    Metadata,
    TopicImage,
    metadata_request,
    read_metadata,
)
from ..core.rights import DESCRIBE_RIGHTS, Right, describe_rights_request, read_rights
from .connection import BrokerConnection, dial
from .retrying import NotRetriable, retried

STALE_SECONDS: Final = 60.0
"""After this long leaders are asked for again when somebody wants to know."""
_MOST_IDLE: Final = 8
"""Connections for long requests that are kept per broker while nobody uses them."""
_MOST_LENT: Final = 512
_MOST_REMEMBERED: Final = 10_000
"""Topics, and coordinators, that are remembered."""


class ConnectionPurpose(Enum):
    """Answers keep the order of their requests, so those that wait have connections of their own."""

    CONTROL = "control"
    PRODUCE = "produce"
    HEALTH = "health"
    """Brokers that know no DescribeHealth hang up when they are asked."""


class Cluster:
    """One client's connections and metadata. `patience` is how many seconds a call is retried."""

    def __init__(self, bootstrap: Sequence[Address], settings: ConnectionSettings, *, patience: float = 10.0) -> None:
        self.patience = patience
        self._bootstrap = list(bootstrap)
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._open: dict[tuple[Address, ConnectionPurpose], asyncio.Future[BrokerConnection]] = {}
        self._idle: dict[Address, list[BrokerConnection]] = {}
        self._lent: set[BrokerConnection] = set()
        self._metadata = Metadata(_MOST_REMEMBERED)
        self._refreshes: dict[str, asyncio.Task[TopicImage]] = {}
        self._answering: Address | None = None
        """The broker that was asked last for what any of them knows."""
        self.has_answered = False
        """Whether a broker has ever let us in."""
        self._is_closed = False

    @property
    def brokers(self) -> Mapping[int, Address]:
        """The brokers that are known."""
        return self._metadata.nodes

    @property
    def cluster_id(self) -> str:
        return self._metadata.cluster_id

    # Connections

    async def connection(
        self, address: Address, purpose: ConnectionPurpose = ConnectionPurpose.CONTROL
    ) -> BrokerConnection:
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

    def ready(self, node: int, purpose: ConnectionPurpose) -> BrokerConnection | None:
        """The connection if there is a usable one now, without waiting."""
        held = self._open.get((self.brokers.get(node, _NOWHERE), purpose))
        return held.result() if held is not None and held.done() and _is_good(held) else None

    async def to_node(self, node: int, purpose: ConnectionPurpose = ConnectionPurpose.CONTROL) -> BrokerConnection:
        """A connection to a broker by its number."""
        return await self.connection(self.address(node), purpose)

    def address(self, node: int) -> Address:
        """Where a broker is; `ConnectionLost` when that is not known, or there is no such broker."""
        address = self.brokers.get(node)
        if address is None:
            raise ConnectionLost(f"broker {node} is not known" if node >= 0 else "there is no leader for now")
        return address

    async def any(self) -> BrokerConnection:
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
                self.has_answered = True
                return connection
        self._answering = None
        raise ConnectionLost(f"no broker answers: {'; '.join(reasons)}")

    def _ask_another(self) -> None:
        """The next question goes to another broker: one that has just started may not know every topic yet."""
        ring = list(dict.fromkeys([*self.brokers.values(), *self._bootstrap]))
        last = ring.index(self._answering) if self._answering in ring else -1
        self._answering = ring[(last + 1) % len(ring)]

    @asynccontextmanager
    async def lent(self, node: int) -> AsyncIterator[BrokerConnection]:
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

    async def _take(self, address: Address) -> BrokerConnection:
        idle = self._idle.get(address, [])
        while idle:
            connection = idle.pop()
            if connection.is_usable():
                return connection
            connection.close()
        self._require_open()
        if len(self._lent) >= _MOST_LENT:
            raise NotRetriable(ErrorCode.throttling_quota_exceeded, f"{_MOST_LENT} requests wait already; try again")
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

    def known(self, topic: str) -> TopicImage | None:
        """What is known of a topic, without asking."""
        return self._metadata.topic(topic, self._loop.time() - STALE_SECONDS)

    async def topic(self, name: str) -> TopicImage:
        """A topic with its leaders; `CodedError` when there is none. Who asks at the same time shares one request."""
        image = self.known(name)
        if image is not None:
            return image
        refresh = self._refreshes.get(name)
        if refresh is None:
            refresh = self._refreshes[name] = asyncio.ensure_future(self._refresh(name))
            refresh.add_done_callback(lambda _done: self._refreshes.pop(name, None))
            refresh.add_done_callback(_retrieve)
        return await asyncio.shield(refresh)

    def forget(self, topic: str) -> None:
        """Ask for the leaders of a topic again before they are used: one has moved."""
        self._metadata.forget_topics([topic])

    async def _refresh(self, name: str) -> TopicImage:
        await self.described(name)
        image = self.known(name)
        assert image is not None
        return image

    async def described(self, name: str) -> Any:
        """A topic's part of a Metadata answer, asked for now; `CodedError` when there is none."""
        unknown_tries = 0

        async def attempt() -> Any:
            nonlocal unknown_tries
            (found,) = (await self.metadata([name])).topics
            code = found.error_code
            if code is ErrorCode.none:
                return found
            if code is ErrorCode.unknown_topic_or_partition:
                unknown_tries += 1
                self._ask_another()
            kind = NotRetriable if unknown_tries >= UNKNOWN_TOPIC_TRIES else CodedError
            raise kind(code, f"topic '{name}': {code.name.replace('_', ' ')}")

        return await retried(attempt, self.patience, lambda: None)

    async def metadata(self, topics: Iterable[str] | None) -> Any:
        """Kafka's answer about some topics, or all; what it says of brokers and leaders is kept."""
        answer = await (await self.any()).ask(ApiKey.METADATA, metadata_request(topics))
        self._metadata.learn(read_metadata(answer), self._loop.time())
        return answer

    async def health(self, seconds: float) -> list[HealthReport]:
        """What the brokers say of themselves; those that say nothing in that time are left out."""
        addresses = dict.fromkeys(self.brokers.values() or self._bootstrap)
        asked = (self._health_at(address, seconds) for address in addresses)
        return [report for report in await asyncio.gather(*asked) if report is not None]

    async def _health_at(self, address: Address, seconds: float) -> HealthReport | None:
        connection: BrokerConnection | None = None
        try:
            async with asyncio.timeout(seconds):
                connection = await self.connection(address, ConnectionPurpose.HEALTH)
                answer = await connection.ask_bytes(DESCRIBE_HEALTH, HEALTH_VERSION, describe_health_request())
            return read_health(answer)
        except (ConnectionLost, AuthenticationRefused, CodedError, ProtocolViolation):
            return None
        except TimeoutError:
            if connection is not None:
                connection.close()
            return None

    async def lacks(self, principal: str, rights: Sequence[Right]) -> list[Right]:
        """Those of the rights that another user has not; `CodedError` where this client may not ask about others."""
        await self.any()
        assert self._answering is not None
        connection = await self.connection(self._answering, ConnectionPurpose.HEALTH)
        answer = await connection.ask_bytes(DESCRIBE_RIGHTS, VERSION, describe_rights_request(principal, rights))
        return read_rights(answer, rights)

    async def leader(self, topic: str, partition: int) -> int:
        """Who leads a partition, -1 while nobody does; `CodedError` when there is no such partition."""
        image = await self.topic(topic)
        if partition not in image.leaders:
            image = await self._grown(topic, partition)
        return image.leaders[partition].node

    async def _grown(self, topic: str, partition: int) -> TopicImage:
        """The topic, asked for again for a partition that it did not have: not every broker may know of it yet."""
        tries = 0

        async def attempt() -> TopicImage:
            nonlocal tries
            image = await self.topic(topic)
            if partition in image.leaders:
                return image
            self.forget(topic)
            self._ask_another()
            tries += 1
            kind = NotRetriable if tries >= UNKNOWN_TOPIC_TRIES else CodedError
            raise kind(
                ErrorCode.unknown_topic_or_partition,
                f"topic '{topic}' has partitions 0 to {image.partitions - 1}, not {partition}",
            )

        self.forget(topic)
        return await retried(attempt, self.patience, lambda: None)

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
            controller = self._metadata.controller_id
            connection = await (self.to_node(controller) if controller in self.brokers else self.any())
            return checked(await connection.ask(api_key, values))

        return await retried(attempt, self.patience, self._metadata.forget_controller)

    async def coordinator(self, group: str) -> int:
        """The broker that coordinates a group."""
        known = self._metadata.coordinator(CoordinatorKind.GROUP, group)
        if known is not None:
            return known
        asked = find_coordinator_request(CoordinatorKind.GROUP, group)
        node, address = read_coordinator(checked(await (await self.any()).ask(ApiKey.FIND_COORDINATOR, asked)))
        self._metadata.learn_coordinator(CoordinatorKind.GROUP, group, node, address)
        return node

    def forget_coordinator(self, group: str) -> None:
        self._metadata.forget_coordinator(CoordinatorKind.GROUP, group)

    async def ask_coordinator(self, group: str, api_key: ApiKey, values: Mapping[str, Any]) -> Any:
        """An answer from a group's coordinator, without an error at its top."""

        async def attempt() -> Any:
            connection = await self.to_node(await self.coordinator(group))
            return checked(await connection.ask(api_key, values))

        return await retried(attempt, self.patience, lambda: self.forget_coordinator(group))


_NOWHERE: Final = Address("", 0)


def _is_good(held: asyncio.Future[BrokerConnection], *, even_expired: bool = False) -> bool:
    if held.cancelled() or held.exception() is not None:
        return False
    return not held.result().is_closed if even_expired else held.result().is_usable()


def _retrieve(done: asyncio.Future[Any]) -> None:
    """So that a failure nobody waited for is not reported as forgotten."""
    if not done.cancelled():
        done.exception()


def checked(answer: Any) -> Any:
    """The answer; `CodedError` where it has an error code at its top."""
    code = getattr(answer, "error_code", ErrorCode.none)
    if code is not ErrorCode.none:
        raise CodedError(code, getattr(answer, "error_message", None) or "")
    return answer
