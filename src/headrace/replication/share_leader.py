"""One share-partition, as the leader of its partition serves it to the members of a share group.

It is loaded from the share coordinator before anything is done with it, for one leader epoch, and given up for good
when that is over, or when the coordinator says that somebody else has changed it since. What members and locks come to
is decided in the `ShareWindow`; here that is written, one change at a time, with all that was decided meanwhile in the
next, and members are answered once it is committed. Dead letters are written in the background, in the order of
offsets, and tried again until they are committed; only then a record is archived.

Batches are handed out as they lie in the log: of their heads the leader learns where they end, and whether they hold
anything for the group (markers do not, nor those that compaction has emptied, nor aborted transactions with
`read_committed`).
"""

from asyncio import Future, TimerHandle, get_running_loop, sleep
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final, NamedTuple

import structlog

from headrace.config import Values, group_value
from headrace.config.share import BY_DURATION, duration_ms
from headrace.net.clock import Clock
from headrace.net.tasks import Tasks
from headrace.protocol.batch import CONTROL_BIT, HEADER_SIZE, NO_TIMESTAMP, TRANSACTIONAL_BIT, read_header
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.records import Record, iterate_records
from headrace.storage.disk import StorageError
from headrace.storage.log import FileSlice

from .partition import Partition
from .purgatory import DelayedFetch
from .share_choice import Choice, RecordChooser
from .share_letters import DELIVERED_TOO_OFTEN, REJECTED, DeadLetterStore, DeadRecord, DeadRecords
from .share_state import UNINITIALIZED, SharePartition, ShareState, ShareStateChange, ShareStateStore
from .share_window import Acknowledgement, AcknowledgeType, AcquiredRange, ShareWindow, Wait, most_together

MOST_RUNS: Final = 10_000
"""Of one window: with more, no new records are delivered before some of the older ones are done with."""
LEAST_ALARM_SECONDS: Final = 0.05
"""Between looks for locks that have expired."""
_MOST_READS: Final = 16
"""Of one fetch, where records are passed over: then others get a turn."""
_MOST_BATCHES: Final = 1_000
"""That one fetch looks at: of all that lies behind a record it may be that nothing is left to deliver."""
_MOST_OF_BATCH: Final = 10_000
"""Records that a member gets of one batch beyond what it asks for: each may become a run of its own."""
_HEADS: Final = 16 * 1024
"""Bytes that are read to walk over the heads of batches."""
_AHEAD_BYTES: Final = 256 * 1024
"""That are read at a time where records are chosen."""
MOST_LETTERS: Final = 500
"""Dead letters that are written together."""
_LETTER_BYTES: Final = 1 << 20
"""Of the log that is read for them."""
FIRST_LETTER_PAUSE: Final = 0.25
LONGEST_LETTER_PAUSE: Final = 30.0
"""Between tries to write dead letters."""
_STALE: Final = (ErrorCode.fenced_state_epoch, ErrorCode.fenced_leader_epoch, ErrorCode.invalid_request)
"""What says that a state is not this leader's to change: it is to be read again."""

log = structlog.get_logger(__name__)

_Span = tuple[int, int, int, bool]
"""Offsets that are being archived, both ends in it, how often they were delivered, and whether they were rejected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupSettings:
    """How a share group reads: its own settings, or the broker's where it has none."""

    record_lock_seconds: float = 30.0
    delivery_count_limit: int = 5
    max_record_locks: int = 2000
    """Of one share-partition."""
    read_committed: bool = False
    retry_backoff_seconds: float = 0.0
    """How long a record waits after its first delivery until it is delivered again; twice as long after each one."""
    retry_backoff_max_seconds: float = 0.0
    auto_offset_reset: str = "latest"
    """Where a group begins: `earliest`, `latest`, or `by_duration:` and how long ago, as ISO 8601 writes it."""
    letter_topic: str = ""
    """Where dead letters go; nowhere if it is empty."""
    copies_records: bool = False
    """Whether dead letters have the whole record."""
    may_renew: bool = True
    """Whether members may renew locks."""
    choice: Choice = Choice()  # noqa: RUF009 - it is frozen
    """In which order records are delivered."""

    @classmethod
    def of(cls, broker: Values, group: Mapping[str, str]) -> "ShareGroupSettings":
        """The broker's settings with those of the group before them, held within the broker's bounds."""
        return cls(
            record_lock_seconds=group_value("share.record.lock.duration.ms", group, broker) / 1000,
            delivery_count_limit=group_value("share.delivery.count.limit", group, broker),
            max_record_locks=group_value("share.partition.max.record.locks", group, broker),
            read_committed=group_value("share.isolation.level", group, broker) == "read_committed",
            retry_backoff_seconds=group_value("headrace.share.retry.backoff.ms", group, broker) / 1000,
            retry_backoff_max_seconds=group_value("headrace.share.retry.backoff.max.ms", group, broker) / 1000,
            auto_offset_reset=group_value("share.auto.offset.reset", group, broker),
            letter_topic=group_value("errors.deadletterqueue.topic.name", group, broker),
            copies_records=group_value("errors.deadletterqueue.copy.record.enable", group, broker),
            may_renew=group_value("share.renew.acknowledge.enable", group, broker),
            choice=Choice(
                orders_keys=group_value("headrace.share.order", group, broker) == "key",
                has_priorities=group_value("headrace.share.priority.enable", group, broker),
                key_interval=group_value("headrace.share.key.interval.ms", group, broker) / 1000,
            ),
        )

    def retry_backoff(self, delivery_count: int) -> float:
        """The seconds that a record waits which was delivered so often."""
        if not self.retry_backoff_seconds or delivery_count <= 0:
            return 0.0
        return min(self.retry_backoff_seconds * 2.0 ** min(delivery_count - 1, 30), self.retry_backoff_max_seconds)


class Acquired(NamedTuple):
    """What a member gets: whole batches, and the records in them that are its own."""

    records: FileSlice
    ranges: Sequence[AcquiredRange]

    @property
    def record_count(self) -> int:
        return sum(last - first + 1 for first, last, _ in self.ranges)


@dataclass(slots=True, kw_only=True)
class Wanted:
    """What a member asks a share-partition for."""

    max_bytes: int
    max_records: int
    batch_size: int
    """Records after which a range ends with the batch that it is in."""
    is_strict: bool
    """Whether there are never more records than `max_records`; else the last batch comes whole, unless it is huge."""


class Waits(NamedTuple):
    """What of a share-partition waited when it was forgotten, in the state epoch of then."""

    state_epoch: int
    waits: Sequence[Wait]


class ShareCounts:
    """Records that members of share groups were given by this broker, and what became of them."""

    __slots__ = ("acknowledged", "delivered", "expired", "letters", "letters_dropped", "letters_failed", "redelivered")

    def __init__(self) -> None:
        self.delivered = 0
        self.redelivered = 0
        """Of those, the ones that had been delivered before."""
        self.expired = 0
        """Whose locks have expired."""
        self.letters = 0
        """Whose dead letters were written."""
        self.letters_failed = 0
        """Tries to write dead letters that failed."""
        self.letters_dropped = 0
        """That were deleted from their topic while their dead letters could not be written."""
        self.acknowledged = dict.fromkeys(AcknowledgeType, 0)

    def note_acquired(self, ranges: Iterable[AcquiredRange]) -> None:
        for first, last, delivery_count in ranges:
            self.delivered += last - first + 1
            if delivery_count > 1:
                self.redelivered += last - first + 1

    def note_acknowledged(self, acknowledgements: Iterable[Acknowledgement], start: int) -> None:
        """What lies before the start offset was passed over."""
        for first, last, kind in acknowledgements:
            self.acknowledged[kind] += max(last - max(first, start) + 1, 0)


class ShareLeader:
    """A share-partition that this broker leads, for one leader epoch."""

    def __init__(
        self,
        key: SharePartition,
        partition: Partition,
        *,
        store: ShareStateStore,
        settings: Callable[[str], ShareGroupSettings],
        clock: Clock,
        tasks: Tasks,
        counts: ShareCounts,
        letters: DeadLetterStore,
        free_at: dict[int, float],
        waits: Waits | None = None,
    ) -> None:
        self.key = key
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.watchers: dict[DelayedFetch, None] = {}
        """Fetches of members that wait for something to become available."""
        self.used_at = clock.monotonic()
        self._store = store
        self._settings = settings
        self._clock = clock
        self._tasks = tasks
        self._counts = counts
        self._letters = letters
        self._is_writing_letters = False
        self._free_at = free_at
        """Of keys that have to wait between two deliveries; also for who serves the share-partition next here."""
        self._waits = waits
        """Of who has served the share-partition here before."""
        self._chooser: RecordChooser | None = None
        """What a group without a choice does without."""
        self._turns = 0
        """How often something may have become available."""
        self._nothing_at: tuple[int, int, int] | None = None
        """The turn, start offset and readable end at which there was nothing to choose: the next of many members that
        wait need not look again."""
        self.letter_failure = ""
        """Why dead letters cannot be written, while that is so."""
        self._state_epoch = 0
        self._window: ShareWindow | None = None
        self._failure: CodedError | None = None
        self._waiting: list[Future[None]] = []
        """Those whose acknowledgements are decided and in no change yet."""
        self._is_writing = False
        self._alarm: TimerHandle | None = None
        self._alarm_at = inf
        self._has_delays = False
        """Whether members have said when records that they release are to be delivered again."""

    # What it waits on, as a `FetchablePartition`

    @property
    def high_watermark(self) -> int:
        return self.partition.high_watermark

    @property
    def last_stable_offset(self) -> int:
        return self.partition.last_stable_offset

    @property
    def settings(self) -> ShareGroupSettings:
        return self._settings(self.key.group_id)

    @property
    def is_over(self) -> bool:
        """Whether another has to be made in its place."""
        partition = self.partition
        return self._failure is not None or not partition.is_leader or partition.leader_epoch != self.leader_epoch

    @property
    def is_loaded(self) -> bool:
        return self._window is not None

    @property
    def is_idle(self) -> bool:
        """Whether nothing would be lost if it were read again later."""
        return (self._window is None or self._window.is_idle) and not self.watchers

    @property
    def letters_due(self) -> int:
        """How many records wait for their dead letters."""
        return 0 if self._window is None else self._window.archiving

    @property
    def window(self) -> ShareWindow | None:
        """None before it is loaded."""
        return self._window

    @property
    def waits(self) -> Waits | None:
        """What is to be known of it when it is read again here; None where nothing is."""
        if self._window is None or self.is_over:
            return None
        waits = self._window.waits(self._clock.monotonic())
        return Waits(self._state_epoch, waits) if waits else None

    def close(self, error: CodedError | None = None) -> None:
        """Give up: this broker does not lead the partition any more, or the state is another's."""
        if self._failure is None:
            self._failure = error or CodedError(ErrorCode.not_leader_or_follower)
        if self._alarm is not None:
            self._alarm.cancel()
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            _fail(waiter, self._failure)
        for watcher in list(self.watchers):
            watcher.finish()

    def check(self) -> None:
        """The `CodedError` for who comes to a share-partition that is given up."""
        if self._failure is not None:
            raise self._failure
        self.partition.check_leads()
        if self.is_over:
            raise CodedError(ErrorCode.not_leader_or_follower)

    # Loading

    async def load(self) -> None:
        """Read the state, and begin where the group has come to. Why that cannot be is told to who comes."""
        try:
            state = await self._store.read(self.key, self.leader_epoch)
            self._state_epoch = state.state_epoch
            if _end_of(state) > self.partition.log.log_end_offset:
                state = await self._take_back(state, self.partition.log.log_end_offset)
            if state.start_offset == UNINITIALIZED:
                window = await self._initialize()
            else:
                window = ShareWindow(
                    state.start_offset,
                    state.batches,
                    available_at=self._available_at,
                    has_letters=self._has_letters(self.settings),
                )
                if self._waits is not None and self._waits.state_epoch == state.state_epoch:
                    window.wait(self._waits.waits)
            if not self.is_over:
                self._begin(window)
        except CodedError as error:
            if error.code is ErrorCode.coordinator_not_available:
                log.warning("share-partition cannot be loaded yet", of=self.key.text, reason=str(error))
            self.close(_for_members(error))
        except BaseException:
            self.close(CodedError(ErrorCode.unknown_server_error))
            raise

    async def verify(self) -> None:
        """Give up if the state is not the one that was loaded any more."""
        try:
            summary = await self._store.summary(self.key)
        except CodedError:
            return  # whoever writes next will see
        is_same = (summary.state_epoch, summary.leader_epoch) == (self._state_epoch, self.leader_epoch)
        if not is_same and not self.is_over:
            log.info("share-partition is read again", of=self.key.text, reason="its state was begun anew")
            self.close()

    async def _initialize(self) -> ShareWindow:
        """Begin where the group's settings say, and keep that before anything is delivered: whoever leads next is to
        go on there, and not to begin at a later end of the log."""
        has_letters = self._has_letters(self.settings)
        window = ShareWindow(self._initial_offset(), is_start_written=False, has_letters=has_letters)
        change = self._next_change(window)
        assert change is not None
        await self._store.write(self.key, change)
        window.commit()
        return window

    async def _take_back(self, state: ShareState, end: int) -> ShareState:
        """The state without what it says of records that are lost (an unclean election): others get their offsets, and
        these nobody is done with. As no state of an offset goes back this begins a state epoch."""
        log.error("records that a share group has read are lost", of=self.key.text, end_offset=end)
        start = min(state.start_offset, end)
        batches = [batch._replace(last_offset=min(batch.last_offset, end - 1)) for batch in state.batches]
        batches = [batch for batch in batches if batch.first_offset <= batch.last_offset]
        self._state_epoch = state.state_epoch + 1
        await self._store.initialize(self.key, self._state_epoch, start)
        change = ShareStateChange(state_epoch=self._state_epoch, leader_epoch=self.leader_epoch, batches=batches)
        await self._store.write(self.key, change)
        return ShareState(state_epoch=self._state_epoch, start_offset=start, batches=batches)

    def _begin(self, window: ShareWindow) -> None:
        self._window = window
        self._follow_log(window)
        self._write()
        self._set_alarm(window.next_alarm(self._clock.monotonic()))
        self._begin_letters()
        self.wake()

    def _initial_offset(self) -> int:
        partition, reset = self.partition, self.settings.auto_offset_reset
        if reset == "earliest":
            return partition.log.log_start_offset
        if reset.startswith(BY_DURATION):
            since = self._clock.now_ms() - (duration_ms(reset.removeprefix(BY_DURATION)) or 0)
            found = partition.log.offset_for_timestamp(since, partition.high_watermark)
            if found is not None:
                return found.offset
        return partition.high_watermark

    # Fetching

    def available(self) -> int:
        """About how many bytes a member could get now."""
        self.check()
        window = self._window
        if window is None:
            return 0
        self._follow_log(window)
        if self.settings.choice.is_any:
            return self._available_by_choice(window)
        offset, end = window.next_available(self._clock.monotonic()), self._readable_end()
        if offset >= end or self._locks_left(window) <= 0 or (offset >= window.end and self._is_full(window)):
            return 0
        return self.partition.available(offset, committed_only=self.settings.read_committed)

    def acquire(self, member: str, wanted: Wanted) -> Acquired | None:
        """Records for a member, as many as there are and as it wants; None where there are none, or not yet.

        They are its own until it acknowledges them, or their lock expires.
        """
        self.check()
        self.used_at = now = self._clock.monotonic()
        window = self._window
        if window is None:
            return None
        self._follow_log(window)
        window.has_letters = self._has_letters(self.settings)
        acquired, turns = None, iter(range(_MOST_BATCHES))
        if self.settings.choice.is_any:
            acquired = self._acquire_by_choice(window, member, wanted)
        for _ in range(0 if self.settings.choice.is_any else _MOST_READS):
            offset, end = window.next_available(now), self._readable_end()
            most = min(wanted.max_records, self._locks_left(window))
            if offset >= end or most <= 0 or (offset >= window.end and self._is_full(window)):
                break
            found = self.partition.log.read(offset, max(wanted.max_bytes, 0), end)
            if found is None:
                break
            acquired = self._acquire(window, member, offset, found, most, wanted, turns)
            if acquired is not None:
                break
        self._write()
        if acquired is not None:
            self.partition.bytes_out += acquired.records.length
            self.partition.messages_out += acquired.record_count
            self._counts.note_acquired(acquired.ranges)
            self._set_alarm(now + self.settings.record_lock_seconds)
        return acquired

    def _acquire(
        self,
        window: ShareWindow,
        member: str,
        offset: int,
        found: FileSlice,
        most: int,
        wanted: Wanted,
        turns: Iterator[int],
    ) -> Acquired | None:
        settings, now = self.settings, self.used_at
        until, limit = now + settings.record_lock_seconds, settings.delivery_count_limit
        ranges: list[AcquiredRange] = []
        begin = end = found.position
        together = inf
        for _, batch in zip(turns, self._batches(offset, found), strict=False):
            if batch.base > offset:
                window.archive(offset, batch.base - 1)  # compaction has removed what was there
            first, offset = max(batch.base, offset), batch.last + 1
            if not batch.is_delivered:
                window.archive(first, batch.last)
                continue
            size = batch.last - batch.base + 1
            last, few = window.portion(first, batch.last, size, now=now, delivery_limit=limit)
            if (few is None) is not (together == inf) and (ranges or few is None):
                break  # those of which there are to be few go without others
            together = inf if few is None else min(few, together)
            count = min(most if wanted.is_strict else max(most, _MOST_OF_BATCH), together)
            mine = window.acquire(first, last, int(count), member, now=now, until=until, delivery_limit=limit)
            if mine:
                begin = begin if ranges else batch.position
                end = batch.end
                _add_ranges(ranges, mine, wanted.batch_size)
                acquired = sum(each.last_offset - each.first_offset + 1 for each in mine)
                most, together = most - acquired, together - acquired
                if min(most, together) <= 0 or last < batch.last:
                    break
        if not ranges:
            return None
        return Acquired(FileSlice(found.file, begin, end - begin, offset), ranges)

    # By a choice

    def _read_ahead(self, window: ShareWindow) -> RecordChooser:
        """What is chosen from, after reading on for a while."""
        chooser, choice = self._chooser, self.settings.choice
        if chooser is None or chooser.choice != choice:
            chooser = self._chooser = RecordChooser(choice, window.start, self._free_at)
        chooser.follow(window.start)
        for _ in range(_MOST_READS):
            offset, end = chooser.read_until, self._readable_end()
            found = (
                self.partition.log.read(offset, _AHEAD_BYTES, end) if offset < end and chooser.wants_more() else None
            )
            if found is None:
                break
            for batch in self._batches(offset, found):
                self._look_into(window, chooser, batch, found)
                if not chooser.wants_more():
                    break
        return chooser

    def _look_into(self, window: ShareWindow, chooser: RecordChooser, batch: "_Batch", found: FileSlice) -> None:
        """Know the records of a batch; where there are none nobody is to get any."""
        offset = chooser.read_until
        if batch.is_delivered:
            records = [record for record, _ in _records_of(batch, found, offset, batch.last)]
            chooser.add(records)
            for record in records:
                if record.offset > offset:
                    window.archive(offset, record.offset - 1)  # compaction has removed what was there
                offset = record.offset + 1
        if offset <= batch.last:
            window.archive(offset, batch.last)
        chooser.read_until = batch.last + 1

    def _available_by_choice(self, window: ShareWindow) -> int:
        seen = (self._turns, window.start, self._readable_end())
        if seen == self._nothing_at:
            return 0
        chooser, now = self._read_ahead(window), self._clock.monotonic()
        chosen = chooser.choose(window, now, min(1, self._locks_left(window)))
        self._write()
        if not chosen:
            self._nothing_at = seen
            self._set_alarm(chooser.retry_at)
            return 0
        return self.partition.available(chosen[0], committed_only=self.settings.read_committed)

    def _acquire_by_choice(self, window: ShareWindow, member: str, wanted: Wanted) -> Acquired | None:
        """Batches from that of the first choice on, as long as there are chosen records in them."""
        settings, now, chooser = self.settings, self.used_at, self._read_ahead(window)
        chosen = chooser.choose(window, now, min(wanted.max_records, self._locks_left(window)))
        chosen = _together(window, chosen, settings.delivery_count_limit)
        self._set_alarm(chooser.retry_at)
        found = None
        if chosen:
            found = self.partition.log.read(chosen[0], max(wanted.max_bytes, 0), self._readable_end())
        if found is None:
            return None
        until, limit = now + settings.record_lock_seconds, settings.delivery_count_limit
        first, chosen = chosen[0], sorted(chosen)
        ranges: list[AcquiredRange] = []
        begin = end = found.position
        next_offset = first
        for batch in self._batches(first, found):
            here = chosen[bisect_left(chosen, batch.base) : bisect_right(chosen, batch.last)]
            mine: list[AcquiredRange] = []
            for offset in here:
                got = window.acquire(offset, offset, 1, member, now=now, until=until, delivery_limit=limit)
                if got:
                    chooser.delivered(offset, now)
                    mine += got
            if not mine and (ranges or not here):
                break
            if mine:
                begin, end, next_offset = begin if ranges else batch.position, batch.end, batch.last + 1
                _add_ranges(ranges, mine, wanted.batch_size)
        if not ranges:
            return None
        return Acquired(FileSlice(found.file, begin, end - begin, next_offset), ranges)

    def _batches(self, offset: int, found: FileSlice) -> Iterator["_Batch"]:
        """The whole batches of what was read; those that nobody is to get are marked."""
        aborted: dict[int, list[tuple[int, int]]] = {}
        if self.settings.read_committed:
            for each in self.partition.log.aborted_within(offset, found, self.partition.last_stable_offset):
                aborted.setdefault(each.producer_id, []).append((each.first_offset, each.last_offset))
        position, end = found.position, found.position + found.length
        heads, heads_at = b"", position
        while position + HEADER_SIZE <= end:
            if not heads_at <= position <= heads_at + len(heads) - HEADER_SIZE:
                heads, heads_at = found.file.pread(min(_HEADS, end - position), position), position
                if len(heads) < HEADER_SIZE:
                    return
            header = read_header(heads, position - heads_at)
            batch_end = position + header.size
            if batch_end > end:
                return
            base, last = header.base_offset, header.last_offset
            is_delivered = not header.attributes & CONTROL_BIT and header.record_count > 0
            if aborted and is_delivered and header.attributes & TRANSACTIONAL_BIT:
                is_delivered = not any(a <= base <= z for a, z in aborted.get(header.producer_id, ()))
            yield _Batch(base, last, position, batch_end, is_delivered)
            position = batch_end

    def _readable_end(self) -> int:
        return self.partition.last_stable_offset if self.settings.read_committed else self.partition.high_watermark

    def _locks_left(self, window: ShareWindow) -> int:
        return self.settings.max_record_locks - window.locks

    @staticmethod
    def _is_full(window: ShareWindow) -> bool:
        return len(window.runs) >= MOST_RUNS

    def _follow_log(self, window: ShareWindow) -> None:
        dropped = window.advance_start(self.partition.log.log_start_offset)
        if dropped:
            self._counts.letters_dropped += dropped
            log.error(
                "records were deleted before their dead letters could be written",
                of=self.key.text,
                records=dropped,
                reason=self.letter_failure or "they were about to be written",
            )

    # Acknowledging

    def acknowledge(
        self, member: str, acknowledgements: Sequence[Acknowledgement], release_seconds: float | None = None
    ) -> Future[None] | None:
        """What a member says of its records, all of it or nothing. None where that is all, else a future that is done
        once it is committed, or has the `CodedError` why not. What is released is delivered again after
        `release_seconds`; without them after the backoff of the group."""
        self.check()
        self.used_at = now = self._clock.monotonic()
        window, settings = self._window, self.settings
        if window is None:
            raise CodedError(ErrorCode.invalid_record_state, "nothing was acquired from this leader")
        if not settings.may_renew and any(each.type is AcknowledgeType.RENEW for each in acknowledgements):
            raise CodedError(
                ErrorCode.invalid_record_state,
                "share.renew.acknowledge.enable of the group is false: no lock is renewed",
            )
        self._follow_log(window)
        window.has_letters = self._has_letters(settings)
        is_news = window.acknowledge(
            member,
            acknowledgements,
            until=now + settings.record_lock_seconds,
            delivery_limit=settings.delivery_count_limit,
            available_at=0.0 if release_seconds is None else now + release_seconds,
        )
        self._has_delays = self._has_delays or release_seconds is not None
        self._counts.note_acknowledged(acknowledgements, window.start)
        if not is_news:
            return None
        waiter: Future[None] = get_running_loop().create_future()
        self._waiting.append(waiter)
        self._write()
        return waiter

    def release(self, member: str) -> None:
        """A member's session has ended: what it has acquired and not acknowledged is for others."""
        if self._window is not None and not self.is_over:
            self._window.has_letters = self._has_letters(self.settings)
            self._window.release_member(member, delivery_limit=self.settings.delivery_count_limit)
            self._write()

    # Dead letters

    def _has_letters(self, settings: ShareGroupSettings) -> bool:
        """A letter that is given up itself stays where it is."""
        return settings.letter_topic not in ("", self.partition.topic)

    def _begin_letters(self) -> None:
        if self._window is not None and self._window.archiving and not self._is_writing_letters and not self.is_over:
            self._is_writing_letters = True
            self._tasks.spawn(self._write_letters(self._window))

    async def _write_letters(self, window: ShareWindow) -> None:
        """Write what letters are due, one part after the other, for as long as that takes."""
        pause = FIRST_LETTER_PAUSE
        try:
            while not self.is_over and (runs := window.archiving_runs(MOST_LETTERS)):
                spans = [(run.first, run.last, run.delivery_count, run.is_rejected) for run in runs]
                try:
                    done = await self._write_some_letters(spans)
                except (CodedError, StorageError) as error:
                    self._note_letters_failed(str(error))
                    await sleep(pause)
                    pause = min(2 * pause, LONGEST_LETTER_PAUSE)
                    self._follow_log(window)
                    continue
                if self.letter_failure:
                    log.info("dead letters are written again", of=self.key.text)
                pause, self.letter_failure = FIRST_LETTER_PAUSE, ""
                for first, last, _, _ in spans:
                    if first <= done:
                        window.archived(first, min(last, done))
                self._write()
        finally:
            self._is_writing_letters = False

    async def _write_some_letters(self, spans: Sequence[_Span]) -> int:
        """Write the letters of the first records of what is being archived; the last offset that is done with then."""
        settings = self.settings
        if not self._has_letters(settings):
            log.warning("records are given up without dead letters", of=self.key.text, up_to=spans[-1][1])
            return spans[-1][1]
        records, done = self._dead_records(spans, settings.delivery_count_limit)
        if records:
            dead = DeadRecords(
                group_id=self.key.group_id,
                topic=self.partition.topic,
                partition=self.partition.index,
                letter_topic=settings.letter_topic,
                copies_records=settings.copies_records,
                records=records,
            )
            await self._letters.write(dead)
            self._counts.letters += len(records)
        return done

    def _dead_records(self, spans: Sequence[_Span], limit: int) -> tuple[Sequence[DeadRecord], int]:
        """The first records of what is being archived, and up to which offset these are all there are."""
        start, index = spans[0][0], 0
        found = self.partition.log.read(start, _LETTER_BYTES, self.partition.log.log_end_offset)
        if found is None:
            raise CodedError(ErrorCode.offset_out_of_range, f"there is nothing at offset {start} yet")
        dead: list[DeadRecord] = []
        size, done = 0, start - 1
        for batch in self._batches(start, found):
            while index < len(spans) and spans[index][1] < batch.base:
                index += 1
            if index == len(spans):
                return dead, spans[-1][1]
            if batch.is_delivered and spans[index][0] <= batch.last:
                for each in _dead_of(batch, found, spans[index:], limit):
                    dead.append(each)
                    size += len(each.record.key or b"") + len(each.record.value or b"")
                    if len(dead) == MOST_LETTERS or size >= _LETTER_BYTES:
                        return dead, each.record.offset
            done = batch.last
        if done < start:
            raise CodedError(ErrorCode.offset_out_of_range, f"there is no whole batch at offset {start}")
        return dead, done

    def _note_letters_failed(self, reason: str) -> None:
        self._counts.letters_failed += 1
        if not self.letter_failure:
            log.warning("dead letters cannot be written, their records wait", of=self.key.text, reason=reason)
        self.letter_failure = reason

    # Locks

    def _available_at(self, delivery_count: int) -> float:
        seconds = self.settings.retry_backoff(delivery_count)
        return self._clock.monotonic() + seconds if seconds else 0.0

    def _set_alarm(self, at: float) -> None:
        """One alarm for all runs: at the first lock that expires, or the first wait that is over."""
        if at >= self._alarm_at or self.is_over:
            return
        now = self._clock.monotonic()
        at = max(at, now + LEAST_ALARM_SECONDS)
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = at
        self._alarm = get_running_loop().call_later(at - now, self._ring)

    def _ring(self) -> None:
        self._alarm, self._alarm_at = None, inf
        window = self._window
        if window is None or self.is_over:
            return
        limit, now = self.settings.delivery_count_limit, self._clock.monotonic()
        window.has_letters = self._has_letters(self.settings)
        self._counts.expired += window.release_expired(now, delivery_limit=limit)
        self._write()
        self._set_alarm(window.next_alarm(now))
        self.wake()

    # Writing

    def _write(self) -> None:
        """Write what was decided, unless a change is under way: then it comes next."""
        if self._is_writing or self._window is None or self.is_over:
            return
        change = self._next_change(self._window)
        if change is not None:
            self._is_writing = True
            self._tasks.spawn(self._write_all(self._window, change))

    def _next_change(self, window: ShareWindow) -> ShareStateChange | None:
        change = window.begin_change()
        if change is None:
            return None
        return ShareStateChange(
            state_epoch=self._state_epoch,
            leader_epoch=self.leader_epoch,
            start_offset=change.start_offset,
            delivery_complete_count=change.complete_count,
            batches=change.batches,
        )

    async def _write_all(self, window: ShareWindow, change: ShareStateChange | None) -> None:
        try:
            while change is not None:
                waiting, self._waiting = self._waiting, []
                await self._write_one(window, change, waiting)
                change = None if self.is_over else self._next_change(window)
        except BaseException:
            self.close(CodedError(ErrorCode.unknown_server_error))
            raise
        finally:
            self._is_writing = False

    async def _write_one(self, window: ShareWindow, change: ShareStateChange, waiting: Sequence[Future[None]]) -> None:
        try:
            await self._store.write(self.key, change)
        except CodedError as error:
            window.roll_back()
            failure = _for_members(error)
            for waiter in waiting:
                _fail(waiter, failure)
            if error.code in _STALE or error.code is ErrorCode.unknown_topic_or_partition:
                log.info("share-partition is read again", of=self.key.text, reason=str(error))
                self.close(failure)
            else:
                log.warning("the state of a share-partition cannot be written", of=self.key.text, reason=str(error))
                self._set_alarm(window.next_alarm(self._clock.monotonic()))
                self._begin_letters()
            return
        window.commit(self._available_at)
        if self.settings.retry_backoff_seconds or self._has_delays:
            self._set_alarm(window.next_alarm(self._clock.monotonic()))
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)
        self._begin_letters()
        self.wake()

    def wake(self) -> None:
        """Let every fetch that waits here look again."""
        self._turns += 1
        for watcher in list(self.watchers):
            watcher.poke(self)


class _Batch(NamedTuple):
    """A batch of the log: its offsets, where it lies, and whether it holds records for a group."""

    base: int
    last: int
    position: int
    end: int
    is_delivered: bool


def _dead_of(batch: _Batch, found: FileSlice, spans: Sequence[_Span], limit: int) -> Iterator[DeadRecord]:
    """The records of a batch that are being archived."""
    index = 0
    for record, omitted in _records_of(batch, found, max(spans[0][0], batch.base), batch.last):
        while index < len(spans) and spans[index][1] < record.offset:
            index += 1
        if index == len(spans):
            return
        first, _, delivery_count, is_rejected = spans[index]
        if record.offset >= first:
            reason = REJECTED if is_rejected or delivery_count < limit else DELIVERED_TOO_OFTEN
            yield DeadRecord(record, delivery_count, reason, omitted)


def _records_of(batch: _Batch, found: FileSlice, first: int, last: int) -> Iterator[tuple[Record, str]]:
    """The records of a batch from one offset to another; where nobody can read them their places, and why."""
    try:
        for record in iterate_records(found.file.pread(batch.end - batch.position, batch.position), exact=True):
            if record.offset >= first:
                if record.offset > last:
                    return
                first = record.offset + 1
                yield record, ""
    except CodedError as error:
        for offset in range(first, min(last, batch.last) + 1):
            yield Record(offset, NO_TIMESTAMP, None, None), f"it cannot be read: {error.message}"


def _add_ranges(ranges: list[AcquiredRange], more: Sequence[AcquiredRange], batch_size: int) -> None:
    """Add what was acquired of one batch: ranges that are short of the size a member asked for go on."""
    for each in more:
        before = ranges[-1] if ranges else None
        if (
            before is not None
            and before.last_offset == each.first_offset - 1
            and before.delivery_count == each.delivery_count
            and before.last_offset - before.first_offset + 1 < batch_size
        ):
            ranges[-1] = before._replace(last_offset=each.last_offset)
        else:
            ranges.append(each)


def _together(window: ShareWindow, chosen: Sequence[int], delivery_limit: int) -> list[int]:
    """Those of the chosen offsets that can be delivered together with the first one."""
    counts = [window.delivery_count(offset) for offset in chosen]
    few = [most_together(count, len(chosen), delivery_limit) for count in counts]
    if not few or few[0] is None:
        return [offset for offset, most in zip(chosen, few, strict=True) if most is None]
    return [offset for offset, most in zip(chosen, few, strict=True) if most == few[0]][: few[0]]


def _end_of(state: ShareState) -> int:
    """The first offset that it says nothing of."""
    return state.batches[-1].last_offset + 1 if state.batches else state.start_offset


def _for_members(error: CodedError) -> CodedError:
    """An error of the share coordinator, as Kafka tells it to members."""
    if error.code in (ErrorCode.fenced_state_epoch, ErrorCode.fenced_leader_epoch):
        return CodedError(ErrorCode.not_leader_or_follower, error.message)
    if error.code in (ErrorCode.coordinator_not_available, ErrorCode.unknown_topic_or_partition):
        return error
    return CodedError(ErrorCode.unknown_server_error, error.message)


def _fail(waiter: Future[None], error: CodedError) -> None:
    if not waiter.done():
        waiter.set_exception(error)
