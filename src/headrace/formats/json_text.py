"""Pieces of JSON for compiled loops: spaces, strings, numbers, times. A position of -1 means: not what it should be,
or not what the loop takes.
"""

from typing import Any, Final

import numpy as np

from headrace.kernels.intrinsics import eight_bytes, long, low_zeros
from headrace.kernels.jit import called, inlined

from .wire import checked_utf8

_QUOTE, _BACKSLASH, _SPACE, _ZERO, _NINE = 0x22, 0x5C, 0x20, 0x30, 0x39
_MINUS, _PLUS, _POINT, _COLON = 0x2D, 0x2B, 0x2E, 0x3A
_LOWER: Final = 0x20
_NONE, _THREE = np.uint64(0), np.uint64(3)
_ONES, _HIGH = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)
_QUOTES, _SLASHES, _SPACES = np.uint64(0x2222222222222222), np.uint64(0x5C5C5C5C5C5C5C5C), np.uint64(0x2020202020202020)
"""Each of the eight bytes of a word."""
_MOST_PAIRS: Final = 0xDFFF

_ESCAPED: Final = np.zeros(256, np.uint8)
for _letter, _meant in zip(b'"\\/bfnrt', b'"\\/\b\f\n\r\t', strict=True):
    _ESCAPED[_letter] = _meant

_DAYS_OF: Final = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], np.int64)
_MOST_EXACT: Final = 2**53
_POWERS: Final = np.array([10.0**power for power in range(23)])


@inlined
def after_space(data: Any, pos: int, end: int) -> int:
    """Where the next character that is no space is, or the end."""
    while pos < end and data[pos] <= _SPACE and (data[pos] == _SPACE or 9 <= data[pos] <= 10 or data[pos] == 13):
        pos += 1
    return pos


@inlined
def string_end(data: Any, pos: int, end: int) -> tuple[int, bool]:
    """The closing quote of the string that begins at `pos`, and whether it has escapes."""
    escaped = False
    seen = np.uint64(0)
    start = pos
    while pos + 8 <= end:
        word = eight_bytes(data, pos)
        seen |= word
        quotes, slashes = word ^ _QUOTES, word ^ _SLASHES
        special = (((quotes - _ONES) & ~quotes) | ((slashes - _ONES) & ~slashes) | ((word - _SPACES) & ~word)) & _HIGH
        if special == _NONE:
            pos += 8
            continue
        pos += long(low_zeros(special) >> _THREE)
        if data[pos] == _QUOTE:
            return (pos if seen & _HIGH == _NONE or checked_utf8(data, start, pos) else -1), escaped
        if data[pos] != _BACKSLASH:
            return -1, escaped
        escaped = True
        pos += 2
    return _short_string_end(data, start, pos, end, escaped)


@called
def _short_string_end(data: Any, start: int, pos: int, end: int, escaped: bool) -> tuple[int, bool]:
    while pos < end:
        byte = data[pos]
        if byte == _QUOTE:
            return (pos if checked_utf8(data, start, pos) else -1), escaped
        if byte < _SPACE:
            return -1, escaped
        if byte == _BACKSLASH:
            escaped = True
            pos += 1
        pos += 1
    return -1, escaped


@called
def unescape(data: Any, pos: int, end: int, side: Any, at: int) -> int:
    """Write a string without its escapes to the side buffer; the answer is where it ends there."""
    while pos < end:
        byte = data[pos]
        if byte != _BACKSLASH:
            side[at] = byte
            pos, at = pos + 1, at + 1
            continue
        if pos + 1 < end and data[pos + 1] == 0x75:
            code, pos = _code_point(data, pos, end)
            if pos < 0:
                return -1
            at = _write(side, at, code)
            continue
        if pos + 1 >= end or _ESCAPED[data[pos + 1]] == 0:
            return -1
        side[at] = _ESCAPED[data[pos + 1]]
        pos, at = pos + 2, at + 1
    return at


@called
def _code_point(data: Any, pos: int, end: int) -> tuple[int, int]:
    unit = _four_hex(data, pos + 2, end)
    pos += 6
    if unit < 0 or 0xDC00 <= unit <= _MOST_PAIRS:
        return 0, -1
    if unit < 0xD800 or unit > _MOST_PAIRS:
        return unit, pos
    if pos + 1 >= end or data[pos] != _BACKSLASH or data[pos + 1] != 0x75:
        return 0, -1
    low = _four_hex(data, pos + 2, end)
    if not 0xDC00 <= low <= _MOST_PAIRS:
        return 0, -1
    return 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00), pos + 6


@called
def _four_hex(data: Any, pos: int, end: int) -> int:
    if pos + 4 > end:
        return -1
    value = 0
    for place in range(pos, pos + 4):
        byte = long(data[place])
        if _ZERO <= byte <= _NINE:
            digit = byte - _ZERO
        elif 0x61 <= byte | _LOWER <= 0x66:
            digit = (byte | _LOWER) - 0x61 + 10
        else:
            return -1
        value = value << 4 | digit
    return value


@called
def _write(side: Any, at: int, code: int) -> int:
    if code < 0x80:
        side[at] = code
        return at + 1
    if code < 0x800:
        side[at] = 0xC0 | code >> 6
        side[at + 1] = 0x80 | code & 0x3F
        return at + 2
    if code < 0x10000:
        side[at] = 0xE0 | code >> 12
        side[at + 1] = 0x80 | code >> 6 & 0x3F
        side[at + 2] = 0x80 | code & 0x3F
        return at + 3
    side[at] = 0xF0 | code >> 18
    side[at + 1] = 0x80 | code >> 12 & 0x3F
    side[at + 2] = 0x80 | code >> 6 & 0x3F
    side[at + 3] = 0x80 | code & 0x3F
    return at + 4


@inlined
def digits_end(data: Any, pos: int, end: int) -> int:
    """Where digits end."""
    while pos < end and _ZERO <= data[pos] <= _NINE:
        pos += 1
    return pos


@inlined
def number_end(data: Any, pos: int, end: int) -> int:
    """Where the number ends that begins at `pos`; -1 if it is none."""
    if pos < end and data[pos] == _MINUS:
        pos += 1
    start = pos
    pos = digits_end(data, pos, end)
    if pos == start or (data[start] == _ZERO and pos > start + 1):
        return -1
    whole = pos
    if pos < end and data[pos] == _POINT:
        pos = digits_end(data, pos + 1, end)
        if pos == whole + 1:
            return -1
    if pos < end and data[pos] | _LOWER == 0x65:
        pos += 1
        if pos < end and (data[pos] == _MINUS or data[pos] == _PLUS):
            pos += 1
        start = pos
        pos = digits_end(data, pos, end)
        if pos == start:
            return -1
    return pos


@inlined
def integer(data: Any, pos: int, end: int) -> tuple[int, int]:
    """The number of the sign and digits at `pos`, and where they end; -1 if it needs more than 64 bits."""
    negative = data[pos] == _MINUS
    pos += negative
    start = pos
    value = 0
    while pos < end and _ZERO <= data[pos] <= _NINE:
        value = value * 10 - (long(data[pos]) - _ZERO)
        pos += 1
    size = pos - start
    if size == 0 or size > 19 or (size > 1 and data[start] == _ZERO):
        return 0, -1
    if value > 0 or (value == -(2**63) and not negative):
        return 0, -1
    return (value if negative else -value), pos


@inlined
def exact_double(data: Any, pos: int, end: int) -> tuple[float, int]:
    """The value of a number that is exact in two steps, its digits and one power of ten, and where it ends; else -1."""
    negative = data[pos] == _MINUS
    pos += negative
    start = pos
    digits, point = 0, end
    while pos < end:
        byte = data[pos]
        if _ZERO <= byte <= _NINE:
            digits = digits * 10 + (long(byte) - _ZERO)
        elif byte == _POINT and point == end:
            point = pos
        else:
            break
        pos += 1
    power = max(pos - point - 1, 0)
    size = min(point, pos) - start
    if (
        pos - start > 18
        or digits > _MOST_EXACT
        or power >= len(_POWERS)
        or size == 0
        or (size > 1 and data[start] == _ZERO)
    ):
        return 0.0, -1
    if point == pos - 1 or (pos < end and data[pos] | _LOWER == 0x65):
        return 0.0, -1
    value = digits / _POWERS[power]
    return (-value if negative else value), pos


@inlined
def number_at(data: Any, pos: int, size: int) -> int:
    """The number of so many digits; -1 if they are none."""
    value = 0
    for place in range(pos, pos + size):
        byte = long(data[place])
        if byte < _ZERO or byte > _NINE:
            return -1
        value = value * 10 + (byte - _ZERO)
    return value


@called
def date(data: Any, pos: int) -> tuple[int, bool]:
    """Days since the epoch of YYYY-MM-DD."""
    year, month, day = number_at(data, pos, 4), number_at(data, pos + 5, 2), number_at(data, pos + 8, 2)
    if data[pos + 4] != _MINUS or data[pos + 7] != _MINUS or year < 1 or month < 1 or month > 12 or day < 1:
        return 0, False
    leap = month == 2 and year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if day > _DAYS_OF[month] + leap:
        return 0, False
    years = year - (month <= 2)
    months = (month + 9) % 12
    days = years * 365 + years // 4 - years // 100 + years // 400 + (153 * months + 2) // 5 + day - 1 - 719_468
    return days, True


@called
def moment(data: Any, pos: int, end: int) -> tuple[int, bool, bool]:
    """Microseconds since the epoch of YYYY-MM-DD hh:mm:ss with a fraction and an offset, if it has them: whether it
    has an offset, and whether it is one at all.
    """
    if end - pos < 19:
        return 0, False, False
    days, sound = date(data, pos)
    hour, minute, second = number_at(data, pos + 11, 2), number_at(data, pos + 14, 2), number_at(data, pos + 17, 2)
    sound &= (data[pos + 10] == 0x54 or data[pos + 10] == _SPACE) and data[pos + 13] == data[pos + 16] == _COLON
    if not sound or hour < 0 or minute < 0 or second < 0 or hour > 23 or minute > 59 or second > 59:
        return 0, False, False
    micros = ((days * 24 + hour) * 60 + minute) * 60 + second
    pos += 19
    fraction, pos = _fraction(data, pos, end)
    if pos == end:
        return micros * 1_000_000 + fraction, False, True
    offset, sound = _offset(data, pos, end)
    return (micros - offset) * 1_000_000 + fraction, True, sound


@called
def _fraction(data: Any, pos: int, end: int) -> tuple[int, int]:
    if pos >= end or data[pos] != _POINT:
        return 0, pos
    start = pos + 1
    pos = digits_end(data, start, end)
    fraction = number_at(data, start, min(pos - start, 6))
    for _ in range(pos - start, 6):
        fraction *= 10
    return fraction, pos


@called
def _offset(data: Any, pos: int, end: int) -> tuple[int, bool]:
    """Seconds of Z or ±hh:mm."""
    if end - pos == 1 and data[pos] == 0x5A:
        return 0, True
    if end - pos != 6 or data[pos + 3] != _COLON or (data[pos] != _PLUS and data[pos] != _MINUS):
        return 0, False
    hours, minutes = number_at(data, pos + 1, 2), number_at(data, pos + 4, 2)
    if hours < 0 or minutes < 0 or minutes > 59 or hours * 60 + minutes > 18 * 60:
        return 0, False
    seconds = (hours * 60 + minutes) * 60
    return (seconds if data[pos] == _PLUS else -seconds), True
