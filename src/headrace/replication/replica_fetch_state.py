"""The partitions that this broker fetches from one leader: the follower's side of a replication link.

`ReplicaFetchState` holds which partitions they are, the offset at which each goes on, and what the leader has yet to be
told. It makes requests and takes answers; `fetcher` moves them over a link. A fetch position is sent once, when the
partition comes or has moved, and stands until the leader answers it. It also says where this log begins, and is sent
again when that has moved.

What an answer may do to a log:

-   append, exactly at its end;
-   cut it, when the leader says that the two diverge: then to the end of the last epoch both know (never to the high
    watermark, which may be older than what was acknowledged);
-   begin it anew, when the leader has deleted what would come next.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

import structlog

from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.fetch import EpochEnd
from headrace.protocol.replicate import (
    WITHDRAWN,
    Asked,
    FetchPosition,
    PartitionProgress,
    decode_progress,
    encode_positions,
)
from headrace.storage.disk import StorageError

from .partition import Partition
from .throttle import Later, ReplicationThrottle, SlowLane

Key: TypeAlias = tuple[bytes, int]
RETRY_SECONDS: Final = 0.5
"""Until a partition is asked for again that the leader does not know, or does not lead (yet)."""

log = structlog.get_logger(__name__)


class ReplicaFetchState:
    """The partitions followed of one leader."""

    def __init__(
        self,
        later: Later,
        changed: Callable[[], None],
        new_session: Callable[[], int],
        broker_epoch: Callable[[], int],
        slowly: tuple[ReplicationThrottle, int] | None = None,
    ) -> None:
        self._later = later
        self._changed = changed
        self._followed: dict[Key, Partition] = {}
        self._to_tell: dict[Key, None] = {}
        self._withdrawn: set[Key] = set()
        self._new_session = new_session
        self._broker_epoch = broker_epoch
        self._session = 0
        self._number = 0
        self._slow_lane = None if slowly is None else SlowLane(*slowly, later, self._tell_now)
        """For those who catch up under a limit: the limit, and who we are."""
        self._caught_up: set[Key] = set()
        """What had everything that was committed when the leader last told. It does not wait in the slow lane: by the
        time of its turn there would be more again, and under load it would never be let into the ISR."""
        self._complaints: dict[Key, str] = {}
        """Why replicas cannot go on, as the broker's log says: once, however often they try."""

    def __len__(self) -> int:
        return len(self._followed)

    @property
    def has_news(self) -> bool:
        """Whether a position has changed that the leader does not know."""
        return bool(self._to_tell or self._withdrawn)

    def add(self, key: Key, partition: Partition) -> None:
        """Follow a partition, or follow it in its leader's new epoch."""
        self._followed[key] = partition
        self._withdrawn.discard(key)
        partition.on_settled = lambda: self._request(key, partition)
        self._request(key, partition)

    def remove(self, key: Key) -> None:
        """Follow a partition no more."""
        partition = self._followed.pop(key, None)
        if partition is not None:
            partition.on_settled = None
            self._to_tell.pop(key, None)
            self._caught_up.discard(key)
            self._complaints.pop(key, None)
            if self._slow_lane is not None:
                self._slow_lane.drop(key)
            self._withdrawn.add(key)
            self._changed()

    def begin(self) -> None:
        """A new session: the leader knows nothing yet."""
        self._session = self._new_session()
        self._number = 0
        self._withdrawn.clear()
        self._to_tell = {}
        self._caught_up.clear()
        if self._slow_lane is not None:
            self._slow_lane.clear()
        for key, partition in self._followed.items():
            if not self._is_slowed(key, partition):
                self._to_tell[key] = None

    def tell_all(self) -> None:
        """Tell every position again: this broker is registered anew, and acknowledges as the one it now is."""
        for key, partition in self._followed.items():
            self._request(key, partition)

    def _request(self, key: Key, partition: Partition) -> None:
        if self._followed.get(key) is partition and partition.may_acknowledge and not self._is_slowed(key, partition):
            self._tell_now(key)

    def _tell_now(self, key: Key) -> None:
        self._to_tell[key] = None
        self._changed()

    def _is_slowed(self, key: Key, partition: Partition) -> bool:
        """Whether a partition has to wait until it may be told."""
        lane = self._slow_lane
        if lane is None:
            return False
        if key not in self._caught_up and lane.takes(partition):
            lane.put(key)
            return True
        lane.drop(key)
        return False

    def request(self, max_wait_ms: int, max_bytes: int) -> bytearray:
        """The next fetch request: the positions that have changed."""
        positions = [FetchPosition(*key, WITHDRAWN, -1, -1, -1) for key in self._withdrawn]
        lane = self._slow_lane
        for key in self._to_tell:
            if lane is not None and lane.is_asking(key):
                max_bytes = min(max_bytes, lane.throttle.most_bytes)
            if (position := _position(key, self._followed[key])) is not None:
                positions.append(position)
        self._withdrawn.clear()
        self._to_tell.clear()
        number = self._number
        self._number += 1
        return encode_positions(Asked(self._session, number, self._broker_epoch(), max_wait_ms, max_bytes, positions))

    def take(self, answer: memoryview) -> int:
        """Apply the leader's answer; returns the bytes of records in it."""
        taken = 0
        for progress, records in decode_progress(answer):
            key = (progress.topic_id, progress.partition)
            partition = self._followed.get(key)
            if self._slow_lane is not None and progress.offset >= 0:
                self._slow_lane.answered(key, len(records))
            if partition is None or not _is_meant(partition, progress):
                continue
            taken += len(records)
            try:
                self._take_one(key, partition, progress, records)
            except Exception as error:  # whatever it is, it must not keep other partitions from going on
                self._complain(key, partition, error)
                self._again_later(key, partition)
        return taken

    def _take_one(self, key: Key, partition: Partition, progress: PartitionProgress, records: memoryview) -> None:
        if progress.code:
            self._refused(key, partition, progress)
        elif progress.diverging_end >= 0:
            partition.truncate_to_match(EpochEnd(progress.diverging_epoch, progress.diverging_end))
            self._request(key, partition)
        else:
            partition.append_fetched(records, progress)
            self._note_distance(key, partition, progress.high_watermark)
            if len(records):
                self._request(key, partition)
                if self._complaints:
                    self._complaints.pop(key, None)

    def _complain(self, key: Key, partition: Partition, error: Exception) -> None:
        if self._complaints.get(key) != str(error):
            self._complaints[key] = str(error)
            is_foreseen = isinstance(error, CodedError | StorageError)
            name, leader = partition.log.name, partition.state.leader
            log.error("a replica cannot go on", log=name, leader=leader, reason=str(error), exc_info=not is_foreseen)

    def _note_distance(self, key: Key, partition: Partition, committed: int) -> None:
        if partition.log.log_end_offset >= committed:
            self._caught_up.add(key)
        else:
            self._caught_up.discard(key)

    def _refused(self, key: Key, partition: Partition, progress: PartitionProgress) -> None:
        if progress.code == ErrorCode.offset_out_of_range.value and progress.log_start_offset >= 0:
            end = partition.log.log_end_offset
            if end < progress.log_start_offset:
                partition.restart_at(progress.log_start_offset)
                self._request(key, partition)
                return
        self._again_later(key, partition)

    def _again_later(self, key: Key, partition: Partition) -> None:
        self._later(RETRY_SECONDS, lambda: self._request(key, partition))


def _position(key: Key, partition: Partition) -> FetchPosition | None:
    """Where a replica goes on; None while it cannot: it is told again when its records are settled."""
    if not partition.may_acknowledge:
        return None
    try:
        end, epoch = partition.position
    except CodedError as error:
        log.error("a replica's position cannot be read", log=partition.log.name, reason=str(error))
        return None
    return FetchPosition(*key, partition.leader_epoch, end, epoch, partition.log.stored_start_offset)


def _is_meant(partition: Partition, progress: PartitionProgress) -> bool:
    """Whether an answer is to what this replica is now: same epoch, same end. Others came too late to mean anything."""
    if partition.is_leader or progress.leader_epoch != partition.leader_epoch:
        return False
    return progress.offset in (-1, partition.log.log_end_offset)
