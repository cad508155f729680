"""What consumer groups and share groups have in common: the coordinator assigns partitions to their members, by epochs.

A change of a member's subscription, or of the topics, makes a new epoch of the group; for that a target assignment is
made, and each member comes to its own by heartbeats. What kinds of group do with that, and which numbers their records
have, is theirs.
"""

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from struct import Struct
from types import MappingProxyType
from typing import Any, Final, Generic, Protocol, Self, TypeVar
from uuid import UUID

from headrace.cluster.image import ClusterImage, Topic
from headrace.coordinator.runtime.decision import CoordinatorRecord, Decision
from headrace.coordinator.runtime.fields import FieldReader
from headrace.protocol.errors import CodedError, ErrorCode

from .record_fields import read_assignment, write_assignment

Assignment = Mapping[UUID, frozenset[int]]
"""Partitions by the id of their topic; a topic without partitions is left out."""

NOTHING: Final[Assignment] = MappingProxyType({})
JOINING: Final = 0
"""The epoch with which a member joins."""
LEFT: Final = -1
"""The epoch with which a member leaves."""

_I32: Final = Struct(">i")
_VERSION_0: Final = bytes(2)
_NO_TAGS: Final = 0
_HASH: Final = 2**64 - 1


# Changes, and the values of their records


@dataclass(frozen=True, slots=True)
class GroupEpoch:
    """The group's epoch and the hash of the topics it is subscribed to; an epoch of None forgets the group."""

    epoch: int | None
    metadata_hash: int = 0


@dataclass(frozen=True, slots=True)
class TargetEpoch:
    """The epoch that the target assignment was made for; None forgets it."""

    epoch: int | None

    def value(self) -> bytes | None:
        return None if self.epoch is None else _VERSION_0 + _I32.pack(self.epoch) + b"\0"

    @classmethod
    def read(cls, _: str, body: FieldReader | None) -> Self:
        return cls(None if body is None else body.i32())


@dataclass(frozen=True, slots=True)
class TargetMember:
    """What a member is to hold; None forgets it."""

    member_id: str
    target: Assignment | None

    def value(self) -> bytes | None:
        if self.target is None:
            return None
        out = bytearray(_VERSION_0)
        write_assignment(out, self.target)
        out.append(_NO_TAGS)
        return bytes(out)

    @classmethod
    def read(cls, member_id: str, body: FieldReader | None) -> Self:
        return cls(member_id, None if body is None else read_assignment(body))


# Decisions on a copy of the group's state

ChangeT = TypeVar("ChangeT", contravariant=True)


class ForkedState(Protocol[ChangeT]):
    """The state of a group that records keep."""

    def fork(self) -> Self:
        """A copy to decide on: its changes leave this one as it is."""

    def adopt(self, fork: Self) -> None:
        """Become what a fork of this state has become."""

    def apply(self, change: ChangeT) -> None:
        """Make a change."""


StateT = TypeVar("StateT", bound=ForkedState[Any])
KindT = TypeVar("KindT")


class TargetDecision(Decision, Generic[StateT, KindT]):
    """A decision of a group, made on a copy of its state."""

    __slots__ = ("_group_id", "_original", "state")

    def __init__(self, group_id: str, state: StateT, now_ms: int) -> None:
        super().__init__(now_ms)
        self._group_id = group_id
        self._original = state
        self.state = state
        """The group's state as this decision has made it."""

    @staticmethod
    @abstractmethod
    def encode(group_id: str, change: KindT) -> CoordinatorRecord:
        """The record of a change."""

    def apply(self, change: KindT, record: CoordinatorRecord | None = None) -> None:
        """Change the state, and keep the record of that, which may have been made before."""
        if self.state is self._original:
            self.state = self._original.fork()
            self.when_written(self._adopt)
        self.state.apply(change)
        self.records.append(record or self.encode(self._group_id, change))

    def _adopt(self) -> None:
        self._original.adopt(self.state)


# Topics as an assignor sees them


class TopicsHash:
    """A number that changes with what an assignor sees of the topics that a group is subscribed to, made anew only
    where something may have changed."""

    __slots__ = ("_image", "_made_from", "_version")

    def __init__(self, image: ClusterImage) -> None:
        self._image = image
        self._version: int | None = None
        """The version of the image that the group's hash was made from, by this process."""
        self._made_from: tuple[int, dict[int, str]] | None = None
        """What it was made from: the version of the topics, and the racks of brokers."""

    @property
    def is_current(self) -> bool:
        """Whether the group's hash is of the topics as they are now. Elections do not change that."""
        image = self._image
        if self._version != image.version and self._made_from == (image.topics_version, racks_of(image)):
            self._version = image.version
        return self._version == image.version

    def make(self, draft: Decision, names: Iterable[str]) -> int:
        """The hash of these topics, which is the group's once the decision is written."""
        image = self._image
        version, made_from = image.version, (image.topics_version, racks_of(image))

        def remember() -> None:
            self._version, self._made_from = version, made_from

        draft.when_written(remember)
        return metadata_hash(names, image)


def topic_ids(names: Iterable[str], image: ClusterImage) -> frozenset[UUID]:
    """The ids of the topics that exist."""
    topics = (image.topic(name) for name in names)
    return frozenset(topic.id for topic in topics if topic is not None)


def metadata_hash(names: Iterable[str], image: ClusterImage) -> int:
    """A number that changes with what an assignor sees of these topics: ids, partition counts and racks."""
    racks = racks_of(image)
    topics = [topic for topic in map(image.topic, names) if topic is not None]
    if not racks:
        return sum([hash((topic.id.int, len(topic.partitions))) for topic in topics]) & _HASH
    return sum([_hash_with_racks(topic, racks) for topic in topics]) & _HASH


def _hash_with_racks(topic: Topic, racks: Mapping[int, str]) -> int:
    """Texts hash differently in each process: their bytes do not."""
    shown = tuple([int.from_bytes(repr(sorted(each)).encode()) for each in partition_racks(topic, racks)])
    return hash((topic.id.int, len(topic.partitions), shown))


def racks_of(image: ClusterImage) -> dict[int, str]:
    """The racks of the brokers that have one."""
    return {broker.id: broker.rack for broker in image.brokers.values() if broker.rack}


def partition_racks(topic: Topic, racks: Mapping[int, str]) -> tuple[frozenset[str], ...]:
    """The racks that each partition has replicas in; nothing where no broker has one."""
    if not racks:
        return ()
    return tuple(
        frozenset(racks[replica] for replica in partition.replicas if replica in racks)
        for partition in topic.partitions
    )


# Requests and answers


def topic_partitions(assignment: Assignment) -> list[Mapping[str, Any]]:
    """An assignment as heartbeats answer it."""
    return [{"topic_id": topic, "partitions": sorted(partitions)} for topic, partitions in assignment.items()]


def named_partitions(assignment: Assignment, image: ClusterImage) -> dict[str, Any]:
    """An assignment as groups are described; topics that are gone have no name."""
    topics = ((image.topic_by_id(topic_id), partitions) for topic_id, partitions in assignment.items())
    return {
        "topic_partitions": [
            {"topic_id": topic.id, "topic_name": topic.name, "partitions": sorted(partitions)}
            for topic, partitions in topics
            if topic is not None
        ]
    }


def check_not_blank(text: str | None, message: str) -> None:
    """INVALID_REQUEST for a text that was sent and says nothing."""
    if text is not None and not text.strip():
        raise invalid_request(message)


def invalid_request(message: str) -> CodedError:
    return CodedError(ErrorCode.invalid_request, message)
