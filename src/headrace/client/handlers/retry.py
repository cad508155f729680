"""When a message whose handler failed is tried again, and what its copy in a delay topic or among the dead says.

attempts 1 .. in_place, with growing pauses -> one more after each of the delays -> dead letter, or the worker stops
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ..dead_letters import PREFIX, SUFFIX
from ..messages import Message
from .outbox import OutgoingRecord

RETRY_PREFIX: Final = "headrace.retry."
_DUE: Final = f"{RETRY_PREFIX}due"
_MOST_REASON: Final = 4000
_MOST_DOUBLINGS: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How often and when. Errors other than those of `on`, and values that cannot be decoded, are not tried again."""

    in_place: int = 3
    """Attempts, the first included, while the messages of the same key wait."""
    backoff: float = 0.1
    """Seconds before the second attempt; twice as long before each further one."""
    max_backoff: float = 10.0
    delays: tuple[float, ...] = ()
    """Seconds for which the message is put aside, in a topic for each, before one more attempt. Messages of its key
    do not wait meanwhile."""
    on: tuple[type[Exception], ...] = (Exception,)

    def __post_init__(self) -> None:
        if self.in_place < 1:
            raise ValueError(f"in_place={self.in_place} must be at least 1: the first attempt is one of them")
        if not all(math.isfinite(pause) and pause >= 0 for pause in (self.backoff, self.max_backoff)):
            raise ValueError("backoff and max_backoff are seconds, 0 or more")
        given: tuple[object, object] = self.delays, self.on  # by programs without types, too
        if isinstance(given[0], float | int) or not all(math.isfinite(delay) and delay > 0 for delay in self.delays):
            raise ValueError(f"delays={self.delays!r} must be a tuple of seconds above 0, such as (10, 60)")
        if not isinstance(given[1], tuple) or not all(isinstance(each, type) for each in self.on):
            raise ValueError(f"on={self.on!r} must be types of errors, such as (ConnectionError, TimeoutError)")

    def pause(self, attempts: int) -> float | None:
        """Seconds until the next attempt in place after so many; None where there is none."""
        if attempts >= self.in_place:
            return None
        return float(min(self.backoff * 2.0 ** min(attempts - 1, _MOST_DOUBLINGS), self.max_backoff))

    def delay(self, attempts: int) -> float | None:
        """Seconds to put a message aside after so many attempts; None where it has had all of them."""
        level = attempts - self.in_place
        return self.delays[level] if 0 <= level < len(self.delays) else None


ONCE: Final = Retry(in_place=1)


def delay_topic(topic: str, group: str, delay: float) -> str:
    """Where messages of a topic wait so long for a group."""
    return f"{topic}.{delay_group(group, delay)}"


def delay_group(group: str, delay: float) -> str:
    """The group that reads the topics in which messages of a group wait so long."""
    seconds = str(int(delay)) if delay == int(delay) else repr(float(delay))
    return f"{group}.retry.{seconds}s"


def dead_letter_topic(topic: str, group: str) -> str:
    """Where messages of a topic go that a group has given up."""
    return f"{topic}.{group}{SUFFIX}"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a message was first, and how often it has been tried."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    attempts: int

    @classmethod
    def first(cls, message: Message[object]) -> "Origin":
        """Of a message that was never tried."""
        return cls(message.topic, message.partition, message.offset, int(message.timestamp.timestamp() * 1000), 0)

    @classmethod
    def delayed(cls, message: Message[object]) -> "Origin":
        """Of one in a delay topic, by the headers that `delayed` wrote."""
        topic = message.header(f"{RETRY_PREFIX}topic")
        if topic is None:
            return cls.first(message)
        return cls(topic, *(_number(message, name) for name in ("partition", "offset", "timestamp", "attempts")))

    def headers(self, prefix: str, attempts: int) -> list[tuple[str, bytes | None]]:
        found = {
            "topic": self.topic,
            "partition": self.partition,
            "offset": self.offset,
            "timestamp": self.timestamp_ms,
            "attempts": attempts,
        }
        return [(prefix + name, str(value).encode()) for name, value in found.items()]


def due_ms(message: Message[object]) -> int:
    """When a message of a delay topic is due, in ms since 1970."""
    return _number(message, "due")


def due_seconds(message: Message[object], clock: Callable[[], float] = time.time) -> float:
    """How long a message of a delay topic has to wait yet."""
    return due_ms(message) / 1000 - clock()


def delayed(
    message: Message[object], origin: Origin, attempts: int, group: str, delay: float, now: float
) -> OutgoingRecord:
    """The copy that waits."""
    due = (_DUE, str(int((now + delay) * 1000)).encode())
    headers = [*_own_headers(message), *origin.headers(RETRY_PREFIX, attempts), due]
    return OutgoingRecord(delay_topic(origin.topic, group, delay), message.data, message.key, headers)


def dead_letter(
    message: Message[object], origin: Origin, attempts: int, group: str, topic: str, error: BaseException
) -> OutgoingRecord:
    """The copy among the dead: the whole record, its error, its attempts and its origin."""
    reason = f"{type(error).__name__}: {error}"[:_MOST_REASON]
    why: list[tuple[str, bytes | None]] = [
        (f"{PREFIX}group", group.encode()),
        (f"{PREFIX}reason", reason.encode(errors="replace")),
    ]
    headers = [*_own_headers(message), *origin.headers(PREFIX, attempts), *why]
    return OutgoingRecord(topic, message.data, message.key, headers)


def _own_headers(message: Message[object]) -> list[tuple[str, bytes | None]]:
    """Those that it had when it came first; of an earlier death, which redrive ended, nothing is said."""
    return [each for each in message.headers if not each[0].startswith((RETRY_PREFIX, PREFIX))]


def _number(message: Message[object], name: str) -> int:
    text = message.header(RETRY_PREFIX + name) or ""
    return int(text) if text.isascii() and text.isdecimal() else 0
