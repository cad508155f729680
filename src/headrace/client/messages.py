"""Messages as consumers and handlers get them."""

import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Generic, TypeVar, cast

from .errors import Undecodable
from .formats import Format

V = TypeVar("V")
Headers = Mapping[str, str | bytes | None] | Iterable[tuple[str, str | bytes | None]]
"""Headers as programs give them; a name may come more than once in pairs."""


EXPIRES: Final = "headrace.expires"


MESSAGE_ID: Final = "headrace.message-id"


def message_id(text: str) -> dict[str, str | bytes | None]:
    """Headers of a message by which handlers with `deduplicate` know it when it comes again:
    `send(..., headers=message_id("order-17"))`."""
    return {MESSAGE_ID: text}


def expires_in(seconds: float) -> dict[str, str | bytes | None]:
    """Headers of a message that handlers and queues leave out after so many seconds:
    `send(..., headers=expires_in(5))`."""
    return {EXPIRES: str(int((time.time() + seconds) * 1000))}


def has_expired(headers: Iterable[tuple[str, bytes | None]], clock: Callable[[], float] = time.time) -> bool:
    """Whether the time is over that `expires_in` gave a message with these headers; the last such header counts."""
    text = b""
    for name, data in headers:
        if name == EXPIRES:
            text = data or b""
    return text.isdigit() and clock() * 1000 >= int(text[:20])


class _Unset:
    """In the place of a value that nobody has asked for."""


_UNSET: Final = _Unset()


class Message(Generic[V]):
    """A record of a topic. Its value is decoded when it is first asked for."""

    __slots__ = ("_format", "_value", "record")

    def __init__(self, record: Any, format: Format[V]) -> None:
        self.record = record
        """What librdkafka gave: a `confluent_kafka.Message`."""
        self._format = format
        self._value: V | _Unset = _UNSET

    @property
    def value(self) -> V:
        """The value; `Undecodable` if it is not of the type that was asked for, as a deletion mark is of none."""
        if not isinstance(self._value, _Unset):
            return self._value
        data = self.record.value()
        if data is None:
            raise Undecodable(f"{self} has no value: it marks its key as deleted; `message.data` is None for those")
        try:
            self._value = self._format.decode(data, self.topic)
        except Undecodable as error:
            raise Undecodable(f"{self}: {error.message}") from error
        return self._value

    @property
    def data(self) -> bytes | None:
        """The value's bytes; None where the record marks its key as deleted."""
        return cast("bytes | None", self.record.value())

    @property
    def key(self) -> bytes | None:
        return cast("bytes | None", self.record.key())

    @property
    def topic(self) -> str:
        return cast("str", self.record.topic())

    @property
    def partition(self) -> int:
        return cast("int", self.record.partition())

    @property
    def offset(self) -> int:
        return cast("int", self.record.offset())

    @property
    def timestamp(self) -> datetime:
        """When it was made or, where the topic says so, appended."""
        return datetime.fromtimestamp(self.record.timestamp()[1] / 1000, UTC)

    @property
    def deliveries(self) -> int:
        """How often a queue has delivered it, this time included; 0 for messages of a consumer."""
        return self.record.delivery_count() or 0

    @property
    def headers(self) -> list[tuple[str, bytes | None]]:
        return self.record.headers() or []

    def header(self, name: str) -> str | None:
        """The last header of a name, as text; None where there is none."""
        for found, data in reversed(self.headers):
            if found == name:
                return None if data is None else data.decode(errors="replace")
        return None

    def is_expired(self, clock: Callable[[], float] = time.time) -> bool:
        """Whether the time is over that `expires_in` gave it. Handlers and queues leave such messages out, consumers
        do not."""
        return bool(self.record.headers()) and has_expired(self.record.headers(), clock)

    def __repr__(self) -> str:
        return f"{self.topic}-{self.partition}@{self.offset}"


def header_pairs(headers: Headers | None) -> list[tuple[str, bytes | None]]:
    """Headers in pairs, texts in UTF-8."""
    if headers is None:
        return []
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return [(name, data.encode() if isinstance(data, str) else data) for name, data in pairs]
