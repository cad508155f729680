"""Arrow columns filled by the kernels, out of what a plan says is to be decoded."""

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from . import _decode_kernels as kernels
from ._batches import BadBatch
from ._compile import Binary
from ._plan import Plan
from .model import HEADERS

_STRUCT: Final = HEADERS.value_type
_SMALLEST_HEADER: Final = 2


class Filled:
    """The columns of one plan; raises `BadBatch` when its records are malformed.

    Buffers are as large as the plan's records could make them. What is not written to costs no memory.
    """

    def __init__(self, plan: Plan, start: int, end: int, *, with_headers: bool) -> None:
        self._plan = plan
        self._sources = [np.frombuffer(source.data.toreadonly(), np.uint8) for source in plan.sources]
        self._tables = [np.array(source.spans, np.int64) for source in plan.sources]
        self._cursor = np.zeros(kernels.CURSOR_CELLS, np.int64)
        self._keys = _binary(plan.rows, plan.size)
        self._values = _binary(plan.rows, plan.size)
        self._offsets = _array(plan.rows, np.int64)
        self._times = _array(plan.rows, np.int64)
        self._places = np.empty((plan.rows if with_headers else 0, 2), np.int64)
        for number in range(len(self._sources)):
            self._decode(number, start, end)

    def _decode(self, number: int, start: int, end: int) -> None:
        status = kernels.decode_spans(
            self._sources[number],
            self._tables[number],
            start,
            end,
            self._cursor,
            self._keys,
            self._values,
            self._offsets,
            self._times,
            self._places,
        )
        if status != kernels.OK:
            failed = self._plan.sources[number].spans[int(self._cursor[kernels.FAILED_SPAN])]
            raise BadBatch(f"a batch is malformed: {kernels.REASONS[status]}", failed.base_offset)

    def _count(self, cell: int) -> int:
        return int(self._cursor[cell])

    @property
    def rows(self) -> int:
        return self._count(kernels.ROW)

    def keys(self) -> pa.Array:
        return _binary_array(self._keys, self.rows, self._count(kernels.NULL_KEYS))

    def values(self) -> pa.Array:
        return _binary_array(self._values, self.rows, self._count(kernels.NULL_VALUES))

    def offsets(self) -> pa.Array:
        return _plain_array(pa.int64(), self._offsets, self.rows)

    def times(self) -> pa.Array:
        return _plain_array(pa.timestamp("us", tz="UTC"), self._times, self.rows)

    def append_times(self) -> npt.NDArray[np.bool_]:
        """For each row, or once for all of them alike, whether its time is the log's."""
        table = np.concatenate(self._tables)
        kinds: npt.NDArray[np.bool_] = table[:, kernels.IS_APPEND_TIME] != 0
        if kinds.all() or not kinds.any():
            return kinds[:1]
        return np.repeat(kinds, table[:, kernels.ROWS])

    def headers(self) -> pa.Array:
        """The headers of each row; null where there are none, as Spark's own connector shows it."""
        rows, size = self.rows, self._count(kernels.HEADER_BYTES)
        lists, list_bits = _array(rows + 1, np.int32), _bits(rows)
        lists[0] = 0
        keys, values = (_binary(size // _SMALLEST_HEADER, size) for _ in range(2))
        first = 0
        for number, source in enumerate(self._sources):
            last = first + int(self._tables[number][:, kernels.ROWS].sum())
            status = kernels.decode_headers(
                source, self._places, first, last, self._cursor, lists, list_bits, keys, values
            )
            if status != kernels.OK:
                raise BadBatch(
                    f"a batch is malformed: {kernels.REASONS[status]}", self._plan.sources[number].spans[0].base_offset
                )
            first = last
        count, nulls = self._count(kernels.HEADER), self._count(kernels.NULL_HEADERS)
        pairs = pa.StructArray.from_arrays(
            [
                _text(_binary_array(keys, count, 0), is_ascii=self._count(kernels.HEADER_KEY_BITS) < 0x80),
                _binary_array(values, count, self._count(kernels.NULL_HEADER_VALUES)),
            ],
            fields=list(_STRUCT),
        )
        return pa.Array.from_buffers(
            HEADERS, rows, [_buffer(list_bits) if nulls else None, _buffer(lists)], nulls, children=[pairs]
        )


def _array(length: int, kind: Any) -> npt.NDArray[Any]:
    """Memory of Arrow's own pool, which keeps its pages from one fetch to the next."""
    kind = np.dtype(kind)
    return np.frombuffer(pa.allocate_buffer(max(length, 1) * kind.itemsize), kind)


def _bits(length: int) -> npt.NDArray[np.uint8]:
    bits = _array((length + 7) // 8, np.uint8)
    bits.fill(0xFF)
    return bits


def _binary(length: int, size: int) -> Binary:
    offsets = _array(length + 1, np.int32)
    offsets[0] = 0
    return Binary(offsets, _array(size, np.uint8), _bits(length))


def _buffer(array: npt.NDArray[Any], length: int | None = None) -> pa.Buffer:
    whole = pa.py_buffer(array)
    return whole if length is None else whole.slice(0, length * array.itemsize)


def _plain_array(kind: pa.DataType, array: npt.NDArray[Any], length: int) -> pa.Array:
    return pa.Array.from_buffers(kind, length, [None, _buffer(array, length)], 0)


def _binary_array(column: Binary, length: int, nulls: int) -> pa.Array:
    size = int(column.offsets[length])
    bits = _buffer(column.bits, (length + 7) // 8) if nulls else None
    buffers = [bits, _buffer(column.offsets, length + 1), _buffer(column.data, size)]
    return pa.Array.from_buffers(pa.binary(), length, buffers, nulls)


def _text(keys: pa.Array, *, is_ascii: bool) -> pa.Array:
    """Bytes as text; what is not UTF-8 gets replacement characters, so that one bad header stops no reader."""
    if is_ascii:
        return keys.view(pa.string())
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([key.decode(errors="replace") for key in keys.to_pylist()], pa.string())
