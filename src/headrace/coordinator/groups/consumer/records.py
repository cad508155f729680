"""A consumer group as records of the internal topic, in Kafka's own formats.

Every change of a group's lasting state is one of the `Change`s below. A decision applies its changes and writes them;
a start reads them back and applies them in the same way. A key starts with its type (int16) and is not flexible;
a value starts with its version (int16, always 0) and is.

| type | key                | value                                                              |
|------|--------------------|--------------------------------------------------------------------|
| 3    | group              | epoch; tag 0: a hash of the topics it is subscribed to             |
| 4    | group              | topics of the group: of Kafka before 4.1, read over                |
| 5    | group, member      | what the member sent when it joined; tag 0: its classic protocols  |
| 6    | group              | epoch of the target assignment                                     |
| 7    | group, member      | the member's target                                                |
| 8    | group, member      | the member's epochs, state and partitions                          |
| 16   | group, expression  | the topics that match it, as of which version of the metadata      |
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final
from uuid import UUID

from headrace.coordinator.runtime.decision import Record
from headrace.coordinator.runtime.fields import (
    BadRecord,
    FieldReader,
    i32s,
    plain_text,
    write_compact_bytes,
    write_compact_text,
    write_tags,
)
from headrace.protocol.encode import write_uvarint

from .member import Assignment, ClassicMetadata, ConsumerMember, MemberState

GROUP_METADATA: Final = 3
PARTITION_METADATA: Final = 4
MEMBER_METADATA: Final = 5
TARGET_METADATA: Final = 6
TARGET_MEMBER: Final = 7
CURRENT_ASSIGNMENT: Final = 8
REGULAR_EXPRESSION: Final = 16
KEY_TYPES: Final = frozenset(
    {
        GROUP_METADATA,
        PARTITION_METADATA,
        MEMBER_METADATA,
        TARGET_METADATA,
        TARGET_MEMBER,
        CURRENT_ASSIGNMENT,
        REGULAR_EXPRESSION,
    }
)
"""The types of the keys that belong to consumer groups."""

_I8: Final = Struct(">b")
_I16: Final = Struct(">h")
_I32: Final = Struct(">i")
_I64: Final = Struct(">q")
_U64: Final = Struct(">Q")
_VERSION_0: Final = bytes(2)
_NO_TAGS: Final = 0


@dataclass(frozen=True, slots=True)
class GroupEpoch:
    """The group's epoch and the hash of the topics it is subscribed to; an epoch of None forgets the group."""

    epoch: int | None
    metadata_hash: int = 0


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """What a member asked for; only those fields of the member count. None forgets it."""

    member_id: str
    member: ConsumerMember | None


@dataclass(frozen=True, slots=True)
class TargetEpoch:
    """The epoch that the target assignment was made for; None forgets it."""

    epoch: int | None


@dataclass(frozen=True, slots=True)
class TargetMember:
    """What a member is to hold; None forgets it."""

    member_id: str
    target: Assignment | None


@dataclass(frozen=True, slots=True)
class CurrentAssignment:
    """Where a member is; only its epochs, state and partitions count. None forgets it."""

    member_id: str
    member: ConsumerMember | None


@dataclass(frozen=True, slots=True)
class ResolvedRegex:
    """The topics that match an expression; None forgets it."""

    regex: str
    topics: frozenset[str] | None
    version: int = 0


Change = GroupEpoch | MemberSubscription | TargetEpoch | TargetMember | CurrentAssignment | ResolvedRegex


def encode(group_id: str, change: Change) -> Record:
    """The record of a change."""
    match change:
        case GroupEpoch(epoch, metadata_hash):
            value = None if epoch is None else _group_epoch(epoch, metadata_hash)
            return Record(_key(GROUP_METADATA, group_id), value)
        case MemberSubscription(member_id, member):
            return Record(_key(MEMBER_METADATA, group_id, member_id), None if member is None else _subscription(member))
        case TargetEpoch(epoch):
            value = None if epoch is None else _VERSION_0 + _I32.pack(epoch) + b"\0"
            return Record(_key(TARGET_METADATA, group_id), value)
        case TargetMember(member_id, target):
            return Record(_key(TARGET_MEMBER, group_id, member_id), None if target is None else _target(target))
        case CurrentAssignment(member_id, member):
            return Record(_key(CURRENT_ASSIGNMENT, group_id, member_id), None if member is None else _current(member))
        case ResolvedRegex(regex, topics, version):
            value = None if topics is None else _resolved(topics, version)
            return Record(_key(REGULAR_EXPRESSION, group_id, regex), value)


def decode(key: bytes, value: bytes | None) -> tuple[str, Change | None]:
    """The group and the change that a record holds; no change for a type that is read over."""
    fields = FieldReader(key)
    kind = fields.i16()
    group_id = fields.text()
    if kind == PARTITION_METADATA:
        return group_id, None
    if kind not in _DECODERS:
        raise BadRecord(f"a key of type {kind}")
    name = "" if kind in (GROUP_METADATA, TARGET_METADATA) else fields.text()
    return group_id, _DECODERS[kind](name, None if value is None else _body(value))


def _body(value: bytes) -> FieldReader:
    reader = FieldReader(value)
    reader.version(newest=0, first_compact=0)
    return reader


def _key(kind: int, *names: str) -> bytes:
    return _I16.pack(kind) + b"".join(map(plain_text, names))


def _group_epoch(epoch: int, metadata_hash: int) -> bytes:
    out = bytearray(_VERSION_0 + _I32.pack(epoch))
    write_tags(out, {0: _U64.pack(metadata_hash)} if metadata_hash else {})
    return bytes(out)


def _subscription(member: ConsumerMember) -> bytes:
    out = bytearray(_VERSION_0)
    for text in (member.instance_id, member.rack_id, member.client_id, member.client_host):
        write_compact_text(out, text)
    _write_texts(out, sorted(member.subscribed_topic_names))
    write_compact_text(out, member.subscribed_topic_regex)
    out += _I32.pack(member.rebalance_timeout_ms)
    write_compact_text(out, member.server_assignor)
    write_tags(out, {} if member.classic is None else {0: _classic(member.classic)})
    return bytes(out)


def _classic(classic: ClassicMetadata) -> bytes:
    out = bytearray(b"\x01" + _I32.pack(classic.session_timeout_ms))
    write_uvarint(out, len(classic.protocols) + 1)
    for name, metadata in classic.protocols:
        write_compact_text(out, name)
        write_compact_bytes(out, metadata)
        out.append(_NO_TAGS)
    out.append(_NO_TAGS)
    return bytes(out)


def _target(target: Assignment) -> bytes:
    out = bytearray(_VERSION_0)
    _write_assignment(out, target)
    out.append(_NO_TAGS)
    return bytes(out)


def _current(member: ConsumerMember) -> bytes:
    out = bytearray(_VERSION_0 + _I32.pack(member.epoch) + _I32.pack(member.previous_epoch) + _I8.pack(member.state))
    _write_assignment(out, member.assigned)
    _write_assignment(out, member.pending_revocation)
    out.append(_NO_TAGS)
    return bytes(out)


def _resolved(topics: frozenset[str], version: int) -> bytes:
    out = bytearray(_VERSION_0)
    _write_texts(out, sorted(topics))
    out += _I64.pack(version) + _I64.pack(0)
    out.append(_NO_TAGS)
    return bytes(out)


def _write_texts(out: bytearray, texts: Sequence[str]) -> None:
    write_uvarint(out, len(texts) + 1)
    for text in texts:
        write_compact_text(out, text)


def _write_assignment(out: bytearray, assignment: Assignment) -> None:
    write_uvarint(out, len(assignment) + 1)
    for topic, partitions in assignment.items():
        out += topic.bytes
        write_uvarint(out, len(partitions) + 1)
        out += i32s(sorted(partitions))
        out.append(_NO_TAGS)


def _read_texts(body: FieldReader) -> frozenset[str]:
    return frozenset([body.text() for _ in range(body.count())])


def _read_assignment(body: FieldReader) -> dict[UUID, frozenset[int]]:
    found = {}
    for _ in range(body.count()):
        topic = UUID(bytes=body.take(16))
        found[topic] = frozenset(body.i32s())
        body.tags()
    return found


def _read_state(body: FieldReader) -> MemberState:
    state = body.i8()
    try:
        return MemberState(state)
    except ValueError:
        raise BadRecord(f"a member in state {state}") from None


def _read_group_epoch(_: str, body: FieldReader | None) -> GroupEpoch:
    if body is None:
        return GroupEpoch(None)
    epoch = body.i32()
    tagged = body.tags().get(0)
    return GroupEpoch(epoch, 0 if tagged is None else FieldReader(tagged).u64())


def _read_subscription(member_id: str, body: FieldReader | None) -> MemberSubscription:
    if body is None:
        return MemberSubscription(member_id, None)
    member = ConsumerMember(
        id=member_id,
        instance_id=body.nullable_text(),
        rack_id=body.nullable_text(),
        client_id=body.text(),
        client_host=body.text(),
        subscribed_topic_names=_read_texts(body),
        subscribed_topic_regex=body.nullable_text(),
        rebalance_timeout_ms=body.i32(),
        server_assignor=body.nullable_text(),
        classic=_read_classic(body.tags().get(0)),
    )
    return MemberSubscription(member_id, member)


def _read_classic(tagged: bytes | None) -> ClassicMetadata | None:
    if tagged is None:
        return None
    body = FieldReader(tagged, compact=True)
    if body.i8() != 1:
        return None
    session_timeout_ms = body.i32()
    protocols = []
    for _ in range(body.count()):
        protocols.append((body.text(), body.data()))
        body.tags()
    return ClassicMetadata(session_timeout_ms=session_timeout_ms, protocols=tuple(protocols))


def _read_target_epoch(_: str, body: FieldReader | None) -> TargetEpoch:
    return TargetEpoch(None if body is None else body.i32())


def _read_target(member_id: str, body: FieldReader | None) -> TargetMember:
    return TargetMember(member_id, None if body is None else _read_assignment(body))


def _read_current(member_id: str, body: FieldReader | None) -> CurrentAssignment:
    if body is None:
        return CurrentAssignment(member_id, None)
    member = ConsumerMember(
        id=member_id,
        epoch=body.i32(),
        previous_epoch=body.i32(),
        state=_read_state(body),
        assigned=_read_assignment(body),
        pending_revocation=_read_assignment(body),
    )
    return CurrentAssignment(member_id, member)


def _read_resolved(regex: str, body: FieldReader | None) -> ResolvedRegex:
    return ResolvedRegex(regex, None) if body is None else ResolvedRegex(regex, _read_texts(body), body.i64())


_DECODERS: Final[dict[int, Callable[[str, FieldReader | None], Change]]] = {
    GROUP_METADATA: _read_group_epoch,
    MEMBER_METADATA: _read_subscription,
    TARGET_METADATA: _read_target_epoch,
    TARGET_MEMBER: _read_target,
    CURRENT_ASSIGNMENT: _read_current,
    REGULAR_EXPRESSION: _read_resolved,
}
