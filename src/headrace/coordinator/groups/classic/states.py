"""The states of a classic group, and the table of what leads from one to the next.

The group itself is `classic.group`. Whatever it does, it moves only along this table; docs are drawn from it.
"""

from enum import Enum
from typing import Final


class State(Enum):
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


class Event(Enum):
    """What moves a group."""

    MEMBERS_CHANGED = "a member came, left, fell silent, or wants something else"
    ALL_JOINED = "every member has joined, or had its time to"
    NONE_JOINED = "no member is left"
    ASSIGNED = "the leader sent the assignments"
    DELETED = "the group was deleted"


TRANSITIONS: Final[dict[tuple[State, Event], State]] = {
    (State.EMPTY, Event.MEMBERS_CHANGED): State.PREPARING_REBALANCE,
    (State.STABLE, Event.MEMBERS_CHANGED): State.PREPARING_REBALANCE,
    (State.COMPLETING_REBALANCE, Event.MEMBERS_CHANGED): State.PREPARING_REBALANCE,
    (State.PREPARING_REBALANCE, Event.ALL_JOINED): State.COMPLETING_REBALANCE,
    (State.PREPARING_REBALANCE, Event.NONE_JOINED): State.EMPTY,
    (State.COMPLETING_REBALANCE, Event.ASSIGNED): State.STABLE,
    (State.EMPTY, Event.DELETED): State.DEAD,
    (State.STABLE, Event.DELETED): State.DEAD,
    (State.PREPARING_REBALANCE, Event.DELETED): State.DEAD,
    (State.COMPLETING_REBALANCE, Event.DELETED): State.DEAD,
    (State.DEAD, Event.DELETED): State.DEAD,
}
