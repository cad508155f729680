"""Which partition a key belongs to: the rule of Kafka's Java client, so that keys land alike from every language."""

from typing import Final

_SEED: Final = 0x9747B28C
_MULTIPLIER: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF


def partition_for(key: bytes, partitions: int) -> int:
    """The partition that the Java client's default partitioner gives a record with this key."""
    if partitions < 1:
        raise ValueError(f"a topic has at least one partition, not {partitions}")
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def murmur2(data: bytes) -> int:
    """MurmurHash2 with the seed that Kafka uses, as Java's signed 32-bit integer."""
    length = len(data)
    whole = length & ~3
    h = _SEED ^ length
    for i in range(0, whole, 4):
        k = int.from_bytes(data[i : i + 4], "little") * _MULTIPLIER & _MASK
        k ^= k >> 24
        h = (h * _MULTIPLIER & _MASK) ^ (k * _MULTIPLIER & _MASK)
    if whole < length:
        h ^= int.from_bytes(data[whole:], "little")
        h = h * _MULTIPLIER & _MASK
    h ^= h >> 13
    h = h * _MULTIPLIER & _MASK
    h ^= h >> 15
    return h - (1 << 32) if h & 0x80000000 else h
