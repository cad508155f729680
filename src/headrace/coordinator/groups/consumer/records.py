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

from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from typing import Final

from headrace.coordinator.groups.record_fields import (
    read_assignment,
    read_texts,
    record_body,
    record_key,
    write_assignment,
    write_texts,
)
from headrace.coordinator.groups.targets import GroupEpoch, TargetEpoch, TargetMember
from headrace.coordinator.runtime.decision import CoordinatorRecord
from headrace.coordinator.runtime.fields import (
    BadRecord,
    FieldReader,
    write_compact_bytes,
    write_compact_text,
    write_tags,
)
from headrace.protocol.encode import write_uvarint

from .member import ClassicMetadata, ConsumerMember, MemberState

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
_I32: Final = Struct(">i")
_I64: Final = Struct(">q")
_U64: Final = Struct(">Q")
_VERSION_0: Final = bytes(2)
_NO_TAGS: Final = 0


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """What a member asked for; only those fields of the member count. None forgets it."""

    member_id: str
    member: ConsumerMember | None


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


def encode(group_id: str, change: Change) -> CoordinatorRecord:
    """The record of a change."""
    match change:
        case GroupEpoch(epoch, metadata_hash):
            value = None if epoch is None else _group_epoch(epoch, metadata_hash)
            return CoordinatorRecord(record_key(GROUP_METADATA, group_id), value)
        case MemberSubscription(member_id, member):
            return CoordinatorRecord(
                record_key(MEMBER_METADATA, group_id, member_id), None if member is None else _subscription(member)
            )
        case TargetEpoch():
            return CoordinatorRecord(record_key(TARGET_METADATA, group_id), change.value())
        case TargetMember(member_id):
            return CoordinatorRecord(record_key(TARGET_MEMBER, group_id, member_id), change.value())
        case CurrentAssignment(member_id, member):
            return CoordinatorRecord(
                record_key(CURRENT_ASSIGNMENT, group_id, member_id), None if member is None else _current(member)
            )
        case ResolvedRegex(regex, topics, version):
            value = None if topics is None else _resolved(topics, version)
            return CoordinatorRecord(record_key(REGULAR_EXPRESSION, group_id, regex), value)


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
    return group_id, _DECODERS[kind](name, None if value is None else record_body(value))


def _group_epoch(epoch: int, metadata_hash: int) -> bytes:
    out = bytearray(_VERSION_0 + _I32.pack(epoch))
    write_tags(out, {0: _U64.pack(metadata_hash)} if metadata_hash else {})
    return bytes(out)


def _subscription(member: ConsumerMember) -> bytes:
    out = bytearray(_VERSION_0)
    for text in (member.instance_id, member.rack_id, member.client_id, member.client_host):
        write_compact_text(out, text)
    write_texts(out, sorted(member.subscribed_topic_names))
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


def _current(member: ConsumerMember) -> bytes:
    out = bytearray(_VERSION_0 + _I32.pack(member.epoch) + _I32.pack(member.previous_epoch) + _I8.pack(member.state))
    write_assignment(out, member.assigned)
    write_assignment(out, member.pending_revocation)
    out.append(_NO_TAGS)
    return bytes(out)


def _resolved(topics: frozenset[str], version: int) -> bytes:
    out = bytearray(_VERSION_0)
    write_texts(out, sorted(topics))
    out += _I64.pack(version) + _I64.pack(0)
    out.append(_NO_TAGS)
    return bytes(out)


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
        subscribed_topic_names=read_texts(body),
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


def _read_current(member_id: str, body: FieldReader | None) -> CurrentAssignment:
    if body is None:
        return CurrentAssignment(member_id, None)
    member = ConsumerMember(
        id=member_id,
        epoch=body.i32(),
        previous_epoch=body.i32(),
        state=_read_state(body),
        assigned=read_assignment(body),
        pending_revocation=read_assignment(body),
    )
    return CurrentAssignment(member_id, member)


def _read_resolved(regex: str, body: FieldReader | None) -> ResolvedRegex:
    return ResolvedRegex(regex, None) if body is None else ResolvedRegex(regex, read_texts(body), body.i64())


_DECODERS: Final[dict[int, Callable[[str, FieldReader | None], Change]]] = {
    GROUP_METADATA: _read_group_epoch,
    MEMBER_METADATA: _read_subscription,
    TARGET_METADATA: TargetEpoch.read,
    TARGET_MEMBER: TargetMember.read,
    CURRENT_ASSIGNMENT: _read_current,
    REGULAR_EXPRESSION: _read_resolved,
}
