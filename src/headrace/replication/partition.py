"""One partition that this broker leads: from a checked batch to a committed one, and back to a reader.

The high watermark is what readers may see and what acks wait for. Alone, a partition commits what is on stable
storage when its topic asks for that (`flush.messages=1`), else what is in the log.
"""

from headrace.cluster.log_settings import IntakeSettings
from headrace.protocol.batch import BatchHeader
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.fetch import EpochEnd, FetchedPartition
from headrace.storage.flusher import Flusher
from headrace.storage.log import Appended, Log

from .intake import admit
from .purgatory import CommitQueue, DelayedFetch


class Partition:
    """A partition and its log, as the leader sees them."""

    __slots__ = (
        "_flusher",
        "_unsynced",
        "commits",
        "high_watermark",
        "index",
        "is_internal",
        "leader_epoch",
        "log",
        "rules",
        "topic",
        "watchers",
    )

    def __init__(
        self,
        *,
        topic: str,
        index: int,
        leader_epoch: int,
        log: Log,
        rules: IntakeSettings,
        flusher: Flusher,
        internal: bool = False,
    ) -> None:
        self.topic = topic
        self.index = index
        self.is_internal = internal
        """Whether only the broker itself may write to it."""
        self.leader_epoch = leader_epoch
        self.log = log
        self.rules = rules
        self.commits = CommitQueue()
        self.watchers: dict[DelayedFetch, None] = {}
        self._flusher = flusher
        self._unsynced = 0
        self.high_watermark = log.synced_offset if self.is_durable else log.log_end_offset
        if self.high_watermark < log.log_end_offset:
            flusher.request(log, self._synced)

    @property
    def is_durable(self) -> bool:
        """Whether records count only once they are on stable storage."""
        return self.log.settings.flush_messages <= 1

    @property
    def last_stable_offset(self) -> int:
        """The end of what `read_committed` readers see."""
        return self.high_watermark

    def append(self, batch: memoryview, header: BatchHeader, *, now_ms: int, version: int) -> Appended:
        """Append one batch as the leader. It is committed once the high watermark has passed it: see `commits`."""
        batch, header = admit(batch, header, self.rules, now_ms, version)
        appended = self.log.append(batch, header, self.leader_epoch)
        if not appended.duplicate:
            self._after_append(header.record_count)
        return appended

    def append_own(self, batch: memoryview, header: BatchHeader) -> Appended:
        """Append a batch that this broker made for a topic of its own, which needs no check of the topic's rules."""
        appended = self.log.append(batch, header, self.leader_epoch)
        self._after_append(header.record_count)
        return appended

    def _after_append(self, count: int) -> None:
        log = self.log
        limit = log.settings.flush_messages
        if limit <= 1:
            self._flusher.request(log, self._synced)
            return
        self._unsynced += count
        if self._unsynced >= limit:
            self.flush()
        self._advance(log.log_end_offset)

    def flush(self) -> None:
        """Bring the log to stable storage soon."""
        self._unsynced = 0
        self._flusher.request(self.log, self._synced)

    def _synced(self) -> None:
        if self.log.offline is not None:
            self.commits.fail(CodedError(ErrorCode.kafka_storage_error, self.log.offline))
            self.wake_watchers()
        else:
            self._advance(self.log.synced_offset)

    def _advance(self, high_watermark: int) -> None:
        if high_watermark <= self.high_watermark:
            return
        self.high_watermark = high_watermark
        self.commits.advance(high_watermark)
        if self.watchers:
            self.wake_watchers()

    def wake_watchers(self) -> None:
        """Let every fetch that waits here look again."""
        for watcher in list(self.watchers):
            watcher.poke()

    def retire(self, code: ErrorCode) -> None:
        """The partition is no longer served here: no one may wait on it."""
        self.commits.fail(CodedError(code))
        for watcher in list(self.watchers):
            watcher.finish()

    def check_epoch(self, current_leader_epoch: int) -> None:
        """Fence a client that knows an older leader epoch, or a newer one than this broker."""
        if current_leader_epoch < 0 or current_leader_epoch == self.leader_epoch:
            return
        if current_leader_epoch < self.leader_epoch:
            raise CodedError(ErrorCode.fenced_leader_epoch)
        raise CodedError(ErrorCode.unknown_leader_epoch)

    def read(
        self, offset: int, max_bytes: int, *, committed_only: bool, current_leader_epoch: int, last_fetched_epoch: int
    ) -> FetchedPartition:
        """What a fetch at an offset answers; never beyond the high watermark."""
        self.check_epoch(current_leader_epoch)
        diverging = self._diverging(offset, last_fetched_epoch)
        end = self.last_stable_offset if committed_only else self.high_watermark
        if diverging is None and offset > end:
            self._check_beyond(offset)
        records = None
        if diverging is None and offset < end:
            records = self.log.read(offset, max_bytes, end)
        elif offset < self.log.log_start_offset:
            raise CodedError(ErrorCode.offset_out_of_range)
        return FetchedPartition(
            self.index,
            0,
            self.high_watermark,
            self.last_stable_offset,
            self.log.log_start_offset,
            records,
            () if committed_only else None,
            diverging,
        )

    def _check_beyond(self, offset: int) -> None:
        if offset > self.log.log_end_offset:
            raise CodedError(ErrorCode.offset_out_of_range)

    def _diverging(self, offset: int, last_fetched_epoch: int) -> EpochEnd | None:
        if last_fetched_epoch < 0:
            return None
        epoch, end_offset = self.log.end_offset_for_epoch(last_fetched_epoch)
        if epoch < 0:
            raise CodedError(ErrorCode.offset_out_of_range, f"nothing is known of leader epoch {last_fetched_epoch}")
        if epoch < last_fetched_epoch or end_offset < offset:
            return EpochEnd(epoch, end_offset)
        return None

    def available(self, offset: int, *, committed_only: bool) -> int:
        """About how many bytes a reader at an offset can get."""
        end = self.last_stable_offset if committed_only else self.high_watermark
        return self.log.read_bytes_available(offset, end) if offset < end else 0
