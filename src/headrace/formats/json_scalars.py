# ruff: noqa: SIM109 - plain comparisons are what compiles well
"""Strings, numbers and literals of JSON documents into the slots of their nodes. A position of -1 means: odd."""

from typing import Any, Final

import numpy as np

from headrace.kernels.intrinsics import long
from headrace.kernels.jit import called, inlined

from .column_buffers import Slots, is_set, put, put_wide
from .decimals import of_digits
from .json_plan import (
    BOOLEAN,
    DATE,
    DECIMAL,
    DOUBLE,
    FIRST,
    FLOAT,
    INTEGER,
    KIND,
    SECOND,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    WIDTH,
)
from .json_text import date, exact_double, integer, moment, number_end, string_end, unescape

ODD: Final = -1

_IGNORED: Final = -1
_QUOTE, _MINUS, _ZERO, _NINE, _SMALL_F = 0x22, 0x2D, 0x30, 0x39, 0x66
_NULL: Final = int.from_bytes(b"null", "big")
_TRUE: Final = int.from_bytes(b"true", "big")
_FALSE: Final = int.from_bytes(b"false", "big")
_MOST_SECONDS: Final = (2**63 - 1) // 1_000_000
_DATE_SIZE: Final = 10


@inlined
def scalar(data: Any, pos: int, end: int, node: int, nodes: Any, side: Any, slots: Slots) -> int:
    """Read one value that is neither object nor list; the answer is where it ends."""
    kind = _IGNORED
    if node >= 0:
        kind = nodes[node * WIDTH + KIND]
        if is_set(slots, node):
            return ODD
    byte = data[pos]
    if byte == _QUOTE:
        return _string(data, pos, end, kind, node, nodes, side, slots)
    if byte == _MINUS or _ZERO <= byte <= _NINE:
        return _number(data, pos, end, kind, node, nodes, slots)
    return _literal(data, pos, end, kind, node, slots)


@inlined
def _string(data: Any, pos: int, end: int, kind: int, node: int, nodes: Any, side: Any, slots: Slots) -> int:
    close, escaped = string_end(data, pos + 1, end)
    if close < 0:
        return ODD
    if escaped:
        return _unescaped(data, pos + 1, close, kind, node, side, slots)
    if kind == STRING:
        put_wide(slots, node, pos + 1, close - pos - 1)
    elif kind != _IGNORED and not _text(data, pos + 1, close, kind, node, nodes, slots):
        return ODD
    return close + 1


@called
def _unescaped(data: Any, pos: int, close: int, kind: int, node: int, side: Any, slots: Slots) -> int:
    start = side.end[0]
    stop = unescape(data, pos, close, side.text, start)
    if stop < 0 or (kind != STRING and kind != _IGNORED):
        return ODD
    if kind == STRING:
        put_wide(slots, node, -1 - start, stop - start)
        side.end[0] = stop
    return close + 1


@called
def _text(data: Any, pos: int, end: int, kind: int, node: int, nodes: Any, slots: Slots) -> bool:
    """Take a string for a time, a date or a decimal; False if it is none."""
    sound = False
    if kind == TIMESTAMP or kind == TIMESTAMP_NTZ:
        micros, zoned, sound = moment(data, pos, end)
        if kind == TIMESTAMP:
            put_wide(slots, node, micros, 0 if zoned else 1)
        else:
            put(slots, node, micros)
            sound &= not zoned
    elif kind == DATE and end - pos == _DATE_SIZE:
        days, sound = date(data, pos)
        put(slots, node, days)
    elif kind == DECIMAL:
        sound = _decimal(data, pos, end, node, nodes, slots)
    return sound


@called
def _decimal(data: Any, pos: int, end: int, node: int, nodes: Any, slots: Slots) -> bool:
    low, high, sound = of_digits(data, pos, end, nodes[node * WIDTH + FIRST], nodes[node * WIDTH + SECOND])
    put_wide(slots, node, low, high)
    return sound


@inlined
def _number(data: Any, pos: int, end: int, kind: int, node: int, nodes: Any, slots: Slots) -> int:
    if kind == INTEGER:
        number, stop = integer(data, pos, end)
        put(slots, node, number)
        spare = 64 - nodes[node * WIDTH + FIRST]
        return stop if (number << spare) >> spare == number else ODD
    if kind == DOUBLE:
        value, stop = exact_double(data, pos, end)
        if stop >= 0:
            put_wide(slots, node, np.float64(value).view(np.int64), 0)  # type: ignore[arg-type]
            return stop
    return _other_number(data, pos, end, kind, node, nodes, slots)


@called
def _other_number(data: Any, pos: int, end: int, kind: int, node: int, nodes: Any, slots: Slots) -> int:
    if kind == TIMESTAMP:
        seconds, stop = integer(data, pos, end)
        put_wide(slots, node, seconds * 1_000_000, 0)
        return stop if -_MOST_SECONDS <= seconds <= _MOST_SECONDS else ODD
    stop = number_end(data, pos, end)
    if kind == _IGNORED or stop < 0:
        return stop
    if kind == DECIMAL:
        return stop if _decimal(data, pos, stop, node, nodes, slots) else ODD
    if kind == DOUBLE or kind == FLOAT or kind == STRING:
        put_wide(slots, node, pos, stop - pos)
        return stop
    return ODD


@called
def _literal(data: Any, pos: int, end: int, kind: int, node: int, slots: Slots) -> int:
    size = 5 if data[pos] == _SMALL_F else 4
    if size > end - pos:
        return ODD
    letters = 0
    for place in range(pos, pos + size):
        letters = letters << 8 | long(data[place])
    if letters == _NULL:
        return pos + size
    if letters != _TRUE and letters != _FALSE:
        return ODD
    if kind == BOOLEAN:
        put(slots, node, 1 if letters == _TRUE else 0)
    elif kind == STRING:
        put_wide(slots, node, pos, size)
    elif kind != _IGNORED:
        return ODD
    return pos + size
