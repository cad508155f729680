"""The kinds of group, and what groups are made with.

A kind says which records of `__consumer_offsets` are its groups', how a group of it is made, and when it may take the
place of a group of another kind. What members ask of a group, and how it is described, is the group's own: see
`group.Group`. The coordinator's kinds are `service.KINDS`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from headrace.cluster.image import ClusterImage
from headrace.coordinator.runtime.decision import Decision
from headrace.protocol.errors import CodedError, ErrorCode

from .group import Group, GroupType
from .resolver import Resolver
from .settings import GroupSettings

T = TypeVar("T")
G = TypeVar("G", bound=Group)


class InBackground(Protocol):
    """Has something made by a thread, and calls the second with it, or with None where that failed."""

    def __call__(self, make: Callable[[], T], done: Callable[[T | None], None], /) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupEnvironment:
    """What a broker gives its groups."""

    settings: GroupSettings
    image: ClusterImage
    wall_ms: Callable[[], int]
    """The time of day, for what is stored."""
    new_id: Callable[[], str]
    """Makes ids that nobody has."""
    resolver: Resolver
    in_background: InBackground


@dataclass(frozen=True, kw_only=True)
class GroupKind(Generic[G]):
    """One kind of group."""

    type: GroupType
    records: frozenset[int]
    """The kinds of its records (`fields.key_kind`)."""
    make: Callable[[str, GroupEnvironment], G]
    """A group of that id, without members."""
    take_over: Callable[[G, Group, int], Decision] | None = None
    """Makes a new group of this kind out of one of another that has members, at a time; `CodedError` where it may not.
    Without it only groups without members are replaced."""
    takes_over_empty: bool = True
    """Whether groups without members are replaced."""

    def replace(self, group: G, former: Group, now_ms: int) -> Decision:
        """What puts a new group of this kind in the place of one of another; `CodedError` where that may not be."""
        if not (former.gives_way and self.takes_over_empty):
            if self.take_over is None or former.is_empty:
                raise self.not_found(former.group_id, former)
            return self.take_over(group, former, now_ms)
        decision = Decision(now_ms)
        decision.records += former.tombstones()
        return decision

    def not_found(self, group_id: str, other: Group | None) -> CodedError:
        """There is no group of this kind under an id, but maybe another."""
        problem = "not found" if other is None else f"is not a {self.type.value.lower()} group"
        return CodedError(ErrorCode.group_id_not_found, f"Group {group_id} {problem}.")


class GroupKinds:
    """The kinds that a coordinator serves, and makes groups of."""

    def __init__(self, kinds: Iterable[GroupKind[Group]], environment: GroupEnvironment) -> None:
        self._environment = environment
        self._by_record = {record: kind for kind in kinds for record in kind.records}

    @property
    def records(self) -> Iterable[int]:
        """The kinds of their records."""
        return self._by_record

    def of_record(self, record: int) -> GroupKind[Group]:
        """The kind of group that a kind of record belongs to."""
        return self._by_record[record]

    def make(self, kind: GroupKind[G], group_id: str) -> G:
        """A group without members."""
        return kind.make(group_id, self._environment)
