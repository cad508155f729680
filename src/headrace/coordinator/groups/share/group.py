"""A share group (KIP-932): heartbeats bring what members subscribe to, and the answers bring what they are to read.

Members share partitions, so nobody has to give one up before another gets it: with its next heartbeat each member is at
the target of the group's epoch. The records themselves are shared out by the leaders of partitions.

A partition is assigned once its state is initialized with the share coordinator, which `ShareOffsets` sees to. The
state outlives the members: a group without any keeps its place in the partitions until it is deleted.
"""

from collections.abc import Callable, Container, Hashable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

from headrace.cluster.image import ClusterImage, Topic
from headrace.coordinator.groups.group import Group, GroupType
from headrace.coordinator.groups.kinds import GroupEnvironment, GroupKind
from headrace.coordinator.groups.settings import ShareSettings
from headrace.coordinator.groups.targets import (
    JOINING,
    Assignment,
    GroupEpoch,
    TargetDecision,
    TargetEpoch,
    TargetMember,
    TopicsHash,
    topic_ids,
)
from headrace.coordinator.runtime.decision import CoordinatorRecord, Decision
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.replication.share_state import UNINITIALIZED, SharePartition

from .assignor import simple
from .records import (
    KEY_TYPES,
    Change,
    CurrentAssignment,
    MemberSubscription,
    ShareMember,
    StatePartitions,
    decode,
    encode,
)
from .requests import ShareHeartbeat, answer, check_epoch, describe_member, refusal
from .state import GroupState

SESSION: Final = "session"
ASSIGNOR: Final = "simple"


class Draft(TargetDecision[GroupState, Change]):
    """A decision of a share group, made on a copy of its state."""

    __slots__ = ()

    encode = staticmethod(encode)


class ShareGroup(Group):
    """One group."""

    type = GroupType.SHARE
    protocol_type = "share"
    expires = False

    def __init__(self, group_id: str, *, image: ClusterImage, settings: Callable[[], ShareSettings]) -> None:
        self.group_id = group_id
        self.state = GroupState()
        self._image = image
        self._settings = settings
        self._topics_hash = TopicsHash(image)
        self._initialized_as_of: tuple[int, int] | None = None
        """The version of the topics and the group's epoch as of which everything had state that members read."""

    def _draft(self, now_ms: int) -> Draft:
        return Draft(self.group_id, self.state, now_ms)

    @property
    def state_name(self) -> str:
        return "Dead" if self.is_dead else "Empty" if self.is_empty else "Stable"

    @property
    def is_dead(self) -> bool:
        return self.state.is_deleted

    @property
    def is_empty(self) -> bool:
        return not self.state.members

    @property
    def is_blank(self) -> bool:
        return self.is_empty and self.state.epoch == 0

    @property
    def gives_way(self) -> bool:
        """Not before it is deleted: the share coordinator keeps its state."""
        return False

    # Heartbeats

    def heartbeat(self, request: ShareHeartbeat, now_ms: int) -> Decision:
        """A ShareGroupHeartbeat that `check_request` found valid: a member joins, stays, or leaves."""
        draft = self._draft(now_ms)
        try:
            if request.member_epoch < JOINING:
                self._fence(draft, self._known(request.member_id))
                draft.reply(request.token, answer(request.member_id, request.member_epoch))
            else:
                self._beat(draft, request)
        except CodedError as error:
            decision = Decision(now_ms)
            decision.reply(request.token, refusal(error))
            return decision
        return draft

    def _known(self, member_id: str) -> ShareMember:
        member = self.state.members.get(member_id)
        if member is None:
            raise CodedError(
                ErrorCode.unknown_member_id, f"Member {member_id} is not a member of group {self.group_id}."
            )
        return member

    def _beat(self, draft: Draft, request: ShareHeartbeat) -> None:
        old = self._member_of(request)
        member = _after(old, request)
        if member != old or member.id not in draft.state.members:
            draft.apply(MemberSubscription(member.id, member))
        self._refresh(draft, bump=member.subscribed_topic_names != old.subscribed_topic_names or not draft.state.epoch)
        if draft.state.epoch > draft.state.target_epoch:
            self._assign(draft)
        member = self._to_target(draft, member)
        settings = self._settings()
        draft.wake((SESSION, member.id), settings.session_timeout_ms)
        assigned = member.assigned if request.is_full or member.assigned != old.assigned else None
        draft.reply(request.token, answer(member.id, member.epoch, settings.heartbeat_interval_ms, assigned))

    def _member_of(self, request: ShareHeartbeat) -> ShareMember:
        member = self.state.members.get(request.member_id)
        if member is None:
            if request.member_epoch != JOINING:
                self._known(request.member_id)
            self._check_room()
            return ShareMember(id=request.member_id)
        check_epoch(member, request)
        return member

    def _check_room(self) -> None:
        most = self._settings().max_size
        if len(self.state.members) >= most:
            raise CodedError(
                ErrorCode.group_max_size_reached,
                f"The share group has reached its maximum capacity of {most} members.",
            )

    # Steps that these events are made of: they see what the steps before them have decided

    def _refresh(self, draft: Draft, *, bump: bool) -> None:
        """A new epoch where it is asked for, or where topics that the group is subscribed to changed."""
        if not bump and self._topics_hash.is_current:
            return
        found = self._topics_hash.make(draft, draft.state.subscribed_names())
        if bump or found != draft.state.metadata_hash:
            draft.apply(GroupEpoch(draft.state.epoch + 1, found))

    def _assign(self, draft: Draft) -> None:
        state = draft.state
        members = {
            member.id: topic_ids(member.subscribed_topic_names, self._image) for member in state.members.values()
        }
        partitions = {
            topic.id: initialized
            for topic in self._topics(state)
            if (initialized := state.initialized.get(topic.id, frozenset()) & frozenset(range(len(topic.partitions))))
        }
        for member_id, target in simple(members, state.targets, partitions).items():
            if target != state.target_of(member_id) or member_id not in state.targets:
                draft.apply(TargetMember(member_id, target))
        draft.apply(TargetEpoch(state.epoch))

    def _topics(self, state: GroupState) -> Iterable[Topic]:
        """The topics that members are subscribed to, and that are there."""
        found = (self._image.topic(name) for name in sorted(state.subscribed_names()))
        return (topic for topic in found if topic is not None)

    def _to_target(self, draft: Draft, member: ShareMember) -> ShareMember:
        state = draft.state
        target = state.target_of(member.id)
        if member.epoch == state.target_epoch and member.assigned == target:
            return member
        moved = replace(member, epoch=state.target_epoch, previous_epoch=member.epoch, assigned=target)
        draft.apply(CurrentAssignment(member.id, moved))
        return moved

    def _fence(self, draft: Draft, member: ShareMember) -> None:
        """Takes a member out; the others read its partitions with the next epoch."""
        draft.apply(CurrentAssignment(member.id, None))
        draft.apply(TargetMember(member.id, None))
        draft.apply(MemberSubscription(member.id, None))
        draft.cancel((SESSION, member.id))
        draft.apply(GroupEpoch(draft.state.epoch + 1, self._topics_hash.make(draft, draft.state.subscribed_names())))
        if not draft.state.members:
            draft.apply(TargetEpoch(draft.state.epoch))

    # State in partitions

    @property
    def is_initialized(self) -> bool:
        """Whether everything has state that members are subscribed to, and no state is left to be deleted."""
        as_of = self._image.topics_version, self.state.epoch
        if self._initialized_as_of != as_of and not self.state.deleting and not self.uninitialized():
            self._initialized_as_of = as_of
        return self._initialized_as_of == as_of

    def uninitialized(self) -> dict[SharePartition, int]:
        """The partitions that members are subscribed to and that have no state yet, with the offset to begin at: the
        first one in partitions that a topic was given later, as nothing in them is to be missed."""
        state = self.state
        missing: dict[SharePartition, int] = {}
        for topic in self._topics(state):
            known = state.initialized.get(topic.id)
            for index in range(len(topic.partitions)):
                if known is None or index not in known:
                    missing[SharePartition(self.group_id, topic.id, index)] = UNINITIALIZED if known is None else 0
        return missing

    def initialize(self, partitions: Iterable[SharePartition], now_ms: int) -> Decision:
        """Partitions have state from now on: they may be assigned."""
        initialized = {topic: set(indexes) for topic, indexes in self.state.initialized.items()}
        for key in partitions:
            initialized.setdefault(key.topic_id, set()).add(key.partition)
        frozen = {topic: frozenset(indexes) for topic, indexes in initialized.items()}
        return self._keep_state(frozen, self.state.deleting, self.state.epoch + 1, now_ms)

    def advance(self, epoch: int, now_ms: int) -> Decision:
        """Enter a later epoch, for partitions whose state is to begin anew in it."""
        draft = self._draft(now_ms)
        draft.apply(GroupEpoch(max(self.state.epoch + 1, epoch), self.state.metadata_hash))
        return draft

    def begin_deletion(self, topics: Iterable[UUID], now_ms: int) -> Decision:
        """The state of these topics is not to be relied on any more: it is going to be deleted."""
        deleting = self.state.deleting | frozenset(topics)
        return self._keep_state(_without(self.state.initialized, deleting), deleting, self.state.epoch + 1, now_ms)

    def end_deletion(self, topics: Iterable[UUID], now_ms: int) -> Decision:
        """The state of these topics is deleted."""
        return self._keep_state(
            self.state.initialized, self.state.deleting - frozenset(topics), self.state.epoch, now_ms
        )

    def _keep_state(self, initialized: Assignment, deleting: frozenset[UUID], epoch: int, now_ms: int) -> Decision:
        """What was deleted of the cluster is left out: nobody reads it, and the share coordinator forgets it."""
        gone = frozenset(topic for topic in initialized.keys() | deleting if self._image.was_deleted(topic))
        initialized, deleting = _without(initialized, gone), deleting - gone
        topics = (self._image.topic_by_id(topic_id) for topic_id in initialized.keys() | deleting)
        names = {topic.id: topic.name for topic in topics if topic is not None}
        draft = self._draft(now_ms)
        draft.apply(StatePartitions(initialized, deleting, names))
        if epoch != self.state.epoch:
            draft.apply(GroupEpoch(epoch, self.state.metadata_hash))
        return draft

    # Time

    def on_loaded(self, now_ms: int) -> Decision:
        """Every member gets a session timeout to show that it is still there."""
        draft = self._draft(now_ms)
        for member_id in self.state.members:
            draft.wake((SESSION, member_id), self._settings().session_timeout_ms)
        return draft

    def on_timer(self, name: Hashable, now_ms: int) -> Decision:
        """A member was silent for too long."""
        draft = self._draft(now_ms)
        if isinstance(name, tuple) and (member := self.state.members.get(name[1])) is not None:
            self._fence(draft, member)
        return draft

    # The log

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Take a record of the log in, as it was once written."""
        change = decode(key, value)
        if change is not None:
            self.state.apply(change)

    def tombstones(self) -> list[CoordinatorRecord]:
        """The records that delete the group."""
        return self.state.tombstones(self.group_id)

    # Checks and queries

    def check_commit(
        self,
        member_id: str,  # noqa: ARG002 - nobody may
        instance_id: str | None,  # noqa: ARG002
        generation: int,  # noqa: ARG002
        now_ms: int,  # noqa: ARG002
        *,
        transactional: bool = False,  # noqa: ARG002
    ) -> Decision:
        """Share groups acknowledge records instead."""
        raise CodedError(ErrorCode.group_id_not_found, f"Group {self.group_id} is a share group: it commits no offsets")

    def subscribed_topics(self) -> Container[str]:
        """The topics that members read, or may be reading."""
        return self.state.subscribed_names()

    def describe(self) -> Mapping[str, Any]:
        """The group in the field names of ShareGroupDescribe."""
        return {
            "error_code": ErrorCode.none,
            "error_message": None,
            "group_id": self.group_id,
            "group_state": self.state_name,
            "group_epoch": self.state.epoch,
            "assignment_epoch": self.state.target_epoch,
            "assignor_name": ASSIGNOR,
            "members": [describe_member(member, self._image) for member in self.state.members.values()],
        }


def _after(old: ShareMember, request: ShareHeartbeat) -> ShareMember:
    """The member as it is after what it said."""
    names, rack_id = request.subscribed_topic_names, request.rack_id
    return replace(
        old,
        rack_id=old.rack_id if rack_id is None else rack_id,
        subscribed_topic_names=old.subscribed_topic_names if names is None else names,
        client_id=request.client_id,
        client_host=request.client_host,
    )


def _without(partitions: Assignment, topics: Container[UUID]) -> Assignment:
    return {topic: indexes for topic, indexes in partitions.items() if topic not in topics}


def _make(group_id: str, environment: GroupEnvironment) -> ShareGroup:
    settings, image = environment.settings, environment.image
    return ShareGroup(group_id, image=image, settings=lambda: settings.share_of(image.group_configs.get(group_id)))


SHARE: Final = GroupKind(type=GroupType.SHARE, records=KEY_TYPES, make=_make, takes_over_empty=False)
