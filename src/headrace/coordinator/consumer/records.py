"""A consumer group as records of the internal topic, in Kafka's own formats.

Every change of a group's lasting state is one of the `Change`s below. A decision applies its changes and writes them;
a start reads them back and applies them in the same way. A key starts with its type (int16) and is not flexible;
a value starts with its version (int16, always 0) and is.

| type | key                | value                                                              |
|------|--------------------|--------------------------------------------------------------------|
| 3    | group              | epoch; tag 0: a hash of the topics it is subscribed to             |
| 4    | group              | topics of the group: of Kafka before 4.1, read over                |
| 5    | group, member      | what the member told when it joined; tag 0: its classic protocols  |
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

from headrace.protocol.encode import write_uvarint

from ..effects import Write
from .member import Assignment, ClassicMetadata, Member, MemberState

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
    member: Member | None


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
    member: Member | None


@dataclass(frozen=True, slots=True)
class ResolvedRegex:
    """The topics that match an expression; None forgets it."""

    regex: str
    topics: frozenset[str] | None
    version: int = 0


Change = GroupEpoch | MemberSubscription | TargetEpoch | TargetMember | CurrentAssignment | ResolvedRegex


def key_type(key: bytes) -> int:
    """The type of a record of the internal topic."""
    return int(_I16.unpack_from(key)[0])


def encode(group_id: str, change: Change) -> Write:
    """The record of a change."""
    match change:
        case GroupEpoch(epoch, metadata_hash):
            value = None if epoch is None else _group_epoch(epoch, metadata_hash)
            return Write(_key(GROUP_METADATA, group_id), value)
        case MemberSubscription(member_id, member):
            return Write(_key(MEMBER_METADATA, group_id, member_id), None if member is None else _subscription(member))
        case TargetEpoch(epoch):
            value = None if epoch is None else _VERSION_0 + _I32.pack(epoch) + b"\0"
            return Write(_key(TARGET_METADATA, group_id), value)
        case TargetMember(member_id, target):
            return Write(_key(TARGET_MEMBER, group_id, member_id), None if target is None else _target(target))
        case CurrentAssignment(member_id, member):
            return Write(_key(CURRENT_ASSIGNMENT, group_id, member_id), None if member is None else _current(member))
        case ResolvedRegex(regex, topics, version):
            value = None if topics is None else _resolved(topics, version)
            return Write(_key(REGULAR_EXPRESSION, group_id, regex), value)


def decode(key: bytes, value: bytes | None) -> tuple[str, Change | None]:
    """The group and the change that a record holds; no change for a type that is read over."""
    fields = _Reader(key)
    kind = fields.i16()
    group_id = fields.legacy_string()
    if kind == PARTITION_METADATA:
        return group_id, None
    name = "" if kind in (GROUP_METADATA, TARGET_METADATA) else fields.legacy_string()
    body = None if value is None else _Reader(value[2:])
    return group_id, _DECODERS[kind](name, body)


def _key(kind: int, *names: str) -> bytes:
    out = bytearray(_I16.pack(kind))
    for name in names:
        data = name.encode()
        out += _I16.pack(len(data))
        out += data
    return bytes(out)


def _group_epoch(epoch: int, metadata_hash: int) -> bytes:
    out = bytearray(_VERSION_0 + _I32.pack(epoch))
    if metadata_hash == 0:
        out.append(_NO_TAGS)
    else:
        out += b"\x01\x00\x08" + _U64.pack(metadata_hash)
    return bytes(out)


def _subscription(member: Member) -> bytes:
    out = bytearray(_VERSION_0)
    for text in (member.instance_id, member.rack_id, member.client_id, member.client_host):
        _write_string(out, text)
    _write_strings(out, sorted(member.subscribed_topic_names))
    _write_string(out, member.subscribed_topic_regex)
    out += _I32.pack(member.rebalance_timeout_ms)
    _write_string(out, member.server_assignor)
    if member.classic is None:
        out.append(_NO_TAGS)
        return bytes(out)
    body = _classic(member.classic)
    out += b"\x01\x00"
    write_uvarint(out, len(body))
    out += body
    return bytes(out)


def _classic(classic: ClassicMetadata) -> bytes:
    out = bytearray(b"\x01" + _I32.pack(classic.session_timeout_ms))
    write_uvarint(out, len(classic.protocols) + 1)
    for name, metadata in classic.protocols:
        _write_string(out, name)
        write_uvarint(out, len(metadata) + 1)
        out += metadata
        out.append(_NO_TAGS)
    out.append(_NO_TAGS)
    return bytes(out)


def _target(target: Assignment) -> bytes:
    out = bytearray(_VERSION_0)
    _write_assignment(out, target)
    out.append(_NO_TAGS)
    return bytes(out)


def _current(member: Member) -> bytes:
    out = bytearray(_VERSION_0 + _I32.pack(member.epoch) + _I32.pack(member.previous_epoch) + _I8.pack(member.state))
    _write_assignment(out, member.assigned)
    _write_assignment(out, member.pending_revocation)
    out.append(_NO_TAGS)
    return bytes(out)


def _resolved(topics: frozenset[str], version: int) -> bytes:
    out = bytearray(_VERSION_0)
    _write_strings(out, sorted(topics))
    out += _I64.pack(version) + _I64.pack(0)
    out.append(_NO_TAGS)
    return bytes(out)


def _write_string(out: bytearray, text: str | None) -> None:
    if text is None:
        out.append(0)
        return
    data = text.encode()
    write_uvarint(out, len(data) + 1)
    out += data


def _write_strings(out: bytearray, texts: Sequence[str]) -> None:
    write_uvarint(out, len(texts) + 1)
    for text in texts:
        _write_string(out, text)


def _write_assignment(out: bytearray, assignment: Assignment) -> None:
    write_uvarint(out, len(assignment) + 1)
    for topic, partitions in assignment.items():
        out += topic.bytes
        write_uvarint(out, len(partitions) + 1)
        out += Struct(f">{len(partitions)}i").pack(*sorted(partitions))
        out.append(_NO_TAGS)


class _Reader:
    """The bytes of one key or value, read from the front."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def i8(self) -> int:
        return self._fixed(_I8)

    def i16(self) -> int:
        return self._fixed(_I16)

    def i32(self) -> int:
        return self._fixed(_I32)

    def i64(self) -> int:
        return self._fixed(_I64)

    def legacy_string(self) -> str:
        return self._take(self.i16()).decode()

    def string(self) -> str | None:
        size = self.uvarint() - 1
        return None if size < 0 else self._take(size).decode()

    def text(self) -> str:
        return self.string() or ""

    def data(self) -> bytes:
        return self._take(self.uvarint() - 1)

    def strings(self) -> frozenset[str]:
        return frozenset(self.text() for _ in range(self.uvarint() - 1))

    def assignment(self) -> dict[UUID, frozenset[int]]:
        found = {}
        for _ in range(self.uvarint() - 1):
            topic = UUID(bytes=self._take(16))
            count = self.uvarint() - 1
            found[topic] = frozenset(Struct(f">{count}i").unpack(self._take(4 * count)))
            self.tags()
        return found

    def tags(self) -> dict[int, bytes]:
        return {self.uvarint(): self._take(self.uvarint()) for _ in range(self.uvarint())}

    def uvarint(self) -> int:
        value = shift = 0
        while True:
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def _fixed(self, kind: Struct) -> int:
        value: int = kind.unpack_from(self._data, self._at)[0]
        self._at += kind.size
        return value

    def _take(self, size: int) -> bytes:
        taken = self._data[self._at : self._at + size]
        if len(taken) != size:
            raise ValueError(f"a record of a group ends {size - len(taken)} bytes too early")
        self._at += size
        return taken


def _read_group_epoch(_: str, body: _Reader | None) -> GroupEpoch:
    if body is None:
        return GroupEpoch(None)
    epoch = body.i32()
    tagged = body.tags().get(0)
    return GroupEpoch(epoch, 0 if tagged is None else _U64.unpack(tagged)[0])


def _read_subscription(member_id: str, body: _Reader | None) -> MemberSubscription:
    if body is None:
        return MemberSubscription(member_id, None)
    member = Member(
        id=member_id,
        instance_id=body.string(),
        rack_id=body.string(),
        client_id=body.text(),
        client_host=body.text(),
        subscribed_topic_names=body.strings(),
        subscribed_topic_regex=body.string(),
        rebalance_timeout_ms=body.i32(),
        server_assignor=body.string(),
        classic=_read_classic(body.tags().get(0)),
    )
    return MemberSubscription(member_id, member)


def _read_classic(tagged: bytes | None) -> ClassicMetadata | None:
    if tagged is None:
        return None
    body = _Reader(tagged)
    if body.i8() != 1:
        return None
    session_timeout_ms = body.i32()
    protocols = []
    for _ in range(body.uvarint() - 1):
        protocols.append((body.text(), body.data()))
        body.tags()
    return ClassicMetadata(session_timeout_ms=session_timeout_ms, protocols=tuple(protocols))


def _read_target_epoch(_: str, body: _Reader | None) -> TargetEpoch:
    return TargetEpoch(None if body is None else body.i32())


def _read_target(member_id: str, body: _Reader | None) -> TargetMember:
    return TargetMember(member_id, None if body is None else body.assignment())


def _read_current(member_id: str, body: _Reader | None) -> CurrentAssignment:
    if body is None:
        return CurrentAssignment(member_id, None)
    member = Member(
        id=member_id,
        epoch=body.i32(),
        previous_epoch=body.i32(),
        state=MemberState(body.i8()),
        assigned=body.assignment(),
        pending_revocation=body.assignment(),
    )
    return CurrentAssignment(member_id, member)


def _read_resolved(regex: str, body: _Reader | None) -> ResolvedRegex:
    return ResolvedRegex(regex, None) if body is None else ResolvedRegex(regex, body.strings(), body.i64())


_DECODERS: Final[dict[int, Callable[[str, _Reader | None], Change]]] = {
    GROUP_METADATA: _read_group_epoch,
    MEMBER_METADATA: _read_subscription,
    TARGET_METADATA: _read_target_epoch,
    TARGET_MEMBER: _read_target,
    CURRENT_ASSIGNMENT: _read_current,
    REGULAR_EXPRESSION: _read_resolved,
}
