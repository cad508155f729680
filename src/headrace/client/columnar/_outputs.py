"""Arrow arrays that kernels fill: as long as they could become at first, cut to what they hold at last."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ._layout import Output
from ._memory import address_of, pool_array


class BinaryOutput:
    """An array of binary or strings with room for so many elements and bytes."""

    def __init__(self, length: int, size: int) -> None:
        self._offsets = starts(length)
        self._data = pool_array(size, np.uint8)
        self._bits = full_bits(length)
        self.addresses = tuple(Output(*map(address_of, (self._offsets, self._data, self._bits))))

    def array(self, length: int, nulls: int, kind: pa.DataType) -> pa.Array:
        """Its first elements, so many of them null."""
        bits = buffer_of(self._bits, (length + 7) // 8) if nulls else None
        data = buffer_of(self._data, int(self._offsets[length]))
        return pa.Array.from_buffers(kind, length, [bits, buffer_of(self._offsets, length + 1), data], nulls)


def starts(length: int) -> npt.NDArray[np.int32]:
    """Offsets of so many elements, the first of them written."""
    offsets = pool_array(length + 1, np.int32)
    offsets[0] = 0
    return offsets


def full_bits(length: int) -> npt.NDArray[np.uint8]:
    """A validity bitmap that says that nothing is null."""
    bits = pool_array((length + 7) // 8, np.uint8)
    bits.fill(0xFF)
    return bits


def buffer_of(array: npt.NDArray[Any], length: int) -> pa.Buffer:
    """The first elements of an array; copied when they are the lesser part, so that little does not hold much."""
    if 2 * length < len(array):
        lesser = pool_array(length, array.dtype)
        lesser[:length] = array[:length]
        array = lesser
    return pa.py_buffer(array).slice(0, length * array.itemsize)


def plain_array(kind: pa.DataType, array: npt.NDArray[Any], length: int) -> pa.Array:
    """The first elements of an array, none of them null."""
    return pa.Array.from_buffers(kind, length, [None, buffer_of(array, length)], 0)
