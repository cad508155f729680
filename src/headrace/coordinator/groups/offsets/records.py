"""The committed offsets in `__consumer_offsets`, byte for byte as Kafka has them, so that its tools can read the topic.

A key is its type (0 or 1), the group, the topic and the partition. A value is written as v3 (v1 where the commit
brought its own retention) and read as v0 to v4; a null value is a tombstone: the offset is gone.
"""

from struct import Struct
from typing import Final, NamedTuple

from headrace.coordinator.runtime.fields import FieldReader, plain_text

OFFSETS_TOPIC: Final = "__consumer_offsets"
OFFSET_KEYS: Final = (0, 1)
"""The types of the keys."""
NONE: Final = -1

_OFFSET_KEY: Final = b"\x00\x01"
_I32: Final = Struct(">i")
_I64: Final = Struct(">q")
_OFFSET_V3: Final = Struct(">hqih")
_OFFSET_V3_BARE: Final = Struct(">hqihq")
_OFFSET_V1: Final = Struct(">hqh")
_TIMES_V1: Final = Struct(">qq")
_NEWEST: Final = 4
_FIRST_FLEXIBLE: Final = 4


class Committed(NamedTuple):
    """A committed offset."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp: int
    expire_timestamp: int = NONE
    """When it expires whatever the group does; only for commits of v2-4 that brought a retention time."""


# Keys


def offset_prefix(group_id: str, topic: str) -> bytes:
    """The key of an offset without its last four bytes, the partition."""
    return _OFFSET_KEY + plain_text(group_id) + plain_text(topic)


def offset_key(prefix: bytes, partition: int) -> bytes:
    return prefix + _I32.pack(partition)


def split_offset_key(key: bytes) -> tuple[bytes, int]:
    """The prefix and the partition of an offset's key; both of its versions have the same prefix."""
    return _OFFSET_KEY + key[2:-4], int.from_bytes(key[-4:], "big")


def read_prefix(prefix: bytes) -> tuple[str, str]:
    """The group and the topic of a prefix."""
    reader = FieldReader(prefix, 2)
    return reader.text(), reader.text()


# Values


def encode_offset(offset: int, leader_epoch: int, metadata: str, commit_timestamp: int, expire_timestamp: int) -> bytes:
    if expire_timestamp != NONE:
        text = metadata.encode()
        return _OFFSET_V1.pack(1, offset, len(text)) + text + _TIMES_V1.pack(commit_timestamp, expire_timestamp)
    if not metadata:
        return _OFFSET_V3_BARE.pack(3, offset, leader_epoch, 0, commit_timestamp)
    text = metadata.encode()
    return _OFFSET_V3.pack(3, offset, leader_epoch, len(text)) + text + _I64.pack(commit_timestamp)


def decode_offset(value: bytes) -> Committed:
    """Any version of an offset's value."""
    reader = FieldReader(value)
    version = reader.version(_NEWEST, _FIRST_FLEXIBLE)
    offset = reader.i64()
    leader_epoch = reader.i32() if version >= 3 else NONE
    metadata = reader.text()
    commit_timestamp = reader.i64()
    expire_timestamp = reader.i64() if version == 1 else NONE
    return Committed(offset, leader_epoch, metadata, commit_timestamp, expire_timestamp)


def offset_times(value: bytes) -> tuple[int, int]:
    """The commit timestamp and the expire timestamp (or -1) of an offset, without the rest: for scans of them all."""
    version = value[1]
    if version >= _FIRST_FLEXIBLE:
        committed = decode_offset(value)
        return committed.commit_timestamp, committed.expire_timestamp
    if version == 1:
        times: tuple[int, int] = _TIMES_V1.unpack_from(value, len(value) - _TIMES_V1.size)
        return times
    return int.from_bytes(value[-8:], "big", signed=True), NONE
