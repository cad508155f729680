"""The state of a consumer group that records keep: changed only by `apply`, alike by decisions and by replay.

A decision is made on a `fork`, which shares all that the decision leaves alone, and becomes the state by `adopt` once
its records are written.
"""

from collections import Counter
from collections.abc import Container, Iterable, Iterator, MutableMapping, ValuesView
from dataclasses import replace
from typing import Any, Final, TypeVar, cast
from uuid import UUID

from headrace.coordinator.groups.targets import NOTHING, Assignment, GroupEpoch, TargetEpoch, TargetMember
from headrace.coordinator.runtime.decision import CoordinatorRecord

from .member import ConsumerMember, MemberState, partitions_of
from .records import (
    Change,
    CurrentAssignment,
    MemberSubscription,
    ResolvedRegex,
    encode,
)

K = TypeVar("K")
V = TypeVar("V")
_GONE: Final = object()
_UNCHANGED: Final = object()


class _Overlay(MutableMapping[K, V]):
    """A mapping with changes on top of another, which stays as it is until `merge`."""

    __slots__ = ("_base", "_changes")

    def __init__(self, base: dict[K, V]) -> None:
        self._base = base
        self._changes: dict[K, Any] = {}

    def __getitem__(self, key: K) -> V:
        value = self._changes.get(key, _UNCHANGED)
        if value is _UNCHANGED:
            return self._base[key]
        if value is _GONE:
            raise KeyError(key)
        return cast(V, value)

    def get(self, key: K, default: Any = None) -> Any:
        value = self._changes.get(key, _UNCHANGED)
        if value is _UNCHANGED:
            return self._base.get(key, default)
        return default if value is _GONE else value

    def __contains__(self, key: object) -> bool:
        value = self._changes.get(cast(K, key), _UNCHANGED)
        return key in self._base if value is _UNCHANGED else value is not _GONE

    def __setitem__(self, key: K, value: V) -> None:
        self._changes[key] = value

    def __delitem__(self, key: K) -> None:
        if key not in self:
            raise KeyError(key)
        self._changes[key] = _GONE

    def update(self, pairs: Iterable[tuple[K, V]]) -> None:  # type: ignore[override]
        self._changes.update(pairs)

    def __iter__(self) -> Iterator[K]:
        return iter(self.copy())

    def values(self) -> ValuesView[V]:
        return self.copy().values()

    def __len__(self) -> int:
        come = sum(value is not _GONE and key not in self._base for key, value in self._changes.items())
        gone = sum(value is _GONE and key in self._base for key, value in self._changes.items())
        return len(self._base) + come - gone

    def copy(self) -> dict[K, V]:
        """All of it, as it is now."""
        copy = self._base.copy()
        _merge(self._changes, copy)
        return copy

    def merge(self) -> None:
        """Make the changes in the mapping below."""
        _merge(self._changes, self._base)


def _merge(changes: dict[K, Any], base: dict[K, V]) -> None:
    base.update(changes)
    if _GONE in changes.values():
        for key in [key for key, value in changes.items() if value is _GONE]:
            del base[key]


Table = dict[K, V] | _Overlay[K, V]


class GroupState:
    """Members, epochs, target, and what follows from them."""

    def __init__(self) -> None:
        self.epoch = 0
        self.is_deleted = False
        self.metadata_hash = 0
        self.target_epoch = 0
        self.members: Table[str, ConsumerMember] = {}
        self.targets: Table[str, Assignment] = {}
        self.resolved: Table[str, frozenset[str]] = {}
        self.static_members: Table[str, str] = {}
        """Member ids by instance id."""
        self.owners: Table[tuple[UUID, int], str] = {}
        """Who holds each partition, including those it was asked to give up and has not."""
        self._names: Table[str, int] = {}
        """How many members are subscribed to each topic by its name."""
        self._regexes: Table[str, int] = {}
        """How many are subscribed by each expression."""

    def fork(self) -> "GroupState":
        """A copy to decide on: its changes leave this one as it is."""
        fork = GroupState.__new__(GroupState)
        names = vars(fork)
        names.update(vars(self))
        for name in _TABLES:
            names[name] = _Overlay(names[name])
        return fork

    def adopt(self, fork: "GroupState") -> None:
        """Become what a fork of this state has become."""
        self.epoch, self.is_deleted, self.metadata_hash = fork.epoch, fork.is_deleted, fork.metadata_hash
        self.target_epoch = fork.target_epoch
        for name in _TABLES:
            vars(fork)[name].merge()

    def apply(self, change: Change) -> None:
        """Make a change."""
        match change:
            case GroupEpoch(epoch, metadata_hash):
                self.epoch, self.metadata_hash, self.is_deleted = epoch or 0, metadata_hash, epoch is None
            case TargetEpoch(epoch):
                self.target_epoch = epoch or 0
            case MemberSubscription(member_id, None):
                self._forget(member_id)
            case MemberSubscription(member_id, subscription) if subscription is not None:
                self._put(_with_subscription(self.members.get(member_id) or ConsumerMember(id=member_id), subscription))
            case CurrentAssignment(member_id, None):
                member = self.members.get(member_id)
                if member is not None:
                    self._put(_with_current(member, ConsumerMember(id=member_id)))
            case CurrentAssignment(member_id, current) if current is not None:
                self._put(_with_current(self.members.get(member_id) or ConsumerMember(id=member_id), current))
            case TargetMember(member_id, None):
                self.targets.pop(member_id, None)
            case TargetMember(member_id, target) if target is not None:
                self.targets[member_id] = target
            case ResolvedRegex(regex, None):
                self.resolved.pop(regex, None)
            case ResolvedRegex(regex, topics) if topics is not None:
                self.resolved[regex] = topics

    def static_member(self, instance_id: str | None) -> ConsumerMember | None:
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

    def holder(self, member_id: str, instance_id: str | None, others: Container[str]) -> str | None:
        """Who has a member's place now: a static one may have returned under a new id, which is none of `others`."""
        if member_id in self.members:
            return member_id
        static = self.static_member(instance_id)
        return None if static is None or static.id in others else static.id

    def must_rejoin(self, member: ConsumerMember) -> bool:
        """There is a newer epoch, something to give up, or everything it waits for is free."""
        if member.epoch < self.epoch or member.state is MemberState.UNREVOKED_PARTITIONS:
            return True
        return member.state is MemberState.UNRELEASED_PARTITIONS and not any(
            self.is_held(topic, index)
            for topic, indexes in self.target_of(member.id).items()
            for index in indexes - member.assigned.get(topic, frozenset())
        )

    def tombstones(self, group_id: str) -> list[CoordinatorRecord]:
        """The records that delete the group."""
        members = list(self.members)
        changes: list[Change] = [
            *(CurrentAssignment(member_id, None) for member_id in members),
            *(TargetMember(member_id, None) for member_id in members),
            TargetEpoch(None),
            *(MemberSubscription(member_id, None) for member_id in members),
            *(ResolvedRegex(regex, None) for regex in self.resolved),
            GroupEpoch(None),
        ]
        return [encode(group_id, change) for change in changes]

    def preferred_assignor(self) -> str | None:
        """The assignor that most members ask for."""
        votes = Counter(member.server_assignor for member in self.members.values() if member.server_assignor)
        return max(sorted(votes), key=lambda name: votes[name]) if votes else None

    def _put(self, member: ConsumerMember) -> None:
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

    def _note_subscription(self, old: ConsumerMember | None, new: ConsumerMember | None) -> None:
        before, now = _subscription(old), _subscription(new)
        if before == now:
            return
        for counts, gone, come in zip((self._names, self._regexes), before, now, strict=True):
            for name in come - gone:
                counts[name] = counts.get(name, 0) + 1
            for name in gone - come:
                counts[name] -= 1
                if not counts[name]:
                    del counts[name]

    def _release(self, old: ConsumerMember | None) -> None:
        """Another may hold a partition already: compaction keeps what it got, not that this one let go before."""
        if old is None:
            return
        for assignment in (old.assigned, old.pending_revocation):
            for partition in partitions_of(assignment):
                if self.owners.get(partition) == old.id:
                    del self.owners[partition]

    def _drop_instance(self, old: ConsumerMember | None) -> None:
        if old is not None and old.instance_id is not None and self.static_members.get(old.instance_id) == old.id:
            del self.static_members[old.instance_id]


_TABLES: Final = ("members", "targets", "resolved", "static_members", "owners", "_names", "_regexes")


def _subscription(member: ConsumerMember | None) -> tuple[frozenset[str], frozenset[str]]:
    """The names and the expressions that a member is subscribed to."""
    if member is None:
        return frozenset(), frozenset()
    regex = member.subscribed_topic_regex
    return member.subscribed_topic_names, frozenset({regex} if regex else ())


def _with_subscription(member: ConsumerMember, subscription: ConsumerMember) -> ConsumerMember:
    return replace(
        member,
        instance_id=subscription.instance_id,
        rack_id=subscription.rack_id,
        client_id=subscription.client_id,
        client_host=subscription.client_host,
        rebalance_timeout_ms=subscription.rebalance_timeout_ms,
        subscribed_topic_names=subscription.subscribed_topic_names,
        subscribed_topic_regex=subscription.subscribed_topic_regex,
        server_assignor=subscription.server_assignor,
        classic=subscription.classic,
    )


def _with_current(member: ConsumerMember, current: ConsumerMember) -> ConsumerMember:
    return replace(
        member,
        epoch=current.epoch,
        previous_epoch=current.previous_epoch,
        state=current.state,
        assigned=current.assigned,
        pending_revocation=current.pending_revocation,
    )
