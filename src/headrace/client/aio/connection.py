"""One connection to a broker on the event loop: any number of requests under way, answered in their order."""

import asyncio
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from headrace.net.address import Address
from headrace.protocol.decode import decode_response
from headrace.protocol.encode import encode_request
from headrace.protocol.errors import ProtocolViolation
from headrace.protocol.exchange import answer_body

from ..core.conversation import ANSWER_HEAD_SIZE, Conversation, Conversing, read_answer_head
from ..core.errors import AuthenticationRefused, ConnectionLost, certificate_refused
from ..core.handshake import ConnectionSession, ConnectionSettings, HandshakeRequest, Steps, advanced, handshake

Buffer = bytes | bytearray | memoryview


class BrokerConnection(Conversing[asyncio.Future[memoryview]], asyncio.Protocol):
    """A connection; `dial` makes them. After `ConnectionLost` it is closed for good."""

    def __init__(self, address: Address, client_id: str, request_timeout: float) -> None:
        self.address = address
        self.expires_at: float | None = None
        """The loop's time from which the broker no longer takes the authentication for granted."""
        self.is_closed = False
        self._timeout = request_timeout
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._conversation: Conversation[asyncio.Future[memoryview]] = Conversation(client_id)
        self._received = bytearray()

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are no subclass of it

    def data_received(self, data: bytes) -> None:
        """Hand out the answers that are whole."""
        received = self._received
        received += data
        start, end = 0, len(received)
        try:
            while end - start >= ANSWER_HEAD_SIZE:
                size, correlation_id = read_answer_head(received, start)
                body = start + ANSWER_HEAD_SIZE
                if body + size > end:
                    break
                start = body + size
                self._answer(correlation_id, received[body:start])
        except ProtocolViolation as error:
            self.lose(str(error))
        if start and not self.is_closed:
            del received[:start]

    def connection_lost(self, error: Exception | None) -> None:
        self.lose(str(error) if error else "the broker closed the connection")

    # The caller's side

    def is_usable(self) -> bool:
        """Whether a request may go out on it now."""
        return not self.is_closed and (self.expires_at is None or self._loop.time() < self.expires_at)

    async def ask(
        self,
        api_key: int,
        values: Mapping[str, Any],
        *,
        most: int | None = None,
        patience: float = 0,
        edit: Callable[[bytearray], None] | None = None,
    ) -> Any:
        """The broker's answer, an entity of kio. `patience` is what the broker was asked to wait, in seconds; `edit`
        adds to the request what no schema has."""
        version = self.version_of(api_key, most)
        request = encode_request(api_key, version, values)
        if edit is not None:
            edit(request)
        body = await self.ask_bytes(api_key, version, [request], patience)
        try:
            return decode_response(api_key, version, body)
        except ProtocolViolation as error:
            raise self.lose(str(error)) from error

    async def ask_bytes(self, api_key: int, version: int, body: Sequence[Buffer], patience: float = 0) -> memoryview:
        """The body of the answer; `ConnectionLost` when none comes in time, which ends the connection."""
        answer = self.send(api_key, version, body)
        timer = self._loop.call_later(self._timeout + patience, self.lose, "no answer came in time")
        try:
            return await answer
        finally:
            timer.cancel()

    def send(
        self, api_key: int, version: int, body: Sequence[Buffer], *, is_answered: bool = True
    ) -> asyncio.Future[memoryview]:
        """Send a request; its answer to come."""
        if self.is_closed or self._transport is None:
            raise ConnectionLost(f"{self.address}: the connection is closed")
        head = self._conversation.head(api_key, version, sum(map(len, body)))
        answer: asyncio.Future[memoryview] = self._loop.create_future()
        if is_answered:
            self._conversation.expect(api_key, version, answer)
        else:
            answer.set_result(memoryview(b""))
        self._transport.write(b"".join((head, *body)))
        return answer

    def close(self) -> None:
        """End it now."""
        self.lose("the connection was closed on this side")

    def lose(self, reason: str) -> ConnectionLost:
        """End it, and give the error that says why; those who wait get one like it."""
        words = f"{self.address}: {reason.lower()}"
        if self.is_closed:
            return ConnectionLost(words)
        self.is_closed = True
        if self._transport is not None:
            self._transport.abort()
        self._received = bytearray()
        pending = list(self._conversation.pending)
        self._conversation.pending.clear()
        for each in pending:
            if not each.waiter.done():
                each.waiter.set_exception(ConnectionLost(words))
        return ConnectionLost(words)

    def _answer(self, correlation_id: int, answer: bytearray) -> None:
        requests = self._conversation.pending
        oldest = requests[0] if requests else None
        try:
            pending = self._conversation.answered(correlation_id)
            body = answer_body(memoryview(answer), pending.api_key, pending.version)
        except ProtocolViolation:
            if oldest is not None:
                requests.appendleft(oldest)  # An answer takes its request off the list; `lose` tells those on it.
            raise
        if not pending.waiter.done():
            pending.waiter.set_result(body)


async def dial(address: Address, settings: ConnectionSettings) -> BrokerConnection:
    """A connection that is ready: TCP, TLS, the handshake; `ConnectionLost` or `AuthenticationRefused` otherwise."""
    try:
        async with asyncio.timeout(settings.connect_timeout):
            connection = await _connected(address, settings)
            try:
                session = await _shake_hands(connection, handshake(settings))
            except BaseException:
                connection.close()
                raise
    except TimeoutError as error:
        raise ConnectionLost(f"{address}: timed out while connecting") from error
    connection.served = session.served
    if session.lifetime is not None:
        connection.expires_at = asyncio.get_running_loop().time() + session.lifetime
    return connection


async def _connected(address: Address, settings: ConnectionSettings) -> BrokerConnection:
    loop = asyncio.get_running_loop()
    try:
        _, connection = await loop.create_connection(
            lambda: BrokerConnection(address, settings.client_id, settings.request_timeout),
            address.host,
            address.port,
            ssl=settings.tls,
            server_hostname=address.host if settings.tls is not None else None,
        )
    except ssl.SSLCertVerificationError as error:
        raise certificate_refused(address, error.verify_message) from error
    except OSError as error:
        raise ConnectionLost(f"{address}: {(error.strerror or str(error)).lower()}") from error
    return connection


async def _shake_hands(connection: BrokerConnection, steps: Steps) -> ConnectionSession:
    try:
        step = advanced(steps, None)
        while isinstance(step, HandshakeRequest):
            try:
                body = await connection.ask_bytes(step.api_key, step.version, [step.body])
            except ConnectionLost as lost:
                step = advanced(steps, lost)
            else:
                step = advanced(steps, body)
        return step
    except ProtocolViolation as error:
        raise connection.lose(str(error)) from error
    except AuthenticationRefused as error:
        raise AuthenticationRefused(f"{connection.address}: {error}") from error
