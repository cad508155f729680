"""What requests and their replies say of each other: headers, as Spring for Apache Kafka and the gateway have them."""

import struct
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from .errors import ClientError
from .messages import Message

V = TypeVar("V")
CORRELATION: Final = "kafka_correlationId"
REPLY_TOPIC: Final = "kafka_replyTopic"
REPLY_PARTITION: Final = "kafka_replyPartition"
DEADLINE: Final = "headrace.rpc.deadline"
ERROR: Final = "headrace.rpc.error"
_PARTITION: Final = struct.Struct(">i")

HeaderPairs = list[tuple[str, bytes | None]]


class RemoteError(ClientError):
    """The function that was called raised an error."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "REMOTE_ERROR")


class NoReply(ClientError, TimeoutError):
    """No reply came in time; the request may have been handled all the same."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "REQUEST_TIMED_OUT")


def request_headers(correlation: bytes, topic: str, partition: int, deadline: float | None) -> HeaderPairs:
    """Where the reply to a request goes, and when nobody waits for it any more."""
    headers: HeaderPairs = [
        (CORRELATION, correlation),
        (REPLY_TOPIC, topic.encode()),
        (REPLY_PARTITION, _PARTITION.pack(partition)),
    ]
    return headers if deadline is None else [*headers, (DEADLINE, str(int(deadline * 1000)).encode())]


def is_late(message: Message[Any], clock: Callable[[], float] = time.time) -> bool:
    """Whether nobody waits for the reply any more."""
    deadline = message.header(DEADLINE) or ""
    return deadline.isascii() and deadline.isdecimal() and clock() * 1000 > int(deadline)


def reply_place(message: Message[Any]) -> tuple[str, int] | None:
    """The topic and partition (-1 for any) that the reply goes to; None where none is wanted."""
    topic = message.header(REPLY_TOPIC)
    data = dict(message.headers).get(REPLY_PARTITION)
    partition = _PARTITION.unpack(data)[0] if data is not None and len(data) == _PARTITION.size else -1
    return None if not topic else (topic, max(partition, -1))


def answer_in(message: Message[V]) -> V:
    """The value of a reply; RemoteError where it tells of one."""
    error = message.header(ERROR)
    if error is not None:
        raise RemoteError(error)
    return message.value
