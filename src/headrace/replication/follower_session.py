"""One follower's fetch session: the leader's side of a replication link.

A follower tells from where it wants each partition, which acknowledges what it has. The partition then stands in
`asking` until it is answered with records; it becomes `ready` when there are some. An append wakes the follower; a
high watermark that has moved goes along with the next answer.

What a follower is owed depends on nothing but its own positions: a link that breaks takes this with it, and the next
one begins with all positions anew.
"""

from collections.abc import Callable
from typing import Protocol, TypeAlias

from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.fetch import FetchedPartition, FileRange
from headrace.protocol.replicate import WITHDRAWN, FetchPosition, PartitionProgress

from .followers import ProposeIsr
from .partition import Partition
from .throttle import ReplicationThrottle, is_named

Key: TypeAlias = tuple[bytes, int]
"""A partition by the id of its topic and its index."""
Answer: TypeAlias = tuple[PartitionProgress, FileRange | None]


class PartitionLookup(Protocol):
    """The partitions that this broker holds, as a session uses them."""

    awaited: dict[Key, dict["FollowerSession", None]]
    """Sessions that asked for partitions which are not led here yet: notified with `led` when they are."""

    def partition_by_id(self, topic_id: bytes, index: int) -> Partition:
        """The partition, or the `CodedError` that says why not."""
        ...

    def propose_isr(self, partition: Partition, isr: frozenset[int]) -> None:
        """Ask the controller for another ISR."""
        ...


class FollowerSession:
    """One follower's positions on one link."""

    def __init__(
        self,
        broker: int,
        holder: PartitionLookup,
        now: Callable[[], float],
        throttle: ReplicationThrottle | None = None,
    ) -> None:
        self.broker = broker
        self._broker_epoch = -1
        self._holder = holder
        self._now = now
        self._asking: dict[Key, FetchPosition] = {}
        self._ready: dict[Key, None] = {}
        self._moved: dict[Key, None] = {}
        """Partitions whose high watermark the follower does not know."""
        self._held: dict[Key, None] = {}
        """Partitions that would be ready, but for the limit: looked at again with each answer."""
        self._throttle = throttle
        self._watched: dict[Key, Partition] = {}
        self._agreed: dict[Key, int] = {}
        """Partitions whose log at the follower is known to agree with the leader's, and in which leader epoch."""
        self._heard_at = now()
        """When the follower last asked for all that it follows here."""
        self._outside: dict[Key, None] = {}
        """Partitions whose ISR the follower may not be in. Whenever it is heard of they are looked at again: it may
        have told its position before there was a reason, or a way, to ask for it."""
        self.wake: Callable[[], None] | None = None
        """Called when there is something to say; set while the follower waits."""
        self._is_urgent = False
        """Whether somebody waits for the follower to hear what has moved."""

    @property
    def is_ready(self) -> bool:
        """Whether there is something to answer at once."""
        return bool(self._ready) or self._is_urgent

    def take(self, positions: list[FetchPosition], broker_epoch: int) -> None:
        """Take the positions of a follower's request: each acknowledges all that is before it."""
        self._broker_epoch = broker_epoch
        self._heard_at = self._now()
        for position in positions:
            key = (position.topic_id, position.partition)
            if position.leader_epoch == WITHDRAWN:
                if (partition := self._watched.get(key)) is not None:
                    partition.withdraw(self.broker)
                self._forget(key)
            else:
                self._asking[key] = position
                self._ready[key] = None
        for position in positions:
            self._settle(position)
        for key in list(self._outside):
            self._consider(key)

    def _consider(self, key: Key) -> None:
        partition = self._watched.get(key)
        if partition is None or not partition.consider(self.broker, now=self._now(), propose=self._propose(partition)):
            self._outside.pop(key, None)
        elif partition.begins_before(self.broker):
            self._moved[key] = None  # it is not taken in before it has heard, and nothing else may be told for long

    def _propose(self, partition: Partition) -> ProposeIsr:
        return lambda isr: self._holder.propose_isr(partition, isr)

    def _settle(self, position: FetchPosition) -> None:
        """Count the acknowledgement at once; only a partition that has an answer stays in `ready`."""
        key = (position.topic_id, position.partition)
        if key not in self._asking:
            return
        partition = self._find(key)
        if partition is None or self._is_early(partition, position):
            self._await(key)
            return
        try:
            diverges = partition.acknowledge(
                self.broker, self._broker_epoch, position, now=self._now(), propose=self._propose(partition)
            )
        except CodedError:
            self._agreed.pop(key, None)
            return
        self.renewed(key)
        if diverges:
            self._agreed.pop(key, None)
            return
        if not self._agrees(key, partition):
            self._agreed[key] = partition.leader_epoch
            self._moved[key] = None
        if position.offset == partition.log.log_end_offset:
            self._ready.pop(key, None)

    def _find(self, key: Key) -> Partition | None:
        try:
            partition = self._holder.partition_by_id(*key)
        except CodedError:
            return None
        self._watch(key, partition)
        return partition

    def _is_early(self, partition: Partition, position: FetchPosition) -> bool:
        """Whether the follower has heard before this broker that it leads the partition, or who its replicas are."""
        if partition.leader_epoch != position.leader_epoch:
            return partition.leader_epoch < position.leader_epoch
        return not partition.is_leader or partition.followers is None or self.broker not in partition.followers

    def _await(self, key: Key) -> None:
        """Let the follower wait until the partition is led here: a refusal would cost it a pause."""
        self._agreed.pop(key, None)
        self._ready.pop(key, None)
        self._holder.awaited.setdefault(key, {})[self] = None

    def led(self, key: Key) -> None:
        """This broker leads a partition now that the follower had asked for too early."""
        position = self._asking.get(key)
        if position is not None:
            self._ready[key] = None
            self._settle(position)
            if self.is_ready and self.wake is not None:
                self.wake()

    def _agrees(self, key: Key, partition: Partition) -> bool:
        """Whether the follower may be told the high watermark: before, it could lie beyond where its log diverges."""
        return self._agreed.get(key) == partition.leader_epoch

    def _watch(self, key: Key, partition: Partition) -> None:
        known = self._watched.get(key)
        if known is not partition:
            if known is not None:
                known.follower_sessions.pop(self, None)
            self._watched[key] = partition
            partition.follower_sessions[self] = key

    def _forget(self, key: Key) -> None:
        if self._waits(key):
            self._has_waited(key)
        for kept in (self._asking, self._ready, self._held, self._moved, self._agreed, self._outside):
            kept.pop(key, None)
        if (partition := self._watched.pop(key, None)) is not None:
            partition.follower_sessions.pop(self, None)
        waiting = self._holder.awaited.get(key)
        if waiting is not None and waiting.pop(self, self) is None and not waiting:
            del self._holder.awaited[key]

    def close(self) -> None:
        """The link is gone."""
        self.wake = None
        for key in [*self._watched, *(self._asking.keys() - self._watched.keys())]:
            self._forget(key)

    def appended(self, key: Key) -> None:
        """The partition has new records, or is no longer led here."""
        if key in self._asking and key not in self._held:
            if key not in self._ready:
                self._has_waited(key)
                self._ready[key] = None
            if self.wake is not None:
                self.wake()

    def _waits(self, key: Key) -> bool:
        """Whether the follower has everything of a partition, and waits for more."""
        return key in self._asking and key not in self._ready and key not in self._held

    def _has_waited(self, key: Key) -> None:
        """A follower that had nothing to fetch was caught up when it last asked."""
        partition = self._watched.get(key)
        if partition is None or partition.followers is None or not self._agrees(key, partition):
            return
        if (follower := partition.followers.get(self.broker)) is not None:
            follower.waited(self._heard_at)

    def committed(self, key: Key) -> None:
        """The partition's high watermark has moved."""
        self._moved[key] = None

    def trimmed(self, key: Key) -> None:
        """Records were deleted: tell the follower the new log start offset, as a DeleteRecords request waits for it."""
        self._moved[key] = None
        self._is_urgent = True
        if self.wake is not None:
            self.wake()

    def renewed(self, key: Key) -> None:
        """The partition's state has changed."""
        partition = self._watched.get(key)
        if partition is not None and self.broker not in partition.state.isr:
            self._outside[key] = None

    def collect(self, max_bytes: int) -> list[Answer]:
        """What to answer now, longest waiting first, with records of up to `max_bytes` (one batch at least)."""
        answers: list[Answer] = []
        left = max_bytes
        self._ready.update(self._held)
        self._held.clear()
        for key in list(self._ready):
            if left <= 0:
                break
            del self._ready[key]
            slowly = self._slowed(key)
            if slowly is not None and slowly.pause() > 0:
                self._held[key] = None
                continue
            self._moved.pop(key, None)
            position = self._asking.pop(key)
            answer = self._answer(key, position, left if slowly is None else min(left, slowly.most_bytes))
            if _brings_nothing(answer[0]):
                self._asking[key] = position
            answers.append(answer)
            left -= answer[0].size
            if slowly is not None:
                slowly.took(answer[0].size)
        moved = ((key, self._watched.get(key)) for key in self._moved)
        answers += [
            (_news_of(key, held), None)
            for key, held in moved
            if held is not None and held.is_leader and self._agrees(key, held)
        ]
        self._moved.clear()
        self._is_urgent = False
        return answers

    def _slowed(self, key: Key) -> ReplicationThrottle | None:
        """The limit that holds for a partition, if one does."""
        throttle, partition = self._throttle, self._watched.get(key)
        if throttle is None or partition is None or not throttle.is_on or self.broker in partition.state.isr:
            return None
        named = is_named(partition.rules.throttled_leaders, partition.index, partition.state.leader)
        return throttle if named else None

    def _answer(self, key: Key, position: FetchPosition, max_bytes: int) -> Answer:
        start = -1
        try:
            partition = self._holder.partition_by_id(*key)
            start = partition.log.log_start_offset
            found = partition.read_for_follower(self.broker, position, max_bytes)
        except CodedError as error:
            answered = (position.leader_epoch, position.offset, error.code.value)
            return PartitionProgress(*key, *answered, -1, start, -1, -1, -1, 0), None
        return _progress(position, found, partition.log.log_end_offset), found.records


def _brings_nothing(progress: PartitionProgress) -> bool:
    """Whether an answer leaves the follower where it is, as there is no batch between it and the end of the log.

    It does not tell its position again, which has to stand until there is one.
    """
    return not progress.size and not progress.code and progress.diverging_end < 0


def _progress(position: FetchPosition, records: FetchedPartition, log_end_offset: int) -> PartitionProgress:
    epoch, end = records.diverging or (-1, -1)
    return PartitionProgress(
        position.topic_id,
        position.partition,
        position.leader_epoch,
        position.offset,
        records.code,
        records.high_watermark,
        records.log_start_offset,
        log_end_offset,
        epoch,
        end,
        records.records.length if records.records is not None else 0,
    )


def _news_of(key: Key, partition: Partition) -> PartitionProgress:
    log = partition.log
    told = (partition.high_watermark, log.log_start_offset, log.log_end_offset)
    return PartitionProgress(*key, partition.leader_epoch, -1, ErrorCode.none.value, *told, -1, -1, 0)
