"""Where a read starts and where it ends: `beginning`, `end`, an offset, or a time, made into offsets."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Final

from headrace.client.admin import Admin

from .console import bad_input
from .options import time_ms

_SMALLEST_TIME: Final = 10**12
"""A plain number of at least this is milliseconds since 1970 (2001 and later); a smaller one is an offset."""


class PositionKind(Enum):
    BEGINNING = "beginning"
    END = "end"
    OFFSET = "offset"
    LAST = "last"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Position:
    kind: PositionKind
    value: int = 0


BEGINNING: Final = Position(PositionKind.BEGINNING)
END: Final = Position(PositionKind.END)


def parse_position(text: str, option: str, now_ms: int) -> Position:
    """What the user wrote, as a position."""
    if text in ("beginning", "start", "earliest"):
        return BEGINNING
    if text in ("end", "latest"):
        return END
    if text.startswith("time:"):
        return Position(PositionKind.TIME, time_ms(text.removeprefix("time:"), option, now_ms))
    digits = text.removeprefix("offset:")
    if _is_number(digits) and (digits != text or int(digits) < _SMALLEST_TIME):
        return Position(PositionKind.OFFSET, int(digits))
    if text.startswith("-") and _is_number(text[1:]):
        return Position(PositionKind.LAST, int(text[1:]))
    return Position(PositionKind.TIME, _time_or_complain(text, option, now_ms))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _time_or_complain(text: str, option: str, now_ms: int) -> int:
    try:
        return time_ms(text, option, now_ms)
    except Exception as error:
        raise bad_input(
            f"{option} '{text}' is not a position; write beginning, end, an offset (42), the last N of each partition"
            " (-10), a time (2026-01-31T12:00, milliseconds since 1970), or a time ago (-10m)"
        ) from error


def client_bound(text: str, option: str) -> str | int | datetime:
    """What the user wrote, as the columnar client has it; nothing that counts from the end."""
    position = parse_position(text, option, int(time.time() * 1000))
    match position.kind:
        case PositionKind.BEGINNING:
            return "earliest"
        case PositionKind.END:
            return "latest"
        case PositionKind.OFFSET:
            return position.value
        case PositionKind.TIME:
            return datetime.fromtimestamp(position.value / 1000, UTC)
        case PositionKind.LAST:
            raise bad_input(f"{option} '{text}' counts from the end; write earliest, latest, an offset or a time")


def resolve(
    admin: Admin, topic: str, partitions: Iterable[int], position: Position, committed_only: bool
) -> dict[int, int]:
    """The offset of a position in each partition, between its first offset and its end."""
    partitions = list(partitions)
    starts = admin.start_offsets(topic, partitions)
    if position.kind is PositionKind.BEGINNING:
        return starts
    ends = admin.end_offsets(topic, partitions, committed_only)
    if position.kind is PositionKind.END:
        return ends
    if position.kind is PositionKind.TIME:
        found = admin.offsets_at_time(topic, partitions, position.value)
        return {p: ends[p] if found[p] < 0 else min(found[p], ends[p]) for p in partitions}
    wanted = {
        p: position.value if position.kind is PositionKind.OFFSET else ends[p] - position.value for p in partitions
    }
    return {p: max(starts[p], min(wanted[p], ends[p])) for p in partitions}
