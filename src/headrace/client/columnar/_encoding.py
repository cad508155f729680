"""The loops over rows that encode records and choose partitions. What they read is Arrow's own, and trusted.

For the form of a record see `_decoding`.
"""

from typing import Any, Final

import numpy as np
from numba import types

from headrace.kernels.addresses import INT, INTS, copy, load_i64, load_u8, load_u32, store_8, store_32, store_64
from headrace.kernels.jit import called, kernel
from headrace.kernels.varint_loops import store_varint, varint_size

from ._layout import INPUT, OUTPUT

NO_HEADER_KEY: Final = -1

# Parts of a column: the fields of `Input`.
OFFSETS: Final = 0
WIDTH: Final = 1
DATA: Final = 2
BITS: Final = 3
FIRST: Final = 4

# Parts of a column to fill: the fields of `Output`.
OUT_OFFSETS: Final = 0
OUT_DATA: Final = 1
OUT_BITS: Final = 2

_HEADER_SIZE: Final = 61
_SEED: Final = 0x9747B28C
_MULTIPLIER: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF
_NULL: Final = -1


@called
def _length(column: Any, index: Any) -> Any:
    """Of an element; -1 for null."""
    if column[OFFSETS] == 0:
        return np.int64(_NULL)
    if column[BITS] != 0:
        bit = column[FIRST] + index
        if not (load_u8(column[BITS] + (bit >> 3)) >> (bit & 7)) & 1:
            return np.int64(_NULL)
    return _start(column, index + 1) - _start(column, index)


@called
def _start(column: Any, index: Any) -> Any:
    """Where the data of an element begin."""
    place = column[OFFSETS] + column[WIDTH] * (column[FIRST] + index)
    return load_i64(place) if column[WIDTH] == 8 else load_u32(place)


@called
def _field_size(length: Any) -> Any:
    return varint_size(length) + max(length, 0)


@called
def _put_field(at: Any, column: Any, index: Any, length: Any) -> Any:
    at = store_varint(at, length)
    if length > 0:
        copy(at, column[DATA] + _start(column, index), length)
        at += length
    return at


@called
def _headers_size(lists: Any, keys: Any, values: Any, row: Any, count: Any) -> Any:
    """Bytes of a row's headers; -1 when one of them has no key."""
    size = varint_size(count)
    first = _start(lists, row) if count > 0 else 0
    for n in range(first, first + count):
        key = _length(keys, n)
        if key < 0:
            return np.int64(NO_HEADER_KEY)
        size += _field_size(key) + _field_size(_length(values, n))
    return size


@called
def _put_headers(at: Any, lists: Any, keys: Any, values: Any, row: Any, count: Any) -> Any:
    at = store_varint(at, count)
    first = _start(lists, row) if count > 0 else 0
    for n in range(first, first + count):
        at = _put_field(at, keys, n, _length(keys, n))
        at = _put_field(at, values, n, _length(values, n))
    return at


@kernel(types.UniTuple(INT, 5), INT, INT, INPUT, INPUT, INT, INPUT, INPUT, INPUT, INT, INT, INT)
def encode_batch(
    first: Any,
    rows: Any,
    keys: Any,
    values: Any,
    times: Any,
    lists: Any,
    header_keys: Any,
    header_values: Any,
    out: Any,
    room: Any,
    limit: Any,
) -> Any:
    """Write the records of one batch behind the place of its head: of `rows` rows those from `first` on, as many as
    `limit` bytes hold, but at least one. There is room for at least `limit` bytes.

    Returns (rows written, size of the batch, base time, latest time, size wanted). When no row is written, there must
    be room for the size wanted, or, when that is NO_HEADER_KEY, a header of row `first` has no key.
    """
    at = out + _HEADER_SIZE
    base_time = load_i64(times + 8 * first)
    latest = base_time
    row = first
    while row < rows:
        key_size, value_size, count = _length(keys, row), _length(values, row), max(_length(lists, row), 0)
        headers_size = _headers_size(lists, header_keys, header_values, row, count)
        time, delta = load_i64(times + 8 * row), row - first
        size = 1 + varint_size(time - base_time) + varint_size(delta) + headers_size
        size += _field_size(key_size) + _field_size(value_size)
        end = at - out + varint_size(size) + size
        if headers_size < 0 or end > (limit if delta else room):
            if delta:
                break
            return 0, 0, 0, 0, NO_HEADER_KEY if headers_size < 0 else end
        at = store_varint(at, size)
        store_8(at, 0)
        at = store_varint(at + 1, time - base_time)
        at = store_varint(at, delta)
        at = _put_field(at, keys, row, key_size)
        at = _put_field(at, values, row, value_size)
        at = _put_headers(at, lists, header_keys, header_values, row, count)
        latest = max(latest, time)
        row += 1
    return row - first, at - out, base_time, latest, at - out


@called
def _murmur2(at: Any, length: Any) -> Any:
    whole = at + (length & ~3)
    h = np.uint64((_SEED ^ length) & _MASK)
    while at < whole:
        k = np.uint64(load_u32(at)) * np.uint64(_MULTIPLIER) & np.uint64(_MASK)
        k ^= k >> np.uint64(24)
        h = (h * np.uint64(_MULTIPLIER) ^ k * np.uint64(_MULTIPLIER)) & np.uint64(_MASK)
        at += 4
    if length & 3:
        for n in range(length & 3):
            h ^= np.uint64(load_u8(whole + n) << 8 * n)
        h = h * np.uint64(_MULTIPLIER) & np.uint64(_MASK)
    h ^= h >> np.uint64(13)
    h = h * np.uint64(_MULTIPLIER) & np.uint64(_MASK)
    return h ^ h >> np.uint64(15)


@kernel(types.void, INPUT, INT, INT, INT, INT)
def choose_partitions(keys: Any, rows: Any, count: Any, sticky: Any, out: Any) -> None:
    """The partition of each key as the Java client chooses it, of 32 bits; `sticky` where there is no key."""
    for row in range(rows):
        length = _length(keys, row)
        chosen = sticky
        if length >= 0:
            chosen = np.int64(
                (_murmur2(keys[DATA] + _start(keys, row), length) & np.uint64(0x7FFFFFFF)) % np.uint64(count)
            )
        store_32(out + 4 * row, chosen)


@kernel(INT, INT, INT, INTS, INT)
def order_by_partition(partitions: Any, rows: Any, ends: Any, order: Any) -> Any:
    """Rows sorted by partition and then by place, and where each partition's end; or the first row whose partition
    is not there, -1 when there is none. `ends` has a cell for each partition, all 0.
    """
    for row in range(rows):
        partition = load_u32(partitions + 4 * row)
        if partition >= len(ends):
            return row
        ends[partition] += 1
    begin = 0
    for partition in range(len(ends)):
        size = ends[partition]
        ends[partition] = begin
        begin += size
    for row in range(rows):
        partition = load_u32(partitions + 4 * row)
        store_64(order + 8 * ends[partition], row)
        ends[partition] += 1
    return -1


@kernel(INT, INPUT, INT, INT, OUTPUT)
def gather(column: Any, order: Any, rows: Any, out: Any) -> Any:
    """Write the elements of a column in another order; there is room for all. Returns how many are null."""
    end, nulls = np.int64(0), np.int64(0)
    for n in range(rows):
        row = load_i64(order + 8 * n)
        length = _length(column, row)
        if length > 0:
            copy(out[OUT_DATA] + end, column[DATA] + _start(column, row), length)
            end += length
        elif length < 0:
            place = out[OUT_BITS] + (n >> 3)
            store_8(place, load_u8(place) & ~(1 << (n & 7)))
            nulls += 1
        store_32(out[OUT_OFFSETS] + 4 * (n + 1), end)
    return nulls
