"""One connection to a broker on the event loop: any number of requests under way, answered in their order."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, cast

from headrace.net.address import Address
from headrace.protocol.decode import decode_response
from headrace.protocol.encode import encode_request
from headrace.protocol.errors import ProtocolViolation
from headrace.protocol.exchange import answer_body

from ..core.conversation import ANSWER_HEAD_SIZE, Conversation, read_answer_head
from ..core.errors import ConnectionLost
from ..core.versions import Ranges

Buffer = bytes | bytearray | memoryview


class Connection(asyncio.Protocol):
    """A connection; `dialing.dial` makes them. After `ConnectionLost` it is closed for good."""

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

    @property
    def served(self) -> Ranges:
        """What the broker serves."""
        return self._conversation.served

    @served.setter
    def served(self, served: Ranges) -> None:
        self._conversation.served = served

    @property
    def in_flight(self) -> int:
        return len(self._conversation.pending)

    def is_usable(self) -> bool:
        """Whether a request may go out on it now."""
        return not self.is_closed and (self.expires_at is None or self._loop.time() < self.expires_at)

    def version_of(self, api_key: int, most: int | None = None) -> int:
        """The version to ask in; `VersionNotServed` when there is none."""
        return self._conversation.version_of(api_key, most)

    async def ask(
        self, api_key: int, values: Mapping[str, Any], *, most: int | None = None, patience: float = 0
    ) -> Any:
        """The broker's answer, an entity of kio. `patience` is what the broker was asked to wait, in seconds."""
        version = self.version_of(api_key, most)
        body = await self.ask_bytes(api_key, version, [encode_request(api_key, version, values)], patience)
        try:
            return decode_response(api_key, version, body)
        except ProtocolViolation as error:
            self.lose(str(error))
            raise ConnectionLost(f"{self.address}: {error}") from error

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

    def lose(self, reason: str) -> None:
        """End it; those who wait get `ConnectionLost`."""
        if self.is_closed:
            return
        self.is_closed = True
        if self._transport is not None:
            self._transport.abort()
        self._received = bytearray()
        pending = list(self._conversation.pending)
        self._conversation.pending.clear()
        for each in pending:
            if not each.waiter.done():
                each.waiter.set_exception(ConnectionLost(f"{self.address}: {reason.lower()}"))

    def _answer(self, correlation_id: int, answer: bytearray) -> None:
        pending = self._conversation.answered(correlation_id)
        body = answer_body(memoryview(answer), pending.api_key, pending.version)
        if not pending.waiter.done():
            pending.waiter.set_result(body)
