"""Arrow columns filled by the kernels, out of what a plan says is to be decoded."""

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from . import _decoding as kernels
from ._batches import BadBatch
from ._compile import Output
from ._memory import address_of, pool_array
from ._plan import Plan
from .model import HEADERS

_STRUCT: Final = HEADERS.value_type
_SMALLEST_HEADER: Final = 2


class Filled:
    """The columns of one plan; raises `BadBatch` when its records are malformed.

    Buffers are as large as the plan's records could make them. What is not written to costs no memory.
    """

    def __init__(self, plan: Plan, start: int, end: int, *, with_headers: bool) -> None:
        self._spans = np.array(plan.spans, np.int64)
        self._cursor = np.zeros(kernels.CURSOR_CELLS, np.int64)
        self._keys = _Binary(plan.rows, plan.size)
        self._values = _Binary(plan.rows, plan.size)
        self._offsets = pool_array(plan.rows, np.int64)
        self._times = pool_array(plan.rows, np.int64)
        self._places = pool_array(2 * plan.rows, np.int64) if with_headers else None
        status = kernels.decode_spans(
            self._spans,
            start,
            end,
            self._cursor,
            self._keys.addresses,
            self._values.addresses,
            address_of(self._offsets),
            address_of(self._times),
            0 if self._places is None else address_of(self._places),
            plan.rows,
        )
        if status != kernels.OK:
            raise _malformed(status, plan.spans[self._count(kernels.FAILED_SPAN)].base_offset)

    def _count(self, cell: int) -> int:
        return int(self._cursor[cell])

    @property
    def rows(self) -> int:
        return self._count(kernels.ROW)

    def keys(self) -> pa.Array:
        return self._keys.array(self.rows, self._count(kernels.NULL_KEYS))

    def values(self) -> pa.Array:
        return self._values.array(self.rows, self._count(kernels.NULL_VALUES))

    def offsets(self) -> pa.Array:
        return _plain_array(pa.int64(), self._offsets, self.rows)

    def times(self) -> pa.Array:
        return _plain_array(pa.timestamp("us", tz="UTC"), self._times, self.rows)

    def append_times(self) -> npt.NDArray[np.bool_]:
        """For each row, or once for all of them alike, whether its time is the log's."""
        kinds: npt.NDArray[np.bool_] = self._spans[:, kernels.IS_APPEND_TIME] != 0
        if kinds.all() or not kinds.any():
            return kinds[:1]
        return np.repeat(kinds, self._spans[:, kernels.ROWS])

    def headers(self) -> pa.Array:
        """The headers of each row; null where there are none, as Spark's own connector shows it."""
        rows, size = self.rows, self._count(kernels.HEADER_BYTES)
        lists, list_bits = _starts(rows), _bits(rows)
        keys, values = (_Binary(size // _SMALLEST_HEADER, size) for _ in range(2))
        assert self._places is not None
        status = kernels.decode_headers(
            address_of(self._places),
            rows,
            self._cursor,
            address_of(lists),
            address_of(list_bits),
            keys.addresses,
            values.addresses,
        )
        if status != kernels.OK:
            raise _malformed(status, int(self._offsets[self._count(kernels.FAILED_ROW)]))
        count, nulls = self._count(kernels.HEADERS), self._count(kernels.NULL_HEADERS)
        pairs = pa.StructArray.from_arrays(
            [
                _text(keys.array(count, 0), is_ascii=self._count(kernels.HEADER_KEY_BITS) < 0x80),
                values.array(count, self._count(kernels.NULL_HEADER_VALUES)),
            ],
            fields=list(_STRUCT),
        )
        bits = _buffer(list_bits, (rows + 7) // 8) if nulls else None
        return pa.Array.from_buffers(HEADERS, rows, [bits, _buffer(lists, rows + 1)], nulls, children=[pairs])


class _Binary:
    """An Arrow array of binary to be filled."""

    def __init__(self, length: int, size: int) -> None:
        self._offsets = _starts(length)
        self._data = pool_array(size, np.uint8)
        self._bits = _bits(length)
        self.addresses = tuple(Output(*map(address_of, (self._offsets, self._data, self._bits))))

    def array(self, length: int, nulls: int) -> pa.Array:
        """What is filled of it."""
        bits = _buffer(self._bits, (length + 7) // 8) if nulls else None
        data = _buffer(self._data, int(self._offsets[length]))
        return pa.Array.from_buffers(pa.binary(), length, [bits, _buffer(self._offsets, length + 1), data], nulls)


def _starts(length: int) -> npt.NDArray[np.int32]:
    offsets = pool_array(length + 1, np.int32)
    offsets[0] = 0
    return offsets


def _bits(length: int) -> npt.NDArray[np.uint8]:
    bits = pool_array((length + 7) // 8, np.uint8)
    bits.fill(0xFF)
    return bits


def _buffer(array: npt.NDArray[Any], length: int) -> pa.Buffer:
    return pa.py_buffer(array).slice(0, length * array.itemsize)


def _plain_array(kind: pa.DataType, array: npt.NDArray[Any], length: int) -> pa.Array:
    return pa.Array.from_buffers(kind, length, [None, _buffer(array, length)], 0)


def _malformed(status: int, offset: int) -> BadBatch:
    return BadBatch(f"a batch is malformed: {kernels.REASONS[status]}", offset)


def _text(keys: pa.Array, *, is_ascii: bool) -> pa.Array:
    """Bytes as text; what is not UTF-8 gets replacement characters, so that one bad header stops no reader."""
    if is_ascii:
        return keys.view(pa.string())
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([key.decode(errors="replace") for key in keys.to_pylist()], pa.string())
