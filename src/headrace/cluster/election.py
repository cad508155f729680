"""Leader election: every decision of the controller on the state of one partition.

All functions are pure: from a state and what is known of the brokers to the next state, or None where it stays. The
controller stores what they return, then tells the brokers.

What they keep, whatever happens to brokers:

1.  A leader is a member of the ISR, the ISR is a subset of the replicas, and empty only where nobody is known to
    hold everything that was acknowledged.
2.  Everything acknowledged is held by all of the ISR. A leader acknowledges nothing while the ISR is smaller than
    `min.insync.replicas`; so those who leave it then (the ELR) hold everything acknowledged as well.
3.  A replica that may have lost what it had written (its machine stopped without warning, and it cannot prove that it
    had synced its log before each acknowledgement) is in neither, unless it is the only one there is. While the ISR is
    too small to acknowledge anything it is remembered (the last known ELR).
4.  Where ISR and ELR are empty, everything acknowledged that is left anywhere is in the log of one of the last known
    ELR. Once all of them have told how far their logs reach (balanced recovery), the log with the largest last epoch
    and, of that, the largest end holds all of it: two logs that end in the same epoch are prefixes of one leader's log,
    and one that has records of a later epoch had before that all that was committed.
5.  Only an unclean election breaks 2, where the topic allows it or an operator asks for it; also then the log that
    reaches furthest is taken, of those who live.
"""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from headrace.protocol.errors import CodedError, ErrorCode

from .image import NO_LEADER, PartitionState


class Recovery(Enum):
    """Which replica may lead a partition without an in-sync replica: `unclean.recovery.strategy`."""

    NONE = "none"
    """Nobody, until an operator chooses."""
    BALANCED = "balanced"
    """The longest log, once everyone who may hold what was acknowledged has told its end."""
    AGGRESSIVE = "aggressive"
    """The longest log of those who live."""


class LogEnd(NamedTuple):
    """How far a replica's log reaches; the larger one holds more."""

    epoch: int
    """The leader epoch of its last record; -1 where it has none."""
    offset: int
    latest_epoch: int = -1
    """The latest epoch it knows of, which may have no records yet."""

    @property
    def is_empty(self) -> bool:
        return self.epoch < 0 and self.offset == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a topic's settings say about its leaders."""

    min_insync_replicas: int = 1
    recovery: Recovery = Recovery.BALANCED
    """`unclean.recovery.strategy`; aggressive where `unclean.leader.election.enable` is set."""


def after_change_of_brokers(state: PartitionState, rules: Rules, alive: AbstractSet[int]) -> PartitionState | None:
    """The state when exactly the brokers in `alive` are alive."""
    live = tuple(r for r in state.isr if r in alive)
    if not live:
        return _changed(state, _without_isr(state, rules, alive))
    settled = _shrunk(state, live, rules)
    if settled.leader not in live:
        settled = _led(settled, _first(settled.replicas, live))
    return _changed(state, settled)


def after_loss_of_records(
    state: PartitionState,
    rules: Rules,
    losers: AbstractSet[int],
    alive: AbstractSet[int],
    emptied: AbstractSet[int] = frozenset(),
) -> PartitionState | None:
    """The state when brokers have come back that may have lost what they had written; `emptied` have new directories.

    They leave the ISR and the ELR, and return to them by following a leader. The only replica there is stays: nobody
    else could hold more. All who came at once are named at once, as none of them may lead because of what it once had.
    """
    return None if len(state.replicas) == 1 else _purged(state, rules, losers, alive, emptied)


def after_loss_of_log(
    state: PartitionState, rules: Rules, broker: int, alive: AbstractSet[int]
) -> PartitionState | None:
    """The state when a broker has found the directory of its log gone, and has a new one.

    It leaves the ISR and the ELR also as the only replica, which a reassignment that was cancelled may have made it:
    nobody leads before the directory turns up again, or an operator chooses.
    """
    return _purged(state, rules, {broker}, alive, {broker})


def _purged(
    state: PartitionState,
    rules: Rules,
    losers: AbstractSet[int],
    alive: AbstractSet[int],
    emptied: AbstractSet[int],
) -> PartitionState | None:
    left = losers & {*state.isr, *state.elr}
    emptied = (emptied & {*left, *state.last_known_elr}) - {*state.emptied}
    if not (left or emptied):
        return None
    purged = replace(
        state,
        isr=tuple(r for r in state.isr if r not in left),
        elr=tuple(r for r in state.elr if r not in left),
        last_known_elr=_ordered(state, (*state.last_known_elr, *left)),
        emptied=_ordered(state, (*state.emptied, *emptied)),
    )
    after = after_change_of_brokers(purged, rules, alive - losers)
    return _bumped(purged) if after is None else after


def _without_isr(state: PartitionState, rules: Rules, alive: AbstractSet[int]) -> PartitionState:
    """Nobody of the ISR lives: one of the ELR leads, else nobody."""
    heirs = tuple(r for r in state.elr if r in alive)
    if heirs:
        heir = _first(state.replicas, heirs)
        return _led(_reduced(state, (heir,), state.isr, rules), heir)
    return state if state.leader == NO_LEADER else _led(state, NO_LEADER)


# Where nobody is left that surely holds everything


def after_set_back(state: PartitionState) -> PartitionState:
    """The state when the store may be older than what replicas have done: any of them may hold what was acknowledged,
    and nobody leads before all have told.
    """
    unknown = replace(state, isr=(), elr=(), last_known_elr=state.replicas, emptied=())
    return _bumped(_led(unknown, NO_LEADER))


def awaits_recovery(state: PartitionState, rules: Rules, alive: AbstractSet[int]) -> bool:
    """Whether a leader can be elected by log end offsets, once all replicas that have to have told theirs."""
    if state.leader != NO_LEADER or not alive.isdisjoint((*state.isr, *state.elr)):
        return False
    if rules.recovery is Recovery.AGGRESSIVE:
        return not alive.isdisjoint(state.replicas)
    is_lost = bool(state.last_known_elr) and not state.isr and not state.elr
    return rules.recovery is Recovery.BALANCED and is_lost and alive >= set(state.last_known_elr)


def recovered(
    state: PartitionState, rules: Rules, alive: AbstractSet[int], ends: Mapping[int, LogEnd]
) -> PartitionState | None:
    """The state led by the log that reaches furthest, where those who have to have told the ends of theirs."""
    if not awaits_recovery(state, rules, alive):
        return None
    if rules.recovery is Recovery.BALANCED and not _have_told(state, ends):
        return None
    return _led_by_choice(state, longest(state, alive, ends), ends)


def _have_told(state: PartitionState, ends: Mapping[int, LogEnd]) -> bool:
    """Whether all replicas that may hold what was acknowledged have told their log end offsets.

    An empty log in a new directory tells nothing: the disk that it had before may turn up again.
    """
    return all(r in ends and (r not in state.emptied or not ends[r].is_empty) for r in state.last_known_elr)


def longest(state: PartitionState, alive: AbstractSet[int], ends: Mapping[int, LogEnd]) -> int | None:
    """Whose log reaches furthest, of the living; the first in the order of replicas where several do."""
    told = [r for r in state.replicas if r in alive and r in ends]
    return max(told, key=ends.__getitem__, default=None)


def led_uncleanly(
    state: PartitionState, alive: AbstractSet[int], ends: Mapping[int, LogEnd], replica: int | None = None
) -> PartitionState | None:
    """Led by a living replica as an operator asks: the one named, else the one whose log reaches furthest.

    What other logs have more than its is lost.
    """
    if state.leader in alive:
        return None
    if replica is not None:
        return _led_by_choice(state, replica if replica in alive and replica in state.replicas else None, ends)
    return _led_by_choice(state, longest(state, alive, ends), ends)


def _led_by_choice(state: PartitionState, leader: int | None, ends: Mapping[int, LogEnd]) -> PartitionState | None:
    """In an epoch that no log has seen: where the store was set back logs know later ones than it does."""
    if leader is None:
        return None
    epoch = max([state.leader_epoch, *(max(end.epoch, end.latest_epoch) for end in ends.values())])
    chosen = replace(state, isr=(leader,), elr=(), last_known_elr=(), emptied=(), leader_epoch=epoch)
    return _bumped(_led(chosen, leader))


def preferred(state: PartitionState, alive: AbstractSet[int]) -> PartitionState | None:
    """Led by the first replica, where it lives and is in sync."""
    first = state.replicas[0]
    if state.leader == first or first not in alive or first not in state.isr or first in state.removing:
        return None
    return _bumped(_led(state, first))


def on_shutdown(state: PartitionState, rules: Rules, broker: int, alive: AbstractSet[int]) -> PartitionState | None:
    """The state when a broker asks to go: others lead what it led, unless there are none."""
    others = tuple(r for r in state.isr if r != broker and r in alive)
    if broker not in state.isr or not others:
        return None
    after = _shrunk(state, tuple(r for r in state.isr if r != broker), rules)
    if state.leader == broker:
        after = _led(after, _first(state.replicas, others))
    return _bumped(after)


def with_isr(
    state: PartitionState, rules: Rules, isr: Iterable[int], *, leader_epoch: int, partition_epoch: int
) -> PartitionState | None:
    """The state with the ISR its leader asks for, or None where it is that already; `CodedError` where it cannot be.

    INVALID_UPDATE_VERSION says that the leader decided on an older state, any other error but NOT_CONTROLLER that it
    decided on this one.
    """
    members = frozenset(isr)
    if leader_epoch < state.leader_epoch:
        raise CodedError(ErrorCode.fenced_leader_epoch)
    if leader_epoch > state.leader_epoch or partition_epoch > state.partition_epoch:
        raise CodedError(ErrorCode.not_controller, "the leader knows a newer state than this controller")
    if members == frozenset(state.isr):
        return None
    if partition_epoch < state.partition_epoch:
        raise CodedError(ErrorCode.invalid_update_version)
    wanted = _ordered(state, members)
    if len(wanted) != len(members) or state.leader not in wanted:
        raise CodedError(ErrorCode.invalid_request, f"{sorted(members)} cannot be the ISR of {state}")
    after = _reduced(state, wanted, tuple(r for r in state.isr if r not in wanted), rules)
    return _bumped(_finished(after))


def without_elr(state: PartitionState) -> PartitionState | None:
    """With another `min.insync.replicas` an ISR that was too small may not be any more: the ELR has to go with it."""
    return _bumped(replace(state, elr=())) if state.elr else None


# Reassignment


def reassigned(state: PartitionState, target: Sequence[int], rules: Rules) -> PartitionState | None:
    """The state on its way to be held by exactly `target`. A move under way is replaced by the new one."""
    if state.leader == NO_LEADER and not state.isr:
        raise CodedError(
            ErrorCode.invalid_replica_assignment,
            "nobody leads the partition, and no replica is known to hold everything that was acknowledged: first bring "
            f"brokers {list(state.last_known_elr)} back, or choose a leader with `headrace cluster elect --unclean`",
        )
    before = _settled_replicas(state)
    target = tuple(target)
    adding = tuple(r for r in target if r not in before)
    removing = tuple(r for r in before if r not in target)
    dropped = tuple(r for r in state.replicas if r not in before and r not in target)
    isr = tuple(r for r in state.isr if r not in dropped)
    if not isr:
        raise CodedError(
            ErrorCode.invalid_replica_assignment,
            f"brokers {list(dropped)}, which this would drop, are the only ones in sync",
        )
    moved = replace(state, replicas=(*target, *removing), adding=adding, removing=removing)
    moved = _reduced(moved, _ordered(moved, isr), (), rules)
    if moved.leader not in moved.isr and moved.leader != NO_LEADER:
        moved = _led(moved, _first(moved.replicas, moved.isr))
    return _changed(state, _finished(moved))


def cancelled(state: PartitionState, rules: Rules) -> PartitionState | None:
    """The state with a move under way undone."""
    if not state.adding and not state.removing:
        return None
    kept = _settled_replicas(state)
    isr = tuple(r for r in state.isr if r in kept)
    if not isr:
        raise CodedError(
            ErrorCode.invalid_replica_assignment,
            f"none of the brokers {list(kept)}, to which it would return, is in sync",
        )
    undone = replace(state, replicas=kept, adding=(), removing=())
    undone = _reduced(undone, _ordered(undone, isr), (), rules)
    if undone.leader not in undone.isr and undone.leader != NO_LEADER:
        undone = _led(undone, _first(kept, undone.isr))
    return _bumped(undone)


def _settled_replicas(state: PartitionState) -> tuple[int, ...]:
    """The replicas before the reassignment: removed ones stand behind those that stay."""
    return tuple(r for r in state.replicas if r not in state.adding)


def _finished(state: PartitionState) -> PartitionState:
    """A move is done once everyone who is to hold the partition is in sync: then the others go."""
    if not state.adding and not state.removing:
        return state
    target = tuple(r for r in state.replicas if r not in state.removing)
    if not set(target) <= set(state.isr):
        return state
    done = replace(state, replicas=target, isr=target, adding=(), removing=(), elr=(), last_known_elr=(), emptied=())
    return done if done.leader in target else _led(done, target[0])


# Parts of decisions


def _shrunk(state: PartitionState, isr: tuple[int, ...], rules: Rules) -> PartitionState:
    return _reduced(state, isr, tuple(r for r in state.isr if r not in isr), rules)


def _reduced(state: PartitionState, isr: tuple[int, ...], left: tuple[int, ...], rules: Rules) -> PartitionState:
    """With that ISR; those who left it are eligible as long as it is too small to acknowledge anything."""
    if len(isr) >= state.least_isr(rules.min_insync_replicas):
        return replace(state, isr=isr, elr=(), last_known_elr=(), emptied=())
    return replace(
        state,
        isr=isr,
        elr=_ordered(state, (r for r in (*state.elr, *left) if r not in isr)),
        last_known_elr=_ordered(state, (r for r in state.last_known_elr if r not in isr)),
        emptied=_ordered(state, (r for r in state.emptied if r not in isr)),
    )


def _led(state: PartitionState, leader: int) -> PartitionState:
    return replace(state, leader=leader, leader_epoch=state.leader_epoch + 1)


def _bumped(state: PartitionState) -> PartitionState:
    return replace(state, partition_epoch=state.partition_epoch + 1)


def _changed(before: PartitionState, after: PartitionState) -> PartitionState | None:
    return None if after == before else _bumped(after)


def _first(order: Sequence[int], among: Iterable[int]) -> int:
    candidates = set(among)
    return next(r for r in order if r in candidates)


def _ordered(state: PartitionState, some: Iterable[int]) -> tuple[int, ...]:
    wanted = set(some)
    return tuple(r for r in state.replicas if r in wanted)
