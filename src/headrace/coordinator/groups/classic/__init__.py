"""The classic group protocol: members join, their leader assigns, the broker keeps time and fences."""

from headrace.coordinator.groups.settings import ClassicSettings

from .group import CLASSIC, ClassicGroup
from .member import JoinRequest, LeavingMember, SyncRequest
from .states import TRANSITIONS, ClassicEvent, ClassicState

__all__ = [
    "CLASSIC",
    "TRANSITIONS",
    "ClassicEvent",
    "ClassicGroup",
    "ClassicSettings",
    "ClassicState",
    "JoinRequest",
    "LeavingMember",
    "SyncRequest",
]
