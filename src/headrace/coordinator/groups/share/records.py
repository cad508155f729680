"""A share group as records of the internal topic, in Kafka's own formats.

Every change of a group's lasting state is one of the `Change`s below, as in consumer groups.

| type | key           | value                                                                                    |
|------|---------------|------------------------------------------------------------------------------------------|
| 9    | group         | topics of the group: of Kafka before 4.1, read over                                      |
| 10   | group, member | what the member sent when it joined                                                      |
| 11   | group         | epoch, and a hash of the topics it is subscribed to                                      |
| 12   | group         | epoch of the target assignment                                                           |
| 13   | group, member | the member's target                                                                      |
| 14   | group, member | the member's epochs and partitions                                                       |
| 15   | group         | partitions whose state is being initialized, is initialized; topics where it is deleted  |
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from struct import Struct
from typing import Final
from uuid import UUID

from headrace.coordinator.groups.record_fields import (
    read_assignment,
    read_texts,
    record_body,
    record_key,
    write_assignment,
    write_texts,
)
from headrace.coordinator.groups.targets import NOTHING, Assignment, GroupEpoch, TargetEpoch, TargetMember
from headrace.coordinator.runtime.decision import CoordinatorRecord
from headrace.coordinator.runtime.fields import BadRecord, FieldReader, i32s, write_compact_text
from headrace.protocol.encode import write_uvarint

PARTITION_METADATA: Final = 9
MEMBER_METADATA: Final = 10
GROUP_METADATA: Final = 11
TARGET_METADATA: Final = 12
TARGET_MEMBER: Final = 13
CURRENT_ASSIGNMENT: Final = 14
STATE_PARTITIONS: Final = 15
KEY_TYPES: Final = frozenset(range(PARTITION_METADATA, STATE_PARTITIONS + 1))
"""The types of the keys that belong to share groups."""

_EPOCH: Final = Struct(">iQ")
_EPOCHS: Final = Struct(">iib")
_VERSION_0: Final = bytes(2)
_NO_TAGS: Final = 0
_STABLE: Final = 0
"""The only state that members of share groups are in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareMember:
    """One member at one time."""

    id: str
    epoch: int = 0
    previous_epoch: int = -1
    """The epoch before, accepted once more where the answer that raised it may have been lost."""
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: frozenset[str] = frozenset()
    assigned: Assignment = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """What a member asked for; only those fields of the member count. None forgets it."""

    member_id: str
    member: ShareMember | None


@dataclass(frozen=True, slots=True)
class CurrentAssignment:
    """Where a member is; only its epochs and partitions count. None forgets it."""

    member_id: str
    member: ShareMember | None


@dataclass(frozen=True, slots=True)
class StatePartitions:
    """In which partitions the share coordinator keeps state of the group, and of which topics it is to be deleted; all
    None forgets that there is any."""

    initialized: Assignment | None
    deleting: frozenset[UUID] = frozenset()
    names: Mapping[UUID, str] = field(default_factory=dict)
    """Of the topics, for people who read the record."""


Change = GroupEpoch | MemberSubscription | TargetEpoch | TargetMember | CurrentAssignment | StatePartitions


def encode(group_id: str, change: Change) -> CoordinatorRecord:
    """The record of a change."""
    match change:
        case GroupEpoch(epoch, metadata_hash):
            value = None if epoch is None else _VERSION_0 + _EPOCH.pack(epoch, metadata_hash) + b"\0"
            return CoordinatorRecord(record_key(GROUP_METADATA, group_id), value)
        case MemberSubscription(member_id, member):
            value = None if member is None else _subscription(member)
            return CoordinatorRecord(record_key(MEMBER_METADATA, group_id, member_id), value)
        case TargetEpoch():
            return CoordinatorRecord(record_key(TARGET_METADATA, group_id), change.value())
        case TargetMember(member_id):
            return CoordinatorRecord(record_key(TARGET_MEMBER, group_id, member_id), change.value())
        case CurrentAssignment(member_id, member):
            value = None if member is None else _current(member)
            return CoordinatorRecord(record_key(CURRENT_ASSIGNMENT, group_id, member_id), value)
        case StatePartitions(initialized, deleting, names):
            value = None if initialized is None else _state_partitions(initialized, deleting, names)
            return CoordinatorRecord(record_key(STATE_PARTITIONS, group_id), value)


def decode(key: bytes, value: bytes | None) -> Change | None:
    """The change that a record holds; none for a type that is read over."""
    fields = FieldReader(key)
    kind = fields.i16()
    fields.text()
    if kind == PARTITION_METADATA:
        return None
    if kind not in _DECODERS:
        raise BadRecord(f"a key of type {kind}")
    name = fields.text() if kind in (MEMBER_METADATA, TARGET_MEMBER, CURRENT_ASSIGNMENT) else ""
    return _DECODERS[kind](name, None if value is None else record_body(value))


def _subscription(member: ShareMember) -> bytes:
    out = bytearray(_VERSION_0)
    for text in (member.rack_id, member.client_id, member.client_host):
        write_compact_text(out, text)
    write_texts(out, sorted(member.subscribed_topic_names))
    out.append(_NO_TAGS)
    return bytes(out)


def _current(member: ShareMember) -> bytes:
    out = bytearray(_VERSION_0 + _EPOCHS.pack(member.epoch, member.previous_epoch, _STABLE))
    write_assignment(out, member.assigned)
    out.append(_NO_TAGS)
    return bytes(out)


def _state_partitions(initialized: Assignment, deleting: frozenset[UUID], names: Mapping[UUID, str]) -> bytes:
    out = bytearray(_VERSION_0)
    write_uvarint(out, 1)  # none are being initialized: what is not initialized is found by what is
    write_uvarint(out, len(initialized) + 1)
    for topic, partitions in initialized.items():
        out += topic.bytes
        write_compact_text(out, names.get(topic, ""))
        write_uvarint(out, len(partitions) + 1)
        out += i32s(sorted(partitions))
        out.append(_NO_TAGS)
    write_uvarint(out, len(deleting) + 1)
    for topic in sorted(deleting):
        out += topic.bytes
        write_compact_text(out, names.get(topic, ""))
        out.append(_NO_TAGS)
    out.append(_NO_TAGS)
    return bytes(out)


def _read_group_epoch(_: str, body: FieldReader | None) -> GroupEpoch:
    return GroupEpoch(None) if body is None else GroupEpoch(*body.fixed(_EPOCH))


def _read_subscription(member_id: str, body: FieldReader | None) -> MemberSubscription:
    if body is None:
        return MemberSubscription(member_id, None)
    member = ShareMember(
        id=member_id,
        rack_id=body.nullable_text(),
        client_id=body.text(),
        client_host=body.text(),
        subscribed_topic_names=read_texts(body),
    )
    return MemberSubscription(member_id, member)


def _read_current(member_id: str, body: FieldReader | None) -> CurrentAssignment:
    if body is None:
        return CurrentAssignment(member_id, None)
    epoch, previous_epoch, _ = body.fixed(_EPOCHS)
    member = ShareMember(id=member_id, epoch=epoch, previous_epoch=previous_epoch, assigned=read_assignment(body))
    return CurrentAssignment(member_id, member)


def _read_state_partitions(_: str, body: FieldReader | None) -> StatePartitions:
    """What was being initialized, as Kafka notes it, is initialized again."""
    if body is None:
        return StatePartitions(None)
    _read_topics(body)
    initialized = _read_topics(body)
    deleting = []
    for _topic in range(body.count()):
        deleting.append(UUID(bytes=body.take(16)))
        body.text()
        body.tags()
    return StatePartitions(initialized, frozenset(deleting))


def _read_topics(body: FieldReader) -> dict[UUID, frozenset[int]]:
    found = {}
    for _ in range(body.count()):
        topic = UUID(bytes=body.take(16))
        body.text()
        found[topic] = frozenset(body.i32s())
        body.tags()
    return found


_DECODERS: Final[dict[int, Callable[[str, FieldReader | None], Change]]] = {
    MEMBER_METADATA: _read_subscription,
    GROUP_METADATA: _read_group_epoch,
    TARGET_METADATA: TargetEpoch.read,
    TARGET_MEMBER: TargetMember.read,
    CURRENT_ASSIGNMENT: _read_current,
    STATE_PARTITIONS: _read_state_partitions,
}
