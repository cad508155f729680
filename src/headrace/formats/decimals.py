"""128-bit integers for compiled loops: as a low and a high half, both signed 64-bit patterns."""

from typing import Any, Final

import numpy as np

from headrace.kernels.intrinsics import long
from headrace.kernels.jit import called

_HALF: Final = 1 << 64
_BYTES: Final = 16
_MASK: Final = 2**32 - 1
_MOST_DIGITS: Final = 38

_LIMITS_LOW: Final = np.array([10**digits % _HALF for digits in range(39)], np.uint64)
_LIMITS_HIGH: Final = np.array([10**digits // _HALF for digits in range(39)], np.uint64)
"""10 to the number of digits."""


@called
def halves(data: Any, pos: int, size: int) -> tuple[int, int, bool]:
    """The integer of `size` bytes, most significant first; False if it is none or needs more than 128 bits."""
    if size == 0:
        return 0, 0, False
    sign = -1 if data[pos] & 0x80 else 0
    low, high = sign, sign
    start = pos + max(size - _BYTES, 0)
    for at in range(pos, start):
        if data[at] != sign & 0xFF:
            return 0, 0, False
    if start > pos and (data[start] & 0x80 != 0) != (sign != 0):
        return 0, 0, False
    for at in range(start, pos + size):
        high = (high << 8) | ((low >> 56) & 0xFF)
        low = (low << 8) | long(data[at])
    return low, high, True


@called
def fits(low: int, high: int, digits: int) -> bool:
    """Whether the integer has at most so many decimal digits."""
    if high < 0:
        high = ~high + (1 if low == 0 else 0)
        low = -low
    top, bottom = np.uint64(high), np.uint64(low)
    if top != _LIMITS_HIGH[digits]:
        return bool(top < _LIMITS_HIGH[digits])
    return bool(bottom < _LIMITS_LOW[digits])


@called
def of_digits(data: Any, pos: int, end: int, digits: int, scale: int) -> tuple[int, int, bool]:
    """The integer of a number in plain digits, times ten to the scale; False if it has an exponent, more digits than
    that, or more than `scale` behind the point.
    """
    negative = pos < end and data[pos] == 0x2D
    pos += negative
    low, high, behind, seen = long(0), long(0), -1, 0
    for place in range(pos, end):
        byte = long(data[place])
        if byte == 0x2E and behind < 0 and seen > 0:
            behind = 0
            continue
        if byte < 0x30 or byte > 0x39 or seen >= _MOST_DIGITS:
            return 0, 0, False
        seen += 1
        behind += behind >= 0
        low, high = _times_ten(low, high, byte - 0x30)
    behind = max(behind, 0)
    if seen == 0 or behind > scale or seen + scale - behind > _MOST_DIGITS:
        return 0, 0, False
    for _ in range(scale - behind):
        low, high = _times_ten(low, high, long(0))
    if not fits(low, high, digits):
        return 0, 0, False
    if negative:
        high = ~high + (1 if low == 0 else 0)
        low = -low
    return low, high, True


@called
def _times_ten(low: int, high: int, digit: int) -> tuple[int, int]:
    bottom = (low & _MASK) * 10 + digit
    middle = ((low >> 32) & _MASK) * 10 + (bottom >> 32)
    return (middle << 32) | (bottom & _MASK), high * 10 + (middle >> 32)
