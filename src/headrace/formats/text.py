"""Text: values and keys that are UTF-8."""

from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace.kernels.bounds import pointer
from headrace.kernels.intrinsics import copy
from headrace.kernels.jit import jit

from . import types as t
from .payload import Decoded, Payload
from .wire import is_utf8

_ERROR: Final = "not UTF-8"


class StringCodec:
    """Decodes text; where it is framed, without the id of a schema before it."""

    def __init__(self, *, is_framed: bool = False) -> None:
        self._is_framed = is_framed

    @property
    def spark_type(self) -> t.DataType:
        """What a value is in Spark."""
        return t.StringType()

    def check(self) -> None:
        """Nothing can be wrong."""

    def decode(self, payload: Payload) -> Decoded:
        """The rows of a payload as a string array."""
        if not self._is_framed:
            return self._decoded(payload)
        from .framing import confluent

        framed = confluent(payload)
        found = self._decoded(framed.payload)
        return Decoded(found.values, found.errors | framed.errors)

    def _decoded(self, payload: Payload) -> Decoded:
        good = payload.present.copy()
        _clear_bad(payload.data, payload.starts, payload.ends, good)
        errors = dict.fromkeys(np.flatnonzero(payload.present & ~good).tolist(), _ERROR)
        return Decoded(gathered(payload, good, pa.string()), errors)


def gathered(payload: Payload, good: Any, arrow_type: pa.DataType) -> pa.Array:
    """The bytes of the rows that are `good`, as an array of text or bytes; the others are null."""
    lengths = np.where(good, payload.ends - payload.starts, 0)
    offsets = np.zeros(payload.rows + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    held = np.empty(offsets[-1], np.uint8)
    _copy(payload.data, payload.starts, offsets, held)
    bitmap = None if good.all() else pa.py_buffer(np.packbits(good, bitorder="little"))
    return pa.Array.from_buffers(arrow_type, payload.rows, [bitmap, pa.py_buffer(offsets), pa.py_buffer(held)])


@jit
def _clear_bad(data: Any, starts: Any, ends: Any, good: Any) -> None:
    for row in range(len(starts)):
        if good[row] and not is_utf8(pointer(data), starts[row], ends[row]):
            good[row] = False


@jit
def _copy(data: Any, starts: Any, offsets: Any, held: Any) -> None:
    for row in range(len(starts)):
        copy(pointer(held), offsets[row], pointer(data), starts[row], offsets[row + 1] - offsets[row])
