# ruff: noqa: SIM109 - chains of comparisons, not tuples, are what compiles well
"""The loop that runs an Avro plan over the rows of a payload."""

from typing import Any, Final

import numpy as np

from headrace.kernels.jit import called, inlined, jit

from .avro_plan import (
    ARRAY,
    BOOLEAN,
    BYTES,
    DECIMAL,
    DOUBLE,
    END,
    ENUM,
    FIXED,
    FIXED_DECIMAL,
    FLOAT_AS_DOUBLE,
    INT,
    JUMP,
    LONG,
    MILLIS,
    NOTHING,
    RECORD,
    STRING,
    SWITCH,
)
from .decimals import fits, halves
from .machine import long, pointer, source_of
from .payload import Payload
from .sheet import Sheet, Slots, drop_row, mark, open_element, open_row, put, put_wide, slots_of
from .wire import is_utf8, little_endian, varint, zigzag

CUT_SHORT, OUT_OF_RANGE, NOT_UTF8, NO_SUCH_BRANCH, LEFT_OVER, NO_ROOM = range(-1, -7, -1)
"""Faults, which stand where a position would."""

_MOST_MILLIS: Final = (2**63 - 1) // 1000


@jit
def decode(
    payload: Payload, steps: Any, tables: Any, sheet: Sheet, faults: Any, places: Any, left: Any, row: int
) -> int:
    """Decode the rows from `row` on; the answer is the row that found no room, or the number of rows.

    A row's fault is 0 if it is good; its place is the byte where the value begins that showed the fault. `left` is
    room for a number per scope: what is still to come of the blocks under way, by the depth of their arrays.
    """
    source, slots = source_of(payload), slots_of(sheet)
    while row < source.rows:
        if source.present[row]:
            open_row(slots, row)
            start, end = source.starts[row], source.ends[row]
            pos, begin = _record(source.data, start, end, pointer(steps), pointer(tables), slots, pointer(left))
            if pos < 0:
                drop_row(slots, row)
                if pos == NO_ROOM:
                    return row
                faults[row], places[row] = pos, begin - start
        row += 1
    return row


@called
def _record(data: Any, pos: int, end: int, steps: Any, tables: Any, slots: Slots, left: Any) -> tuple[int, int]:
    """Where the record ends, or its fault, and where its last value begins."""
    step, depth = long(0), long(0)
    while True:
        code, node = steps[4 * step], steps[4 * step + 1]
        argument, other = steps[4 * step + 2], steps[4 * step + 3]
        step += 1
        begin = pos
        if code == END:
            return (pos if pos == end else LEFT_OVER), begin
        if code == RECORD:
            mark(slots, node)
        elif code == SWITCH:
            step, pos = _branch(data, pos, end, tables, argument, other)
        elif code == JUMP:
            step = argument
        elif code < RECORD:
            pos = _scalar(data, pos, end, code, argument, other, slots, node)
        else:
            goes_on, depth, pos = _element(data, pos, end, code == ARRAY, node, argument, slots, left, depth)
            if goes_on != (code == ARRAY):  # into the array again, or past it
                step = other
        if pos < 0:
            return pos, begin


@inlined
def _branch(data: Any, pos: int, end: int, tables: Any, table: int, count: int) -> tuple[int, int]:
    """The step that a union goes on with."""
    bits, pos = varint(data, pos, end)
    branch = zigzag(bits)
    if pos < 0:
        return 0, CUT_SHORT
    if branch < 0 or branch >= count:
        return 0, NO_SUCH_BRANCH
    return tables[table + branch], pos


@inlined
def _element(
    data: Any, pos: int, end: int, is_first: bool, node: int, scope: int, slots: Slots, left: Any, depth: int
) -> tuple[bool, int, int]:
    """Whether an array has another element, which is then begun; how deep in arrays that is; and the position."""
    if is_first:
        depth += 1
        left[depth] = 0
        mark(slots, node)
    else:
        left[depth] -= 1
    if left[depth] == 0:
        left[depth], pos = _block(data, pos, end)
        if left[depth] == 0:
            return False, depth - 1, pos
    if pos >= 0 and not open_element(slots, node, scope):
        pos = NO_ROOM
    return True, depth, pos


@inlined
def _block(data: Any, pos: int, end: int) -> tuple[int, int]:
    bits, pos = varint(data, pos, end)
    count = zigzag(bits)
    if pos >= 0 and count < 0:  # a negative count has the block's size in bytes behind it, for those who skip
        count = -count
        _, pos = varint(data, pos, end)
    if count < 0:
        return 0, OUT_OF_RANGE
    return count, pos


@inlined
def _scalar(data: Any, pos: int, end: int, code: int, argument: int, other: int, slots: Slots, node: int) -> int:
    if code == STRING or code == BYTES or code == DECIMAL:
        bits, pos = varint(data, pos, end)
        size = zigzag(bits)
        if pos < 0 or size < 0 or size > end - pos:
            return CUT_SHORT
        return _span(data, pos, size, code, other, slots, node)
    if code == INT or code == LONG or code == MILLIS or code == ENUM:
        bits, pos = varint(data, pos, end)
        number = zigzag(bits)
        put(slots, node, number * 1000 if code == MILLIS else number)
        return pos if pos < 0 or _in_range(number, code, argument) else OUT_OF_RANGE
    if code == FIXED or code == FIXED_DECIMAL:
        return _span(data, pos, argument, code, other, slots, node) if argument <= end - pos else CUT_SHORT
    if code == NOTHING:
        return pos
    size = 1 if code == BOOLEAN else 8 if code == DOUBLE else 4
    if size > end - pos:
        return CUT_SHORT
    bits = _bits(data, pos, size, code)
    put(slots, node, bits)
    return pos + size if code != BOOLEAN or bits <= 1 else OUT_OF_RANGE


@inlined
def _in_range(number: int, code: int, symbols: int) -> bool:
    if code == INT:
        return -(2**31) <= number < 2**31
    if code == ENUM:
        return 0 <= number < symbols
    return code == LONG or -_MOST_MILLIS <= number <= _MOST_MILLIS


@inlined
def _span(data: Any, pos: int, size: int, code: int, digits: int, slots: Slots, node: int) -> int:
    if code == DECIMAL or code == FIXED_DECIMAL:
        low, high, whole = halves(data, pos, size)
        put_wide(slots, node, low, high)
        return pos + size if whole and fits(low, high, digits) else OUT_OF_RANGE
    put_wide(slots, node, pos, size)
    return pos + size if code != STRING or is_utf8(data, pos, pos + size) else NOT_UTF8


@inlined
def _bits(data: Any, pos: int, size: int, code: int) -> int:
    bits: Any = little_endian(data, pos, size)
    if code == FLOAT_AS_DOUBLE:
        return np.float64(np.uint32(bits).view(np.float32)).view(np.int64)  # type: ignore[return-value]
    return bits  # type: ignore[no-any-return]
