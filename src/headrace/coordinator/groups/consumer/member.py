"""A member of a consumer group: what it asked for, what it holds, and how far it is on its way to its target."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final
from uuid import UUID

from headrace.coordinator.groups.targets import NOTHING, Assignment

AWAY: Final = -2
"""The epoch of a static member that left for a while and keeps its place until its session ends."""


class MemberState(IntEnum):
    """How far a member is, with the numbers of Kafka's records."""

    STABLE = 0
    """It holds what its epoch's target gives it."""
    UNREVOKED_PARTITIONS = 1
    """It has to give partitions up and has not yet said that it did."""
    UNRELEASED_PARTITIONS = 2
    """It waits for partitions that others still hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicMetadata:
    """The JoinGroup of a member of the classic protocol."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    """Names and metadata of the assignors it supports, the preferred one first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMember:
    """One member at one time."""

    id: str
    epoch: int = 0
    previous_epoch: int = -1
    """The epoch before, accepted once more where the answer that raised it may have been lost."""
    state: MemberState = MemberState.STABLE
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    subscribed_topic_names: frozenset[str] = frozenset()
    subscribed_topic_regex: str | None = None
    server_assignor: str | None = None
    classic: ClassicMetadata | None = None
    assigned: Assignment = field(default_factory=lambda: NOTHING)
    pending_revocation: Assignment = field(default_factory=lambda: NOTHING)

    def is_reconciled_to(self, epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == epoch


def partitions_of(assignment: Assignment) -> Iterable[tuple[UUID, int]]:
    """Every partition of an assignment."""
    return ((topic, partition) for topic, partitions in assignment.items() for partition in partitions)


def is_within(owned: Assignment | None, allowed: Assignment) -> bool:
    """Whether `owned` was sent and is a subset of `allowed`."""
    if owned is None:
        return False
    return all(partitions <= allowed.get(topic, frozenset()) for topic, partitions in owned.items())


def without(assignment: Assignment, other: Assignment) -> dict[UUID, frozenset[int]]:
    """What of `assignment` is not in `other`."""
    left = ((topic, partitions - other.get(topic, frozenset())) for topic, partitions in assignment.items())
    return {topic: partitions for topic, partitions in left if partitions}


def joined(first: Assignment, second: Assignment) -> dict[UUID, frozenset[int]]:
    """What is in either of two assignments."""
    topics = first.keys() | second.keys()
    return {topic: first.get(topic, frozenset()) | second.get(topic, frozenset()) for topic in topics}


def overlaps(first: Assignment, second: Assignment) -> bool:
    """Whether any partition is in both."""
    return any(topic in second and not partitions.isdisjoint(second[topic]) for topic, partitions in first.items())
