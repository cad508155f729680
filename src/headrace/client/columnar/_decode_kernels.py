"""The loops over records that decode. What they read is untrusted: every length is checked before it is used.

A record is

    length varint | attributes i8 | timestamp delta varint | offset delta varint
    | key length varint, key | value length varint, value | header count varint, (key, value)*

where every varint is zigzag-coded and a length of -1 stands for null.
"""

from typing import Any, Final

import numpy as np
from numba import types

from ._compile import BINARY, BYTES, INT32S, INT64S, SOURCE, TABLE, copy, helper, kernel

OK: Final = 0
CUT_SHORT: Final = 1
BAD_VARINT: Final = 2
BAD_LENGTH: Final = 3
BAD_OFFSET: Final = 4
LEFT_OVER: Final = 5
BAD_HEADERS: Final = 6
NO_ROOM: Final = 7

REASONS: Final = {
    CUT_SHORT: "a record is cut short",
    BAD_VARINT: "a number is cut short or too long",
    BAD_LENGTH: "a field is longer than its record",
    BAD_OFFSET: "a record's offset is not within its batch",
    LEFT_OVER: "bytes follow the last record",
    BAD_HEADERS: "the headers of a record do not fill their place",
    NO_ROOM: "it holds more records than its bytes can",
}

# Columns of a table of spans: one row for each batch whose records are to be decoded.
AT: Final = 0
STOP: Final = 1
RECORDS: Final = 2
BASE_OFFSET: Final = 3
LAST_DELTA: Final = 4
BASE_TIME: Final = 5
APPEND_TIME: Final = 6
IS_APPEND_TIME: Final = 7
ROWS: Final = 8
"""Written by the kernel: how many rows the batch gave."""
SPAN_FIELDS: Final = 9

# Cells of the cursor that goes on from one call to the next.
ROW: Final = 0
KEY_END: Final = 1
VALUE_END: Final = 2
NULL_KEYS: Final = 3
NULL_VALUES: Final = 4
HEADER_BYTES: Final = 5
HEADER: Final = 6
HEADER_KEY_END: Final = 7
HEADER_VALUE_END: Final = 8
NULL_HEADERS: Final = 9
NULL_HEADER_VALUES: Final = 10
HEADER_KEY_BITS: Final = 11
"""All bytes of all header keys, or-ed: below 0x80 they are ASCII."""
FAILED_SPAN: Final = 12
CURSOR_CELLS: Final = 13

_SMALLEST_BODY: Final = 6
_LATEST_MS: Final = (2**63 - 1) // 1000
_NULL: Final = -1


@helper
def _varint(data: Any, at: Any, stop: Any) -> Any:
    """The number at a position and the position after it, which is -1 when there is none before `stop`."""
    if at >= stop:
        return np.int64(0), np.int64(-1)
    byte = np.uint64(data[at])
    at += 1
    if byte < 0x80:
        return np.int64(byte >> np.uint64(1)) ^ -np.int64(byte & np.uint64(1)), at
    value = byte & np.uint64(0x7F)
    shift = np.uint64(7)
    while at < stop and shift < np.uint64(70):
        byte = np.uint64(data[at])
        at += 1
        value |= (byte & np.uint64(0x7F)) << shift
        if byte < 0x80:
            return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1)), at
        shift += np.uint64(7)
    return np.int64(0), np.int64(-1)


@helper
def _clear_bit(bitmap: Any, index: Any) -> Any:
    bitmap[index >> 3] &= np.uint8(~(1 << (index & 7)) & 0xFF)


@helper
def _microseconds(milliseconds: Any) -> Any:
    return min(max(milliseconds, -_LATEST_MS), _LATEST_MS) * 1000


@helper
def _append(column: Any, index: Any, end: Any, source: Any, at: Any, size: Any) -> Any:
    """Write element `index`, whose data goes to `end`; returns where the next one's goes."""
    if size > 0:
        copy(column.data, end, source, at, size)
        end += size
    elif size < 0:
        _clear_bit(column.bits, index)
    column.offsets[index + 1] = end
    return end


@helper
def _record(source: Any, at: Any, stop: Any, last_delta: Any) -> Any:
    """Where the parts of the record at a position are: (status, end, time delta, offset delta, key size, key at,
    value size, value at).
    """
    length, at = _varint(source, at, stop)
    if at < 0 or length < _SMALLEST_BODY or length > stop - at:
        return CUT_SHORT, at, at, at, at, at, at, at
    end = at + length
    time_delta, at = _varint(source, at + 1, end)
    if at < 0:
        return BAD_VARINT, at, at, at, at, at, at, at
    delta, at = _varint(source, at, end)
    if at < 0 or delta < 0 or delta > last_delta:
        return BAD_OFFSET, at, at, at, at, at, at, at
    key_size, key_at = _varint(source, at, end)
    if key_at < 0 or key_size < _NULL or key_size > end - key_at:
        return BAD_LENGTH, at, at, at, at, at, at, at
    value_size, value_at = _varint(source, key_at + max(key_size, 0), end)
    if value_at < 0 or value_size < _NULL or value_size > end - value_at:
        return BAD_LENGTH, at, at, at, at, at, at, at
    return OK, end, time_delta, delta, key_size, key_at, value_size, value_at


@kernel(types.int64, SOURCE, TABLE, types.int64, types.int64, INT64S, BINARY, BINARY, INT64S, INT64S, TABLE)
def decode_spans(
    source: Any,
    spans: Any,
    start: Any,
    end: Any,
    cursor: Any,
    keys: Any,
    values: Any,
    offsets: Any,
    times: Any,
    header_places: Any,
) -> Any:
    """Append the records of these batches with start <= offset < end to the columns; OK, or what is wrong.

    The columns have room for as many rows and bytes as the batches can hold. `header_places` has no rows when
    headers are not wanted; else it gets where each record's headers begin and end.
    """
    row, key_end, value_end = cursor[ROW], cursor[KEY_END], cursor[VALUE_END]
    bytes_most = min(len(keys.data), len(values.data))
    for n in range(len(spans)):
        cursor[FAILED_SPAN] = n
        at, stop = spans[n, AT], spans[n, STOP]
        is_append_time = spans[n, IS_APPEND_TIME] != 0
        append_time = _microseconds(spans[n, APPEND_TIME])
        first_row = row
        for _ in range(spans[n, RECORDS]):
            status, at, time_delta, delta, key_size, key_at, value_size, value_at = _record(
                source, at, stop, spans[n, LAST_DELTA]
            )
            if status != OK:
                return status
            offset = spans[n, BASE_OFFSET] + delta
            if offset < start or offset >= end:
                continue
            if row >= len(offsets) or key_end + key_size > bytes_most or value_end + value_size > bytes_most:
                return NO_ROOM
            key_end = _append(keys, row, key_end, source, key_at, key_size)
            value_end = _append(values, row, value_end, source, value_at, value_size)
            cursor[NULL_KEYS] += key_size < 0
            cursor[NULL_VALUES] += value_size < 0
            offsets[row] = offset
            times[row] = append_time if is_append_time else _microseconds(spans[n, BASE_TIME] + time_delta)
            if len(header_places) > 0:
                headers_at = value_at + max(value_size, 0)
                header_places[row, 0] = headers_at
                header_places[row, 1] = at
                cursor[HEADER_BYTES] += at - headers_at
            row += 1
        if at != stop:
            return LEFT_OVER
        spans[n, ROWS] = row - first_row
    cursor[ROW], cursor[KEY_END], cursor[VALUE_END] = row, key_end, value_end
    return OK


@kernel(types.int64, SOURCE, TABLE, types.int64, types.int64, INT64S, INT32S, BYTES, BINARY, BINARY)
def decode_headers(
    source: Any,
    places: Any,
    first_row: Any,
    last_row: Any,
    cursor: Any,
    list_offsets: Any,
    list_bits: Any,
    keys: Any,
    values: Any,
) -> Any:
    """Append the headers of rows first_row <= row < last_row, whose places `decode_spans` found; OK, or what is wrong.

    The columns have room for HEADER_BYTES of the cursor, and half as many headers.
    """
    header, key_end, value_end = cursor[HEADER], cursor[HEADER_KEY_END], cursor[HEADER_VALUE_END]
    bits = cursor[HEADER_KEY_BITS]
    for row in range(first_row, last_row):
        stop = places[row, 1]
        count, at = _varint(source, places[row, 0], stop)
        if at < 0 or count < 0 or count > (stop - at) // 2:
            return BAD_HEADERS
        if count == 0:
            _clear_bit(list_bits, row)
            cursor[NULL_HEADERS] += 1
        for _ in range(count):
            size, at = _varint(source, at, stop)
            if at < 0 or size < 0 or size > stop - at:
                return BAD_HEADERS
            for i in range(at, at + size):
                bits |= source[i]
            key_end = _append(keys, header, key_end, source, at, size)
            at += size
            size, at = _varint(source, at, stop)
            if at < 0 or size < _NULL or size > stop - at:
                return BAD_HEADERS
            value_end = _append(values, header, value_end, source, at, size)
            cursor[NULL_HEADER_VALUES] += size < 0
            at += max(size, 0)
            header += 1
        if at != stop:
            return BAD_HEADERS
        list_offsets[row + 1] = header
    cursor[HEADER], cursor[HEADER_KEY_END], cursor[HEADER_VALUE_END] = header, key_end, value_end
    cursor[HEADER_KEY_BITS] = bits
    return OK
