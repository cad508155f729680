"""What a consumer group lasts by: changed only by `apply`, alike when a decision is made and when it is read back."""

from collections import Counter
from dataclasses import replace
from uuid import UUID

from .member import NOTHING, Assignment, Member, partitions_of
from .records import Change, CurrentAssignment, GroupEpoch, MemberSubscription, ResolvedRegex, TargetEpoch, TargetMember


class GroupState:
    """Members, epochs, target, and what follows from them."""

    def __init__(self) -> None:
        self.epoch = 0
        self.is_deleted = False
        self.metadata_hash = 0
        self.target_epoch = 0
        self.members: dict[str, Member] = {}
        self.targets: dict[str, Assignment] = {}
        self.resolved: dict[str, frozenset[str]] = {}
        self.static_members: dict[str, str] = {}
        """Member ids by instance id."""
        self.owners: dict[tuple[UUID, int], str] = {}
        """Who holds each partition, including those it was asked to give up and has not."""
        self._names: Counter[str] = Counter()
        """How many members are subscribed to each topic by its name."""
        self._regexes: Counter[str] = Counter()
        """How many are subscribed by each expression."""

    def apply(self, change: Change) -> None:
        """Make a change."""
        match change:
            case GroupEpoch(epoch, metadata_hash):
                self.epoch, self.metadata_hash, self.is_deleted = epoch or 0, metadata_hash, epoch is None
            case TargetEpoch(epoch):
                self.target_epoch = epoch or 0
            case MemberSubscription(member_id, None):
                self._forget(member_id)
            case MemberSubscription(member_id, told) if told is not None:
                self._put(_with_subscription(self.members.get(member_id) or Member(id=member_id), told))
            case CurrentAssignment(member_id, None):
                member = self.members.get(member_id)
                if member is not None:
                    self._put(_with_current(member, Member(id=member_id)))
            case CurrentAssignment(member_id, current) if current is not None:
                self._put(_with_current(self.members.get(member_id) or Member(id=member_id), current))
            case TargetMember(member_id, None):
                self.targets.pop(member_id, None)
            case TargetMember(member_id, target) if target is not None:
                self.targets[member_id] = target
            case ResolvedRegex(regex, None):
                self.resolved.pop(regex, None)
            case ResolvedRegex(regex, topics) if topics is not None:
                self.resolved[regex] = topics

    def static_member(self, instance_id: str | None) -> Member | None:
        member_id = None if instance_id is None else self.static_members.get(instance_id)
        return None if member_id is None else self.members.get(member_id)

    def target_of(self, member_id: str) -> Assignment:
        return self.targets.get(member_id, NOTHING)

    def is_held(self, topic: UUID, index: int) -> bool:
        return (topic, index) in self.owners

    def regexes(self) -> list[str]:
        """The expressions that members are subscribed to."""
        return list(self._regexes)

    def subscribed_names(self) -> set[str]:
        """Every topic name that a member is subscribed to, one by one or by an expression."""
        return set(self._names).union(*(self.resolved.get(regex, frozenset()) for regex in self._regexes))

    def preferred_assignor(self) -> str | None:
        """The assignor that most members ask for."""
        votes = Counter(member.server_assignor for member in self.members.values() if member.server_assignor)
        return max(sorted(votes), key=lambda name: votes[name]) if votes else None

    def _put(self, member: Member) -> None:
        old = self.members.get(member.id)
        self.members[member.id] = member
        if old is None or old.instance_id != member.instance_id:
            self._drop_instance(old)
            if member.instance_id is not None:
                self.static_members[member.instance_id] = member.id
        self._note_subscription(old, member)
        if (
            old is None
            or old.assigned is not member.assigned
            or old.pending_revocation is not member.pending_revocation
        ):
            self._release(old)
            for assignment in (member.assigned, member.pending_revocation):
                self.owners.update((partition, member.id) for partition in partitions_of(assignment))

    def _forget(self, member_id: str) -> None:
        old = self.members.pop(member_id, None)
        self._note_subscription(old, None)
        self._release(old)
        self._drop_instance(old)

    def _note_subscription(self, old: Member | None, new: Member | None) -> None:
        before, now = _subscription(old), _subscription(new)
        if before == now:
            return
        for counts, gone, come in zip((self._names, self._regexes), before, now, strict=True):
            counts.update(come)
            counts.subtract(gone)
            for name in gone:
                if not counts[name]:
                    del counts[name]

    def _release(self, old: Member | None) -> None:
        """Another may hold a partition already: compaction keeps what it got, not that this one let go before."""
        if old is None:
            return
        for assignment in (old.assigned, old.pending_revocation):
            for partition in partitions_of(assignment):
                if self.owners.get(partition) == old.id:
                    del self.owners[partition]

    def _drop_instance(self, old: Member | None) -> None:
        if old is not None and old.instance_id is not None and self.static_members.get(old.instance_id) == old.id:
            del self.static_members[old.instance_id]


def _subscription(member: Member | None) -> tuple[frozenset[str], frozenset[str]]:
    """The names and the expressions that a member is subscribed to."""
    if member is None:
        return frozenset(), frozenset()
    regex = member.subscribed_topic_regex
    return member.subscribed_topic_names, frozenset({regex} if regex else ())


def _with_subscription(member: Member, told: Member) -> Member:
    return replace(
        member,
        instance_id=told.instance_id,
        rack_id=told.rack_id,
        client_id=told.client_id,
        client_host=told.client_host,
        rebalance_timeout_ms=told.rebalance_timeout_ms,
        subscribed_topic_names=told.subscribed_topic_names,
        subscribed_topic_regex=told.subscribed_topic_regex,
        server_assignor=told.server_assignor,
        classic=told.classic,
    )


def _with_current(member: Member, current: Member) -> Member:
    return replace(
        member,
        epoch=current.epoch,
        previous_epoch=current.previous_epoch,
        state=current.state,
        assigned=current.assigned,
        pending_revocation=current.pending_revocation,
    )
