"""One connection to a broker on the event loop: any number of requests under way, answered in their order."""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Any, Final, NamedTuple, cast

from headrace.net.address import Address
from headrace.net.errors import ConnectionLost
from headrace.net.versions import Ranges, agreed
from headrace.protocol.api import response_header_is_flexible
from headrace.protocol.decode import decode_response
from headrace.protocol.encode import encode_request
from headrace.protocol.errors import ProtocolViolation
from headrace.protocol.guard import skip_tags
from headrace.protocol.schema import request_shape

Buffer = bytes | bytearray | memoryview

LARGEST_ANSWER: Final = 256 << 20
"""Of one answer that is believed."""
_HEAD: Final = Struct(">ihhih")
_ANSWER: Final = Struct(">ii")


class _Sent(NamedTuple):
    correlation_id: int
    api_key: int
    version: int
    answer: asyncio.Future[memoryview]


class Connection(asyncio.Protocol):
    """A connection; `dialing.dial` makes them. After `ConnectionLost` it is closed for good."""

    def __init__(self, address: Address, client_id: str, request_timeout: float) -> None:
        self.address = address
        self.served: Ranges = {}
        """What the broker serves."""
        self.expires_at: float | None = None
        """The loop's time from which the broker no longer takes the authentication for granted."""
        self.is_closed = False
        self._client_id = client_id.encode()
        self._timeout = request_timeout
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._sent: deque[_Sent] = deque()
        self._correlation_id = 0
        self._received = bytearray()

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are no subclass of it

    def data_received(self, data: bytes) -> None:
        """Hand out the answers that are whole."""
        received = self._received
        received += data
        start, end = 0, len(received)
        while end - start >= _ANSWER.size:
            length, correlation_id = _ANSWER.unpack_from(received, start)
            if not 4 <= length <= LARGEST_ANSWER:
                self.lose(f"an answer of {length} bytes: is this a Kafka broker, without TLS?")
                return
            after = start + 4 + length
            if after > end:
                break
            self._answer(correlation_id, received[start + 8 : after])
            start = after
        if start and not self.is_closed:
            del received[:start]

    def connection_lost(self, error: Exception | None) -> None:
        self.lose(str(error) if error else "the broker closed the connection")

    # The caller's side

    @property
    def in_flight(self) -> int:
        return len(self._sent)

    def is_usable(self) -> bool:
        """Whether a request may go out on it now."""
        return not self.is_closed and (self.expires_at is None or self._loop.time() < self.expires_at)

    def version_of(self, api_key: int, most: int | None = None) -> int:
        """The version to ask in; `VersionNotServed` when there is none."""
        return agreed(api_key, self.served, most)

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
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        head = bytearray(_HEAD.size)
        head += self._client_id
        if request_shape(api_key, version).flexible:
            head.append(0)
        length = len(head) - 4 + sum(map(len, body))
        _HEAD.pack_into(head, 0, length, api_key, version, self._correlation_id, len(self._client_id))
        answer: asyncio.Future[memoryview] = self._loop.create_future()
        if is_answered:
            self._sent.append(_Sent(self._correlation_id, api_key, version, answer))
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
        sent, self._sent = self._sent, deque()
        for each in sent:
            if not each.answer.done():
                each.answer.set_exception(ConnectionLost(f"{self.address}: {reason.lower()}"))

    def _answer(self, correlation_id: int, frame: bytearray) -> None:
        if not self._sent or self._sent[0].correlation_id != correlation_id:
            self.lose("an answer to a request that was not asked")
            return
        sent = self._sent.popleft()
        body = memoryview(frame)
        try:
            start = skip_tags(body, 0) if response_header_is_flexible(sent.api_key, sent.version) else 0
        except ProtocolViolation as error:
            self.lose(str(error))
            return
        if not sent.answer.done():
            sent.answer.set_result(body[start:])
