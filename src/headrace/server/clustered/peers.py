"""Links to the other brokers of the cluster: made when somebody asks, known by a handshake, made again when lost.

A broker is found where the image says it is, at the listener that it has for brokers, over TLS where that speaks it.
When it has moved, or does not answer in time, its link is given up.
What is said between brokers is said in the cluster's feature level, or in the highest that the other end speaks.
After a failure the next attempt waits: 50 ms, then twice as long each time, up to a second. Who asks meanwhile waits
with it, for no longer than its own deadline.
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import structlog

from headrace.cluster.image import BrokerNode, Endpoint
from headrace.config import ConfigError
from headrace.net.address import Address
from headrace.net.network import Buffer, Link, LinkClosed, Network
from headrace.net.peers import REQUEST_SECONDS, PeerUnreachable, Purpose
from headrace.protocol.decode import decode_response
from headrace.protocol.encode import encode_request
from headrace.protocol.errors import CodedError, ProtocolViolation
from headrace.protocol.exchange import matching_body, next_correlation_id, request_head
from headrace.protocol.levels import BEFORE_LEVELS, FIRST, SUPPORTED, LevelRange, version_of
from headrace.protocol.peer import VERSION, InternalApi, PeerMessage, checked, decode_message, encode_message
from headrace.security.hello import NONCE_BYTES, Greeting, Role

CONNECT_SECONDS: Final = 3.0
FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 1.0
MOST_LINKS: Final = {
    Purpose.CONTROL: 1,
    Purpose.FETCH: 1,
    Purpose.FEED: 1,
    Purpose.FORWARD: 4,
    Purpose.LETTERS: 4,
    Purpose.MARKERS: 4,
    Purpose.SHARE: 4,
    Purpose.VERIFY: 4,
}
"""To one broker. What is forwarded for different clients need not wait for each other, nor need transactions."""

log = structlog.get_logger(__name__)

Find = Callable[[int], BrokerNode | None]
TlsContext = Callable[[Endpoint], ssl.SSLContext | None]
"""What a link to an endpoint is encrypted by; None where it is not. `ConfigError` where it should be and cannot."""
Encode = Callable[[int], Sequence[Buffer]]
"""The body of a request in a feature level."""
_OF_LEVEL: Final = -1
"""Stands for the version that follows from the feature level."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerIdentity:
    """Who this broker is, and how it can show that."""

    broker_id: int
    cluster_id: str
    secret: bytes
    epoch: Callable[[], int]
    """The epoch of its registration as it is now."""
    levels: LevelRange = SUPPORTED
    """The feature levels that it speaks."""
    level: Callable[[], int] = lambda: FIRST
    """The cluster's, as far as is known here."""


class LinkedPeers:
    """The other brokers, by their ids. Implements `headrace.net.peers.Peers`."""

    def __init__(
        self, *, me: PeerIdentity, network: Network, find: Find, rng: Random, tls: TlsContext = lambda _: None
    ) -> None:
        self._me = me
        self._network = network
        self._find = find
        self._rng = rng
        self._tls = tls
        self._lanes: dict[tuple[int, Purpose], list[_Lane]] = {}
        self._is_closed = False

    async def ask(
        self,
        broker_id: int,
        api_key: int,
        version: int,
        values: Mapping[str, Any],
        *,
        purpose: Purpose = Purpose.CONTROL,
        timeout: float = REQUEST_SECONDS,
    ) -> Any:
        """See `Peers`."""
        body = encode_request(api_key, version, values)
        answer = await self.ask_bytes(broker_id, api_key, version, [body], purpose=purpose, timeout=timeout)
        try:
            return decode_response(api_key, version, answer)
        except ProtocolViolation as error:
            raise PeerUnreachable(broker_id, str(error), was_sent=True) from error

    async def ask_bytes(
        self,
        broker_id: int,
        api_key: int,
        version: int,
        body: Sequence[Buffer],
        *,
        purpose: Purpose = Purpose.CONTROL,
        timeout: float = REQUEST_SECONDS,
    ) -> memoryview:
        """See `Peers`."""
        return await self._exchange(broker_id, purpose, (api_key, version), lambda _: body, timeout)

    async def tell(
        self,
        broker_id: int,
        api: InternalApi,
        values: Mapping[str, Any],
        *,
        purpose: Purpose = Purpose.CONTROL,
        timeout: float = REQUEST_SECONDS,
    ) -> Mapping[str, Any]:
        """See `Peers`."""
        return (await self.send(broker_id, api, PeerMessage(values), purpose=purpose, timeout=timeout)).values

    async def send(
        self,
        broker_id: int,
        api: InternalApi,
        message: PeerMessage,
        *,
        purpose: Purpose = Purpose.CONTROL,
        timeout: float = REQUEST_SECONDS,
    ) -> PeerMessage:
        """See `Peers`."""
        body = encode_message(message)  # the same in all levels so far
        answer = await self._exchange(broker_id, purpose, (api, _OF_LEVEL), lambda _: body, timeout)
        try:
            return checked(decode_message(answer))
        except ProtocolViolation as error:
            raise PeerUnreachable(broker_id, str(error), was_sent=True) from error

    async def exchange(
        self, broker_id: int, api: InternalApi, body: Buffer, *, purpose: Purpose, timeout: float
    ) -> memoryview:
        """The body of the answer to a request between brokers whose body is not a `PeerMessage`."""
        return await self._exchange(broker_id, purpose, (api, _OF_LEVEL), lambda _: [body], timeout)

    def drop(self, broker_id: int) -> None:
        """Give up the links to a broker, as when it is gone; who waits for its answers learns that none will come."""
        for purpose in Purpose:
            for lane in self._lanes.pop((broker_id, purpose), ()):
                lane.close()

    async def close(self) -> None:
        """Give up all links."""
        self._is_closed = True
        lanes = [lane for lanes in self._lanes.values() for lane in lanes]
        for lane in lanes:
            lane.close()
        for lane in lanes:
            await lane.closed()
        self._lanes.clear()

    async def _exchange(
        self, broker_id: int, purpose: Purpose, api: tuple[int, int], encode: Encode, timeout: float
    ) -> memoryview:
        if self._is_closed:
            raise PeerUnreachable(broker_id, "this broker stops", was_sent=False)
        lane = self._lane(broker_id, purpose)
        link: Link | None = None
        lane.in_use += 1
        try:
            async with asyncio.timeout(timeout):
                link = await lane.ready()
                return await lane.ask(link, api, encode)
        except TimeoutError:
            reason = f"no answer within {timeout:g} s"
        except (LinkClosed, ProtocolViolation) as error:
            reason = str(error)
        finally:
            lane.in_use -= 1
        if link is not None:
            link.close()
        raise PeerUnreachable(broker_id, reason, was_sent=link is not None)

    def _lane(self, broker_id: int, purpose: Purpose) -> "_Lane":
        """The one with the fewest requests under way; a new one before any has to wait, if there may be more."""
        lanes = self._lanes.setdefault((broker_id, purpose), [])
        best = min(lanes, key=lambda lane: lane.in_use, default=None)
        if best is None or (best.in_use and len(lanes) < MOST_LINKS[purpose]):
            best = _Lane(broker_id, self._me, self._network, self._find, self._rng, self._tls)
            lanes.append(best)
        return best


class _Lane:
    """One link to one broker, made again when it is lost."""

    def __init__(
        self, broker_id: int, me: PeerIdentity, network: Network, find: Find, rng: Random, tls: TlsContext
    ) -> None:
        self.in_use = 0
        """Requests that wait for the link or on it."""
        self._broker_id = broker_id
        self._me = me
        self._network = network
        self._find = find
        self._rng = rng
        self._tls = tls
        self._link: Link | None = None
        self._spoken = BEFORE_LEVELS
        """The feature levels of the broker at the other end."""
        self._endpoint: Endpoint | None = None
        self._connecting: asyncio.Task[str | None] | None = None
        self._failures = 0
        self._not_before = 0.0
        self._correlation_id = 0

    async def ready(self) -> Link:
        """The link; `PeerUnreachable` if an attempt to make it has failed."""
        while True:
            node = self._find(self._broker_id)
            if node is None:
                raise PeerUnreachable(self._broker_id, "it is not registered", was_sent=False)
            if self._link is not None and not self._link.is_closed and self._endpoint == node.for_brokers:
                return self._link
            if self._connecting is None or self._connecting.done():
                connecting = self._connect(node.for_brokers)
                self._connecting = asyncio.create_task(connecting, name=f"connect to {self._broker_id}")
            attempt = self._connecting
            await asyncio.wait([attempt])
            failure = "the link was given up" if attempt.cancelled() else attempt.result()
            if failure is not None:
                raise PeerUnreachable(self._broker_id, failure, was_sent=False)

    async def ask(self, link: Link, api: tuple[int, int], encode: Encode) -> memoryview:
        """The answer without its head; `ProtocolViolation` when it answers something else."""
        self._correlation_id = correlation_id = next_correlation_id(self._correlation_id)
        level = min(self._me.level(), self._spoken.max)
        key, version = api
        api = (key, version_of(level) if version == _OF_LEVEL else version)
        return await _ask(link, api, correlation_id, encode(level))

    def close(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
        if self._link is not None:
            self._link.close()

    async def closed(self) -> None:
        """Waits until the link is closed and its tasks have ended."""
        if self._connecting is not None:
            await asyncio.wait([self._connecting])

    async def _connect(self, endpoint: Endpoint) -> str | None:
        """Make the link; returns what was in the way."""
        loop = asyncio.get_running_loop()
        if self._endpoint != endpoint:
            self._failures = 0
            self._not_before = 0.0
        if self._link is not None:
            self._link.close()
        self._endpoint, self._link = endpoint, None
        try:
            await asyncio.sleep(max(self._not_before - loop.time(), 0.0))
            self._link = await self._greeted(endpoint)
        except (OSError, ProtocolViolation, CodedError, ConfigError) as error:
            self._failures += 1
            return f"{Address(endpoint.host, endpoint.port)}: {str(error) or type(error).__name__}"
        else:
            self._failures = 0
            return None
        finally:
            self._not_before = loop.time() + self._pause()

    def _pause(self) -> float:
        longest = min(FIRST_PAUSE * float(2 ** min(self._failures, 10)), LONGEST_PAUSE)
        return longest * self._rng.uniform(0.5, 1.0)

    async def _greeted(self, endpoint: Endpoint) -> Link:
        link = await self._network.connect(endpoint.host, endpoint.port, CONNECT_SECONDS, self._tls(endpoint))
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                self._spoken = await greet(link, self._me, self._broker_id, self._rng)
        except CodedError as error:
            log.warning("not taken for a broker of the cluster", broker=self._broker_id, reason=error.message)
            link.close()
            raise
        except BaseException:
            link.close()
            raise
        return link


async def greet(link: Link, me: PeerIdentity, broker_id: int, rng: Random) -> LevelRange:
    """Show the broker at the other end who we are, and see that it is the one we want: the feature levels it speaks.

    Raises `CodedError` when it refuses us, `ProtocolViolation` when we refuse it.
    """
    nonce, epoch = rng.randbytes(NONCE_BYTES).hex(), me.epoch()
    opening = {"cluster": me.cluster_id, "from": me.broker_id, "to": broker_id, "epoch": epoch, "nonce": nonce}
    answer = await _hello(link, {**opening, "levels": me.levels})
    spoken = spoken_levels(answer)
    if spoken.max < me.level():
        raise ProtocolViolation(f"it speaks feature level {spoken}, and the cluster's is {me.level()}")
    greeting = Greeting(
        cluster_id=me.cluster_id,
        asker=me.broker_id,
        answerer=broker_id,
        asker_epoch=epoch,
        answerer_epoch=_whole(answer, "epoch"),
        asker_nonce=nonce,
        answerer_nonce=_text(answer, "nonce"),
    )
    if not greeting.is_proved(me.secret, Role.ANSWERER, _text(answer, "proof")):
        raise ProtocolViolation("it does not know the cluster's secret")
    await _hello(link, {"proof": greeting.proof(me.secret, Role.ASKER)})
    return spoken


def spoken_levels(greeting: Mapping[str, Any]) -> LevelRange:
    """The feature levels that a greeting names; `ProtocolViolation` where that is nonsense."""
    try:
        return LevelRange.read(greeting.get("levels"))
    except ValueError as error:
        raise ProtocolViolation(str(error)) from None


async def _hello(link: Link, values: Mapping[str, Any]) -> Mapping[str, Any]:
    answer = await _ask(link, (InternalApi.HELLO, VERSION), 0, encode_message(PeerMessage(values)))
    return checked(decode_message(answer)).values


async def _ask(link: Link, api: tuple[int, int], correlation_id: int, body: Sequence[Buffer]) -> memoryview:
    answer = await link.ask([request_head(*api, correlation_id, None), *body])
    return matching_body(answer, correlation_id, *api)


def _text(values: Mapping[str, Any], name: str) -> str:
    value = values.get(name)
    if not isinstance(value, str):
        raise ProtocolViolation(f"a greeting without {name}")
    return value


def _whole(values: Mapping[str, Any], name: str) -> int:
    value = values.get(name)
    if not isinstance(value, int):
        raise ProtocolViolation(f"a greeting without {name}")
    return value
