"""Which partition of an internal topic a name belongs to: Kafka's rule, so that its tools look in the right place."""

from functools import lru_cache
from typing import Final

OFFSETS_TOPIC: Final = "__consumer_offsets"


@lru_cache(maxsize=1 << 16)
def partition_of(name: str, partitions: int) -> int:
    """The partition of a group's or a transaction's id."""
    number = java_hash(name)
    return 0 if number == -(1 << 31) else abs(number) % partitions


def java_hash(text: str) -> int:
    """Java's `String.hashCode`, a signed 32-bit integer over UTF-16 code units."""
    units = text.encode("utf-16-be", "surrogatepass")
    number = 0
    for position in range(0, len(units), 2):
        number = (31 * number + (units[position] << 8 | units[position + 1])) & 0xFFFFFFFF
    return number - (1 << 32) if number & 0x80000000 else number
