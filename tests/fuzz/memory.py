"""Memory for what a loop reads and writes, whose ends are watched."""

import ctypes
import mmap
from collections import defaultdict
from random import Random
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace.formats.payload import Payload, payload_of
from headrace.kernels import bounds, native

_PAGE: Final = mmap.PAGESIZE


class Memory:
    """Arrays of exactly the size that is asked for. In the checked build they are what loops may touch; in the native
    one each lies right before, or right behind, a page that may not be touched. They are good until `clear`.
    """

    def __init__(self) -> None:
        self._free: defaultdict[int, list[Any]] = defaultdict(list)
        self._used: list[tuple[int, Any]] = []
        self._kept: list[Any] = []
        self.random = Random(0)

    def clear(self, random: Random) -> None:
        """Take all memory back, and choose by this where the next lies."""
        for pages, memory in self._used:
            self._free[pages].append(memory)
        self._used.clear()
        self._kept.clear()
        bounds.allow_nothing()
        self.random = random

    def array(self, length: int, kind: Any) -> Any:
        """As `pool_array` of the columnar client."""
        kind = np.dtype(kind)
        size = max(length, 1) * kind.itemsize
        if bounds.CHECKED:
            made = np.empty(size, np.uint8)
            bounds.allow(made.ctypes.data, size)
            self._kept.append(made)
        else:
            pages = 1 << ((size - 1) // _PAGE).bit_length()
            memory = self._guarded(pages)
            start = _PAGE if self.random.getrandbits(2) == 0 else (pages + 1) * _PAGE - size
            made = memory[start : start + size]
        return made.view(kind)

    def _guarded(self, pages: int) -> Any:
        memory = self._free[pages].pop() if self._free[pages] else _between_guards(pages)
        self._used.append((pages, memory))
        return memory

    def holding(self, data: bytes) -> Any:
        """An array of these bytes, of one zero where there are none."""
        made = self.array(len(data), np.uint8)
        made[:] = np.frombuffer(data or b"\0", np.uint8)
        return made

    def payload(self, rows: list[bytes | None]) -> Payload:
        """What codecs of formats take, its bytes lying here."""
        payload = payload_of(pa.array(rows, pa.binary()))
        data = self.holding(b"".join(row for row in rows if row is not None))
        data.setflags(write=False)
        return payload._replace(data=data)


def _between_guards(pages: int) -> Any:
    memory = mmap.mmap(-1, (pages + 2) * _PAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for guard in (address, address + (pages + 1) * _PAGE):
        if error := native.protect(guard, _PAGE, 0):
            raise OSError(error, "mprotect")
    return np.frombuffer(memory, np.uint8)


MEMORY: Final = Memory()
