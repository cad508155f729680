"""Which partition of an internal topic a name belongs to: Kafka's rule, so that its tools look in the right place."""

from functools import lru_cache
from typing import Final

_LONGEST_KEPT: Final = 256
"""Characters of the longest name whose hash is remembered: clients choose names, and could fill the memory."""


def partition_of(name: str, partitions: int) -> int:
    """The partition of a group's or a transaction's id."""
    number = _known_hash(name) if len(name) <= _LONGEST_KEPT else java_hash(name)
    return 0 if number == -(1 << 31) else abs(number) % partitions


@lru_cache(maxsize=1 << 16)
def _known_hash(name: str) -> int:
    return java_hash(name)


def java_hash(text: str) -> int:
    """Java's `String.hashCode`, a signed 32-bit integer over UTF-16 code units."""
    units = text.encode("utf-16-be", "surrogatepass")
    number = 0
    for position in range(0, len(units), 2):
        number = (31 * number + (units[position] << 8 | units[position + 1])) & 0xFFFFFFFF
    return number - (1 << 32) if number & 0x80000000 else number
