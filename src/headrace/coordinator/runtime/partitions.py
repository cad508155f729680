"""Which partition of an internal topic a name belongs to: Kafka's rule, so that its tools look in the right place."""

from functools import lru_cache
from typing import Final

_LONGEST_KEPT: Final = 256
"""Characters of the longest name whose hash is remembered: clients choose names, and could fill the memory."""

_LANE: Final = 8
"""Bytes in which a number of 32 bits can be multiplied by another."""
_LOW_HALF: Final = b"\0\0\0\0\xff\xff\xff\xff"


def partition_of(name: str, partitions: int) -> int:
    """The partition of a group's or a transaction's id."""
    number = _known_hash(name) if len(name) <= _LONGEST_KEPT else java_hash(name)
    return 0 if number == -(1 << 31) else abs(number) % partitions


@lru_cache(maxsize=1 << 16)
def _known_hash(name: str) -> int:
    return java_hash(name)


def java_hash(text: str) -> int:
    """Java's `String.hashCode`, a signed 32-bit integer over UTF-16 code units: sum(unit[i] * 31 ** (n - 1 - i)).

    Names can have 32 KiB, and everybody waits meanwhile. So the units stand side by side in one large number, 64 bits
    for each, and its first half is multiplied and added to the second until one is left: a fifth of what a loop takes.
    """
    units = text.encode("utf-16-be", "surrogatepass")
    count = 1 << max(len(units) // 2 - 1, 0).bit_length()
    lanes = bytearray(_LANE * count)
    low = _LANE * (count - len(units) // 2) + _LANE - 2  # zeros before the first unit change nothing
    lanes[low::_LANE], lanes[low + 1 :: _LANE] = units[::2], units[1::2]
    number = int.from_bytes(lanes, "big")
    while count > 1:
        count //= 2
        bits = 8 * _LANE * count
        number = (number >> bits) * pow(31, count, 1 << 32) + (number & (1 << bits) - 1)
        number &= int.from_bytes(_LOW_HALF * count, "big")
    return number - (1 << 32) if number & 0x80000000 else number
