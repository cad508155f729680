"""A consumer group (KIP-848): members say by heartbeats what they want and what they own, and are told by the answers
what to own. Events in, effects out; the same state comes back from replaying the records written.

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
from dataclasses import dataclass, field, replace
from typing import Any, Final

from headrace.cluster.image import ClusterImage
from headrace.coordinator.groups.classic import ClassicGroup, JoinRequest, LeavingMember, SyncRequest
from headrace.coordinator.groups.classic.turn import heartbeat_answer, join_refused, sync_answer
from headrace.coordinator.groups.group import GroupType
from headrace.coordinator.groups.settings import ConsumerSettings
from headrace.coordinator.patterns import topic_matcher
from headrace.coordinator.runtime.decision import Alarm, Effect, Reply, Write
from headrace.protocol.consumer_protocol import CONSUMER, NotConsumerProtocol, Subscription, parse_subscription
from headrace.protocol.errors import CodedError, ErrorCode

from . import migration, subscriptions
from .assignors import ASSIGNORS
from .embedded import by_id, write_assignment
from .member import AWAY, JOINING, Assignment, ClassicMetadata, Member, MemberState
from .reconcile import Goal, reconcile
from .records import (
    Change,
    CurrentAssignment,
    GroupEpoch,
    MemberSubscription,
    ResolvedRegex,
    TargetEpoch,
    TargetMember,
    decode,
    encode,
)
from .requests import HeartbeatRequest, answer, check_epoch, refusal
from .resolver import Resolver
from .state import GroupState
from .subscriptions import racks_of
from .target import Assigning, NewTarget

NO_EPOCH: Final = -1
SESSION: Final = "session"
REBALANCE: Final = "rebalance"
JOIN: Final = "join"
SYNC: Final = "sync"
_ALARMS: Final = (SESSION, REBALANCE, JOIN, SYNC)
"""The alarms a member can have; the name of one is a pair of its kind and the member's id."""
_RESOLVE_MIN_MS: Final = 1_000
_RESOLVE_MAX_MS: Final = 30_000
_SMALL_GROUP: Final = 5_000
"""Partitions, and topics of all members, up to which a new target is made at once: that takes 10 ms at most."""
_WAITING_GROUP: Final = 2_000
"""Members and partitions up to which a new target costs next to nothing."""
_ASSIGNED_PER_MS: Final = 20
"""How many members and partitions are assigned for each millisecond of time: a twentieth of what a core can do."""


Aside = Callable[[Callable[[], NewTarget], Callable[[NewTarget | None], None]], None]
"""Has a target made by a thread, and calls the second with it, or with None where that failed."""


@dataclass(slots=True)
class Decision:
    """The effects of one event, collected in their order."""

    group_id: str
    state: GroupState
    now_ms: int
    effects: list[Effect] = field(default_factory=list)

    def apply(self, change: Change, write: Write | None = None) -> None:
        """Make a change and keep its record, which may have been made before."""
        self.state.apply(change)
        self.effects.append(write or encode(self.group_id, change))

    def reply(self, token: object, values: Mapping[str, Any]) -> None:
        self.effects.append(Reply(token, values))

    def wake(self, kind: str, member_id: str, after_ms: int) -> None:
        self.effects.append(Alarm((kind, member_id), self.now_ms + after_ms))

    def forget(self, kind: str, member_id: str) -> None:
        self.effects.append(Alarm((kind, member_id), None))


class ConsumerGroup:
    """One group."""

    type: Final = GroupType.CONSUMER
    protocol_type: Final = "consumer"

    def __init__(
        self,
        group_id: str,
        *,
        image: ClusterImage,
        resolver: Resolver,
        aside: Aside,
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
        self._aside = aside
        self._settings = settings
        self._new_id = new_id
        self._new_classic = new_classic
        self._to_join: set[str] = set()
        """Classic members that were told to join again."""
        self._hashed_version: int | None = None
        """The version of the image that `state.metadata_hash` was made from, by this process."""
        self._hashed: tuple[int, dict[int, str]] | None = None
        """What it was made from: the version of the topics, and the racks of brokers."""
        self._resolved_version: int | None = None
        self._resolve_after_ms = 0
        self._assign_after_ms = 0
        self._is_assigning = False
        self._made: NewTarget | None = None
        """A target that was made aside, and is not taken yet."""

    def _decide(self, now_ms: int) -> Decision:
        return Decision(self.group_id, self.state, now_ms)

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

    def _known(self, member_id: str) -> Member:
        member = self.state.members.get(member_id)
        if member is None:
            raise CodedError(
                ErrorCode.unknown_member_id, f"Member {member_id} is not a member of group {self.group_id}."
            )
        return member

    def _known_static(self, member_id: str, instance_id: str) -> Member:
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

    def heartbeat(self, request: HeartbeatRequest, now_ms: int) -> list[Effect]:
        """A ConsumerGroupHeartbeat that `check_request` found valid: a member joins, lives on, or leaves."""
        decision = self._decide(now_ms)
        try:
            if request.member_epoch < JOINING:
                self._leave(decision, request)
            else:
                self._beat(decision, request)
        except CodedError as error:
            return [Reply(request.token, refusal(error))]
        return decision.effects

    def _beat(self, decision: Decision, request: HeartbeatRequest) -> None:
        self._check_room(request.member_id, request.instance_id)
        old = self._member_of(decision, request)
        member = _told(old, request)
        changed = self._subscribe(decision, old, member)
        self._refresh(decision, bump=changed or self.state.epoch == 0)
        self._assign(decision)
        member = self._reconcile(decision, member, request.owned, changed)
        settings = self._settings()
        decision.wake(SESSION, member.id, settings.session_timeout_ms)
        shows = request.member_epoch == JOINING or request.is_full or member.assigned != old.assigned
        assigned: Assignment | None = member.assigned if shows else None
        decision.reply(request.token, answer(member.id, member.epoch, settings.heartbeat_interval_ms, assigned))

    def _member_of(self, decision: Decision, request: HeartbeatRequest) -> Member:
        if request.subscribed_topic_regex:
            topic_matcher(request.subscribed_topic_regex)
        if request.instance_id is not None and request.member_epoch == JOINING:
            return self._joining_static(decision, request, request.instance_id)
        if request.instance_id is not None:
            member = self._known_static(request.member_id, request.instance_id)
        elif request.member_epoch == JOINING:
            member = self.state.members.get(request.member_id) or Member(id=request.member_id)
        else:
            member = self._known(request.member_id)
        check_epoch(member, request)
        return member

    def _joining_static(self, decision: Decision, request: HeartbeatRequest, instance_id: str) -> Member:
        member = self.state.static_member(instance_id)
        if member is None:
            return self.state.members.get(request.member_id) or Member(id=request.member_id)
        if member.id == request.member_id and member.epoch != AWAY:
            return member
        if member.classic is None and member.epoch != AWAY:
            raise CodedError(
                ErrorCode.unreleased_instance_id,
                f"Static member {request.member_id} with instance id {instance_id} cannot join the group because the "
                f"instance id is owned by {member.id} member.",
            )
        return self._replace(decision, member, request.member_id)

    def _leave(self, decision: Decision, request: HeartbeatRequest) -> None:
        if request.instance_id is None:
            member = self._known(request.member_id)
        else:
            member = self._known_static(request.member_id, request.instance_id)
        if request.member_epoch == AWAY:
            away = replace(member, epoch=AWAY, pending_revocation={})
            decision.apply(CurrentAssignment(member.id, away))
            decision.forget(REBALANCE, member.id)
        else:
            self._fence(decision, [member])
        decision.reply(request.token, answer(request.member_id, request.member_epoch))

    # Members of the classic protocol. A generation is the member's epoch. JoinGroup is its heartbeat: it tells the
    # subscription and what the member owns, and takes the next step towards the target. SyncGroup gets what the member
    # may hold, Heartbeat whether there is more to do. There is no leader: the broker assigns, so nobody waits.

    def join(self, request: JoinRequest, now_ms: int) -> list[Effect]:
        """A JoinGroup, answered at once."""
        decision = self._decide(now_ms)
        try:
            self._join(decision, request)
        except CodedError as error:
            return [Reply(request.token, join_refused(error.code, request.member_id))]
        return decision.effects

    def _join(self, decision: Decision, request: JoinRequest) -> None:
        member_id = request.member_id or f"{request.instance_id or request.client_id}-{self._new_id()}"
        self._check_room(member_id, request.instance_id)
        subscription = self._check_protocols(request)
        if request.must_know_its_id and not request.member_id and request.instance_id is None:
            decision.reply(request.token, join_refused(ErrorCode.member_id_required, member_id))
            return
        old = self._joining(decision, request, member_id)
        member = _joined(old, request, subscription)
        changed = self._subscribe(decision, old, member)
        self._refresh(decision, bump=changed)
        if old.classic is None and old.instance_id is not None and self._downgrade(decision):
            decision.reply(request.token, join_refused(ErrorCode.rebalance_in_progress, member.id))
            return
        self._assign(decision)
        member = self._reconcile(decision, member, by_id(subscription.owned, self._image), changed)
        self._expect_no_join(decision, member.id)
        decision.wake(SESSION, member.id, request.session_timeout_ms)
        decision.wake(SYNC, member.id, request.rebalance_timeout_ms)
        decision.reply(request.token, _join_answer(member))

    def _check_protocols(self, request: JoinRequest) -> Subscription:
        classic = [member.classic for member in self.state.members.values() if member.classic is not None]
        offered = set(request.protocols)
        common = offered.intersection(*({name for name, _ in one.protocols} for one in classic))
        if request.protocol_type != CONSUMER or not common:
            raise CodedError(ErrorCode.inconsistent_group_protocol)
        try:
            return parse_subscription(next(iter(request.protocols.values())))
        except NotConsumerProtocol:
            raise CodedError(ErrorCode.inconsistent_group_protocol) from None

    def _joining(self, decision: Decision, request: JoinRequest, member_id: str) -> Member:
        instance_id = request.instance_id
        if instance_id is None:
            return self.state.members.get(member_id) or Member(id=member_id)
        if request.member_id:
            return self._known_static(member_id, instance_id)
        former = self.state.static_member(instance_id)
        return Member(id=member_id) if former is None else self._replace(decision, former, member_id)

    def sync(self, request: SyncRequest, now_ms: int) -> list[Effect]:
        """A SyncGroup, answered at once with what the member may hold."""
        decision = self._decide(now_ms)
        try:
            member, classic = self._classic_member(request.member_id, request.instance_id, request.generation)
            protocol, metadata = classic.protocols[0]
            if request.protocol_type not in (None, CONSUMER) or request.protocol_name not in (None, protocol):
                raise CodedError(ErrorCode.inconsistent_group_protocol)
            if self.state.epoch > member.epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
                self._expect_join(decision, member)
                raise CodedError(ErrorCode.rebalance_in_progress)
        except CodedError as error:
            decision.reply(request.token, sync_answer(error.code))
            return decision.effects
        decision.forget(SYNC, member.id)
        decision.wake(SESSION, member.id, classic.session_timeout_ms)
        assignment = write_assignment(migration.protocol_version(metadata), member.assigned, self._image)
        answer = sync_answer(ErrorCode.none, assignment, request.protocol_type, request.protocol_name)
        decision.reply(request.token, answer)
        return decision.effects

    def classic_heartbeat(
        self, token: object, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> list[Effect]:
        """A Heartbeat: the member lives, and learns whether it must join again."""
        decision = self._decide(now_ms)
        try:
            member, classic = self._classic_member(member_id, instance_id, generation)
        except CodedError as error:
            return [Reply(token, heartbeat_answer(error.code))]
        decision.wake(SESSION, member.id, classic.session_timeout_ms)
        self._refresh(decision, bump=False)
        code = ErrorCode.none
        if self._must_rejoin(member):
            code = ErrorCode.rebalance_in_progress
            self._expect_join(decision, member)
        decision.reply(token, heartbeat_answer(code))
        return decision.effects

    def _must_rejoin(self, member: Member) -> bool:
        """There is a newer epoch, something to give up, or everything it waits for is free."""
        if member.epoch < self.state.epoch or member.state is MemberState.UNREVOKED_PARTITIONS:
            return True
        return member.state is MemberState.UNRELEASED_PARTITIONS and not self._waits(member)

    def _waits(self, member: Member) -> bool:
        return any(
            self.state.is_held(topic, index)
            for topic, indexes in self.state.target_of(member.id).items()
            for index in indexes - member.assigned.get(topic, frozenset())
        )

    def leave(self, token: object, leaving: Sequence[LeavingMember], now_ms: int) -> list[Effect]:
        """A LeaveGroup of one member or of many, of either protocol."""
        decision = self._decide(now_ms)
        answers: list[dict[str, Any]] = []
        gone: dict[str, Member] = {}
        for one in leaving:
            code = ErrorCode.none
            try:
                member = self._leaving(one)
                gone[member.id] = member
            except CodedError as error:
                code = error.code
            answers.append({"member_id": one.member_id, "group_instance_id": one.instance_id, "error_code": code})
        if gone:
            self._fence(decision, list(gone.values()))
        decision.reply(token, {"throttle_time": 0, "error_code": ErrorCode.none, "members": answers})
        return decision.effects

    def _leaving(self, one: LeavingMember) -> Member:
        if one.instance_id is None:
            return self._known(one.member_id)
        static = self.state.static_member(one.instance_id)
        return self._known_static(one.member_id or ("" if static is None else static.id), one.instance_id)

    def _classic_member(
        self, member_id: str, instance_id: str | None, generation: int
    ) -> tuple[Member, ClassicMetadata]:
        member = self._known(member_id) if instance_id is None else self._known_static(member_id, instance_id)
        if member.classic is None:
            raise CodedError(ErrorCode.unknown_member_id, f"Member {member_id} does not use the classic protocol.")
        if member.epoch != generation:
            raise CodedError(ErrorCode.illegal_generation)
        return member, member.classic

    def _expect_join(self, decision: Decision, member: Member) -> None:
        """It was told to join again, and has its rebalance timeout to do so, from the first time it was told."""
        if member.id not in self._to_join:
            self._to_join.add(member.id)
            decision.wake(JOIN, member.id, member.rebalance_timeout_ms)

    def _expect_no_join(self, decision: Decision, member_id: str) -> None:
        self._to_join.discard(member_id)
        decision.forget(JOIN, member_id)

    # Between the protocols

    def take_over(self, classic: ClassicGroup, now_ms: int) -> list[Effect]:
        """Become, without members of its own yet, what a classic group with members is; `CodedError` if it cannot."""
        decision = self._decide(now_ms)
        for change in migration.upgraded(classic, self._settings(), self._image):
            decision.apply(change)
        return [*classic.tombstones(), *decision.effects, *self.on_loaded(now_ms)]

    def _downgrade(self, decision: Decision) -> bool:
        """Becomes a classic group where only classic members are left, and has them join it; whether it did."""
        if not migration.can_downgrade(list(self.state.members.values()), self._settings()):
            return False
        classic = self._new_classic(self.group_id)
        for member_id in self.state.members:
            for kind in _ALARMS:
                decision.forget(kind, member_id)
        decision.effects += self.tombstones()
        decision.effects.append(migration.downgraded(self.state, classic, self._image))
        decision.effects += classic.on_loaded(decision.now_ms)
        decision.effects += classic.rebalance(decision.now_ms)
        self.successor = classic
        return True

    # Steps that these events are made of

    def _replace(self, decision: Decision, old: Member, new_id: str) -> Member:
        """A static member returns under a new id: it gets the place, and so the partitions, of the old one."""
        target = self.state.target_of(old.id)
        new = replace(old, id=new_id, epoch=0, previous_epoch=0)
        if new_id != old.id:
            self._forget_member(decision, old.id)
        for change in (MemberSubscription(new_id, new), TargetMember(new_id, target), CurrentAssignment(new_id, new)):
            decision.apply(change)
        return new

    def _subscribe(self, decision: Decision, old: Member, new: Member) -> bool:
        """Keeps what a member told; whether what it is subscribed to changed."""
        if new != old or new.id not in self.state.members:
            decision.apply(MemberSubscription(new.id, new))
        regex_changed = (old.subscribed_topic_regex or None) != (new.subscribed_topic_regex or None)
        if regex_changed:
            self._drop_unused_regexes(decision)
            self._resolve_new(decision, new.subscribed_topic_regex)
        return regex_changed or old.subscribed_topic_names != new.subscribed_topic_names

    def _resolve_new(self, decision: Decision, regex: str | None) -> None:
        """What matches at once is there at once; what is still looked for comes with a later heartbeat."""
        if regex and regex not in self.state.resolved:
            topics = self._resolver.topics(regex)
            if topics is not None:
                decision.apply(ResolvedRegex(regex, topics, self._image.version))
            else:
                self._resolved_version = None

    def _drop_unused_regexes(self, decision: Decision) -> None:
        for regex in self.state.resolved.keys() - self.state.regexes():
            decision.apply(ResolvedRegex(regex, None))

    def _refresh(self, decision: Decision, *, bump: bool) -> None:
        """A new epoch where it is asked for, or where topics that the group is subscribed to changed."""
        resolved = self._resolve_again(decision)
        if not bump and not resolved and self._is_hashed():
            return
        metadata_hash = self._hash()
        if bump or resolved or metadata_hash != self.state.metadata_hash:
            decision.apply(GroupEpoch(self.state.epoch + 1, metadata_hash))

    def _is_hashed(self) -> bool:
        """Whether `state.metadata_hash` is of what an assignor sees now. Elections do not change that."""
        image = self._image
        if self._hashed_version != image.version and self._hashed == (image.topics_version, racks_of(image)):
            self._hashed_version = image.version
        return self._hashed_version == image.version

    def _hash(self) -> int:
        image = self._image
        self._hashed_version, self._hashed = image.version, (image.topics_version, racks_of(image))
        return subscriptions.metadata_hash(self.state.subscribed_names(), image)

    def _resolve_again(self, decision: Decision) -> bool:
        """Looks for topics that match, after topics changed, and the less often the more there are."""
        version = self._image.topics_version
        if self._resolved_version == version or decision.now_ms < self._resolve_after_ms:
            return False
        changed, all_found = False, True
        for regex in self.state.regexes():
            try:
                topics = self._resolver.topics(regex)
            except CodedError:  # written by a broker that served more: the group goes on with what it found
                continue
            if topics is None:
                all_found = False
            elif topics != self.state.resolved.get(regex):
                decision.apply(ResolvedRegex(regex, topics, self._image.version))
                changed = True
        if all_found:
            self._resolved_version = version
            if self.state.regexes():
                self._resolve_after_ms = decision.now_ms + min(max(_RESOLVE_MIN_MS, len(self._image)), _RESOLVE_MAX_MS)
        return changed

    def _assign(self, decision: Decision) -> None:
        """A new target where the epoch is newer than it: of a small group at once, of a large one when it has been
        made aside. A very large group waits a little for others to join too.
        """
        made, self._made = self._made, None
        if made is not None:
            self._take_target(decision, made)
        state = self.state
        if state.epoch <= state.target_epoch or self._is_assigning or decision.now_ms < self._assign_after_ms:
            return
        if self._is_small():
            self._take_target(decision, self._assigning().make())
            return
        if state.target_epoch == 0:
            self._begin_with_nothing(decision)
        self._is_assigning = True
        self._aside(self._assigning().make, self._made_aside)

    def _assigning(self) -> Assigning:
        return Assigning.of(self.group_id, self.state, self._assignor_name(), self._image)

    def _is_small(self) -> bool:
        """Whether a new target takes no longer than a request may."""
        names = self.state.subscribed_names()
        subscribed = len(self.state.members) * len(names)
        if subscribed > _SMALL_GROUP:
            return False
        topics = [topic for topic in map(self._image.topic, names) if topic is not None]
        return subscribed + sum([len(topic.partitions) for topic in topics]) <= _SMALL_GROUP

    def _begin_with_nothing(self, decision: Decision) -> None:
        """Members of a group that never had a target need an epoch until there is one: zero is for joining."""
        decision.apply(TargetEpoch(self.state.epoch))
        decision.apply(GroupEpoch(self.state.epoch + 1, self.state.metadata_hash))

    def _made_aside(self, made: NewTarget | None) -> None:
        """It counts with the next heartbeat of any member; None where it could not be made, and is to be tried anew."""
        self._is_assigning = False
        self._made = made

    def _take_target(self, decision: Decision, made: NewTarget) -> None:
        """Members that left meanwhile are left out; those that joined get their share with the next target."""
        state = self.state
        if made.epoch <= state.target_epoch:  # the group was emptied meanwhile
            return
        if made.size > _WAITING_GROUP:
            self._assign_after_ms = decision.now_ms + made.size // _ASSIGNED_PER_MS
        for member_id, target in made.targets.items():
            holder_id = self._holder(made, member_id)
            if holder_id is None or state.targets.get(holder_id) is target:
                continue
            write = made.writes.get(member_id) if holder_id == member_id else None
            decision.apply(TargetMember(holder_id, target), write)
        decision.apply(TargetEpoch(made.epoch))

    def _holder(self, made: NewTarget, member_id: str) -> str | None:
        """Who has a member's place now: a static one may have returned under a new id."""
        if member_id in self.state.members:
            return member_id
        static = self.state.static_member(made.instances.get(member_id))
        return None if static is None or static.id in made.targets else static.id

    def _assignor_name(self) -> str:
        preferred = self.state.preferred_assignor()
        return preferred if preferred in ASSIGNORS else self._settings().assignors[0]

    def _reconcile(self, decision: Decision, member: Member, owned: Assignment | None, changed: bool) -> Member:
        """The member's next step towards its target."""
        state = self.state
        if not changed and member.is_reconciled_to(state.target_epoch):
            return member
        names = subscriptions.subscribed_names(member, state.resolved)
        goal = Goal(
            epoch=state.target_epoch,
            target=state.target_of(member.id),
            subscribed=subscriptions.topic_ids(names, self._image),
            is_held=state.is_held,
            subscription_changed=changed,
        )
        updated = reconcile(member, goal, owned)
        if updated == member:
            return member
        decision.apply(CurrentAssignment(updated.id, updated))
        if updated.classic is None:
            if updated.state is MemberState.UNREVOKED_PARTITIONS:
                decision.wake(REBALANCE, updated.id, updated.rebalance_timeout_ms)
            else:
                decision.forget(REBALANCE, updated.id)
        return updated

    def _fence(self, decision: Decision, members: Collection[Member]) -> None:
        """Takes members out: what they hold is free, and the others get it with the next epoch."""
        for member in members:
            self._forget_member(decision, member.id)
        if self._downgrade(decision):
            return
        self._drop_unused_regexes(decision)
        decision.apply(GroupEpoch(self.state.epoch + 1, self._hash()))
        if not self.state.members:
            decision.apply(TargetEpoch(self.state.epoch))

    def _forget_member(self, decision: Decision, member_id: str) -> None:
        self._to_join.discard(member_id)
        decision.apply(CurrentAssignment(member_id, None))
        decision.apply(TargetMember(member_id, None))
        decision.apply(MemberSubscription(member_id, None))
        for kind in _ALARMS:
            decision.forget(kind, member_id)

    # Time

    def on_loaded(self, now_ms: int) -> list[Effect]:
        """Every member gets a session timeout to show that it is still there."""
        decision = self._decide(now_ms)
        session_timeout_ms = self._settings().session_timeout_ms
        for member in self.state.members.values():
            classic = member.classic
            timeout = session_timeout_ms if classic is None else classic.session_timeout_ms
            decision.wake(SESSION, member.id, timeout)
            if member.state is MemberState.UNREVOKED_PARTITIONS and classic is None:
                decision.wake(REBALANCE, member.id, member.rebalance_timeout_ms)
        return decision.effects

    def on_alarm(self, name: Hashable, now_ms: int) -> list[Effect]:
        """A member was silent for too long, or did not give up in time what it was asked to."""
        decision = self._decide(now_ms)
        if isinstance(name, tuple):
            kind, member_id = name
            member = self.state.members.get(member_id)
            if member is not None and (kind != REBALANCE or member.state is MemberState.UNREVOKED_PARTITIONS):
                self._fence(decision, [member])
        return decision.effects

    # The log

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Take a record of the log in, as it was once written."""
        _, change = decode(key, value)
        if change is not None:
            self.state.apply(change)

    def resign(self, code: ErrorCode) -> Sequence[Reply]:  # noqa: ARG002
        """Nobody waits: every heartbeat is answered at once."""
        return ()

    def tombstones(self) -> list[Write]:
        """What takes the group's records out of the log."""
        members = list(self.state.members)
        changes: list[Change] = [
            *(CurrentAssignment(member_id, None) for member_id in members),
            *(TargetMember(member_id, None) for member_id in members),
            TargetEpoch(None),
            *(MemberSubscription(member_id, None) for member_id in members),
            *(ResolvedRegex(regex, None) for regex in self.state.resolved),
            GroupEpoch(None),
        ]
        return [encode(self.group_id, change) for change in changes]

    # What others may do

    def check_commit(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        now_ms: int,  # noqa: ARG002
        *,
        transactional: bool = False,
    ) -> Sequence[Effect]:
        """`CodedError` unless this member may commit offsets: STALE_MEMBER_EPOCH when its epoch is not its own."""
        if generation < 0 and self.is_empty:
            return ()
        if transactional and generation == NO_EPOCH and not member_id and instance_id is None:
            return ()
        _check_member_epoch(self._known(member_id), generation)
        return ()

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """`CodedError` unless this member may read the group's offsets; whoever names no member may."""
        if not member_id and member_epoch < 0:
            return
        _check_member_epoch(self._known(member_id or ""), member_epoch)

    def check_offset_delete(self) -> None:
        """Single offsets may be deleted, except those of topics that members read (see `subscribed_topics`)."""

    def check_delete(self) -> None:
        """`CodedError` unless the group may be deleted."""
        if not self.is_empty:
            raise CodedError(ErrorCode.non_empty_group)

    def subscribed_topics(self) -> Container[str]:
        """The topics that members read, or may be reading."""
        return self.state.subscribed_names()

    def offsets_idle_since(self, commit_timestamp: int) -> int | None:
        """Offsets grow old from the time that they were committed, unless a member reads their topic."""
        return commit_timestamp

    def describe(self) -> Mapping[str, Any]:
        """The group in the field names of ConsumerGroupDescribe."""
        return {
            "error_code": ErrorCode.none,
            "error_message": None,
            "group_id": self.group_id,
            "group_state": self.state_name,
            "group_epoch": self.state.epoch,
            "assignment_epoch": self.state.target_epoch,
            "assignor_name": self._assignor_name(),
            "members": [
                _described(member, self.state.target_of(member.id), self._image)
                for member in self.state.members.values()
            ],
        }


def _told(old: Member, request: HeartbeatRequest) -> Member:
    """The member as it is after what it said. Who joins says everything: a static member that returns with another
    subscription keeps nothing of its former one."""
    if request.member_epoch == JOINING:
        old = replace(
            old, subscribed_topic_names=frozenset(), subscribed_topic_regex=None, rack_id=None, server_assignor=None
        )
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    timeout = request.rebalance_timeout_ms
    return replace(
        old,
        instance_id=old.instance_id if request.instance_id is None else request.instance_id,
        rack_id=old.rack_id if request.rack_id is None else request.rack_id,
        rebalance_timeout_ms=old.rebalance_timeout_ms if timeout == -1 else timeout,
        server_assignor=old.server_assignor if request.server_assignor is None else request.server_assignor,
        subscribed_topic_names=old.subscribed_topic_names if names is None else names,
        subscribed_topic_regex=old.subscribed_topic_regex if regex is None else regex,
        client_id=request.client_id,
        client_host=request.client_host,
        classic=None,
    )


def _check_member_epoch(member: Member, epoch: int) -> None:
    if epoch == member.epoch:
        return
    if member.classic is not None:
        raise CodedError(
            ErrorCode.illegal_generation,
            f"The received generation id {epoch} does not match the expected member epoch {member.epoch}.",
        )
    raise CodedError(
        ErrorCode.stale_member_epoch,
        f"The received member epoch {epoch} does not match the expected member epoch {member.epoch}.",
    )


def _joined(old: Member, request: JoinRequest, subscription: Subscription) -> Member:
    return replace(
        old,
        instance_id=request.instance_id,
        rack_id=subscription.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        server_assignor=None,
        subscribed_topic_names=subscription.topics,
        subscribed_topic_regex="",
        client_id=request.client_id,
        client_host=request.client_host,
        classic=ClassicMetadata(
            session_timeout_ms=request.session_timeout_ms, protocols=tuple(request.protocols.items())
        ),
    )


def _join_answer(member: Member) -> dict[str, Any]:
    assert member.classic is not None
    return {
        "throttle_time": 0,
        "error_code": ErrorCode.none,
        "generation_id": member.epoch,
        "protocol_type": CONSUMER,
        "protocol_name": member.classic.protocols[0][0],
        "leader": "",
        "skip_assignment": False,
        "member_id": member.id,
        "members": (),
    }


def _described(member: Member, target: Assignment, image: ClusterImage) -> dict[str, Any]:
    return {
        "member_id": member.id,
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "member_epoch": member.epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": sorted(member.subscribed_topic_names),
        "subscribed_topic_regex": member.subscribed_topic_regex,
        "assignment": _named(member.assigned, image),
        "target_assignment": _named(target, image),
        "member_type": 1 if member.classic is None else 0,
    }


def _named(assignment: Assignment, image: ClusterImage) -> dict[str, Any]:
    topics = ((image.topic_by_id(topic_id), partitions) for topic_id, partitions in assignment.items())
    return {
        "topic_partitions": [
            {"topic_id": topic.id, "topic_name": topic.name, "partitions": sorted(partitions)}
            for topic, partitions in topics
            if topic is not None
        ]
    }
