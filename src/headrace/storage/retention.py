"""Which segments have served their time. Decided purely; `Log.retain` acts."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from .settings import LogSettings


class Cause(StrEnum):
    """Why a segment goes, as the broker's log says."""

    SIZE = "retention.bytes"
    TIME = "retention.ms"
    LOG_START = "log start offset moved by DeleteRecords or by the leader"


class Aged(Protocol):
    """What retention wants to know of a segment; its age is asked for only when its size does not decide."""

    @property
    def base_offset(self) -> int: ...

    @property
    def next_offset(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def age_timestamp(self) -> int: ...


def expired(
    segments: Sequence[Aged], settings: LogSettings, *, now_ms: int, log_start_offset: int, high_watermark: int
) -> list[Cause]:
    """Why each of the oldest segments may go, as many as may: by `retention.ms`, `retention.bytes` or because they lie
    before the log's start; never one that reaches beyond the high watermark."""
    excess = _excess(segments, settings)
    oldest_kept = now_ms - settings.retention_ms if settings.deletes and settings.retention_ms >= 0 else None
    causes: list[Cause] = []
    for count, segment in enumerate(segments, 1):
        if segment.next_offset > high_watermark:
            break
        if not segment.size:
            # Emptied by compaction, and then ends where it begins: it goes with the next that has records, or once the
            # log starts behind it, never before: the log's start must not move with it. The active one stays.
            if count < len(segments) and segments[count].base_offset <= log_start_offset:
                causes += [Cause.LOG_START] * (count - len(causes))
            continue
        excess -= segment.size
        if excess >= 0:
            cause = Cause.SIZE
        elif segment.next_offset <= log_start_offset:
            cause = Cause.LOG_START
        elif oldest_kept is not None and segment.age_timestamp < oldest_kept:
            cause = Cause.TIME
        else:
            break
        causes += [cause] * (count - len(causes))
    return causes


def _excess(segments: Sequence[Aged], settings: LogSettings) -> int:
    if not settings.deletes or settings.retention_bytes < 0:
        return -1
    return sum(segment.size for segment in segments) - settings.retention_bytes
