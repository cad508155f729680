"""Varints for compiled loops: read by an index into a pointer's bytes or by an address, written at an address.

Both readers take up to ten bytes and no number of more than 64 bits; what they read is untrusted.
"""

from typing import Any, Final

import numpy as np

from .addresses import load_u8, store_8
from .intrinsics import long
from .jit import called, inlined

_LONGEST: Final = 10
"""Bytes of a number of 64 bits."""
_LAST_SHIFT: Final = 63
_GOES_ON: Final = 0x80


@inlined
def read_uvarint(data: Any, pos: int, end: int) -> tuple[int, int]:
    """The 64 bits at `data[pos]`, and where they end; -1 if they do not before `end`."""
    bits = 0
    last = min(end, pos + _LONGEST)
    shift = 0
    while pos < last:
        byte = long(data[pos])
        pos += 1
        bits |= (byte & 127) << shift
        if byte < _GOES_ON:
            return bits, pos if shift < _LAST_SHIFT or byte <= 1 else -1
        shift += 7
    return 0, -1


@inlined
def unzigzag(bits: int) -> int:
    """The signed number that was zigzag-coded as these bits."""
    return ((bits >> 1) & 0x7FFFFFFFFFFFFFFF) ^ -(bits & 1)


@called
def load_varint(at: Any, stop: Any) -> Any:
    """The signed number at an address and the address after it, which is 0 when no number ends before `stop`."""
    if at >= stop:
        return 0, 0
    byte = load_u8(at)
    at += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at
    value = np.uint64(byte & 0x7F)
    shift = np.uint64(7)
    while at < stop and shift < np.uint64(70):
        byte = load_u8(at)
        at += 1
        value |= np.uint64(byte & 0x7F) << shift
        if byte < 0x80:
            if byte > 1 and shift == np.uint64(63):
                return 0, 0
            return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1)), at
        shift += np.uint64(7)
    return 0, 0


@called
def store_varint(at: Any, value: Any) -> Any:
    """Write a signed number at an address; returns the address after it."""
    rest = _zigzag(value)
    while rest >= np.uint64(0x80):
        store_8(at, np.int64(rest | np.uint64(0x80)))
        rest >>= np.uint64(7)
        at += 1
    store_8(at, np.int64(rest))
    return at + 1


@called
def varint_size(value: Any) -> Any:
    """The bytes that `store_varint` writes."""
    rest = _zigzag(value) >> np.uint64(7)
    size = 1
    while rest:
        rest >>= np.uint64(7)
        size += 1
    return size


@called
def _zigzag(value: Any) -> Any:
    return np.uint64((value << 1) ^ (value >> 63))
