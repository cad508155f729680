"""Arrow columns of any type that can hold bytes, as the kernels read them: without a copy of the data."""

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import compute

from ..errors import ClientError
from ._compile import Input

_NOTHING: Final = np.frombuffer(b"", np.uint8)
_ABSENT: Final = Input(np.frombuffer(b"", np.int64), _NOTHING, _NOTHING, 0)


def absent() -> Input:
    """A column that is not there: null in every row."""
    return _ABSENT


def binary_input(column: pa.Array, name: str) -> Input:
    """A column of binary or text; `ClientError` when it is of another type."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return binary_input(column.dictionary_decode(), name)
    if pa.types.is_null(kind):
        return _ABSENT
    if pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind):
        column = column.cast(pa.large_binary())
    elif pa.types.is_string_view(kind):
        column = column.cast(pa.large_string())
    elif not (_is_short(kind) or _is_large(kind)):
        raise ClientError(f"column '{name}' must hold binary or strings, not {kind}; cast it first", "_INVALID_ARG")
    bits, offsets, data = column.buffers()
    width = np.dtype(np.int32) if _is_short(column.type) else np.dtype(np.int64)
    return Input(_ends(column, offsets, width), _bytes(data), _validity(column, bits), column.offset)


def _is_short(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_string(kind))


def _is_large(kind: pa.DataType) -> bool:
    return bool(pa.types.is_large_binary(kind) or pa.types.is_large_string(kind))


def header_inputs(column: pa.Array) -> tuple[Input, Input, Input]:
    """Lists, keys and values of a column of headers; `ClientError` when it is of another type."""
    kind = column.type
    if pa.types.is_null(kind):
        return _ABSENT, _ABSENT, _ABSENT
    if not _is_headers(kind):
        raise ClientError(
            f"column 'headers' must hold lists of structs of a key and a value, not {kind}; cast it first",
            "_INVALID_ARG",
        )
    bits, offsets, *_ = column.buffers()
    width = np.dtype(np.int64 if pa.types.is_large_list(kind) else np.int32)
    lists = Input(_ends(column, offsets, width), _NOTHING, _validity(column, bits), column.offset)
    keys, values = _pairs(column).flatten()
    return lists, binary_input(keys, "headers.key"), binary_input(values, "headers.value")


def _is_headers(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return True
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    return bool(is_list and pa.types.is_struct(kind.value_type) and kind.value_type.num_fields == 2)


def _pairs(column: pa.Array) -> pa.StructArray:
    if pa.types.is_map(column.type):
        return pa.StructArray.from_arrays([column.keys, column.items], names=["key", "value"])
    return column.values


def times_input(column: pa.Array | None, rows: int, now_ms: int) -> npt.NDArray[np.int64]:
    """Times in milliseconds since 1970; `now_ms` where there are none."""
    if column is None or pa.types.is_null(column.type):
        return np.full(rows, now_ms, np.int64)
    if pa.types.is_date(column.type):
        column = column.cast(pa.timestamp("ms"))
    if not pa.types.is_timestamp(column.type):
        raise ClientError(
            f"column 'timestamp' must hold timestamps or dates, not {column.type}; cast it first", "_INVALID_ARG"
        )
    ticks = column.cast(pa.timestamp(column.type.unit)).cast(pa.int64())
    plain = np.asarray(compute.fill_null(ticks, 0))
    times = _to_milliseconds(plain, column.type.unit)
    if column.null_count:
        times = np.where(np.asarray(column.is_null()), np.int64(now_ms), times)
    return times


def _to_milliseconds(ticks: npt.NDArray[np.int64], unit: str) -> npt.NDArray[np.int64]:
    if unit == "s":
        return ticks * 1000
    return ticks // {"ms": 1, "us": 1_000, "ns": 1_000_000}[unit]


def _ends(column: pa.Array, buffer: pa.Buffer | None, width: np.dtype[Any]) -> npt.NDArray[np.int64]:
    length = len(column)
    if buffer is None or not buffer.size:  # Arrow lets an array of no elements have no offsets
        return _read_only(np.zeros(length + 1, np.int64))
    offsets = np.frombuffer(buffer, width, length + 1, column.offset * width.itemsize)
    is_fit = offsets.dtype == np.int64 and offsets.flags.aligned
    return _read_only(offsets if is_fit else offsets.astype(np.int64))


def _bytes(buffer: pa.Buffer | None) -> npt.NDArray[np.uint8]:
    return _read_only(np.frombuffer(buffer, np.uint8)) if buffer is not None and buffer.size else _NOTHING


def _validity(column: pa.Array, bits: pa.Buffer | None) -> npt.NDArray[np.uint8]:
    return _bytes(bits) if column.null_count else _NOTHING


def _read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array.flags.writeable = False
    return array
