"""The loops over batches and records that decode. What they read is untrusted: each length is checked before its use.

A record is

    length varint | attributes i8 | timestamp delta varint | offset delta varint
    | key length varint, key | value length varint, value | header count varint, (key, value)*

where every varint is zigzag-coded and a length of -1 stands for null.
"""

from typing import Any, Final

import numpy as np
from numba import types

from headrace.kernels.addresses import (
    INT,
    INTS,
    TABLE,
    copy,
    load_i64,
    load_net_i32,
    load_net_i64,
    load_net_u16,
    load_net_u32,
    load_u8,
    store_8,
    store_32,
    store_64,
)
from headrace.kernels.jit import called, kernel
from headrace.kernels.varint_loops import load_varint

from ._layout import OUTPUT

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

# Columns of a table of batches, one row for each.
HEAD: Final = 0
"""The address of the batch."""
AT: Final = 1
STOP: Final = 2
"""The addresses where its records begin and end, once they are decompressed."""
RECORDS: Final = 3
BASE_OFFSET: Final = 4
LAST_OFFSET: Final = 5
ATTRIBUTES: Final = 6
BASE_TIME: Final = 7
MAX_TIME: Final = 8
PRODUCER: Final = 9
CRC: Final = 10
ROWS: Final = 11
"""How many rows the batch gave."""
COLUMNS: Final = 12

# Cells of the cursor that goes on from one call to the next.
ROW: Final = 0
KEY_END: Final = 1
VALUE_END: Final = 2
NULL_KEYS: Final = 3
NULL_VALUES: Final = 4
HEADER_BYTES: Final = 5
HEADERS: Final = 6
NULL_HEADERS: Final = 7
NULL_HEADER_VALUES: Final = 8
HEADER_KEY_BITS: Final = 9
"""All bytes of all header keys, or-ed: below 0x80 they are ASCII."""
FAILED_BATCH: Final = 10
FAILED_ROW: Final = 11
CURSOR_CELLS: Final = 12

# Parts of a column to fill: the fields of `Output`.
OFFSETS: Final = 0
DATA: Final = 1
BITS: Final = 2

_LOG_OVERHEAD: Final = 12
_HEADER_SIZE: Final = 61
_MAGIC: Final = 2
_CODEC_MASK: Final = 0x07
_APPEND_TIME_BIT: Final = 0x08
_LAST_CODEC: Final = 4
_LAST_OFFSET: Final = 2**63 - 2
MOST_RECORDS: Final = 8_000_000
"""Records that one batch may have: with their topic's name beside each they still fit into one Arrow array."""

_SMALLEST_BODY: Final = 6
_LARGEST: Final = 2**63 - 1
_LATEST_MS: Final = (2**63 - 1) // 1000
_NULL: Final = -1


@kernel(types.UniTuple(INT, 2), INT, INT, TABLE)
def read_heads(source: Any, size: Any, table: Any) -> Any:
    """The heads of all batches that are whole and sound up to the first that is not, as rows of the table, which has
    room for as many as fit into the bytes. Returns (rows, how far in the bytes they go).
    """
    at, end = source, source + size
    row = 0
    while end - at >= _HEADER_SIZE:
        length = load_net_i32(at + 8) + _LOG_OVERHEAD
        base_offset, last_delta = load_net_i64(at), load_net_i32(at + 23)
        attributes, records = load_net_u16(at + 21), load_net_i32(at + 57)
        if load_u8(at + 16) != _MAGIC or length < _HEADER_SIZE or length > end - at:
            break
        if last_delta < 0 or base_offset < 0 or base_offset > _LAST_OFFSET - last_delta:
            break
        if records < 0 or records > MOST_RECORDS or (attributes & _CODEC_MASK) > _LAST_CODEC:
            break
        table[row, HEAD] = at
        table[row, AT] = at + _HEADER_SIZE
        table[row, STOP] = at + length
        table[row, RECORDS] = records
        table[row, BASE_OFFSET] = base_offset
        table[row, LAST_OFFSET] = base_offset + last_delta
        table[row, ATTRIBUTES] = attributes
        table[row, BASE_TIME] = load_net_i64(at + 27)
        table[row, MAX_TIME] = load_net_i64(at + 35)
        table[row, PRODUCER] = load_net_i64(at + 43)
        table[row, CRC] = load_net_u32(at + 17)
        row += 1
        at += length
    return row, at - source


@called
def _clear_bit(bitmap: Any, index: Any) -> Any:
    place = bitmap + (index >> 3)
    store_8(place, load_u8(place) & ~(1 << (index & 7)))


@called
def _microseconds(milliseconds: Any) -> Any:
    if milliseconds > _LATEST_MS:
        milliseconds = _LATEST_MS
    if milliseconds < -_LATEST_MS:
        milliseconds = -_LATEST_MS
    return milliseconds * 1000


@called
def _sum(one: Any, other: Any) -> Any:
    """Of two numbers; the largest or the smallest that there is where it would be beyond them."""
    found = one + other
    if (one ^ found) & (other ^ found) < 0:
        return _LARGEST if one > 0 else -_LARGEST
    return found


@called
def _append(column: Any, index: Any, end: Any, source: Any, size: Any) -> Any:
    """Write element `index`, whose data goes to `end` of the column; returns where the next one's goes."""
    if size > 0:
        copy(column[DATA] + end, source, size)
        end += size
    elif size < 0:
        _clear_bit(column[BITS], index)
    store_32(column[OFFSETS] + 4 * (index + 1), end)
    return end


@called
def _record(at: Any, stop: Any, last_delta: Any) -> Any:
    """Where the parts of the record at an address are: (status, end, time delta, offset delta, key size, key at,
    value size, value at).
    """
    length, at = load_varint(at, stop)
    if at == 0 or length < _SMALLEST_BODY or length > stop - at:
        return CUT_SHORT, 0, 0, 0, 0, 0, 0, 0
    end = at + length
    time_delta, at = load_varint(at + 1, end)
    if at == 0:
        return BAD_VARINT, 0, 0, 0, 0, 0, 0, 0
    delta, at = load_varint(at, end)
    if at == 0 or delta < 0 or delta > last_delta:
        return BAD_OFFSET, 0, 0, 0, 0, 0, 0, 0
    key_size, key_at = load_varint(at, end)
    if key_at == 0 or key_size < _NULL or key_size > end - key_at:
        return BAD_LENGTH, 0, 0, 0, 0, 0, 0, 0
    value_size, value_at = load_varint(key_at + max(key_size, 0), end)
    if value_at == 0 or value_size < _NULL or value_size > end - value_at:
        return BAD_LENGTH, 0, 0, 0, 0, 0, 0, 0
    return OK, end, time_delta, delta, key_size, key_at, value_size, value_at


@kernel(INT, TABLE, INT, INT, INTS, OUTPUT, OUTPUT, INT, INT, INT, INT)
def decode_records(
    batches: Any,
    start: Any,
    end: Any,
    cursor: Any,
    keys: Any,
    values: Any,
    offsets: Any,
    times: Any,
    header_spans: Any,
    room: Any,
) -> Any:
    """Append the records of these batches with start <= offset < end to the columns; OK, or what is wrong.

    The columns have room for this many rows, and for all bytes of all batches.
    `places` is 0 when headers are not wanted; else it gets the addresses where each record's headers begin and end.
    """
    row, key_end, value_end = cursor[ROW], cursor[KEY_END], cursor[VALUE_END]
    null_keys, null_values, header_bytes = cursor[NULL_KEYS], cursor[NULL_VALUES], cursor[HEADER_BYTES]
    for n in range(len(batches)):
        cursor[FAILED_BATCH] = n
        at, stop = batches[n, AT], batches[n, STOP]
        base_offset, base_time = batches[n, BASE_OFFSET], batches[n, BASE_TIME]
        last_delta = batches[n, LAST_OFFSET] - base_offset
        is_append_time = batches[n, ATTRIBUTES] & _APPEND_TIME_BIT != 0
        append_time = _microseconds(batches[n, MAX_TIME])
        first_row = row
        for _ in range(batches[n, RECORDS]):
            status, at, time_delta, delta, key_size, key_at, value_size, value_at = _record(at, stop, last_delta)
            if status != OK:
                return status
            offset = base_offset + delta
            if offset < start or offset >= end:
                continue
            if row >= room:
                return NO_ROOM
            key_end = _append(keys, row, key_end, key_at, key_size)
            value_end = _append(values, row, value_end, value_at, value_size)
            null_keys += key_size < 0
            null_values += value_size < 0
            store_64(offsets + 8 * row, offset)
            store_64(times + 8 * row, append_time if is_append_time else _microseconds(_sum(base_time, time_delta)))
            if header_spans != 0:
                headers_at = value_at + max(value_size, 0)
                store_64(header_spans + 16 * row, headers_at)
                store_64(header_spans + 16 * row + 8, at)
                header_bytes += at - headers_at
            row += 1
        if at != stop:
            return LEFT_OVER
        batches[n, ROWS] = row - first_row
    cursor[ROW], cursor[KEY_END], cursor[VALUE_END] = row, key_end, value_end
    cursor[NULL_KEYS], cursor[NULL_VALUES], cursor[HEADER_BYTES] = null_keys, null_values, header_bytes
    return OK


@kernel(INT, INT, INT, INTS, INT, INT, OUTPUT, OUTPUT)
def decode_headers(
    header_spans: Any,
    rows: Any,
    cursor: Any,
    list_offsets: Any,
    list_bits: Any,
    keys: Any,
    values: Any,
) -> Any:
    """The headers of all rows, whose places `decode_records` found; OK, or what is wrong, with the row in the cursor.

    The columns have room for HEADER_BYTES of the cursor, and half as many headers.
    """
    header = key_end = value_end = bits = np.int64(0)
    for row in range(rows):
        cursor[FAILED_ROW] = row
        stop = load_i64(header_spans + 16 * row + 8)
        count, at = load_varint(load_i64(header_spans + 16 * row), stop)
        if at == 0 or count < 0 or count > (stop - at) // 2:
            return BAD_HEADERS
        if count == 0:
            _clear_bit(list_bits, row)
            cursor[NULL_HEADERS] += 1
        for _ in range(count):
            size, at = load_varint(at, stop)
            if at == 0 or size < 0 or size > stop - at:
                return BAD_HEADERS
            for n in range(size):
                bits |= load_u8(at + n)
            key_end = _append(keys, header, key_end, at, size)
            at += size
            size, at = load_varint(at, stop)
            if at == 0 or size < _NULL or size > stop - at:
                return BAD_HEADERS
            value_end = _append(values, header, value_end, at, size)
            cursor[NULL_HEADER_VALUES] += size < 0
            at += max(size, 0)
            header += 1
        if at != stop:
            return BAD_HEADERS
        store_32(list_offsets + 4 * (row + 1), header)
    cursor[HEADERS], cursor[HEADER_KEY_BITS] = header, bits
    return OK
