# ruff: noqa: SIM109 - chains of comparisons, not tuples, are what compiles well
"""The loop that runs an Avro plan over the rows of a payload."""

from typing import Any, Final

import numpy as np

from headrace.kernels.bounds import pointer
from headrace.kernels.intrinsics import long
from headrace.kernels.jit import called, inlined, jit
from headrace.kernels.varint_loops import read_uvarint, unzigzag

from .avro_plan import (
    ARRAY,
    BOOLEAN,
    BYTES,
    CALL,
    CONSTANT,
    DECIMAL,
    DOUBLE,
    ELEMENT,
    END,
    ENUM,
    FAIL,
    FIXED,
    FIXED_DECIMAL,
    FLOAT_AS_DOUBLE,
    INT,
    JUMP,
    LONG,
    LONG_AS_DOUBLE,
    LONG_AS_FLOAT,
    MILLIS,
    NEXT,
    PASS_FIXED,
    PASS_SPAN,
    PASS_VARINT,
    RECORD,
    RETURN,
    STRING,
    SWITCH,
    WIDE_CONSTANT,
)
from .column_buffers import ColumnBuffers, Slots, drop_row, mark, open_element, open_row, put, put_wide, slots_of
from .decimals import fits, halves
from .payload import Payload
from .payload_pointers import pointers_of
from .wire import is_utf8, little_endian

CUT_SHORT, OUT_OF_RANGE, NOT_UTF8, NO_SUCH_BRANCH, LEFT_OVER, NO_ROOM, TOO_DEEP = range(-1, -8, -1)
"""Faults, which stand where a position would."""

_MOST_MILLIS: Final = (2**63 - 1) // 1000


@jit
def decode(
    payload: Payload, steps: Any, tables: Any, buffers: ColumnBuffers, faults: Any, positions: Any, left: Any, row: int
) -> int:
    """Decode the rows from `row` on; the answer is the row that found no room, or the number of rows.

    A row's fault is 0 if it is good; its place is the byte where the value begins that showed the fault. `left` is
    room for a number per depth of arrays and calls, and one more: what is still to come of the blocks under way, and
    where calls return to.
    """
    source, slots = pointers_of(payload), slots_of(buffers)
    while row < source.rows:
        if source.present[row]:
            open_row(slots, row)
            start, end = source.starts[row], source.ends[row]
            pos, begin = _record(
                source.data, start, end, pointer(steps), pointer(tables), slots, pointer(left), len(left)
            )
            if pos < 0:
                drop_row(slots, row)
                if pos == NO_ROOM:
                    return row
                faults[row], positions[row] = pos, begin - start
        row += 1
    return row


@called
def _record(
    data: Any, pos: int, end: int, steps: Any, tables: Any, slots: Slots, left: Any, room: int
) -> tuple[int, int]:
    """Where the record ends, or its fault, and where its last value begins."""
    step, depth = long(0), long(0)
    while True:
        code, node = steps[4 * step], steps[4 * step + 1]
        argument, other = steps[4 * step + 2], steps[4 * step + 3]
        step += 1
        begin = pos
        if code == END:
            return (pos if pos == end else LEFT_OVER), begin
        if code < END:
            pos = _scalar(data, pos, end, code, argument, other, tables, slots, node)
        elif code == RECORD:
            mark(slots, node)
        elif code == SWITCH:
            step, pos = _branch(data, pos, end, tables, argument, other)
        elif code == JUMP:
            step = argument
        elif (code == ARRAY or code == CALL) and depth + 1 >= room:
            pos = TOO_DEEP
        elif code == CALL:
            depth += 1
            left[depth], step = step, argument
        elif code == RETURN:
            step, depth = left[depth], depth - 1
        elif code == ARRAY or code == NEXT:
            goes_on, depth, pos = _element(data, pos, end, code == ARRAY, node, argument, slots, left, depth)
            if goes_on != (code == ARRAY):  # into the array again, or past it
                step = other
        else:
            pos = _constant(pos, code, argument, other, slots, node)
        if pos < 0:
            return pos, begin


@called
def _constant(pos: int, code: int, argument: int, other: int, slots: Slots, node: int) -> int:
    """Put what no bytes stand for."""
    if code == FAIL:
        return argument
    if code == CONSTANT:
        put(slots, node, argument)
    elif code == WIDE_CONSTANT:
        put_wide(slots, node, argument, other)
    elif code == ELEMENT and not open_element(slots, node, argument):
        return NO_ROOM
    return pos


@inlined
def _branch(data: Any, pos: int, end: int, tables: Any, table: int, count: int) -> tuple[int, int]:
    """The step that a union goes on with."""
    bits, pos = read_uvarint(data, pos, end)
    branch = unzigzag(bits)
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
        if scope >= 0:
            mark(slots, node)
    else:
        left[depth] -= 1
    if left[depth] == 0:
        left[depth], pos = _block(data, pos, end)
        if left[depth] == 0:
            return False, depth - 1, pos
    if pos >= 0 and scope >= 0 and not open_element(slots, node, scope):
        pos = NO_ROOM
    return True, depth, pos


@inlined
def _block(data: Any, pos: int, end: int) -> tuple[int, int]:
    bits, pos = read_uvarint(data, pos, end)
    count = unzigzag(bits)
    if pos >= 0 and count < 0:  # a negative count has the block's size in bytes behind it, for those who skip
        count = -count
        _, pos = read_uvarint(data, pos, end)
    if count < 0:
        return 0, OUT_OF_RANGE
    return count, pos


@inlined
def _scalar(
    data: Any, pos: int, end: int, code: int, argument: int, other: int, tables: Any, slots: Slots, node: int
) -> int:
    if code == STRING or code == BYTES or code == DECIMAL or code == PASS_SPAN:
        bits, pos = read_uvarint(data, pos, end)
        size = unzigzag(bits)
        if pos < 0 or size < 0 or size > end - pos:
            return CUT_SHORT
        return _span(data, pos, size, code, other, slots, node)
    if code == INT or code == LONG or code == MILLIS:
        bits, pos = read_uvarint(data, pos, end)
        number = unzigzag(bits)
        put(slots, node, number * 1000 if code == MILLIS else number)
        return pos if pos < 0 or _in_range(number, code) else OUT_OF_RANGE
    if code == ENUM or code == PASS_VARINT or code == LONG_AS_FLOAT or code == LONG_AS_DOUBLE:
        return _converted(data, pos, end, code, argument, other, tables, slots, node)
    size = argument
    if code == BOOLEAN:
        size = 1
    elif code == DOUBLE:
        size = 8
    elif code != FIXED and code != FIXED_DECIMAL and code != PASS_FIXED:
        size = 4
    if size > end - pos:
        return CUT_SHORT
    if code == FIXED or code == FIXED_DECIMAL or code == PASS_FIXED:
        return _span(data, pos, size, code, other, slots, node)
    bits = _bits(data, pos, size, code)
    put(slots, node, bits)
    return pos + size if code != BOOLEAN or bits <= 1 else OUT_OF_RANGE


@called
def _converted(
    data: Any, pos: int, end: int, code: int, symbols: int, table: int, tables: Any, slots: Slots, node: int
) -> int:
    """A number that stands for another one."""
    bits, pos = read_uvarint(data, pos, end)
    number = unzigzag(bits)
    if pos < 0:
        return CUT_SHORT
    if code == ENUM:
        if number < 0 or number >= symbols:
            return OUT_OF_RANGE
        number = tables[table + number]
        if number < 0:
            return number  # type: ignore[no-any-return]
        put(slots, node, number)
    elif code == LONG_AS_FLOAT:
        put(slots, node, long(np.float32(number).view(np.uint32)))
    elif code == LONG_AS_DOUBLE:
        put(slots, node, np.float64(number).view(np.int64))  # type: ignore[arg-type]
    return pos


@inlined
def _in_range(number: int, code: int) -> bool:
    if code == INT:
        return -(2**31) <= number < 2**31
    return code == LONG or -_MOST_MILLIS <= number <= _MOST_MILLIS


@inlined
def _span(data: Any, pos: int, size: int, code: int, digits: int, slots: Slots, node: int) -> int:
    if code == DECIMAL or code == FIXED_DECIMAL:
        low, high, whole = halves(data, pos, size)
        put_wide(slots, node, low, high)
        return pos + size if whole and fits(low, high, digits) else OUT_OF_RANGE
    if code != PASS_SPAN and code != PASS_FIXED:
        put_wide(slots, node, pos, size)
    return pos + size if code != STRING or is_utf8(data, pos, pos + size) else NOT_UTF8


@inlined
def _bits(data: Any, pos: int, size: int, code: int) -> int:
    bits: Any = little_endian(data, pos, size)
    if code == FLOAT_AS_DOUBLE:
        return np.float64(np.uint32(bits).view(np.float32)).view(np.int64)  # type: ignore[return-value]
    return bits  # type: ignore[no-any-return]
