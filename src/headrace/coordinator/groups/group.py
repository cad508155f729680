"""What the coordinator asks of a group, of whatever kind.

A group decides and never acts: each event gives a `Decision`, which the shard that holds the group lets take effect.
Times are milliseconds of the clock's monotonic time, except those that are stored, which are the time of day.
"""

from abc import ABC, abstractmethod
from collections.abc import Container, Hashable, Mapping, Sequence
from enum import Enum
from typing import Any, ClassVar

from headrace.coordinator.runtime.decision import CoordinatorRecord, Decision, Reply
from headrace.coordinator.runtime.fields import LONGEST_ID, FieldReader
from headrace.protocol.errors import CodedError, ErrorCode


class GroupType(Enum):
    """Kafka's names, as ListGroups shows them."""

    CLASSIC = "Classic"
    CONSUMER = "Consumer"
    SHARE = "Share"


class Group(ABC):
    """A group. What only some kinds have says here what holds for the others."""

    type: ClassVar[GroupType]
    group_id: str
    protocol_type: str | None = None
    """What its members are: `consumer`, `connect`, …; None when it never had any."""
    expires: ClassVar[bool] = True
    """Whether it is forgotten once it has neither members nor committed offsets."""
    successor: "Group | None" = None
    """What the group has become by its last decision: one of another kind, which takes its place."""

    @property
    @abstractmethod
    def state_name(self) -> str:
        """Its state, by Kafka's name."""

    @property
    @abstractmethod
    def is_empty(self) -> bool:
        """It has no members."""

    @property
    @abstractmethod
    def is_dead(self) -> bool:
        """It was deleted."""

    @property
    @abstractmethod
    def is_blank(self) -> bool:
        """Nothing is known of it that would be missed."""

    @property
    def gives_way(self) -> bool:
        """A group of another kind may take its place as if it had never been there."""
        return self.is_empty

    # Records

    @abstractmethod
    def replay(self, key: bytes, value: bytes | None) -> None:
        """Take a record of the log in, as it was once written."""

    @abstractmethod
    def tombstones(self) -> Sequence[CoordinatorRecord]:
        """The records that delete the group."""

    # Events

    def on_loaded(self, now_ms: int) -> Decision:
        """The log was read to its end; from now on the group is ours."""
        return Decision(now_ms)

    def on_timer(self, name: Hashable, now_ms: int) -> Decision:  # noqa: ARG002
        """A timer that the group has set expires."""
        return Decision(now_ms)

    def resign(self, code: ErrorCode) -> Sequence[Reply]:  # noqa: ARG002
        """Answer waiting members with NOT_COORDINATOR: this broker no longer coordinates the group."""
        return ()

    # Checks and queries

    @abstractmethod
    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int, now_ms: int, *, transactional: bool = False
    ) -> Decision:
        """`CodedError` unless this member may commit; in the consumer protocol `generation` is the member's epoch."""

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:  # noqa: B027 - anyone may
        """`CodedError` unless this member may read the group's offsets."""

    def check_offset_delete(self) -> None:  # noqa: B027 - they may
        """`CodedError` unless single offsets, of topics that no member reads, may be deleted."""

    def check_delete(self) -> None:
        """`CodedError` unless the group may be deleted."""
        if not self.is_empty:
            raise CodedError(ErrorCode.non_empty_group)

    @abstractmethod
    def subscribed_topics(self) -> Container[str]:
        """The topics that members read, or may be reading."""

    def offsets_idle_since(self, commit_timestamp: int) -> int | None:
        """Since when an offset that was committed at that time is of no use; None while it is."""
        return commit_timestamp

    @abstractmethod
    def describe(self) -> Mapping[str, Any]:
        """The group in the field names of its describe API."""


def group_of(key: bytes) -> str:
    """The id of the group that a record of `__consumer_offsets` belongs to, by its key."""
    return FieldReader(key, 2).text()


def check_text(group_id: str) -> None:
    """Refuse a group id that is too long."""
    if len(group_id) > LONGEST_ID:
        raise CodedError(ErrorCode.invalid_group_id, f"a group id of {len(group_id)} characters; at most {LONGEST_ID}")


def check_group_id(group_id: str) -> None:
    """Refuse a group id that cannot have members."""
    if not group_id:
        raise CodedError(ErrorCode.invalid_group_id, "the group id is empty")
    check_text(group_id)
