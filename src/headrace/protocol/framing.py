"""Frames out of a stream of bytes, with one buffer that is used again and again.

A frame is a length (i32) and that many bytes. The buffer starts small, grows only as bytes really arrive (a length
alone takes no memory, a silent connection next to none), and is given back once a connection has gone quiet.
"""

from struct import Struct
from typing import Final, Protocol

from .errors import ProtocolViolation

RESTING_SIZE: Final = 4 * 1024
"""Bytes a connection's buffer has when little comes in."""
WORKING_SIZE: Final = 512 * 1024
"""Bytes it grows to while small requests come in faster than they are read."""

_LENGTH: Final = Struct(">i")


class Memory(Protocol):
    """Who says whether there is memory for a larger buffer."""

    @property
    def is_short(self) -> bool:
        """Whether buffers are wanted back as soon as nothing is in them."""
        ...

    def take(self, more: int, frame: int, *, is_needed: bool) -> bool:
        """Whether a buffer may get so much larger for a frame of that size; only for speed where it is not needed."""
        ...

    def give(self, size: int) -> None:
        """It has become so much smaller."""
        ...


class Inbox:
    """Receives bytes, hands out frames.

    Use: `received(sock.recv_into(inbox.space()))`, then `next_frame()` until it returns None. A frame is a view
    into the buffer; it is valid until the next call of `space()`.
    """

    __slots__ = ("_buffer", "_end", "_limit", "_memory", "_start", "_view")

    def __init__(self, limit: int, memory: Memory | None = None) -> None:
        self._limit = limit
        self._memory = memory
        self._use(bytearray(RESTING_SIZE))
        self._start = 0
        self._end = 0

    @property
    def limit(self) -> int:
        """The largest frame that is let in."""
        return self._limit

    @limit.setter
    def limit(self, limit: int) -> None:
        self._limit = limit

    @property
    def is_empty(self) -> bool:
        return self._start == self._end

    @property
    def held(self) -> int:
        """Bytes that were received and not handed out."""
        return self._end - self._start

    @property
    def capacity(self) -> int:
        return len(self._buffer)

    def space(self) -> memoryview:
        """Where the next bytes go; empty only where a frame needs a larger buffer than there is memory for."""
        start, end = self._start, self._end
        capacity = len(self._buffer)
        if start == end and capacity > RESTING_SIZE and self._memory is not None and self._memory.is_short:
            self.rest()
        elif end == capacity < WORKING_SIZE and self._grow(min(2 * capacity, WORKING_SIZE)):
            pass
        elif start == end:
            self._start = self._end = 0
        elif end - start >= 4:
            self._make_room(4 + self._frame_length())
        elif len(self._buffer) - start < 4:
            self._move_to_front()
        return self._view[self._end :]

    def received(self, count: int) -> None:
        self._end += count

    def next_frame(self) -> memoryview | None:
        """The next whole frame without its length, or None until more bytes are received."""
        start = self._start
        body = start + 4
        if body > self._end:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer, start)
        if not 0 < length <= self._limit:
            self._frame_length()
        after = body + length
        if after > self._end:
            return None
        self._start = after
        return self._view[body:after]

    def rest(self) -> None:
        """Give a grown buffer back, if nothing is in it."""
        capacity = len(self._buffer)
        if self._start == self._end and capacity > RESTING_SIZE:
            self._use(bytearray(RESTING_SIZE))
            self._start = self._end = 0
            if self._memory is not None:
                self._memory.give(capacity - RESTING_SIZE)

    def _frame_length(self) -> int:
        length: int = _LENGTH.unpack_from(self._buffer, self._start)[0]
        if length <= 0 or length > self._limit:
            raise ProtocolViolation(f"a frame of {length} bytes; from 1 to {self._limit} are let in")
        return length

    def _make_room(self, wanted: int) -> None:
        """Room for the rest of a frame, and for much more than that where moving what is there costs little."""
        capacity = len(self._buffer)
        if self._start + wanted <= capacity and 2 * self._end < capacity:
            return
        if wanted <= capacity:
            self._move_to_front()
            return
        if 2 * (self._end - self._start) < capacity or not self._grow(min(wanted, 2 * capacity), wanted):
            self._move_to_front()

    @property
    def wanted(self) -> tuple[int, int]:
        """How much larger the buffer has to become next for the frame that has come in part, and that one's size."""
        frame = 4 + self._frame_length()
        return min(frame, 2 * len(self._buffer)) - len(self._buffer), frame

    def _grow(self, capacity: int, frame: int = 0) -> bool:
        """Larger for a frame that needs it, or just in case."""
        more = capacity - len(self._buffer)
        if self._memory is not None and not self._memory.take(more, frame, is_needed=frame > 0):
            return False
        held = self._end - self._start
        grown = bytearray(capacity)
        grown[:held] = self._view[self._start : self._end]
        self._use(grown)
        self._start, self._end = 0, held
        return True

    def _move_to_front(self) -> None:
        if self._start:
            held = self._end - self._start
            self._view[:held] = self._view[self._start : self._end]
            self._start, self._end = 0, held

    def _use(self, buffer: bytearray) -> None:
        self._buffer = buffer
        self._view = memoryview(buffer)
