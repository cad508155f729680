# ruff: noqa: SIM110 - loops, not generators, are what compiles well
"""What Avro and Protobuf have in common on the wire beside varints: little-endian numbers and UTF-8."""

from typing import Any, Final

import numpy as np

from headrace.kernels.intrinsics import long
from headrace.kernels.jit import called, inlined

_ASCII_END: Final = 0x80


@inlined
def little_endian(data: Any, pos: int, size: int) -> int:
    """The bits of `size` bytes."""
    bits = 0
    for step in range(size):
        bits |= long(data[pos + step]) << (8 * step)
    return bits


@inlined
def is_utf8(data: Any, pos: int, end: int) -> bool:
    """Whether the bytes are UTF-8, as Unicode defines it: no surrogates, nothing longer than it must be."""
    seen = np.uint8(0)
    for place in range(pos, end):
        seen |= data[place]
    if seen < _ASCII_END:
        return True
    return checked_utf8(data, pos, end)


@called
def checked_utf8(data: Any, pos: int, end: int) -> bool:
    """The same, where there is likely more than ASCII."""
    while pos < end:
        size = utf8_length(data, pos, end)
        if size == 0:
            return False
        pos += size
    return True


@called
def utf8_length(data: Any, pos: int, end: int) -> int:
    """How many bytes the character at `pos` has; 0 if it is none."""
    lead = data[pos]
    if lead < _ASCII_END:
        return 1
    if 0xC2 <= lead <= 0xDF:
        return 2 if _follows(data, pos + 1, end, 1) else 0
    if 0xE0 <= lead <= 0xEF:
        if not _follows(data, pos + 1, end, 2):
            return 0
        second = data[pos + 1]
        return 0 if (lead == 0xE0 and second < 0xA0) or (lead == 0xED and second > 0x9F) else 3
    if 0xF0 <= lead <= 0xF4:
        if not _follows(data, pos + 1, end, 3):
            return 0
        second = data[pos + 1]
        return 0 if (lead == 0xF0 and second < 0x90) or (lead == 0xF4 and second > 0x8F) else 4
    return 0


@inlined
def _follows(data: Any, pos: int, end: int, count: int) -> bool:
    if pos + count > end:
        return False
    for place in range(pos, pos + count):
        if data[place] & 0xC0 != _ASCII_END:
            return False
    return True
