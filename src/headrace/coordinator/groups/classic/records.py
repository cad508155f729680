"""The record of a classic group in `__consumer_offsets`, byte for byte as Kafka has it: key type 2, written as v3, read
as v0 to v4. It has the group's generation, its members and what they were assigned. A null value is a tombstone."""

from dataclasses import dataclass
from struct import Struct
from typing import Final

from headrace.coordinator.runtime.fields import FieldReader, plain_bytes, plain_text

CLASSIC_KEY: Final = 2
"""The type of the key."""

_GROUP_KEY: Final = b"\x00\x02"
_I16: Final = Struct(">h")
_I32: Final = Struct(">i")
_I64: Final = Struct(">q")
_NEWEST: Final = 4
_FIRST_FLEXIBLE: Final = 4
_GROUP_VERSION: Final = 3
_NONE: Final = -1


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

    @classmethod
    def blank(cls, timestamp: int) -> "StoredGroup":
        """A group that has had no generation."""
        return cls(protocol_type="", generation=0, protocol=None, leader=None, state_timestamp=timestamp)


def group_key(group_id: str) -> bytes:
    return _GROUP_KEY + plain_text(group_id)


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
    reader = FieldReader(value)
    version = reader.version(_NEWEST, _FIRST_FLEXIBLE)
    protocol_type = reader.text()
    generation = reader.i32()
    protocol = reader.nullable_text()
    leader = reader.nullable_text()
    state_timestamp = reader.i64() if version >= 2 else _NONE
    members = tuple([_read_member(reader, version) for _ in range(reader.count())])
    return StoredGroup(
        protocol_type=protocol_type,
        generation=generation,
        protocol=protocol,
        leader=leader,
        state_timestamp=state_timestamp,
        members=members,
    )


def _read_member(reader: FieldReader, version: int) -> StoredMember:
    member_id = reader.text()
    instance_id = reader.nullable_text() if version >= 3 else None
    client_id = reader.text()
    client_host = reader.text()
    rebalance_timeout = reader.i32() if version >= 1 else _NONE
    session_timeout = reader.i32()
    member = StoredMember(
        member_id=member_id,
        instance_id=instance_id,
        client_id=client_id,
        client_host=client_host,
        rebalance_timeout_ms=session_timeout if rebalance_timeout == _NONE else rebalance_timeout,
        session_timeout_ms=session_timeout,
        subscription=reader.data(),
        assignment=reader.data(),
    )
    reader.tags()
    return member


def _nullable_text(text: str | None) -> bytes:
    return b"\xff\xff" if text is None else plain_text(text)
