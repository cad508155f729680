"""What every event of a consumer group is made of: a subscription that changes, a new epoch, a new target, a member's
next step, a member that goes. The events themselves are in `group` (members of the new protocol) and in
`classic_members` (members of the old one in the same group).
"""

from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from headrace.cluster.image import ClusterImage
from headrace.protocol.errors import CodedError, ErrorCode

from ..assignors import ASSIGNORS
from ..classic import ClassicGroup
from ..effects import Alarm, Effect, Reply, Write
from . import migration, subscriptions
from .member import Assignment, Member, MemberState
from .reconcile import Goal, reconcile
from .records import (
    Change,
    CurrentAssignment,
    GroupEpoch,
    MemberSubscription,
    ResolvedRegex,
    TargetEpoch,
    TargetMember,
    encode,
)
from .resolver import Resolver
from .settings import ConsumerSettings
from .state import GroupState
from .subscriptions import racks_of
from .target import Assigning, NewTarget

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


class Core:
    """A group's state and the steps that events are made of."""

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

    # Steps

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

    def _forget_member(self, decision: Decision, member_id: str) -> None:
        self._to_join.discard(member_id)
        decision.apply(CurrentAssignment(member_id, None))
        decision.apply(TargetMember(member_id, None))
        decision.apply(MemberSubscription(member_id, None))
        for kind in _ALARMS:
            decision.forget(kind, member_id)

    def _on_member_alarm(self, decision: Decision, name: Hashable) -> None:
        if not isinstance(name, tuple):
            return
        kind, member_id = name
        member = self.state.members.get(member_id)
        if member is None or (kind == REBALANCE and member.state is not MemberState.UNREVOKED_PARTITIONS):
            return
        self._fence(decision, [member])
