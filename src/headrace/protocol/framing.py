"""Frames out of a stream of bytes, with one buffer that is used again and again.

A frame is a length (i32) and that many bytes. The buffer starts small, grows only as bytes really arrive (a length
alone takes no memory, a silent connection next to none), and is given back once a connection has gone quiet.

A large frame has a place of its own, mapped as large as it will be: the system gives memory for it page by page, as
bytes come. So it grows without being copied, which for 64 MiB would hold up everybody else for 30 ms. To give
100 MiB back takes 6 ms, so that is done in turns (`BufferMemory.unmap`). Huge pages would be filled and given back in a
tenth of the time, but each at once: in a virtual machine whose host has to find the memory first, one takes 4 ms.
"""

import mmap
from struct import Struct
from typing import Final, Protocol

from .errors import ProtocolViolation

RESTING_SIZE: Final = 4 * 1024
"""Bytes a connection's buffer has when little comes in."""
WORKING_SIZE: Final = 512 * 1024
"""Bytes it grows to while small requests come in faster than they are read."""

_MAPPED_FROM: Final = 1 << 20
_MOST_READ: Final = 128 * 1024
"""Bytes of a large frame that are received in one go."""
_MOST_NEW: Final = 32 * 1024
"""The same where the place is new: the system clears it page by page, which takes five times as long as to receive."""
_LENGTH: Final = Struct(">i")


class BufferMemory(Protocol):
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

    def unmap(self, place: mmap.mmap) -> None:
        """Let the system have a place of its own again, without holding up everybody for all of it."""
        ...


class Inbox:
    """Receives bytes, hands out frames.

    Use: `received(sock.recv_into(inbox.space()))`, then `next_frame()` until it returns None. A frame is a view
    into the buffer; it is valid until the next call of `space()`.
    """

    __slots__ = ("_buffer", "_end", "_filled", "_limit", "_memory", "_start", "_view", "capacity")

    def __init__(self, limit: int, memory: BufferMemory | None = None) -> None:
        self._limit = limit
        self._memory = memory
        self.capacity = RESTING_SIZE
        """Bytes that may be in it at one time."""
        self._buffer: bytearray | mmap.mmap = bytearray()
        self._filled = 0
        """Up to where the buffer has had bytes before."""
        self._use(bytearray(RESTING_SIZE), RESTING_SIZE)
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

    def space(self) -> memoryview:
        """Where the next bytes go; empty only where a frame needs a larger buffer than there is memory for."""
        start, end, capacity = self._start, self._end, self.capacity
        if start == end and capacity > RESTING_SIZE and self._memory is not None and self._memory.is_short:
            self.rest()
        elif end == capacity < WORKING_SIZE and self._grow(min(2 * capacity, WORKING_SIZE)):
            pass
        elif start == end:
            self._start = self._end = 0
        elif end - start >= 4:
            self._make_room(4 + self._frame_length())
        elif capacity - start < 4:
            self._move_to_front()
        end, capacity = self._end, self.capacity
        if capacity <= WORKING_SIZE:
            return self._view[end:capacity]
        self._filled = max(self._filled, end)
        most = _MOST_READ if end + _MOST_READ <= self._filled else _MOST_NEW
        return self._view[end : min(capacity, end + most)]

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
        capacity = self.capacity
        if self._start == self._end and capacity > RESTING_SIZE:
            self._use(bytearray(RESTING_SIZE), RESTING_SIZE)
            self._start = self._end = 0
            if self._memory is not None:
                self._memory.give(capacity - RESTING_SIZE)

    def close(self) -> None:
        """Let go of everything: nothing more comes, and whoever gave the memory has been told.

        That one knows who it gave it to, and is forgotten: connections that left cycles behind would be collected by
        the thousand, while everybody waits.
        """
        self._start = self._end = 0
        if self.capacity > RESTING_SIZE:
            self._use(bytearray(RESTING_SIZE), RESTING_SIZE)
        self._memory = None

    def _frame_length(self) -> int:
        length: int = _LENGTH.unpack_from(self._buffer, self._start)[0]
        if length <= 0 or length > self._limit:
            raise ProtocolViolation(f"a frame of {length} bytes; from 1 to {self._limit} are let in")
        return length

    def _make_room(self, size: int) -> None:
        """Room for the rest of a frame, and for much more than that where moving what is there costs little."""
        capacity, held = self.capacity, self._end - self._start
        if self._start + size <= capacity and 2 * self._end < capacity:
            return
        if size <= capacity:
            self._move_to_front()
            return
        if size > max(len(self._buffer), _MAPPED_FROM) and 2 * held >= min(capacity, WORKING_SIZE):
            self._map(size)
        if 2 * held < capacity or not self._grow(min(size, 2 * capacity), size):
            self._move_to_front()

    @property
    def memory_needed(self) -> tuple[int, int]:
        """How much larger the buffer has to become next for the frame that has come in part, and that one's size."""
        frame = 4 + self._frame_length()
        return min(frame, 2 * self.capacity) - self.capacity, frame

    def _grow(self, capacity: int, frame: int = 0) -> bool:
        """Larger for a frame that needs it, or just in case."""
        more = capacity - self.capacity
        if self._memory is not None and not self._memory.take(more, frame, is_needed=frame > 0):
            return False
        if self._start == 0 and capacity <= len(self._buffer):
            self.capacity = capacity
        else:
            self._move_to(bytearray(capacity), capacity)
        return True

    def _map(self, size: int) -> None:
        """Move what has come of a large frame to where all of it has room, which takes no memory yet."""
        try:
            place = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError:  # address space is limited: it grows by copying
            return
        self._move_to(place, self.capacity)

    def _move_to(self, buffer: bytearray | mmap.mmap, capacity: int) -> None:
        held = self._end - self._start
        view = memoryview(buffer)
        view[:held] = self._view[self._start : self._end]
        self._use(buffer, capacity)
        self._start, self._end = 0, held

    def _move_to_front(self) -> None:
        if self._start:
            held = self._end - self._start
            self._view[:held] = self._view[self._start : self._end]
            self._start, self._end = 0, held

    def _use(self, buffer: bytearray | mmap.mmap, capacity: int) -> None:
        before = self._buffer
        self._buffer = buffer
        self._view = memoryview(buffer)
        self._filled = 0
        self.capacity = capacity
        if self._memory is not None and isinstance(before, mmap.mmap):
            self._memory.unmap(before)
