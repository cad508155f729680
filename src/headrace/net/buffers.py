"""Memory for large frames: taken once, used again, never under somebody who still reads it."""

import mmap
from typing import Final

LARGEST_KEPT: Final = 16 << 20
_MOST_KEPT: Final = 3
"""One that fills, one that is worked on, one to spare."""
_STEP: Final = 256 << 10


class Buffers:
    """Hands out memory, and takes it back by itself once no view into it is left.

    A bytearray cannot be resized while a view into it lives, and says so: that is how a free one is told. Memory
    above `LARGEST_KEPT` comes fresh from the system each time and goes back there. Asking for it fresh is what costs:
    a new bytearray is zeroed, at a third of the speed at which the network fills it.
    """

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: list[bytearray] = []

    @property
    def kept_bytes(self) -> int:
        return sum(map(len, self._kept))

    def take(self, size: int) -> memoryview:
        """That many bytes, with anything in them; valid for as long as the view, or one made of it, is kept."""
        if size > LARGEST_KEPT:
            return memoryview(mmap.mmap(-1, size))
        free = [buffer for buffer in self._kept if _is_free(buffer)]
        fitting = next((buffer for buffer in free if len(buffer) >= size), None)
        if fitting is None:
            fitting = self._grow(free, -(-size // _STEP) * _STEP)
        return memoryview(fitting)[:size]

    def rest(self) -> None:
        """Give back what is free."""
        self._kept = [buffer for buffer in self._kept if not _is_free(buffer)]

    def _grow(self, free: list[bytearray], size: int) -> bytearray:
        """A new one in the place of one that is free and too small, or of the oldest."""
        fresh = bytearray(size)
        replaced = free[0] if free else self._kept[0] if len(self._kept) == _MOST_KEPT else None
        self._kept = [buffer for buffer in self._kept if buffer is not replaced]
        self._kept.append(fresh)
        return fresh


def _is_free(buffer: bytearray) -> bool:
    try:
        buffer.append(buffer.pop())
    except BufferError:
        return False
    return True
