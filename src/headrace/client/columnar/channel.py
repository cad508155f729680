"""One connection to a broker, from the side that asks: blocking, with any number of requests under way.

Kafka answers the requests of a connection in their order, so answers are taken in that order too, and each must carry
its request's correlation id. An answer is received into one buffer that is used again and again: its bytes are valid
until the next answer is received.

A channel is used by one thread at a time. After `ConnectionLost` it is closed for good.
"""

import socket
import ssl
from collections import deque
from collections.abc import Mapping, Sequence
from select import POLLIN, poll
from struct import Struct
from typing import Any, Final, NamedTuple

from headrace.net.address import Address
from headrace.protocol.api import ApiKey
from headrace.protocol.decode import decode_response
from headrace.protocol.encode import encode_request
from headrace.protocol.errors import ProtocolViolation
from headrace.protocol.exchange import answer_body
from headrace.protocol.transactions import DescribedTransaction, read_described

from ..core.conversation import ANSWER_HEAD_SIZE, Conversation, Conversing, PendingRequest, read_answer_head
from ..core.errors import ConnectionLost

Buffer = bytes | bytearray | memoryview

RESTING_SIZE: Final = 64 * 1024
"""Bytes of the buffer of a channel that nobody uses."""
_FIRST_GROWTH: Final = 1 << 20
_MOST_PARTS: Final = 512
"""Of one `sendmsg`; the kernel takes 1024."""
_TIMEVAL: Final = Struct("ll")


class BrokerAnswer(NamedTuple):
    """What a broker answered; `body` is valid until the next answer is received."""

    api_key: int
    version: int
    body: memoryview

    def entity(self) -> Any:
        """The body decoded; `ProtocolViolation` when it is not what it should be."""
        return decode_response(self.api_key, self.version, self.body)


class Channel(Conversing[None]):
    """A connection that is ready for requests; `connect.open_channel` makes them."""

    def __init__(self, sock: socket.socket, address: Address, *, client_id: str, timeout: float) -> None:
        self.address = address
        self.expires_at: float | None = None
        """The moment (`time.monotonic`) from which the broker no longer takes the authentication for granted."""
        self._sock = sock
        self._conversation: Conversation[None] = Conversation(client_id)
        self._head = bytearray(ANSWER_HEAD_SIZE)
        self._use(bytearray(RESTING_SIZE))
        self._is_closed = False
        self.set_timeout(timeout)

    def set_timeout(self, seconds: float) -> None:
        """How long the broker may be silent while it owes an answer."""
        self._timeout = seconds
        _set_timeout(self._sock, seconds)

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def fileno(self) -> int:
        return self._sock.fileno()

    def ask(self, api_key: int, values: Mapping[str, Any], version: int | None = None) -> Any:
        """The broker's answer, an entity of kio, to one request, while no other is under way."""
        chosen = self.version_of(api_key) if version is None else version
        self.send(api_key, chosen, [encode_request(api_key, chosen, values)])
        return self.receive_entity()

    def describe_transactions(self, transactional_ids: Sequence[str]) -> list[DescribedTransaction]:
        """What this broker, as their coordinator, knows of each transactional id."""
        api, version = ApiKey.DESCRIBE_TRANSACTIONS, self.version_of(ApiKey.DESCRIBE_TRANSACTIONS)
        self.send(api, version, [encode_request(api, version, {"transactional_ids": list(transactional_ids)})])
        answer = self.receive()
        try:
            return read_described(answer.body)
        except ProtocolViolation as error:
            raise self.lose(str(error)) from error

    def receive_entity(self) -> Any:
        """The next answer decoded; one that does not decode ends the connection."""
        answer = self.receive()
        try:
            return answer.entity()
        except ProtocolViolation as error:
            raise self.lose(str(error)) from error

    def send(self, api_key: int, version: int, body: Sequence[Buffer], *, is_answered: bool = True) -> None:
        """Send a request. The parts of its body are sent before this returns."""
        self._require_open()
        head = self._conversation.head(api_key, version, sum(map(len, body)))
        try:
            self._send_all([head, *body])
        except OSError as error:
            raise self.lose(_reason(error, self._timeout)) from error
        if is_answered:
            self._conversation.expect(api_key, version, None)

    def receive(self) -> BrokerAnswer:
        """The answer to the oldest request that has none yet."""
        self._require_open()
        try:
            pending, answer = self._receive_answer()
            body = answer_body(answer, pending.api_key, pending.version)
        except OSError as error:
            raise self.lose(_reason(error, self._timeout)) from error
        except ProtocolViolation as error:
            raise self.lose(str(error)) from error
        return BrokerAnswer(pending.api_key, pending.version, body)

    def has_buffered_input(self) -> bool:
        """Whether there is something to read that polling the socket does not show."""
        return isinstance(self._sock, ssl.SSLSocket) and self._sock.pending() > 0

    def has_input(self) -> bool:
        """Whether the next `receive` finds something to read at once."""
        if self.has_buffered_input():
            return True
        poller = poll()
        poller.register(self._sock, POLLIN)
        return bool(poller.poll(0))

    def is_reusable(self, now: float) -> bool:
        """Whether somebody else can go on with it: nothing under way, not closed by either side, not expired."""
        if self._is_closed or self._conversation.pending or (self.expires_at is not None and now >= self.expires_at):
            return False
        return not self.has_input()

    def rest(self) -> None:
        """Give a grown buffer back."""
        if len(self._buffer) > RESTING_SIZE:
            self._use(bytearray(RESTING_SIZE))

    def close(self) -> None:
        self._is_closed = True
        self._conversation.pending.clear()
        self._sock.close()

    def lose(self, reason: str) -> ConnectionLost:
        """Close, and give the error that says why."""
        self.close()
        return ConnectionLost(f"{self.address}: {reason}")

    def _require_open(self) -> None:
        if self._is_closed:
            raise ConnectionLost(f"{self.address}: the connection is closed")

    def _send_all(self, parts: list[Buffer]) -> None:
        if isinstance(self._sock, ssl.SSLSocket):
            for part in _joined(parts):
                self._sock.sendall(part)
            return
        views = deque(memoryview(part) for part in parts)
        while views:
            sent = self._sock.sendmsg(list(views)[:_MOST_PARTS])
            while views and sent >= len(views[0]):
                sent -= len(views.popleft())
            if sent:
                views[0] = views[0][sent:]

    def _receive_answer(self) -> tuple[PendingRequest[None], memoryview]:
        """The request that the next answer is to, and what follows the answer's correlation id."""
        self._fill(memoryview(self._head), 0, len(self._head))
        size, correlation_id = read_answer_head(self._head)
        pending = self._conversation.answered(correlation_id)
        received = 0
        while received < size:
            if received == len(self._buffer):
                self._grow(min(size, max(2 * received, _FIRST_GROWTH)), received)
            end = min(size, len(self._buffer))
            self._fill(self._view, received, end)
            received = end
        return pending, self._view[:size]

    def _fill(self, view: memoryview, start: int, end: int) -> None:
        flags = 0 if isinstance(self._sock, ssl.SSLSocket) else socket.MSG_WAITALL
        while start < end:
            count = self._sock.recv_into(view[start:end], 0, flags)
            if not count:
                raise ConnectionResetError("the broker closed the connection")
            start += count

    def _grow(self, capacity: int, held: int) -> None:
        """Memory is taken as bytes arrive: a length alone takes none."""
        grown = bytearray(capacity)
        grown[:held] = self._view[:held]
        self._use(grown)

    def _use(self, buffer: bytearray) -> None:
        self._buffer = buffer
        self._view = memoryview(buffer)


def _joined(parts: list[Buffer]) -> list[Buffer]:
    """Small parts as one, so that each TLS record holds more than a few bytes."""
    joined: list[Buffer] = [bytearray()]
    for part in parts:
        if len(part) > RESTING_SIZE:
            joined += (part, bytearray())
        else:
            run = joined[-1]
            assert isinstance(run, bytearray)
            run += part
    return [part for part in joined if part]


def _set_timeout(sock: socket.socket, seconds: float) -> None:
    """Plain sockets block in the kernel, which fills a large buffer in one call and keeps the time itself."""
    if isinstance(sock, ssl.SSLSocket):
        sock.settimeout(seconds)
        return
    sock.settimeout(None)
    whole = int(seconds)
    limit = _TIMEVAL.pack(whole, int((seconds - whole) * 1_000_000))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


def _reason(error: OSError, timeout: float) -> str:
    if isinstance(error, TimeoutError | BlockingIOError):
        return f"nothing came or went for {timeout:g} s"
    return (error.strerror or str(error)).lower()
