"""The next step of one member towards its target: the heart of the protocol, as a pure function.

A member first gives up what is not its own any more, and stays in its epoch until it has said so. Then it enters the
target's epoch and gets what is free; what others still hold follows when they have let go. So a partition never has
two owners, and members that need not give anything up never stop.

| state                 | event                                  | next                                            |
|-----------------------|----------------------------------------|-------------------------------------------------|
| STABLE                | a newer target, nothing to give up     | STABLE or UNRELEASED_PARTITIONS, target's epoch |
| STABLE                | a newer target, something to give up   | UNREVOKED_PARTITIONS, same epoch                |
| UNREVOKED_PARTITIONS  | the member still owns some of it       | the same                                        |
| UNREVOKED_PARTITIONS  | the member owns none of it any more    | as from STABLE                                  |
| UNRELEASED_PARTITIONS | a partition became free, or a newer    | as from STABLE                                  |
|                       | target                                 |                                                 |
"""

from collections.abc import Callable, Set
from dataclasses import dataclass, replace
from uuid import UUID

from headrace.coordinator.groups.targets import NOTHING, Assignment

from .member import ConsumerMember, MemberState, joined, overlaps, without


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """Where a member is to get to."""

    epoch: int
    target: Assignment
    subscribed: Set[UUID]
    """The topics that the member is subscribed to and that exist: it keeps no others, whatever the target says."""
    is_held: Callable[[UUID, int], bool]
    """Whether any member, this one included, holds a partition."""
    subscription_changed: bool = False


def reconcile(member: ConsumerMember, goal: Goal, owned: Assignment | None) -> ConsumerMember:
    """The member after a heartbeat in which it reported to own `owned`, or said nothing of it."""
    if member.state is MemberState.STABLE and member.epoch == goal.epoch:
        return _drop_unsubscribed(member, goal, owned) if goal.subscription_changed else member
    if member.state is MemberState.UNREVOKED_PARTITIONS:
        if owned is None or overlaps(member.pending_revocation, owned):
            return _drop_unsubscribed(member, goal, owned) if goal.subscription_changed else member
        return _next(member, min(member.epoch + 1, goal.epoch), goal, owned)
    return _next(member, member.epoch, goal, owned)


def _next(member: ConsumerMember, epoch: int, goal: Goal, owned: Assignment | None) -> ConsumerMember:
    target = {topic: partitions for topic, partitions in goal.target.items() if topic in goal.subscribed}
    kept = {
        topic: member.assigned[topic] & partitions for topic, partitions in target.items() if topic in member.assigned
    }
    kept = {topic: partitions for topic, partitions in kept.items() if partitions}
    revoked = without(member.assigned, kept)
    if revoked and (owned is None or overlaps(revoked, owned)):
        return _entered(member, epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoked)
    wanted = without(target, kept)
    free = {topic: frozenset(_free(topic, partitions, member, goal)) for topic, partitions in wanted.items()}
    free = {topic: partitions for topic, partitions in free.items() if partitions}
    state = MemberState.UNRELEASED_PARTITIONS if without(wanted, free) else MemberState.STABLE
    return _entered(member, goal.epoch, state, joined(kept, free), NOTHING)


def _free(topic: UUID, partitions: frozenset[int], member: ConsumerMember, goal: Goal) -> list[int]:
    """Those that nobody holds, or only this member itself, which has just given them up."""
    given_up = member.pending_revocation.get(topic, frozenset())
    return [index for index in partitions if index in given_up or not goal.is_held(topic, index)]


def _entered(
    member: ConsumerMember, epoch: int, state: MemberState, assigned: Assignment, revoked: Assignment
) -> ConsumerMember:
    return replace(
        member,
        epoch=epoch,
        previous_epoch=member.epoch,
        state=state,
        assigned=assigned,
        pending_revocation=revoked,
    )


def _drop_unsubscribed(member: ConsumerMember, goal: Goal, owned: Assignment | None) -> ConsumerMember:
    """Takes away what the member is not subscribed to any more, without waiting for a newer target."""
    dropped = {topic: indexes for topic, indexes in member.assigned.items() if topic not in goal.subscribed}
    if not dropped:
        return member
    assigned = without(member.assigned, dropped)
    pending = joined(member.pending_revocation, dropped)
    if owned is not None and not overlaps(pending, owned):
        return replace(member, assigned=assigned)
    return replace(member, state=MemberState.UNREVOKED_PARTITIONS, assigned=assigned, pending_revocation=pending)
