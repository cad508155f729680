"""A consumer group (KIP-848): heartbeats bring what members subscribe to and what they own, and the answers bring
what they are to own. Events in, decisions out; the same state comes back from replaying the records written.

A heartbeat takes up to four steps, each of which is left out where nothing changed:

1. The member's subscription is kept. If it changed, or a topic did, the group enters a new epoch.
2. An assignor makes the target of that epoch. For a large group a thread does; it counts with the next heartbeat then.
3. The member takes its next step from what it holds to its target (see `reconcile`).
4. It is answered with its epoch and, if it changed, with what it may own.

| group state | when                                                          |
|-------------|---------------------------------------------------------------|
| Empty       | no members                                                    |
| Assigning   | the epoch is newer than the target                            |
| Reconciling | a member is not yet at its target                             |
| Stable      | all are                                                       |
| Dead        | it was deleted                                                |
"""

from collections.abc import Callable, Collection, Container, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from headrace.cluster.entries import EntryKind
from headrace.cluster.image import ClusterImage
from headrace.coordinator.groups.classic import CLASSIC, ClassicGroup, JoinRequest, LeavingMember, SyncRequest
from headrace.coordinator.groups.classic.answers import heartbeat_answer, join_refused, sync_answer
from headrace.coordinator.groups.group import Group, GroupType
from headrace.coordinator.groups.kinds import GroupEnvironment, GroupKind, InBackground
from headrace.coordinator.groups.resolver import Resolver
from headrace.coordinator.groups.settings import ConsumerSettings
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
from headrace.coordinator.patterns import topic_matcher
from headrace.coordinator.runtime.decision import CoordinatorRecord, Decision
from headrace.protocol.consumer_protocol import CONSUMER as CONSUMER_PROTOCOL
from headrace.protocol.consumer_protocol import NotConsumerProtocol, Subscription, parse_subscription
from headrace.protocol.errors import CodedError, ErrorCode

from . import migration, subscriptions
from .assignors import ASSIGNORS
from .embedded import by_id, write_assignment
from .member import AWAY, ClassicMetadata, ConsumerMember, MemberState
from .reconcile import Goal, reconcile
from .records import (
    KEY_TYPES,
    Change,
    CurrentAssignment,
    MemberSubscription,
    ResolvedRegex,
    decode,
    encode,
)
from .requests import (
    HeartbeatRequest,
    after_heartbeat,
    after_join,
    answer,
    check_epoch,
    check_own_epoch,
    describe_member,
    join_answer,
    refusal,
)
from .state import GroupState
from .target import TargetAssignment, TargetAssignmentBuilder

NO_EPOCH: Final = -1
SESSION: Final = "session"
REBALANCE: Final = "rebalance"
JOIN: Final = "join"
SYNC: Final = "sync"
_TIMERS: Final = (SESSION, REBALANCE, JOIN, SYNC)
"""The timers a member can have; the name of one is a pair of its kind and the member's id."""
_RESOLVE_MIN_MS: Final = 1_000
_RESOLVE_MAX_MS: Final = 30_000
_SMALL_GROUP: Final = 5_000
"""Partitions, and topics of all members, up to which a new target is made at once: that takes 10 ms at most."""
_WAITING_GROUP: Final = 2_000
"""Members and partitions up to which a new target costs next to nothing."""
_ASSIGNED_PER_MS: Final = 20
"""How many members and partitions are assigned for each millisecond of time: a twentieth of what a core can do."""


class Draft(TargetDecision[GroupState, Change]):
    """A decision of a consumer group, made on a copy of its state."""

    __slots__ = ()

    encode = staticmethod(encode)


class ConsumerGroup(Group):
    """One group."""

    type = GroupType.CONSUMER
    protocol_type = CONSUMER_PROTOCOL

    def __init__(
        self,
        group_id: str,
        *,
        image: ClusterImage,
        resolver: Resolver,
        in_background: InBackground,
        settings: Callable[[], ConsumerSettings],
        new_id: Callable[[], str],
        new_classic: Callable[[str], ClassicGroup],
    ) -> None:
        self.group_id = group_id
        self.state = GroupState()
        self.successor: ClassicGroup | None = None
        """The classic group that this one has become."""
        self._image = image
        self._resolver = resolver
        self._in_background = in_background
        self._settings = settings
        self._new_id = new_id
        self._new_classic = new_classic
        self._to_join: set[str] = set()
        """Classic members whose Heartbeat or SyncGroup was answered with REBALANCE_IN_PROGRESS."""
        self._topics_hash = TopicsHash(image)
        self._resolved_version: tuple[int, int] | None = None
        """Of topics and ACLs."""
        self._resolve_after_ms = 0
        self._assign_after_ms = 0
        self._is_building = False
        self._made: TargetAssignment | None = None
        """A target that was made aside, and is not taken yet."""

    def _draft(self, now_ms: int) -> Draft:
        return Draft(self.group_id, self.state, now_ms)

    @property
    def state_name(self) -> str:
        state = self.state
        if self.is_dead:
            return "Dead"
        if not state.members:
            return "Empty"
        if state.epoch > state.target_epoch:
            return "Assigning"
        reconciled = all(member.is_reconciled_to(state.target_epoch) for member in state.members.values())
        return "Stable" if reconciled else "Reconciling"

    @property
    def is_dead(self) -> bool:
        return self.state.is_deleted

    @property
    def is_empty(self) -> bool:
        return not self.state.members

    @property
    def is_blank(self) -> bool:
        return self.is_empty and self.state.epoch == 0

    def _known(self, member_id: str) -> ConsumerMember:
        member = self.state.members.get(member_id)
        if member is None:
            raise CodedError(
                ErrorCode.unknown_member_id, f"Member {member_id} is not a member of group {self.group_id}."
            )
        return member

    def _known_static(self, member_id: str, instance_id: str) -> ConsumerMember:
        member = self.state.static_member(instance_id)
        if member is None:
            raise CodedError(ErrorCode.unknown_member_id, f"Instance id {instance_id} is unknown.")
        if member.id != member_id:
            raise CodedError(
                ErrorCode.fenced_instance_id,
                f"Static member {member_id} with instance id {instance_id} was fenced by member {member.id}.",
            )
        return member

    def _check_room(self, member_id: str, instance_id: str | None) -> None:
        """A static member that returns takes the place it has."""
        most = self._settings().max_size
        is_in = member_id in self.state.members or self.state.static_member(instance_id) is not None
        if len(self.state.members) >= most and not is_in:
            raise CodedError(
                ErrorCode.group_max_size_reached,
                f"The consumer group has reached its maximum capacity of {most} members.",
            )

    # Heartbeats

    def heartbeat(self, request: HeartbeatRequest, now_ms: int) -> Decision:
        """A ConsumerGroupHeartbeat that `check_request` found valid: a member joins, stays, or leaves."""
        draft = self._draft(now_ms)
        try:
            if request.member_epoch < JOINING:
                self._leave(draft, request)
            else:
                self._beat(draft, request)
        except CodedError as error:
            return _refused(draft, request.token, refusal(error))
        return draft

    def _beat(self, draft: Draft, request: HeartbeatRequest) -> None:
        self._check_room(request.member_id, request.instance_id)
        old = self._member_of(draft, request)
        member = after_heartbeat(old, request)
        changed = self._subscribe(draft, old, member, request)
        self._refresh(draft, request, bump=changed or draft.state.epoch == 0)
        self._assign(draft)
        member = self._reconcile(draft, member, request.owned, changed)
        settings = self._settings()
        draft.wake((SESSION, member.id), settings.session_timeout_ms)
        shows = request.member_epoch == JOINING or request.is_full or member.assigned != old.assigned
        assigned: Assignment | None = member.assigned if shows else None
        draft.reply(request.token, answer(member.id, member.epoch, settings.heartbeat_interval_ms, assigned))

    def _member_of(self, draft: Draft, request: HeartbeatRequest) -> ConsumerMember:
        if request.subscribed_topic_regex:
            topic_matcher(request.subscribed_topic_regex)
        if request.instance_id is not None and request.member_epoch == JOINING:
            return self._joining_static(draft, request, request.instance_id)
        if request.instance_id is not None:
            member = self._known_static(request.member_id, request.instance_id)
        elif request.member_epoch == JOINING:
            member = self.state.members.get(request.member_id) or ConsumerMember(id=request.member_id)
        else:
            member = self._known(request.member_id)
        check_epoch(member, request)
        return member

    def _joining_static(self, draft: Draft, request: HeartbeatRequest, instance_id: str) -> ConsumerMember:
        member = self.state.static_member(instance_id)
        if member is None:
            return self.state.members.get(request.member_id) or ConsumerMember(id=request.member_id)
        if member.id == request.member_id and member.epoch != AWAY:
            return member
        if member.classic is None and member.epoch != AWAY:
            raise CodedError(
                ErrorCode.unreleased_instance_id,
                f"Static member {request.member_id} with instance id {instance_id} cannot join the group because the "
                f"instance id is owned by {member.id} member.",
            )
        return self._replace(draft, member, request.member_id)

    def _leave(self, draft: Draft, request: HeartbeatRequest) -> None:
        if request.instance_id is None:
            member = self._known(request.member_id)
        else:
            member = self._known_static(request.member_id, request.instance_id)
        if request.member_epoch == AWAY:
            away = replace(member, epoch=AWAY, pending_revocation={})
            draft.apply(CurrentAssignment(member.id, away))
            draft.cancel((REBALANCE, member.id))
        else:
            self._fence(draft, [member])
        draft.reply(request.token, answer(request.member_id, request.member_epoch))

    # Members of the classic protocol. A generation is the member's epoch. JoinGroup is its heartbeat: it has the
    # subscription and what the member owns, and takes the next step towards the target. SyncGroup gets what the member
    # may hold, Heartbeat whether there is more to do. There is no leader: the broker assigns, so nobody waits.

    def join(self, request: JoinRequest, now_ms: int) -> Decision:
        """A JoinGroup, answered at once."""
        draft = self._draft(now_ms)
        try:
            self._join(draft, request)
        except CodedError as error:
            return _refused(draft, request.token, join_refused(error.code, request.member_id))
        return draft

    def _join(self, draft: Draft, request: JoinRequest) -> None:
        member_id = request.member_id or f"{request.instance_id or request.client_id}-{self._new_id()}"
        self._check_room(member_id, request.instance_id)
        subscription = self._check_protocols(request)
        if request.must_know_its_id and not request.member_id and request.instance_id is None:
            draft.reply(request.token, join_refused(ErrorCode.member_id_required, member_id))
            return
        old = self._joining(draft, request, member_id)
        member = after_join(old, request, subscription)
        changed = self._subscribe(draft, old, member)
        self._refresh(draft, bump=changed)
        if old.classic is None and old.instance_id is not None and self._downgrade(draft):
            draft.reply(request.token, join_refused(ErrorCode.rebalance_in_progress, member.id))
            return
        self._assign(draft)
        member = self._reconcile(draft, member, by_id(subscription.owned, self._image), changed)
        self._expect_no_join(draft, member.id)
        draft.wake((SESSION, member.id), request.session_timeout_ms)
        draft.wake((SYNC, member.id), request.rebalance_timeout_ms)
        draft.reply(request.token, join_answer(member))

    def _check_protocols(self, request: JoinRequest) -> Subscription:
        classic = [member.classic for member in self.state.members.values() if member.classic is not None]
        offered = set(request.protocols)
        common = offered.intersection(*({name for name, _ in one.protocols} for one in classic))
        if request.protocol_type != CONSUMER_PROTOCOL or not common:
            raise CodedError(ErrorCode.inconsistent_group_protocol)
        try:
            return parse_subscription(next(iter(request.protocols.values())))
        except NotConsumerProtocol:
            raise CodedError(ErrorCode.inconsistent_group_protocol) from None

    def _joining(self, draft: Draft, request: JoinRequest, member_id: str) -> ConsumerMember:
        instance_id = request.instance_id
        if instance_id is None:
            return self.state.members.get(member_id) or ConsumerMember(id=member_id)
        if request.member_id:
            return self._known_static(member_id, instance_id)
        former = self.state.static_member(instance_id)
        return ConsumerMember(id=member_id) if former is None else self._replace(draft, former, member_id)

    def sync(self, request: SyncRequest, now_ms: int) -> Decision:
        """A SyncGroup, answered at once with what the member may hold."""
        draft = self._draft(now_ms)
        try:
            member, classic = self._classic_member(request.member_id, request.instance_id, request.generation)
            protocol, metadata = classic.protocols[0]
            if request.protocol_type not in (None, CONSUMER_PROTOCOL) or request.protocol_name not in (None, protocol):
                raise CodedError(ErrorCode.inconsistent_group_protocol)
            if self.state.epoch > member.epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
                self._expect_join(draft, member)
                raise CodedError(ErrorCode.rebalance_in_progress)
        except CodedError as error:
            draft.reply(request.token, sync_answer(error.code))
            return draft
        draft.cancel((SYNC, member.id))
        draft.wake((SESSION, member.id), classic.session_timeout_ms)
        assignment = write_assignment(migration.protocol_version(metadata), member.assigned, self._image)
        answer = sync_answer(ErrorCode.none, assignment, request.protocol_type, request.protocol_name)
        draft.reply(request.token, answer)
        return draft

    def classic_heartbeat(
        self, token: object, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> Decision:
        """A Heartbeat: the member lives, and learns whether it must join again."""
        draft = self._draft(now_ms)
        try:
            member, classic = self._classic_member(member_id, instance_id, generation)
        except CodedError as error:
            return _refused(draft, token, heartbeat_answer(error.code))
        draft.wake((SESSION, member.id), classic.session_timeout_ms)
        self._refresh(draft, bump=False)
        code = ErrorCode.none
        if draft.state.must_rejoin(member):
            code = ErrorCode.rebalance_in_progress
            self._expect_join(draft, member)
        draft.reply(token, heartbeat_answer(code))
        return draft

    def leave(self, token: object, leaving: Sequence[LeavingMember], now_ms: int) -> Decision:
        """A LeaveGroup of one member or of many, of either protocol."""
        draft = self._draft(now_ms)
        answers: list[dict[str, Any]] = []
        gone: dict[str, ConsumerMember] = {}
        for one in leaving:
            code = ErrorCode.none
            try:
                member = self._leaving(one)
                gone[member.id] = member
            except CodedError as error:
                code = error.code
            answers.append({"member_id": one.member_id, "group_instance_id": one.instance_id, "error_code": code})
        if gone:
            self._fence(draft, list(gone.values()))
        draft.reply(token, {"throttle_time": 0, "error_code": ErrorCode.none, "members": answers})
        return draft

    def _leaving(self, one: LeavingMember) -> ConsumerMember:
        if one.instance_id is None:
            return self._known(one.member_id)
        static = self.state.static_member(one.instance_id)
        return self._known_static(one.member_id or ("" if static is None else static.id), one.instance_id)

    def _classic_member(
        self, member_id: str, instance_id: str | None, generation: int
    ) -> tuple[ConsumerMember, ClassicMetadata]:
        member = self._known(member_id) if instance_id is None else self._known_static(member_id, instance_id)
        if member.classic is None:
            raise CodedError(ErrorCode.unknown_member_id, f"Member {member_id} does not use the classic protocol.")
        if member.epoch != generation:
            raise CodedError(ErrorCode.illegal_generation)
        return member, member.classic

    def _expect_join(self, draft: Draft, member: ConsumerMember) -> None:
        """A member has its rebalance timeout to join again, from the first REBALANCE_IN_PROGRESS on."""
        if member.id not in self._to_join:
            self._to_join.add(member.id)
            draft.wake((JOIN, member.id), member.rebalance_timeout_ms)

    def _expect_no_join(self, draft: Draft, member_id: str) -> None:
        self._to_join.discard(member_id)
        draft.cancel((JOIN, member_id))

    # Between the protocols

    def take_over(self, former: Group, now_ms: int) -> Decision:
        """Become, without members of its own yet, what a classic group with members is; `CodedError` if it cannot."""
        if not isinstance(former, ClassicGroup):
            raise CONSUMER.not_found(self.group_id, former)
        draft = self._draft(now_ms)
        for change in migration.upgraded(former, self._settings(), self._image):
            draft.apply(change)
        draft.take_effect()  # nobody sees this group before all of this is written
        decision = Decision(now_ms)
        decision.records += [*former.tombstones(), *draft.records]
        decision.extend(self.on_loaded(now_ms))
        return decision

    def _downgrade(self, draft: Draft) -> bool:
        """Becomes a classic group where only classic members are left, and has them join it; whether it did."""
        if not migration.can_downgrade(list(draft.state.members.values()), self._settings()):
            return False
        classic = self._new_classic(self.group_id)
        for member_id in draft.state.members:
            for kind in _TIMERS:
                draft.cancel((kind, member_id))
        draft.records += draft.state.tombstones(self.group_id)
        draft.records.append(migration.downgraded(draft.state, classic, self._image))
        draft.extend(classic.on_loaded(draft.now_ms))
        draft.extend(classic.rebalance(draft.now_ms))
        draft.when_written(lambda: self._become(classic))
        return True

    def _become(self, classic: ClassicGroup) -> None:
        self.successor = classic

    # Steps that these events are made of: they see what the steps before them have decided

    def _replace(self, draft: Draft, old: ConsumerMember, new_id: str) -> ConsumerMember:
        """A static member returns under a new id: it gets the place, and so the partitions, of the old one."""
        target = draft.state.target_of(old.id)
        new = replace(old, id=new_id, epoch=0, previous_epoch=0)
        if new_id != old.id:
            self._forget_member(draft, old.id)
        for change in (MemberSubscription(new_id, new), TargetMember(new_id, target), CurrentAssignment(new_id, new)):
            draft.apply(change)
        return new

    def _subscribe(
        self, draft: Draft, old: ConsumerMember, new: ConsumerMember, request: HeartbeatRequest | None = None
    ) -> bool:
        """Store what a member sent; returns whether its subscription changed."""
        if new != old or new.id not in draft.state.members:
            draft.apply(MemberSubscription(new.id, new))
        regex_changed = (old.subscribed_topic_regex or None) != (new.subscribed_topic_regex or None)
        if regex_changed:
            self._drop_unused_regexes(draft)
            self._resolve_new(draft, new.subscribed_topic_regex, request)
        return regex_changed or old.subscribed_topic_names != new.subscribed_topic_names

    def _resolve_new(self, draft: Draft, regex: str | None, request: HeartbeatRequest | None) -> None:
        """What matches at once is there at once; what is still looked for comes with a later heartbeat."""
        if regex and regex not in draft.state.resolved:
            topics = self._resolver.topics(regex)
            if topics is not None:
                draft.apply(ResolvedRegex(regex, _seen(topics, request), self._image.version))
            else:
                self._resolved_version = None

    def _drop_unused_regexes(self, draft: Draft) -> None:
        for regex in draft.state.resolved.keys() - draft.state.regexes():
            draft.apply(ResolvedRegex(regex, None))

    def _refresh(self, draft: Draft, request: HeartbeatRequest | None = None, *, bump: bool) -> None:
        """A new epoch where it is asked for, or where topics that the group is subscribed to changed."""
        resolved = request is not None and self._resolve_again(draft, request)
        if not bump and not resolved and self._topics_hash.is_current:
            return
        metadata_hash = self._topics_hash.make(draft, draft.state.subscribed_names())
        if bump or resolved or metadata_hash != draft.state.metadata_hash:
            draft.apply(GroupEpoch(draft.state.epoch + 1, metadata_hash))

    def _resolve_again(self, draft: Draft, request: HeartbeatRequest) -> bool:
        """Looks for topics that match, after topics or ACLs changed, and the less often the more there are. What the
        member may know of that asks first counts for all with that expression, as with Kafka."""
        version = (self._image.topics_version, self._image.entries_version[EntryKind.ACL])
        if self._resolved_version == version or draft.now_ms < self._resolve_after_ms:
            return False
        changed, all_found = False, True
        for regex in draft.state.regexes():
            try:
                topics = self._resolver.topics(regex)
            except CodedError:  # written by a broker that served more: the group goes on with the topics it has
                continue
            if topics is None:
                all_found = False
            elif (seen := _seen(topics, request)) != draft.state.resolved.get(regex):
                draft.apply(ResolvedRegex(regex, seen, self._image.version))
                changed = True
        if all_found:
            self._resolved_version = version
            if draft.state.regexes():
                self._resolve_after_ms = draft.now_ms + min(max(_RESOLVE_MIN_MS, len(self._image)), _RESOLVE_MAX_MS)
        return changed

    def _assign(self, draft: Draft) -> None:
        """A new target where the epoch is newer than it: of a small group at once, of a large one when it has been
        made aside. A very large group waits a little for others to join too.
        """
        made, self._made = self._made, None
        if made is not None:
            self._take_target(draft, made)
        state = draft.state
        if state.epoch <= state.target_epoch or self._is_building or draft.now_ms < self._assign_after_ms:
            return
        if self._is_small(state):
            self._take_target(draft, self._builder(state).build())
            return
        if state.target_epoch == 0:
            self._begin_with_nothing(draft)
        self._is_building = True
        builder = self._builder(draft.state)
        draft.when_written(lambda: self._in_background(builder.build, self._built))

    def _builder(self, state: GroupState) -> TargetAssignmentBuilder:
        return TargetAssignmentBuilder.of(self.group_id, state, self._assignor_name(state), self._image)

    def _is_small(self, state: GroupState) -> bool:
        """Whether a new target takes no longer than a request may."""
        names = state.subscribed_names()
        subscribed = len(state.members) * len(names)
        if subscribed > _SMALL_GROUP:
            return False
        topics = [topic for topic in map(self._image.topic, names) if topic is not None]
        return subscribed + sum([len(topic.partitions) for topic in topics]) <= _SMALL_GROUP

    def _begin_with_nothing(self, draft: Draft) -> None:
        """Members of a group that never had a target need an epoch until there is one: zero is for joining."""
        draft.apply(TargetEpoch(draft.state.epoch))
        draft.apply(GroupEpoch(draft.state.epoch + 1, draft.state.metadata_hash))

    def _built(self, made: TargetAssignment | None) -> None:
        """A target was made, to be taken with any member's next heartbeat; None where it failed and is tried again."""
        self._is_building = False
        self._made = made

    def _take_target(self, draft: Draft, made: TargetAssignment) -> None:
        """Members that left meanwhile are left out; those that joined get their share with the next target."""
        if made.epoch <= draft.state.target_epoch:  # the group was emptied meanwhile
            return
        if made.size > _WAITING_GROUP:
            self._assign_after_ms = draft.now_ms + made.size // _ASSIGNED_PER_MS
        for member_id, target in made.targets.items():
            holder_id = draft.state.holder(member_id, made.instances.get(member_id), made.targets)
            if holder_id is None or draft.state.targets.get(holder_id) is target:
                continue
            record = made.records.get(member_id) if holder_id == member_id else None
            draft.apply(TargetMember(holder_id, target), record)
        draft.apply(TargetEpoch(made.epoch))

    def _assignor_name(self, state: GroupState) -> str:
        preferred = state.preferred_assignor()
        return preferred if preferred in ASSIGNORS else self._settings().assignors[0]

    def _reconcile(
        self, draft: Draft, member: ConsumerMember, owned: Assignment | None, changed: bool
    ) -> ConsumerMember:
        """The member's next step towards its target."""
        state = draft.state
        if not changed and member.is_reconciled_to(state.target_epoch):
            return member
        names = subscriptions.subscribed_names(member, state.resolved)
        goal = Goal(
            epoch=state.target_epoch,
            target=state.target_of(member.id),
            subscribed=topic_ids(names, self._image),
            is_held=state.is_held,
            subscription_changed=changed,
        )
        updated = reconcile(member, goal, owned)
        if updated == member:
            return member
        draft.apply(CurrentAssignment(updated.id, updated))
        if updated.classic is None:
            if updated.state is MemberState.UNREVOKED_PARTITIONS:
                draft.wake((REBALANCE, updated.id), updated.rebalance_timeout_ms)
            else:
                draft.cancel((REBALANCE, updated.id))
        return updated

    def _fence(self, draft: Draft, members: Collection[ConsumerMember]) -> None:
        """Takes members out: what they hold is free, and the others get it with the next epoch."""
        for member in members:
            self._forget_member(draft, member.id)
        if self._downgrade(draft):
            return
        self._drop_unused_regexes(draft)
        draft.apply(GroupEpoch(draft.state.epoch + 1, self._topics_hash.make(draft, draft.state.subscribed_names())))
        if not draft.state.members:
            draft.apply(TargetEpoch(draft.state.epoch))

    def _forget_member(self, draft: Draft, member_id: str) -> None:
        self._to_join.discard(member_id)
        draft.apply(CurrentAssignment(member_id, None))
        draft.apply(TargetMember(member_id, None))
        draft.apply(MemberSubscription(member_id, None))
        for kind in _TIMERS:
            draft.cancel((kind, member_id))

    # Time

    def on_loaded(self, now_ms: int) -> Decision:
        """Every member gets a session timeout to show that it is still there."""
        draft = self._draft(now_ms)
        session_timeout_ms = self._settings().session_timeout_ms
        for member in self.state.members.values():
            classic = member.classic
            timeout = session_timeout_ms if classic is None else classic.session_timeout_ms
            draft.wake((SESSION, member.id), timeout)
            if member.state is MemberState.UNREVOKED_PARTITIONS and classic is None:
                draft.wake((REBALANCE, member.id), member.rebalance_timeout_ms)
        return draft

    def on_timer(self, name: Hashable, now_ms: int) -> Decision:
        """A member was silent for too long, or did not give up in time what it was asked to."""
        draft = self._draft(now_ms)
        if isinstance(name, tuple):
            kind, member_id = name
            member = self.state.members.get(member_id)
            if member is not None and (kind != REBALANCE or member.state is MemberState.UNREVOKED_PARTITIONS):
                self._fence(draft, [member])
        return draft

    # The log

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Take a record of the log in, as it was once written."""
        _, change = decode(key, value)
        if change is not None:
            self.state.apply(change)

    def tombstones(self) -> list[CoordinatorRecord]:
        """The records that delete the group."""
        return self.state.tombstones(self.group_id)

    # Checks and queries

    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int, now_ms: int, *, transactional: bool = False
    ) -> Decision:
        """`CodedError` unless this member may commit offsets: STALE_MEMBER_EPOCH when its epoch is not its own."""
        is_simple = generation < 0 and self.is_empty
        is_anonymous = transactional and generation == NO_EPOCH and not member_id and instance_id is None
        if not is_simple and not is_anonymous:
            check_own_epoch(self._known(member_id), generation)
        return Decision(now_ms)

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """`CodedError` unless this member may read the group's offsets; requests without a member may."""
        if not member_id and member_epoch < 0:
            return
        check_own_epoch(self._known(member_id or ""), member_epoch)

    def subscribed_topics(self) -> Container[str]:
        """The topics that members read, or may be reading."""
        return self.state.subscribed_names()

    def describe(self) -> Mapping[str, Any]:
        """The group in the field names of ConsumerGroupDescribe."""
        return {
            "error_code": ErrorCode.none,
            "error_message": None,
            "group_id": self.group_id,
            "group_state": self.state_name,
            "group_epoch": self.state.epoch,
            "assignment_epoch": self.state.target_epoch,
            "assignor_name": self._assignor_name(self.state),
            "members": [
                describe_member(member, self.state.target_of(member.id), self._image)
                for member in self.state.members.values()
            ],
        }


def _seen(topics: frozenset[str], request: HeartbeatRequest | None) -> frozenset[str]:
    """Those of the topics that the member may know of."""
    sees = None if request is None else request.sees
    return topics if sees is None else frozenset(filter(sees, topics))


def _refused(draft: Draft, token: object, values: Mapping[str, Any]) -> Decision:
    """The error as the only answer: what was decided before it is dropped."""
    decision = Decision(draft.now_ms)
    decision.reply(token, values)
    return decision


def _make(group_id: str, environment: GroupEnvironment) -> ConsumerGroup:
    settings, image = environment.settings, environment.image
    return ConsumerGroup(
        group_id,
        image=image,
        resolver=environment.resolver,
        in_background=environment.in_background,
        settings=lambda: settings.consumer_of(image.group_configs.get(group_id)),
        new_id=environment.new_id,
        new_classic=lambda group_id: CLASSIC.make(group_id, environment),
    )


CONSUMER: Final = GroupKind(type=GroupType.CONSUMER, records=KEY_TYPES, make=_make, take_over=ConsumerGroup.take_over)
