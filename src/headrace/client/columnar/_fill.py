"""Arrow columns filled by the kernels, out of what a plan says is to be decoded."""

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...protocol.batch import APPEND_TIME_BIT
from . import _decoding as kernels
from ._damage import UnreadableBatch
from ._memory import address_of, pool_array
from ._outputs import BinaryOutput, buffer_of, full_bits, plain_array, starts
from ._plan import DecodePlan
from .model import HEADERS

_STRUCT: Final = HEADERS.value_type
_SMALLEST_HEADER: Final = 2


class Filled:
    """The columns of one plan; raises `UnreadableBatch` when its records are malformed.

    Buffers are as large as the plan's records could make them. What is not written to costs no memory.
    """

    def __init__(self, plan: DecodePlan, start: int, end: int, *, with_headers: bool) -> None:
        self._plan = plan  # which keeps alive what its addresses are in
        most, size = plan.rows, plan.size
        self._cursor = np.zeros(kernels.CURSOR_CELLS, np.int64)
        self._keys = BinaryOutput(most, size)
        self._values = BinaryOutput(most, size)
        self._offsets = pool_array(most, np.int64)
        self._times = pool_array(most, np.int64)
        self._header_spans = pool_array(2 * most, np.int64) if with_headers else None
        status = kernels.decode_records(
            plan.batches,
            start,
            end,
            self._cursor,
            self._keys.addresses,
            self._values.addresses,
            address_of(self._offsets),
            address_of(self._times),
            0 if self._header_spans is None else address_of(self._header_spans),
            most,
        )
        if status != kernels.OK:
            raise _malformed(status, int(plan.batches[self._count(kernels.FAILED_BATCH), kernels.BASE_OFFSET]))

    def _count(self, cell: int) -> int:
        return int(self._cursor[cell])

    @property
    def rows(self) -> int:
        return self._count(kernels.ROW)

    def keys(self) -> pa.Array:
        return self._keys.array(self.rows, self._count(kernels.NULL_KEYS), pa.binary())

    def values(self) -> pa.Array:
        return self._values.array(self.rows, self._count(kernels.NULL_VALUES), pa.binary())

    def offsets(self) -> pa.Array:
        return plain_array(pa.int64(), self._offsets, self.rows)

    def times(self) -> pa.Array:
        return plain_array(pa.timestamp("us", tz="UTC"), self._times, self.rows)

    def append_times(self) -> npt.NDArray[np.bool_]:
        """For each row, or once for all of them alike, whether its time is the log's."""
        kinds: npt.NDArray[np.bool_] = self._plan.batches[:, kernels.ATTRIBUTES] & APPEND_TIME_BIT != 0
        if kinds.all() or not kinds.any():
            return kinds[:1]
        return np.repeat(kinds, self._plan.batches[:, kernels.ROWS])

    def headers(self) -> pa.Array:
        """The headers of each row; null where there are none, as Spark's own connector shows it."""
        rows, size = self.rows, self._count(kernels.HEADER_BYTES)
        lists, list_bits = starts(rows), full_bits(rows)
        keys, values = (BinaryOutput(size // _SMALLEST_HEADER, size) for _ in range(2))
        assert self._header_spans is not None
        status = kernels.decode_headers(
            address_of(self._header_spans),
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
                _text(keys.array(count, 0, pa.binary()), is_ascii=self._count(kernels.HEADER_KEY_BITS) < 0x80),
                values.array(count, self._count(kernels.NULL_HEADER_VALUES), pa.binary()),
            ],
            fields=list(_STRUCT),
        )
        bits = buffer_of(list_bits, (rows + 7) // 8) if nulls else None
        return pa.Array.from_buffers(HEADERS, rows, [bits, buffer_of(lists, rows + 1)], nulls, children=[pairs])


def _malformed(status: int, offset: int) -> UnreadableBatch:
    return UnreadableBatch(f"a batch is malformed: {kernels.REASONS[status]}", offset)


def _text(keys: pa.Array, *, is_ascii: bool) -> pa.Array:
    """Bytes as text; what is not UTF-8 gets replacement characters, so that one bad header stops no reader."""
    if is_ascii:
        return keys.view(pa.string())
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([key.decode(errors="replace") for key in keys.to_pylist()], pa.string())
