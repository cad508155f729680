"""What the coordinator asks of a group, whichever protocol its members speak.

A group decides and never acts: each event gives effects, which the shard that holds the group carries out. Times are
milliseconds of the clock's monotonic time, except those that are stored, which are the time of day.
"""

from collections.abc import Container, Hashable, Mapping, Sequence
from enum import Enum
from typing import Any, Protocol

from headrace.coordinator.runtime.decision import Effect, Reply, Write
from headrace.coordinator.runtime.fields import LARGEST_TEXT, Reader
from headrace.protocol.errors import CodedError, ErrorCode


def group_of(key: bytes) -> str:
    """The id of the group that a record of `__consumer_offsets` belongs to, by its key."""
    return Reader(key, 2).text()


class GroupType(Enum):
    """Kafka's names, as ListGroups shows them."""

    CLASSIC = "Classic"
    CONSUMER = "Consumer"


class Group(Protocol):
    """A group of either kind."""

    group_id: str

    @property
    def type(self) -> GroupType: ...

    @property
    def successor(self) -> "Group | None":
        """What the group has become by its last decision: one of the other protocol, which takes its place."""
        ...

    @property
    def protocol_type(self) -> str | None:
        """What its members are: `consumer`, `connect`, …; None when it never had any."""
        ...

    @property
    def state_name(self) -> str:
        """Its state, by Kafka's name."""
        ...

    @property
    def is_empty(self) -> bool:
        """It has no members."""
        ...

    @property
    def is_dead(self) -> bool:
        """It was deleted."""
        ...

    @property
    def is_blank(self) -> bool:
        """Nothing is known of it that would be missed."""
        ...

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Take a record of the log in, as it was once written."""
        ...

    def on_loaded(self, now_ms: int) -> Sequence[Effect]:
        """The log was read to its end; from now on the group is ours."""
        ...

    def on_alarm(self, name: Hashable, now_ms: int) -> Sequence[Effect]:
        """An alarm that the group has set rings."""
        ...

    def resign(self, code: ErrorCode) -> Sequence[Reply]:
        """Answer everyone who waits: the group is no longer ours."""
        ...

    def tombstones(self) -> Sequence[Write]:
        """What takes the group's records out of the log."""
        ...

    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int, now_ms: int, *, transactional: bool = False
    ) -> Sequence[Effect]:
        """`CodedError` unless this member may commit; in the new protocol `generation` is the member's epoch."""
        ...

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """`CodedError` unless this member may read the group's offsets."""
        ...

    def check_offset_delete(self) -> None:
        """`CodedError` unless single offsets may be deleted."""
        ...

    def check_delete(self) -> None:
        """`CodedError` unless the group may be deleted."""
        ...

    def subscribed_topics(self) -> Container[str]:
        """The topics that members read, or may be reading."""
        ...

    def offsets_idle_since(self, commit_timestamp: int) -> int | None:
        """Since when an offset that was committed at that time is of no use; None while it is."""
        ...

    def describe(self) -> Mapping[str, Any]:
        """The group in the field names of its describe API."""
        ...


def check_text(group_id: str) -> None:
    """Refuse a group id that the internal topic cannot hold."""
    if len(group_id) > LARGEST_TEXT // 4 and len(group_id.encode()) > LARGEST_TEXT:
        raise CodedError(
            ErrorCode.invalid_group_id, f"a group id of {len(group_id)} characters; at most {LARGEST_TEXT}"
        )


def check_group_id(group_id: str) -> None:
    """Refuse a group id that cannot have members."""
    if not group_id:
        raise CodedError(ErrorCode.invalid_group_id, "the group id is empty")
    check_text(group_id)
