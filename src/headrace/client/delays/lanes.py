"""Which lane a message waits in, when it leaves, and what its headers say. Times are ms since 1970."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from math import ceil, isfinite
from typing import Final

from headrace.protocol.delayed import DELAYED, LONGEST_TOPIC, delayed_topic, target_of

from ..errors import ClientError

PREFIX: Final = "headrace.delayed."
DUE: Final = f"{PREFIX}due"
"""When a message is to be delivered."""
PARTITION: Final = f"{PREFIX}partition"
"""The partition of its target that it asks for; without it the key decides."""
CLOCK: Final = f"{PREFIX}clock"
"""Marks a record that the mover wrote to learn a broker's time."""

_SHORTEST_MS: Final = 125
HOLDS_MS: Final[tuple[int, ...]] = tuple(_SHORTEST_MS * 2**lane for lane in range(28))
"""How long each lane holds its messages; its number is the partition's."""
LANES: Final = len(HOLDS_MS)
_SLACK: Final = 8
"""A lane may be looked at this part of its time late: a message is put where it has as much to spare."""
MOST_MS: Final = 3653 * 86_400_000
"""The furthest that a message can be put off: ten years."""
TOPIC_SETTINGS: Final = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "message.timestamp.type": "LogAppendTime",
    "segment.bytes": str(16 << 20),
}
"""Of a topic of lanes: what has been moved is deleted by the mover, nothing else ever is."""

_HEADERS_BYTES: Final = 1024
_MOST_BYTES: Final = 2**31 - 1


def lanes_settings(max_message_bytes: str | None) -> dict[str, str]:
    """Of the lanes of a topic that takes messages so large, where that is a setting of its own: theirs have headers of
    ours, too."""
    if not (max_message_bytes or "").isdecimal():
        return dict(TOPIC_SETTINGS)
    most = min(int(max_message_bytes or 0) + _HEADERS_BYTES, _MOST_BYTES)
    return {**TOPIC_SETTINGS, "max.message.bytes": str(most)}


Delay = float | timedelta
"""Seconds, or a span of time."""
HeaderPairs = list[tuple[str, bytes | None]]


def due_time(deliver_after: Delay | None, deliver_at: datetime | None, now_ms: int) -> int | None:
    """When a message is due that is sent so; None for now."""
    if deliver_after is not None and deliver_at is not None:
        raise ClientError("deliver_after and deliver_at exclude each other; give one", "_INVALID_ARG")
    if deliver_at is not None:
        if deliver_at.tzinfo is None:
            raise ClientError(
                f"deliver_at={deliver_at!r} has no time zone: give datetime.now(UTC) + ..., or .astimezone()",
                "_INVALID_ARG",
            )
        return checked_due(ceil(deliver_at.timestamp() * 1000), now_ms)
    if deliver_after is None:
        return None
    seconds = deliver_after.total_seconds() if isinstance(deliver_after, timedelta) else deliver_after
    if not isfinite(seconds):
        raise ClientError(f"deliver_after={deliver_after} must be a number of seconds", "_INVALID_ARG")
    return checked_due(now_ms + seconds * 1000 + 0.5, now_ms)


def checked_due(due_ms: float, now_ms: int) -> int:
    """A time that messages can be put off to."""
    if due_ms - now_ms > MOST_MS:
        raise ClientError("a message can be put off by ten years at the most", "_INVALID_ARG")
    return int(due_ms)


def lanes_topic(topic: str) -> str:
    """Where the messages of a topic wait; refused where they cannot."""
    if target_of(topic) is not None:
        raise ClientError(
            f"'{topic}' is where messages of '{target_of(topic)}' wait; delay them by naming that", "TOPIC_EXCEPTION"
        )
    name = delayed_topic(topic)
    if target_of(name) is None:
        raise ClientError(f"messages for '{topic}', which is internal, are not delayed", "TOPIC_EXCEPTION")
    if len(name) > LONGEST_TOPIC:
        raise ClientError(
            f"the name '{topic}' is too long for delays: with '{DELAYED}' it has more than {LONGEST_TOPIC} characters",
            "TOPIC_EXCEPTION",
        )
    return name


def lane_for(remaining_ms: int) -> int:
    """The lane for a message that is due in so long."""
    longest = max(remaining_ms, 0) * _SLACK // ((_SLACK + 1) * _SHORTEST_MS)
    return min(max(int.bit_length(longest) - 1, 0), LANES - 1)


def leaves_at(lane: int, since_ms: int, due_ms: int) -> int:
    """When a message leaves its lane, in which it has been since then."""
    return min(due_ms, since_ms + HOLDS_MS[min(lane, LANES - 1)])


def patience_ms(lane: int) -> int:
    """How much later than that is soon enough: what leaves meanwhile is taken together."""
    return HOLDS_MS[lane] // _SLACK if 0 < lane < LANES else 0


def with_delay(headers: Sequence[tuple[str, bytes | None]], due_ms: int, partition: int = -1) -> HeaderPairs:
    """The headers of a message that waits."""
    found = [*own_headers(headers), (DUE, str(due_ms).encode())]
    return [*found, (PARTITION, str(partition).encode())] if partition >= 0 else found


def own_headers(headers: Sequence[tuple[str, bytes | None]]) -> HeaderPairs:
    """Those that it has when it arrives."""
    return [each for each in headers if not each[0].startswith(PREFIX)]


def due_of(headers: Sequence[tuple[str, bytes | None]]) -> int:
    """When a message is due. One that does not say when is due now: nobody has asked for more."""
    found = _number(headers, DUE)
    return 0 if found is None else found


def partition_of(headers: Sequence[tuple[str, bytes | None]]) -> int:
    """The partition that it asks for; -1 for the one of its key."""
    found = _number(headers, PARTITION)
    return -1 if found is None or found >= 2**31 else found


def _number(headers: Sequence[tuple[str, bytes | None]], name: str) -> int | None:
    for found, data in reversed(headers):
        if found == name:
            text = data or b""
            return int(text) if text.isdigit() and len(text) < 19 else None
    return None
