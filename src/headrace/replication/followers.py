"""A leader's view of its followers: how far each has fetched, who is in sync, what is committed.

A follower's fetch offset is its acknowledgement: it holds everything before. The leader decides with it

-   how far the high watermark may go: to the smallest end among the *maximal* ISR, which is the stored one and the one
    that was asked for but not answered yet. Whatever the controller's answer, nobody in the ISR has less.
-   whom to take into the ISR: who has reached the high watermark and the start of this leader's epoch, and begins no
    earlier than this leader: it could lead next, and would show what was deleted;
-   whom to drop from it: who has not caught up for longer than `replica.lag.time.max.ms`.

Nothing here does any I/O, and time is an argument.
"""

from collections.abc import Callable, Iterable
from typing import Final, Protocol

from headrace.cluster.image import PartitionState

PAUSE_SECONDS: Final = 0.5
UNKNOWN: Final = -1
"""The end of a log that has not been heard of in this epoch."""


class AppendListener(Protocol):
    """A follower session, as the partition notifies it."""

    def appended(self, key: tuple[bytes, int]) -> None: ...
    def committed(self, key: tuple[bytes, int]) -> None: ...
    def renewed(self, key: tuple[bytes, int]) -> None: ...
    def trimmed(self, key: tuple[bytes, int]) -> None: ...


class Follower:
    """One follower's progress in this epoch."""

    __slots__ = ("_fetched_at", "_leader_end", "broker_epoch", "caught_up_at", "end", "start")

    def __init__(self, now: float) -> None:
        self.end = UNKNOWN
        self.start = UNKNOWN
        self.broker_epoch = -1
        self.caught_up_at = now
        """When it last had everything; at first it gets the benefit of the doubt."""
        self._fetched_at = now
        self._leader_end = UNKNOWN

    def fetched(self, offset: int, leader_end: int, broker_epoch: int, now: float, start: int = 0) -> None:
        """The follower fetches from an offset on; its own log starts at `start`."""
        self.start = start
        if offset >= leader_end:
            self.caught_up_at = now
        elif 0 <= self._leader_end <= offset:
            self.caught_up_at = max(self.caught_up_at, self._fetched_at)
        self.end = offset
        self.broker_epoch = broker_epoch
        self._fetched_at = now
        self._leader_end = leader_end

    def waited(self, heard_at: float) -> None:
        """It had everything, and was last heard of at that time: its link asks for all partitions at once, and a
        position is told only when it has moved."""
        self.caught_up_at = max(self.caught_up_at, heard_at)

    def lags(self, leader_end: int, now: float, longest: float) -> bool:
        return self.end != leader_end and now - self.caught_up_at > longest


class Followers:
    """The replicas of one partition but the leader itself, as the leader of one epoch sees them."""

    __slots__ = ("_broker_id", "_by_id", "_epoch_start", "_not_before", "_state", "requested_isr")

    def __init__(self, broker_id: int, state: PartitionState, epoch_start: int, now: float) -> None:
        self._broker_id = broker_id
        self._state = state
        self._epoch_start = epoch_start
        self._by_id = {r: Follower(now) for r in state.replicas if r != broker_id}
        self.requested_isr: frozenset[int] | None = None
        """The ISR that the controller was asked for and has not answered yet."""
        self._not_before = now

    def refused(self, now: float) -> None:
        """The controller refused the proposed ISR: propose again in a while."""
        self.requested_isr = None
        self._not_before = now + PAUSE_SECONDS

    def renew(self, state: PartitionState, now: float) -> None:
        """The state changed within the leader epoch: by an AlterPartition answer, or a reassignment."""
        self._state = state
        self.requested_isr = None
        before = self._by_id
        self._by_id = {r: before.get(r) or Follower(now) for r in state.replicas if r != self._broker_id}

    @property
    def epoch_start(self) -> int:
        """Where this leader's epoch begins in the log."""
        return self._epoch_start

    def __contains__(self, broker: int) -> bool:
        return broker in self._by_id

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, broker: int) -> Follower | None:
        """A follower of this partition."""
        return self._by_id.get(broker)

    def committed_end(self, own_end: int) -> int:
        """The smallest log end offset of all replicas that are, or may be, in the ISR."""
        end = own_end
        for broker in self._maximal_isr():
            if broker != self._broker_id and (follower := self._by_id.get(broker)) is not None:
                end = min(end, follower.end)
        return end

    def low_watermark(self, own_start: int) -> int:
        """The smallest log start offset of all replicas that are, or may be, in the ISR."""
        start = own_start
        for broker in self._maximal_isr():
            if broker != self._broker_id and (follower := self._by_id.get(broker)) is not None:
                start = min(start, follower.start)
        return start

    def _maximal_isr(self) -> Iterable[int]:
        return self._state.isr if self.requested_isr is None else self.requested_isr.union(self._state.isr)

    def may_join(self, broker: int, high_watermark: int, now: float, start: int = 0) -> bool:
        """Whether to propose a follower for the ISR: it is not in it, has caught up, and holds no deleted records."""
        if broker in self._state.isr or self.requested_isr is not None or now < self._not_before:
            return False
        if self._by_id[broker].start < start:
            return False
        end = self._by_id[broker].end
        return end >= high_watermark and end >= self._epoch_start

    def laggards(self, leader_end: int, now: float, longest: float) -> list[int]:
        """Members of the ISR that have been behind for too long."""
        if self.requested_isr is not None or now < self._not_before:
            return []
        members = ((r, self._by_id.get(r)) for r in self._state.isr)
        return [r for r, follower in members if follower is not None and follower.lags(leader_end, now, longest)]

    def ask_for(self, joining: Iterable[int] = (), leaving: Iterable[int] = ()) -> frozenset[int]:
        """The ISR with these changes, which counts as proposed from now on."""
        self.requested_isr = frozenset(self._state.isr).union(joining).difference(leaving)
        return self.requested_isr

    def epochs_of(self, members: Iterable[int], own_epoch: int) -> dict[int, int]:
        """The registrations that members of the ISR fetched with; -1 of one that has not."""
        return {r: own_epoch if r == self._broker_id else self._by_id[r].broker_epoch for r in members}


ProposeIsr = Callable[[frozenset[int]], None]
"""Asks the controller for an ISR; the answer comes as a new state of the partition."""
