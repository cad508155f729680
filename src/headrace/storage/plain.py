"""Passing over batches of a segment that are plain, many at once, with compiled code: see `kernels.heads`.

Where there is no compiled code, each batch is looked at in Python. What is learned is the same.
"""

from array import array
from typing import Final

from headrace.kernels import heads
from headrace.kernels.native import Function

from .index import TimeEntry
from .segment import Segment

_UNSIGNED: Final = 0xFFFFFFFF
_NEW_STATE: Final = array("q", bytes(8 * heads.STATE_SIZE))
_compiled: Function | None = None


def use_compiled(function: Function | None) -> None:
    """Pass over plain batches with machine code from now on; with None look at each in Python."""
    global _compiled
    if function is not None and not _NEW_STATE[heads.TABLES + 1]:
        _NEW_STATE[heads.TABLES :] = array("q", heads.crc_tables())
    _compiled = function


def can_pass_over() -> bool:
    return _compiled is not None


class PlainBatches:
    """Lets a segment note the plain batches of its file, block by block."""

    def __init__(self, segment: Segment, *, checked_from: int, producers_from: int) -> None:
        """Those that reach `checked_from` must match their CRC, and from there on be of one leader epoch.

        `producers_from` is where batches begin whose producers are of interest.
        """
        assert _compiled is not None
        self._segment = segment
        self._walk = _compiled
        state = self._state = _NEW_STATE[:]
        self._address, _ = state.buffer_info()
        state[heads.BASE_OFFSET] = segment.base_offset
        state[heads.INTERVAL] = segment.interval
        state[heads.CHECKED_FROM] = state[heads.EPOCH_FROM] = checked_from
        state[heads.PRODUCERS_FROM] = producers_from

    def pass_over(self, block: bytes, at: int, leader_epoch: int | None) -> list[int]:
        """Note the plain batches of a block from where one begins, which is the segment's end as far as it is known.

        Where in the block those begin that have a producer.
        """
        state, segment = self._state, self._segment
        state[heads.AT] = at
        state[heads.SIZE] = len(block)
        state[heads.ORIGIN] = segment.size - at
        state[heads.NEXT_OFFSET] = segment.next_offset
        state[heads.EPOCH] = -1 if leader_epoch is None else leader_epoch & _UNSIGNED
        state[heads.SINCE_INDEX] = segment.since_index
        state[heads.NEWEST] = segment.max_timestamp
        state[heads.NEWEST_OFFSET] = segment.max_timestamp_offset
        state[heads.LAST_TIME] = segment.times.last_timestamp
        if not self._walk(block, self._address):
            return []
        self._note(state[heads.AT] - at)
        return self._column(heads.PRODUCED_AT, state[heads.PRODUCED])

    def _note(self, size: int) -> None:
        state, segment = self._state, self._segment
        entries, times = state[heads.ENTRIES], state[heads.TIMES]
        segment.index.extend(self._column(heads.ENTRY_OFFSETS, entries), self._column(heads.ENTRY_POSITIONS, entries))
        segment.times.extend(self._column(heads.TIME_STAMPS, times), self._column(heads.TIME_OFFSETS, times))
        segment.note_indexed(
            size,
            next_offset=state[heads.NEXT_OFFSET],
            since_index=state[heads.SINCE_INDEX],
            latest=TimeEntry(state[heads.NEWEST], state[heads.NEWEST_OFFSET]),
        )

    def _column(self, start: int, count: int) -> list[int]:
        return self._state[start : start + count].tolist()
