"""The states of a classic group, and the table of what leads from one to the next.

The group itself is `classic.group`. Whatever it does, it moves only along this table; docs are drawn from it.
"""

from enum import Enum
from typing import Final


class ClassicState(Enum):
    """Kafka's names, as DescribeGroups shows them."""

    EMPTY = "Empty"
    """No members. Offsets may be there; they expire."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """Members are asked to join again; those who have wait for the others."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """A new generation has begun; its members wait for the leader to say who reads what."""
    STABLE = "Stable"
    """Every member has, or can get, its assignment."""
    DEAD = "Dead"
    """Deleted."""


class ClassicEvent(Enum):
    """What moves a group."""

    MEMBERS_CHANGED = "a member came, left, fell silent, or wants something else"
    ALL_JOINED = "every member has joined, or had its time to"
    NONE_JOINED = "no member is left"
    ASSIGNED = "the leader sent the assignments"
    DELETED = "the group was deleted"


TRANSITIONS: Final[dict[tuple[ClassicState, ClassicEvent], ClassicState]] = {
    (ClassicState.EMPTY, ClassicEvent.MEMBERS_CHANGED): ClassicState.PREPARING_REBALANCE,
    (ClassicState.STABLE, ClassicEvent.MEMBERS_CHANGED): ClassicState.PREPARING_REBALANCE,
    (ClassicState.COMPLETING_REBALANCE, ClassicEvent.MEMBERS_CHANGED): ClassicState.PREPARING_REBALANCE,
    (ClassicState.PREPARING_REBALANCE, ClassicEvent.ALL_JOINED): ClassicState.COMPLETING_REBALANCE,
    (ClassicState.PREPARING_REBALANCE, ClassicEvent.NONE_JOINED): ClassicState.EMPTY,
    (ClassicState.COMPLETING_REBALANCE, ClassicEvent.ASSIGNED): ClassicState.STABLE,
    (ClassicState.EMPTY, ClassicEvent.DELETED): ClassicState.DEAD,
    (ClassicState.STABLE, ClassicEvent.DELETED): ClassicState.DEAD,
    (ClassicState.PREPARING_REBALANCE, ClassicEvent.DELETED): ClassicState.DEAD,
    (ClassicState.COMPLETING_REBALANCE, ClassicEvent.DELETED): ClassicState.DEAD,
    (ClassicState.DEAD, ClassicEvent.DELETED): ClassicState.DEAD,
}
