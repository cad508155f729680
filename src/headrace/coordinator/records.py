"""The records of `__consumer_offsets`, byte for byte as Kafka has them, so that its tools can read the topic.

A key begins with a number that tells what the record is; the group's id always follows:

| number | record | value |
|---|---|---|
| 0, 1 | the committed offset of a partition | written as v3 (v1 where the commit brought its own retention), read 0-4 |
| 2 | a classic group: its generation, its members and what they were assigned | written as v3, read 0-4 |
| 3 and up | groups of the new protocol: see `coordinator.consumer` | |

A null value is a tombstone: the record is gone.
"""

from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple

from .fields import BadRecord, Reader, plain_bytes, plain_text

LARGEST_TEXT: Final = 32_767
"""Bytes of the longest text that these formats hold."""
OFFSET_KEYS: Final = (0, 1)
CLASSIC_KEY: Final = 2
NONE: Final = -1

_OFFSET_KEY: Final = b"\x00\x01"
_GROUP_KEY: Final = b"\x00\x02"
_I16: Final = Struct(">h")
_I32: Final = Struct(">i")
_I64: Final = Struct(">q")
_OFFSET_V3: Final = Struct(">hqih")
_OFFSET_V3_BARE: Final = Struct(">hqihq")
_OFFSET_V1: Final = Struct(">hqh")
_TIMES_V1: Final = Struct(">qq")
_NEWEST: Final = 4
_FIRST_FLEXIBLE: Final = 4
_GROUP_VERSION: Final = 3


class Committed(NamedTuple):
    """A committed offset."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp: int
    expire_timestamp: int = NONE
    """When it expires whatever the group does; only for commits of v2-4 that brought a retention time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMember:
    """A member of a classic group as it is stored."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredGroup:
    """A classic group as it is stored: at rest, between two rebalances."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_timestamp: int
    members: tuple[StoredMember, ...] = ()


# Keys


def key_kind(key: bytes) -> int:
    """The number that tells what a record is."""
    if len(key) < 2:
        raise BadRecord(f"a key of {len(key)} bytes")
    return key[0] << 8 | key[1]


def group_of(key: bytes) -> str:
    """The id of the group that a key belongs to."""
    return Reader(key, 2).text()


def group_key(group_id: str) -> bytes:
    return _GROUP_KEY + plain_text(group_id)


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
    reader = Reader(prefix, 2)
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
    reader = Reader(value)
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


def encode_group(group: StoredGroup) -> bytes:
    out = bytearray(_I16.pack(_GROUP_VERSION))
    out += plain_text(group.protocol_type) + _I32.pack(group.generation)
    out += _nullable_text(group.protocol) + _nullable_text(group.leader) + _I64.pack(group.state_timestamp)
    out += _I32.pack(len(group.members))
    for member in group.members:
        out += plain_text(member.member_id) + _nullable_text(member.instance_id)
        out += plain_text(member.client_id) + plain_text(member.client_host)
        out += _I32.pack(member.rebalance_timeout_ms) + _I32.pack(member.session_timeout_ms)
        out += plain_bytes(member.subscription) + plain_bytes(member.assignment)
    return bytes(out)


def decode_group(value: bytes) -> StoredGroup:
    """Any version of a classic group's value."""
    reader = Reader(value)
    version = reader.version(_NEWEST, _FIRST_FLEXIBLE)
    protocol_type = reader.text()
    generation = reader.i32()
    protocol = reader.nullable_text()
    leader = reader.nullable_text()
    state_timestamp = reader.i64() if version >= 2 else NONE
    members = tuple([_read_member(reader, version) for _ in range(reader.count())])
    return StoredGroup(
        protocol_type=protocol_type,
        generation=generation,
        protocol=protocol,
        leader=leader,
        state_timestamp=state_timestamp,
        members=members,
    )


def _read_member(reader: Reader, version: int) -> StoredMember:
    member_id = reader.text()
    instance_id = reader.nullable_text() if version >= 3 else None
    client_id = reader.text()
    client_host = reader.text()
    rebalance_timeout = reader.i32() if version >= 1 else NONE
    session_timeout = reader.i32()
    member = StoredMember(
        member_id=member_id,
        instance_id=instance_id,
        client_id=client_id,
        client_host=client_host,
        rebalance_timeout_ms=session_timeout if rebalance_timeout == NONE else rebalance_timeout,
        session_timeout_ms=session_timeout,
        subscription=reader.data(),
        assignment=reader.data(),
    )
    reader.tags()
    return member


def _nullable_text(text: str | None) -> bytes:
    return b"\xff\xff" if text is None else plain_text(text)
