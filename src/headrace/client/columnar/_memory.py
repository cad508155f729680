"""Memory for the kernels, out of Arrow's own pool.

The pool keeps its pages from one use to the next. Fresh pages of the system cost more than all that is done with them.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_BLOCK: Final = 4 << 20


def pool_array(length: int, kind: Any) -> npt.NDArray[Any]:
    """An array with any content. What is not written to takes no memory, however long it is."""
    kind = np.dtype(kind)
    return np.frombuffer(pa.allocate_buffer(max(length, 1) * kind.itemsize), kind)


def address_of(data: Any) -> int:
    """Where the bytes of an array, or of anything with a buffer, are; good for as long as they are kept."""
    return int(pa.py_buffer(data).address)


class Arena:
    """Room for many pieces whose sizes show only once they are written.

    It comes in blocks, none larger than `most` unless more is asked for; one piece keeps its whole block alive.
    """

    def __init__(self, most: int = _BLOCK) -> None:
        self._block_size = min(_BLOCK, most)
        self._block = pool_array(self._block_size, np.uint8).data
        self._used = 0

    def room(self, size: int) -> memoryview:
        """Free memory of at least that size; it stays free until it is taken."""
        if len(self._block) - self._used < size:
            self._block = pool_array(max(size, self._block_size), np.uint8).data
            self._used = 0
        return self._block[self._used :]

    def take(self, size: int) -> memoryview:
        """The first bytes of what `room` gave."""
        taken = self._block[self._used : self._used + size]
        self._used += size
        return taken
