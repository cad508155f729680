"""Arrow columns of any type that can hold bytes, as the kernels read them: without a copy of the data."""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..errors import ClientError
from ._layout import Input
from ._memory import pool_array


class KernelColumn(NamedTuple):
    """What a kernel gets of a column, and the array whose buffers those addresses are in."""

    addresses: tuple[int, ...]
    """The fields of an `Input`."""
    array: pa.Array | None


ABSENT: Final = KernelColumn(tuple(Input(0, 4, 0, 0, 0)), None)
"""A column that is not there: null in every row."""


def binary_input(column: pa.Array, name: str) -> KernelColumn:
    """A column of binary or text; `ClientError` when it is of another type."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return binary_input(column.dictionary_decode(), name)
    if pa.types.is_null(kind):
        return ABSENT
    if pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind):
        column = column.cast(pa.large_binary())
    elif pa.types.is_string_view(kind):
        column = column.cast(pa.large_string())
    elif not (_is_short(kind) or _is_large(kind)):
        raise ClientError(f"column '{name}' must hold binary or strings, not {kind}; cast it first", "_INVALID_ARG")
    return _column(column, 4 if _is_short(column.type) else 8)


def _column(array: pa.Array, width: int) -> KernelColumn:
    bits, offsets, *data = array.buffers()
    if not len(array):
        return ABSENT
    has_data = len(data) == 1 and data[0] is not None  # what follows the offsets of a list is its children's
    addresses = Input(
        offsets.address,
        width,
        data[0].address if has_data else 0,
        bits.address if array.null_count else 0,
        array.offset,
    )
    return KernelColumn(tuple(addresses), array)


def _is_short(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_string(kind))


def _is_large(kind: pa.DataType) -> bool:
    return bool(pa.types.is_large_binary(kind) or pa.types.is_large_string(kind))


def header_inputs(column: pa.Array) -> tuple[KernelColumn, KernelColumn, KernelColumn]:
    """Lists, keys and values of a column of headers; `ClientError` when it is of another type."""
    kind = column.type
    if pa.types.is_null(kind):
        return ABSENT, ABSENT, ABSENT
    if not _is_headers(kind):
        raise ClientError(
            f"column 'headers' must hold lists of structs of a key and a value, not {kind}; cast it first",
            "_INVALID_ARG",
        )
    lists = _column(column, 8 if pa.types.is_large_list(kind) else 4)
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


def times_input(column: pa.Array, now_ms: int) -> npt.NDArray[np.int64]:
    """Times in milliseconds since 1970; `now_ms` where there are none."""
    times = pool_array(len(column), np.int64)[: len(column)]
    if pa.types.is_null(column.type):
        times.fill(now_ms)
        return times
    if pa.types.is_date(column.type):
        column = column.cast(pa.timestamp("ms"))
    if not pa.types.is_timestamp(column.type):
        raise ClientError(
            f"column 'timestamp' must hold timestamps or dates, not {column.type}; cast it first", "_INVALID_ARG"
        )
    _to_milliseconds(column, times)
    if column.null_count:
        times[np.asarray(column.is_null())] = now_ms
    return times


def _to_milliseconds(column: pa.Array, times: npt.NDArray[np.int64]) -> None:
    ticks = np.frombuffer(column.buffers()[1], np.int64, len(times), 8 * column.offset)
    if column.type.unit == "s":
        np.multiply(ticks, 1000, out=times)
    else:
        np.floor_divide(ticks, {"ms": 1, "us": 1_000, "ns": 1_000_000}[column.type.unit], out=times)
