"""Requests and answers of one connection: heads, correlation ids, and which answer belongs to which request.

Kafka answers the requests of a connection in their order, so each answer must carry the id of the oldest request that
has none yet.
"""

from collections import deque
from struct import Struct
from typing import Final, Generic, NamedTuple, TypeVar

from headrace.protocol.errors import ProtocolViolation
from headrace.protocol.exchange import LARGEST_ANSWER, framed_head, next_correlation_id

from .versions import Ranges, agreed

_ANSWER_HEAD: Final = Struct(">ii")
ANSWER_HEAD_SIZE: Final = _ANSWER_HEAD.size
"""Bytes of the length and the correlation id of an answer."""

W = TypeVar("W")


class PendingRequest(NamedTuple, Generic[W]):
    """A request that has no answer yet, and who waits for it."""

    correlation_id: int
    api_key: int
    version: int
    waiter: W


class Conversation(Generic[W]):
    """One connection's requests, oldest first."""

    __slots__ = ("_client_id", "correlation_id", "pending", "served")

    def __init__(self, client_id: str) -> None:
        self.served: Ranges = {}
        """What the broker serves."""
        self.pending: deque[PendingRequest[W]] = deque()
        self._client_id = client_id.encode()
        self.correlation_id = 0
        """Of the last request."""

    def version_of(self, api_key: int, most: int | None = None) -> int:
        """The version to ask in; `VersionNotServed` when there is none."""
        return agreed(api_key, self.served, most)

    def head(self, api_key: int, version: int, body_size: int) -> bytes:
        """What to send before the body of the next request."""
        self.correlation_id = correlation_id = next_correlation_id(self.correlation_id)
        return framed_head(api_key, version, correlation_id, self._client_id, body_size)

    def expect(self, api_key: int, version: int, waiter: W) -> None:
        """The request of the last `head` will be answered."""
        self.pending.append(PendingRequest(self.correlation_id, api_key, version, waiter))

    def answered(self, correlation_id: int) -> PendingRequest[W]:
        """The request that an answer belongs to; `ProtocolViolation` when that is not the oldest."""
        if not self.pending:
            raise ProtocolViolation(f"an answer to request {correlation_id} where none was asked")
        pending = self.pending.popleft()
        if pending.correlation_id != correlation_id:
            raise ProtocolViolation(f"an answer to request {correlation_id} where {pending.correlation_id} was asked")
        return pending


class Conversing(Generic[W]):
    """What a connection offers of its conversation, whichever client drives it."""

    _conversation: Conversation[W]

    @property
    def served(self) -> Ranges:
        """The APIs and versions that the broker serves."""
        return self._conversation.served

    @served.setter
    def served(self, served: Ranges) -> None:
        self._conversation.served = served

    @property
    def in_flight(self) -> int:
        """Requests that have no answer yet."""
        return len(self._conversation.pending)

    def version_of(self, api_key: int, most: int | None = None) -> int:
        """The version to ask in; `VersionNotServed` when there is none."""
        return self._conversation.version_of(api_key, most)


def read_answer_head(data: bytes | bytearray, at: int = 0) -> tuple[int, int]:
    """The bytes that follow an answer's head, and its correlation id; `ProtocolViolation` for an impossible length."""
    length, correlation_id = _ANSWER_HEAD.unpack_from(data, at)
    if not 4 <= length <= LARGEST_ANSWER:
        raise ProtocolViolation(f"an answer of {length} bytes: is this a Kafka broker, without TLS?")
    return length - 4, correlation_id
