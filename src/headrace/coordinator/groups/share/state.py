"""The state of a share group that records keep: changed only by `apply`, alike by decisions and by replay."""

from collections.abc import Iterable
from dataclasses import replace
from uuid import UUID

from headrace.coordinator.groups.targets import NOTHING, Assignment, GroupEpoch, TargetEpoch, TargetMember
from headrace.coordinator.runtime.decision import CoordinatorRecord

from .records import (
    Change,
    CurrentAssignment,
    MemberSubscription,
    ShareMember,
    StatePartitions,
    encode,
)


class GroupState:
    """Members, epochs, target, and the partitions that the share coordinator keeps state of."""

    def __init__(self) -> None:
        self.epoch = 0
        self.is_deleted = False
        self.metadata_hash = 0
        self.target_epoch = 0
        self.members: dict[str, ShareMember] = {}
        self.targets: dict[str, Assignment] = {}
        self.initialized: Assignment = NOTHING
        self.deleting: frozenset[UUID] = frozenset()
        """Topics whose state is to be deleted before it can be initialized again."""

    def fork(self) -> "GroupState":
        """The same, to be changed."""
        fork = GroupState()
        vars(fork).update(vars(self), members=self.members.copy(), targets=self.targets.copy())
        return fork

    def adopt(self, fork: "GroupState") -> None:
        """Become what a fork of this state has become."""
        vars(self).update(vars(fork))

    def apply(self, change: Change) -> None:
        """Make a change."""
        match change:
            case GroupEpoch(epoch, metadata_hash):
                self.epoch, self.metadata_hash, self.is_deleted = epoch or 0, metadata_hash, epoch is None
            case TargetEpoch(epoch):
                self.target_epoch = epoch or 0
            case MemberSubscription(member_id, None):
                self.members.pop(member_id, None)
            case MemberSubscription(member_id, subscription) if subscription is not None:
                member = self.members.get(member_id, subscription)
                self.members[member_id] = replace(
                    subscription, epoch=member.epoch, previous_epoch=member.previous_epoch, assigned=member.assigned
                )
            case CurrentAssignment(member_id, current):
                member = self.members.get(member_id) or ShareMember(id=member_id)
                if current is not None:
                    self.members[member_id] = replace(
                        member, epoch=current.epoch, previous_epoch=current.previous_epoch, assigned=current.assigned
                    )
                elif member_id in self.members:
                    self.members[member_id] = replace(member, epoch=0, previous_epoch=-1, assigned=NOTHING)
            case TargetMember(member_id, None):
                self.targets.pop(member_id, None)
            case TargetMember(member_id, target) if target is not None:
                self.targets[member_id] = target
            case StatePartitions(initialized, deleting, _):
                self.initialized, self.deleting = initialized or NOTHING, deleting

    def target_of(self, member_id: str) -> Assignment:
        return self.targets.get(member_id, NOTHING)

    def subscribed_names(self) -> frozenset[str]:
        """Every topic name that a member is subscribed to."""
        return frozenset().union(*(member.subscribed_topic_names for member in self.members.values()))

    def tombstones(self, group_id: str) -> list[CoordinatorRecord]:
        """The records that delete the group."""
        changes: Iterable[Change] = [
            *(CurrentAssignment(member_id, None) for member_id in self.members),
            *(TargetMember(member_id, None) for member_id in self.targets),
            TargetEpoch(None),
            *(MemberSubscription(member_id, None) for member_id in self.members),
            StatePartitions(None),
            GroupEpoch(None),
        ]
        return [encode(group_id, change) for change in changes]
