"""The loops over rows that encode records and choose partitions. What they read is Arrow's own, and trusted.

For the form of a record see `_decode_kernels`.
"""

from typing import Any, Final

import numpy as np
from numba import types

from ._compile import BYTES, INPUT, INT32S, INT64S, copy, helper, kernel

_HEADER_SIZE: Final = 61
_SEED: Final = 0x9747B28C
_MULTIPLIER: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF
_NULL: Final = -1

NO_HEADER_KEY: Final = -1


@helper
def _zigzag(value: Any) -> Any:
    return np.uint64((value << 1) ^ (value >> 63))


@helper
def _varint_size(value: Any) -> Any:
    rest = _zigzag(np.int64(value))
    size = np.int64(1)
    while rest >= np.uint64(0x80):
        rest >>= np.uint64(7)
        size += 1
    return size


@helper
def _put_varint(out: Any, at: Any, value: Any) -> Any:
    rest = _zigzag(np.int64(value))
    while rest >= np.uint64(0x80):
        out[at] = np.uint8(rest & np.uint64(0x7F)) | np.uint8(0x80)
        rest >>= np.uint64(7)
        at += 1
    out[at] = np.uint8(rest)
    return at + 1


@helper
def _length(column: Any, index: Any) -> Any:
    """Of an element; -1 for null."""
    if len(column.offsets) == 0:
        return np.int64(_NULL)
    if len(column.bits) > 0:
        bit = column.first_bit + index
        if not (column.bits[bit >> 3] >> (bit & 7)) & 1:
            return np.int64(_NULL)
    return column.offsets[index + 1] - column.offsets[index]


@helper
def _field_size(length: Any) -> Any:
    return _varint_size(length) + max(length, 0)


@helper
def _put_field(out: Any, at: Any, column: Any, index: Any, length: Any) -> Any:
    at = _put_varint(out, at, length)
    if length > 0:
        copy(out, at, column.data, column.offsets[index], length)
        at += length
    return at


@helper
def _headers_size(lists: Any, keys: Any, values: Any, row: Any, count: Any) -> Any:
    """Bytes of a row's headers; -1 when one of them has no key."""
    size = _varint_size(count)
    if count > 0:
        first = lists.offsets[row]
        for n in range(first, first + count):
            key = _length(keys, n)
            if key < 0:
                return np.int64(NO_HEADER_KEY)
            size += _field_size(key) + _field_size(_length(values, n))
    return size


@helper
def _put_headers(out: Any, at: Any, lists: Any, keys: Any, values: Any, row: Any, count: Any) -> Any:
    at = _put_varint(out, at, count)
    if count > 0:
        first = lists.offsets[row]
        for n in range(first, first + count):
            at = _put_field(out, at, keys, n, _length(keys, n))
            at = _put_field(out, at, values, n, _length(values, n))
    return at


@kernel(
    types.UniTuple(types.int64, 5),
    types.int64,
    INPUT,
    INPUT,
    INT64S,
    INPUT,
    INPUT,
    INPUT,
    BYTES,
    types.int64,
)
def encode_batch(
    first: Any,
    keys: Any,
    values: Any,
    times: Any,
    lists: Any,
    header_keys: Any,
    header_values: Any,
    out: Any,
    limit: Any,
) -> Any:
    """Write the records of one batch behind the place of its head: rows from `first` on, as many as `limit` bytes
    hold, but at least one.

    Returns (rows, size of the batch, base time, latest time, size wanted). No rows: `out` must have the size wanted,
    or, when that is NO_HEADER_KEY, a header of row `first` has no key.
    """
    at = np.int64(_HEADER_SIZE)
    base_time = times[first]
    latest = base_time
    row = first
    while row < len(times):
        key_size, value_size, count = _length(keys, row), _length(values, row), max(_length(lists, row), 0)
        headers_size = _headers_size(lists, header_keys, header_values, row, count)
        time_delta, delta = times[row] - base_time, row - first
        size = 1 + _varint_size(time_delta) + _varint_size(delta) + headers_size
        size += _field_size(key_size) + _field_size(value_size)
        end = at + _varint_size(size) + size
        if headers_size < 0 or end > (limit if row > first else len(out)):
            if row > first:
                break
            return 0, 0, 0, 0, NO_HEADER_KEY if headers_size < 0 else end
        at = _put_varint(out, at, size)
        out[at] = 0
        at = _put_varint(out, at + 1, time_delta)
        at = _put_varint(out, at, delta)
        at = _put_field(out, at, keys, row, key_size)
        at = _put_field(out, at, values, row, value_size)
        at = _put_headers(out, at, lists, header_keys, header_values, row, count)
        latest = max(latest, times[row])
        row += 1
    return row - first, at, base_time, latest, at


@helper
def _murmur2(data: Any, at: Any, length: Any) -> Any:
    whole = at + (length & ~3)
    h = np.uint64(_SEED) ^ np.uint64(length & _MASK)
    for i in range(at, whole, 4):
        k = np.uint64(data[i]) | np.uint64(data[i + 1]) << np.uint64(8)
        k |= np.uint64(data[i + 2]) << np.uint64(16) | np.uint64(data[i + 3]) << np.uint64(24)
        k = k * np.uint64(_MULTIPLIER) & np.uint64(_MASK)
        k ^= k >> np.uint64(24)
        h = (h * np.uint64(_MULTIPLIER) ^ k * np.uint64(_MULTIPLIER)) & np.uint64(_MASK)
    if length & 3:
        for i in range(whole, at + length):
            h ^= np.uint64(data[i]) << np.uint64(8 * (i - whole))
        h = h * np.uint64(_MULTIPLIER) & np.uint64(_MASK)
    h ^= h >> np.uint64(13)
    h = h * np.uint64(_MULTIPLIER) & np.uint64(_MASK)
    return h ^ h >> np.uint64(15)


@kernel(types.void, INPUT, types.int64, types.int64, INT32S)
def choose_partitions(keys: Any, count: Any, sticky: Any, out: Any) -> None:
    """The partition of each key as the Java client chooses it; `sticky` where there is no key."""
    for row in range(len(out)):
        length = _length(keys, row)
        if length < 0:
            out[row] = sticky
        else:
            hashed = _murmur2(keys.data, keys.offsets[row], length)
            out[row] = np.int32((hashed & np.uint64(0x7FFFFFFF)) % np.uint64(count))


@kernel(types.int64, types.Array(types.int32, 1, "C", readonly=True), INT64S, INT64S)
def order_by_partition(partitions: Any, starts: Any, order: Any) -> Any:
    """Rows sorted by partition and then by place, and where each partition's begin; or the first row whose partition
    is not there, -1 when there is none. `starts` has one more cell than there are partitions, all 0.
    """
    count = len(starts) - 1
    for row in range(len(partitions)):
        partition = partitions[row]
        if partition < 0 or partition >= count:
            return row
        starts[partition + 1] += 1
    for partition in range(count):
        starts[partition + 1] += starts[partition]
    places = starts.copy()
    for row in range(len(partitions)):
        partition = partitions[row]
        order[places[partition]] = row
        places[partition] += 1
    return -1
