"""Where share groups and their state meet: what the leader of a share-partition needs of the share coordinator.

A share-partition is a partition as one share group reads it. Its state is kept by the share coordinator, on the
internal topic `__share_group_state`: where the group has come to (`start_offset`), and for offsets from there on in
which state they are and how often they were delivered, as runs of offsets that share both. The leader of the partition
is who changes it, fenced by two epochs:

- the **state epoch** is that of a group's initialization of the share-partition: who has an older one works on a state
  that an operator has reset since (FENCED_STATE_EPOCH);
- the **leader epoch** is the partition's: once a newer leader has read the state, an older one cannot change it any
  more (FENCED_LEADER_EPOCH). So a leader that takes over reads first, and what it has read nobody else changes.

Everything that is answered is committed: what a leader has been told is written survives any one broker.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple
from uuid import UUID

UNINITIALIZED: Final = -1
"""The start offset of a share-partition that nobody has initialized."""
UNCHANGED: Final = -1
"""As a start offset that is written: the one that is there stays."""
ANY_EPOCH: Final = -1
"""As a leader epoch that asks: whoever leads, nobody is fenced by the question."""
UNKNOWN_COUNT: Final = -1
"""As a count of delivered offsets: it is not known."""


class DeliveryState(IntEnum):
    """What has become of an offset; which records are out (ACQUIRED) only their leader knows, and it is never kept."""

    AVAILABLE = 0
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    """On its way to the dead letters: to be written there before it is archived."""
    ARCHIVED = 4


class SharePartition(NamedTuple):
    """A partition as one share group reads it: the key of its state."""

    group_id: str
    topic_id: UUID
    partition: int

    @property
    def text(self) -> str:
        """For messages to people."""
        return f"share-partition {self.group_id}:{self.topic_id}:{self.partition}"


class StateBatch(NamedTuple):
    """A run of offsets, both ends in it, that share their state and how often they were delivered."""

    first_offset: int
    last_offset: int
    delivery_state: int
    """A `DeliveryState`."""
    delivery_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareState:
    """All that is kept of a share-partition. With `UNINITIALIZED` as its start offset it was initialized and never
    read, and the leader begins where the group's `share.auto.offset.reset` says."""

    state_epoch: int
    start_offset: int
    batches: Sequence[StateBatch] = ()
    """In the order of their offsets, none over another; offsets in none of them were never delivered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareStateChange:
    """What a leader writes: where the group has come to, and the runs whose state has changed.

    Where runs overlap, of one change or with what is kept, the higher delivery count counts, and of equal counts the
    higher state: no offset ever goes back. Runs before the start offset are forgotten.
    """

    state_epoch: int
    leader_epoch: int
    start_offset: int = UNCHANGED
    delivery_complete_count: int = UNKNOWN_COUNT
    """Offsets from the start offset on whose delivery is complete, being acknowledged or archived: for the lag."""
    batches: Sequence[StateBatch] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareStateSummary:
    """What is told of a share-partition to operators."""

    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int


NO_SUMMARY: Final = ShareStateSummary(
    state_epoch=0, leader_epoch=0, start_offset=UNINITIALIZED, delivery_complete_count=UNKNOWN_COUNT
)
"""Of a share-partition that nothing is known of."""


class ShareStateStore(ABC):
    """The state of share-partitions, wherever their coordinators are.

    Each call finds the coordinator of the share-partition, here or on another broker, and asks again while that may
    help (no coordinator known, one that is loading, moved, cut off) until it has tried for long enough: then a
    `CodedError` says COORDINATOR_NOT_AVAILABLE, and it is not known whether a change was made. Repeating one does no
    harm. Calls that are made together for share-partitions of one group and one coordinator go in one request.

    Other errors are final: FENCED_STATE_EPOCH and FENCED_LEADER_EPOCH (who asks is out of date: reload),
    UNKNOWN_TOPIC_OR_PARTITION (the coordinator did not come to know the topic, or the partition, while it was asked
    again: it was deleted, or is very new), INVALID_REQUEST (a bad value; also a `read` or `write` of a share-partition
    that the group coordinator has not initialized, or that is deleted).
    """

    @abstractmethod
    async def initialize(self, key: SharePartition, state_epoch: int, start_offset: int) -> None:
        """Begin, or begin anew, with this start offset (or `UNINITIALIZED`: the leader decides when it first reads
        records), and forget all runs. A lower state epoch than the one that is kept is fenced; an equal one that was
        initialized already is done again."""

    @abstractmethod
    async def read(self, key: SharePartition, leader_epoch: int) -> ShareState:
        """The state, for the leader of that epoch: leaders of earlier ones are fenced from then on, and it is fenced
        itself if a later one has read."""

    @abstractmethod
    async def write(self, key: SharePartition, change: ShareStateChange) -> None:
        """Change the state; returns once that is committed."""

    @abstractmethod
    async def summary(self, key: SharePartition, leader_epoch: int = ANY_EPOCH) -> ShareStateSummary:
        """Where the group has come to; nobody is fenced. `UNINITIALIZED` where nothing is known."""

    @abstractmethod
    async def delete(self, key: SharePartition) -> None:
        """Forget the share-partition; one that nothing is known of is deleted already."""
