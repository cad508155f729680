"""One partition that this broker holds: as its leader, from a checked batch to a committed one and back to a reader; as
a follower, a copy of the leader's log.

The high watermark is what readers may see and what acks wait for.

-   A leader moves it to the end of what the whole ISR holds (see `followers`), and not while the ISR is smaller than
    `min.insync.replicas`. Where the topic asks for it (`flush.messages=1`), records count once they are on stable
    storage. Alone, a partition commits what is in its own log.
-   A follower takes the leader's, as far as its own log goes.

It never goes back for a reader. Records that a deposed leader had more than its successor were never below it.
"""

from collections.abc import Callable
from math import inf

import structlog

from headrace.cluster.image import NO_LEADER, PartitionState
from headrace.cluster.log_settings import IntakeSettings
from headrace.protocol.batch import HEADER_SIZE, BatchHeader, read_header
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.fetch import EpochEnd, FetchedPartition
from headrace.protocol.records import encode_marker
from headrace.protocol.replicate import FetchPosition, PartitionProgress
from headrace.storage.condition import Health
from headrace.storage.flusher import Flusher
from headrace.storage.log import Appended, Log, Origin
from headrace.storage.settings import LogSettings

from .followers import UNKNOWN, AppendListener, Follower, Followers, ProposeIsr
from .intake import admit
from .purgatory import CommitQueue, Committed, DelayedFetch
from .replica_selector import NOBODY
from .transactions import EPOCH_BUMPING, TransactionMarker, Verification, Verifications

_new_tuple = tuple.__new__  # a third of what a NamedTuple's own constructor costs
_CLIENT = Origin.CLIENT  # an attribute of an enumeration takes as long as a call
_LEADING = (Health.ONLINE, Health.FULL)
_FOLLOWING = (Health.ONLINE, Health.REFETCHING)

logger = structlog.get_logger(__name__)


class Room:
    """A budget of bytes to write, shared by all partitions that it limits."""

    __slots__ = ("left", "what")

    def __init__(self, what: str, left: float) -> None:
        self.what = what
        """What is full when nothing is left, in words."""
        self.left = left


class Partition:
    """A partition that this broker leads or follows, and its log."""

    __slots__ = (
        "_counted",
        "_flusher",
        "_led_from",
        "_unsynced",
        "bytes_out",
        "commits",
        "deletions",
        "durable_from",
        "follower_sessions",
        "followers",
        "high_watermark",
        "index",
        "is_internal",
        "is_leader",
        "leader_end_offset",
        "leader_epoch",
        "log",
        "messages_out",
        "on_settled",
        "replicated_in",
        "replicated_out",
        "rooms",
        "rules",
        "state",
        "topic",
        "topic_id",
        "verifications",
        "watchers",
        "written",
    )

    def __init__(
        self,
        *,
        topic: str,
        topic_id: bytes,
        index: int,
        state: PartitionState,
        log: Log,
        rules: IntakeSettings,
        flusher: Flusher,
        internal: bool = False,
        high_watermark: int = 0,
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.is_internal = internal
        """Whether only the broker itself may write to it."""
        self.state = state
        self.leader_epoch = state.leader_epoch
        self.is_leader = False
        self.followers: Followers | None = None
        """Those whose acknowledgement a leader waits for; None where it has the partition to itself."""
        self.log = log
        self.rules = rules
        self.rooms: tuple[Room, ...] = ()
        """What clients may still write, where a quota says; see `storage_quota`."""
        self.durable_from = log.log_end_offset
        """Of a durable partition: what is acknowledged from here on was synced before."""
        self.commits = CommitQueue()
        """Who waits for the high watermark."""
        self.deletions: CommitQueue | None = None
        """Who waits until records are deleted on the whole ISR, by where the log then begins; None for nobody."""
        self.written = CommitQueue()
        """Who waits for this broker's own disk alone."""
        self.watchers: dict[DelayedFetch, None] = {}
        """Consumers' fetches that wait for the high watermark."""
        self.follower_sessions: dict[AppendListener, tuple[bytes, int]] = {}
        """Followers that are told of each append, and what they call this partition."""
        self.on_settled: Callable[[], None] | None = None
        """Called on a follower when what it has taken is on stable storage."""
        self.verifications = Verifications()
        """Who is about to begin a transaction here."""
        self._counted = (0, 0)
        """Bytes and messages appended as the leader before it came to lead last."""
        self._led_from = (0, 0)
        """Written bytes, and the end of the log, when it did."""
        self.bytes_out = self.messages_out = 0
        """Read by consumers."""
        self.replicated_in = self.replicated_out = 0
        """Bytes of records taken from the leader, and sent to followers."""
        self.leader_end_offset = -1
        """Of a follower: where the leader's log ended when it last told; -1 before."""
        self._flusher = flusher
        self._unsynced = 0
        self.high_watermark = max(min(high_watermark, log.log_end_offset), log.log_start_offset)
        log.on_start_stored = self._start_stored

    # Roles

    def lead(self, broker_id: int, state: PartitionState, now: float) -> None:
        """Become the leader, as this state says."""
        before = self.state
        if self.is_leader and state.leader_epoch == self.leader_epoch:
            self.state = state
            if self.followers is not None:
                self.followers.renew(state, now)
            if len(state.replicas) > 1 and self.followers is None:
                self.followers = Followers(broker_id, state, self.log.log_end_offset, now)
            if self.is_short_of_replicas and len(before.isr) >= self.least_isr:
                self.commits.fail(CodedError(ErrorCode.not_enough_replicas_after_append))
        else:
            self.log.start_epoch(state.leader_epoch)  # may be refused, and then the state is still to be taken up
            self.state = state
            self.verifications.clear()
            if not self.is_leader:
                self._led_from = (self.log.written_bytes, self.log.log_end_offset)
            self.is_leader = True
            self.leader_epoch = state.leader_epoch
            alone = len(state.replicas) == 1
            self.followers = None if alone else Followers(broker_id, state, self.log.log_end_offset, now)
        if self.is_durable and self.log.synced_offset < self.log.log_end_offset:
            self._flusher.request(self.log, self.synced)
        for session, key in self.follower_sessions.items():
            session.renewed(key)
        self.move_high_watermark()

    def configure(self, settings: LogSettings, rules: IntakeSettings) -> None:
        """Apply changed topic settings."""
        if settings is self.log.settings and rules is self.rules:
            return
        was_durable = self.is_durable
        self.log.configure(settings)
        self.rules = rules
        if self.is_durable:
            if not was_durable:
                self.durable_from = self.log.log_end_offset
            self.flush()
        if self.is_leader:
            self.move_high_watermark()

    def follow(self, state: PartitionState) -> None:
        """Become a follower of this state's leader, if it has one."""
        if self.is_leader:
            self._counted = (self.bytes_in, self.messages_in)
        was_leader, self.is_leader = self.is_leader, False
        renewed = state.leader_epoch != self.leader_epoch
        self.state = state
        self.leader_epoch = state.leader_epoch
        self.followers = None
        if was_leader or renewed:
            self.retire(ErrorCode.not_leader_or_follower)

    def retire(self, code: ErrorCode) -> None:
        """Fail every request that waits here: this broker leads the partition no more, or does not hold it."""
        self.commits.fail(CodedError(code))
        self.written.fail(CodedError(code))
        deletions, self.deletions = self.deletions, None
        if deletions is not None:
            deletions.fail(CodedError(code))
        for watcher in list(self.watchers):
            watcher.finish()
        self._notify_sessions()

    def _notify_sessions(self) -> None:
        for session, key in self.follower_sessions.items():
            session.appended(key)

    def check_leads(self) -> None:
        """`CodedError` unless this broker leads the partition."""
        if not self.is_leader:
            if self.log.offline is not None:
                raise CodedError(ErrorCode.kafka_storage_error, self.log.offline)
            no_leader = self.state.leader == NO_LEADER
            raise CodedError(ErrorCode.leader_not_available if no_leader else ErrorCode.not_leader_or_follower)

    @property
    def bytes_in(self) -> int:
        """Of the batches appended as the leader, by clients and coordinators, since the log was opened."""
        return self._counted[0] + (self.log.written_bytes - self._led_from[0] if self.is_leader else 0)

    @property
    def messages_in(self) -> int:
        """The records in them."""
        return self._counted[1] + (self.log.log_end_offset - self._led_from[1] if self.is_leader else 0)

    @property
    def least_isr(self) -> int:
        """The smallest ISR with which anything is committed."""
        return self.state.least_isr(self.rules.min_insync_replicas)

    @property
    def is_short_of_replicas(self) -> bool:
        count = len(self.state.isr)
        return count < self.rules.min_insync_replicas and count < self.least_isr

    def check_isr(self) -> None:
        """`CodedError` where this broker leads the partition and the ISR is too small for acks=all."""
        count = len(self.state.isr)
        if count < self.rules.min_insync_replicas and self.is_short_of_replicas and self.is_leader:
            raise CodedError(
                ErrorCode.not_enough_replicas,
                f"{count} replica(s) in sync, min.insync.replicas is {self.least_isr}",
            )

    @property
    def is_durable(self) -> bool:
        """Whether records count only once they are on stable storage."""
        return self.log.settings.flush_messages <= 1

    @property
    def is_proven_synced(self) -> bool:
        """Whether everything that was ever acknowledged here is on stable storage, and stays so while it is durable.

        All that was acknowledged before it was durable lay below the end that the log had then.
        """
        log = self.log
        is_synced = log.synced_offset >= min(self.durable_from, log.log_end_offset)
        return self.is_durable and is_synced and log.health is Health.ONLINE

    @property
    def knows_high_watermark(self) -> bool:
        """Whether the high watermark is the true one: a new leader's may lag behind what its predecessor showed."""
        return self.followers is None or self.high_watermark >= self.followers.epoch_start

    @property
    def last_stable_offset(self) -> int:
        """The end of what `read_committed` readers see."""
        return self.log.last_stable_offset(self.high_watermark)

    # Writing

    def append(
        self,
        batch: memoryview,
        header: BatchHeader,
        origin: Origin = Origin.CLIENT,
        now_ms: int = -1,
        version: int = -1,
        is_admitted: bool = False,
    ) -> Appended:
        """Append one batch as the leader. It is committed once the high watermark has passed it: see `commits`.

        A client's is held to the topic's rules at the time `now_ms`, by the version of Produce it came with, unless it
        is admitted already. `SlowBatch` where that takes long: then a thread should `admit` it, and it comes again.
        """
        if not self.is_leader:
            self.check_leads()
        if origin is _CLIENT and not is_admitted:
            batch, header = admit(batch, header, self.rules, now_ms, version)
        appended = self.log.append(batch, header, self.leader_epoch, origin)
        if not appended.duplicate:
            self._after_append(header.record_count)
        return appended

    def needs_verification(self, header: BatchHeader) -> bool:
        """Whether a transactional batch would begin a transaction here, which the coordinator has to know of."""
        self.check_leads()
        return not self.log.has_open_transaction(header.producer_id, header.producer_epoch)

    def append_transactional(
        self,
        batch: memoryview,
        header: BatchHeader,
        verification: Verification | None,
        origin: Origin = Origin.CLIENT,
        *,
        now_ms: int = -1,
        version: int = -1,
        from_zero: bool = False,
        is_admitted: bool = False,
    ) -> Appended:
        """Append a batch of a transaction. `from_zero` where producers number their batches anew in each one."""
        producer_id = header.producer_id
        if self.needs_verification(header):
            self.verifications.check(producer_id, verification)
            if origin is Origin.CLIENT:
                self._check_first_sequence(header, from_zero)
        appended = self.append(batch, header, origin, now_ms=now_ms, version=version, is_admitted=is_admitted)
        self.verifications.end(producer_id)
        return appended

    def _check_first_sequence(self, header: BatchHeader, from_zero: bool) -> None:
        producer_id = header.producer_id
        self.verifications.check_sequence(producer_id, header.producer_epoch, header.base_sequence)
        if from_zero and header.base_sequence and producer_id not in self.log.producers():
            raise CodedError(
                ErrorCode.out_of_order_sequence_number,
                f"a transaction of producer {producer_id} begins with sequence number {header.base_sequence}",
            )

    def append_marker(self, marker: TransactionMarker, *, now_ms: int) -> Appended:
        """End a producer's transaction here, as the leader. One that wrote nothing here has nothing to end."""
        self.check_leads()
        if self.is_short_of_replicas:
            raise CodedError(ErrorCode.not_enough_replicas)
        batch = memoryview(
            encode_marker(
                committed=marker.committed,
                producer_id=marker.producer_id,
                producer_epoch=marker.producer_epoch,
                coordinator_epoch=marker.coordinator_epoch,
                timestamp=now_ms,
            )
        )
        bumped = marker.transaction_version >= EPOCH_BUMPING
        appended = self.log.append(batch, read_header(batch), self.leader_epoch, Origin.COORDINATOR, bumped=bumped)
        self.verifications.marked(marker)
        self._after_append(1)
        return appended

    def _after_append(self, count: int) -> None:
        log = self.log
        if self.follower_sessions:
            self._notify_sessions()
        limit = log.settings.flush_messages
        if limit <= 1:
            self._flusher.request(log, self.synced)
            return
        self._unsynced += count
        if self._unsynced >= limit:
            self.flush()
        if self.followers is None:
            self._advance(log.log_end_offset)
        else:
            self.move_high_watermark()

    def is_acknowledged(self, end_offset: int, acks: int) -> bool:
        """Whether what was appended up to an offset has the acknowledgements that its producer asks for."""
        if end_offset <= self.high_watermark:
            return True
        if acks == 1 and self.followers is not None:
            return not self.is_durable or end_offset <= self.log.synced_offset
        return False

    def wait(self, end_offset: int, acks: int, done: Committed, deadline: float = inf) -> None:
        """`done` is called when it has them, or never will."""
        alone = acks == 1 and self.followers is not None
        (self.written if alone else self.commits).wait(end_offset, done, deadline)

    def flush(self) -> None:
        """Bring the log to stable storage soon."""
        self._unsynced = 0
        self._flusher.request(self.log, self.synced)

    def synced(self) -> None:
        """A sync has ended, well or not: move the high watermark and answer the requests that waited for it."""
        if self.log.offline is not None:
            error = CodedError(ErrorCode.kafka_storage_error, self.log.offline)
            self.commits.fail(error)
            self.written.fail(error)
            self.wake_watchers()
        elif self.is_leader:
            self.written.advance(self.log.synced_offset)
            self.move_high_watermark()
        elif self.on_settled is not None:
            self.on_settled()

    def move_high_watermark(self) -> None:
        """Advance the high watermark to what the whole ISR holds."""
        if self.deletions is not None:
            self._end_deletions(self.deletions)
        log = self.log
        end = log.synced_offset if self.is_durable else log.log_end_offset
        if self.followers is not None:
            if self.is_short_of_replicas:
                return
            end = self.followers.committed_end(end)
        self._advance(end)

    def _advance(self, high_watermark: int) -> None:
        if high_watermark <= self.high_watermark:
            return
        self.high_watermark = high_watermark
        self.commits.advance(high_watermark)
        if self.follower_sessions:
            for session, key in self.follower_sessions.items():
                session.committed(key)
        if self.watchers:
            self.wake_watchers()

    @property
    def low_watermark(self) -> int:
        """Where the log begins on the whole ISR, and on its disks: whoever of it leads next shows nothing below."""
        start = self.log.stored_start_offset
        return start if self.followers is None else self.followers.low_watermark(start)

    def delete_below(self, offset: int, done: Committed, deadline: float = inf) -> None:
        """Move the log start offset, here and on the followers; `done` is called when the whole ISR has moved it."""
        self.log.advance_start(offset)
        for session, key in self.follower_sessions.items():
            session.trimmed(key)
        if self.low_watermark >= offset:
            done(None)
            return
        self.deletions = self.deletions or CommitQueue()
        self.deletions.wait(self.log.log_start_offset, done, deadline)

    def _start_stored(self, error: CodedError | None) -> None:
        """The disk knows where the log starts, or cannot be told for now."""
        if error is None and not self.is_leader and self.on_settled is not None:
            self.on_settled()
        if self.deletions:
            self._end_deletions(self.deletions) if error is None else self.deletions.fail(error)

    def _end_deletions(self, deletions: CommitQueue) -> None:
        deletions.advance(self.low_watermark)
        if not deletions:
            self.deletions = None

    def expire(self, now: float) -> None:
        """End the waits that have lasted too long."""
        for queue in (self.commits, self.written, self.deletions):
            if queue:
                queue.expire(now)

    def wake_watchers(self) -> None:
        """Let every fetch that waits here look again."""
        for watcher in list(self.watchers):
            watcher.poke(self)

    # Reading

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
        """What a consumer's fetch at an offset answers; never beyond the high watermark."""
        self.check_epoch(current_leader_epoch)
        diverging = diverging_at(self.log, offset, last_fetched_epoch, ErrorCode.offset_out_of_range)
        stable = self.last_stable_offset
        end = stable if committed_only else self.high_watermark
        if diverging is None and offset > end:
            self._check_beyond(offset)
        records = None
        aborted: tuple[tuple[int, int], ...] | None = () if committed_only else None
        if diverging is None and offset < end:
            records = self.log.read(offset, max_bytes, end)
            if committed_only and records is not None:
                found = self.log.aborted_within(offset, records, end)
                aborted = tuple([(entry.producer_id, entry.first_offset) for entry in found])
        elif offset < self.log.log_start_offset:
            raise CodedError(ErrorCode.offset_out_of_range)
        start = self.log.log_start_offset
        answer = (self.index, 0, self.high_watermark, stable, start, records, aborted, diverging, NOBODY)
        return _new_tuple(FetchedPartition, answer)

    def _check_beyond(self, offset: int) -> None:
        if offset > self.log.log_end_offset:
            raise CodedError(ErrorCode.offset_out_of_range)

    def available(self, offset: int, *, committed_only: bool) -> int:
        """About how many bytes a reader at an offset can get."""
        end = self.last_stable_offset if committed_only else self.high_watermark
        return self.log.read_bytes_available(offset, end) if offset < end else 0

    # Followers

    def acknowledge(
        self, broker: int, broker_epoch: int, position: FetchPosition, *, now: float, propose: ProposeIsr
    ) -> bool:
        """A follower holds all before its position, so that more may be committed; True where its log diverges."""
        follower = self._follower(broker)
        self.check_epoch(position.leader_epoch)
        if broker_epoch < follower.broker_epoch:
            raise CodedError(ErrorCode.stale_broker_epoch)
        log = self.log
        if log.condition.offline is not None:
            raise CodedError(ErrorCode.kafka_storage_error, log.condition.offline)
        offset = position.offset
        if self._parting(position) is not None:
            return True
        if not log.log_start_offset <= offset <= log.log_end_offset:
            raise CodedError(ErrorCode.offset_out_of_range)
        follower.fetched(offset, log.log_end_offset, broker_epoch, now, position.log_start_offset)
        self.consider(broker, now=now, propose=propose)
        self.move_high_watermark()
        return False

    def withdraw(self, broker: int) -> None:
        """A follower does not follow any more: how far it had come does not count until it tells a position again."""
        follower = None if self.followers is None else self.followers.get(broker)
        if follower is not None:
            follower.end = UNKNOWN

    def consider(self, broker: int, *, now: float, propose: ProposeIsr) -> bool:
        """Propose a follower for the ISR if it has caught up. False if there is nothing to propose."""
        followers = self.followers
        if followers is None or broker not in followers or broker in self.state.isr:
            return False
        if followers.may_join(broker, self.high_watermark, now, self.log.log_start_offset):
            propose(followers.ask_for(joining=[broker]))
        return True

    def begins_before(self, broker: int) -> bool:
        """Whether a follower's log begins earlier than this one, as far as it has told."""
        follower = None if self.followers is None else self.followers.get(broker)
        return follower is not None and follower.start < self.log.log_start_offset

    def _follower(self, broker: int) -> Follower:
        self.check_leads()
        follower = None if self.followers is None else self.followers.get(broker)
        if follower is None:
            raise CodedError(ErrorCode.unknown_leader_epoch, f"broker {broker} holds no replica here")
        return follower

    def _parting(self, position: FetchPosition) -> EpochEnd | None:
        """Where a follower's log parts from this one. One that knows no epoch is empty: it can only begin too late."""
        if position.last_fetched_epoch < 0 and position.offset > self.log.log_end_offset:
            return EpochEnd(self.leader_epoch, self.log.log_end_offset)
        return diverging_at(self.log, position.offset, position.last_fetched_epoch, ErrorCode.unknown_leader_epoch)

    def read_for_follower(self, broker: int, position: FetchPosition, max_bytes: int) -> FetchedPartition:
        """What comes from a follower's position on, to the end of the log.

        One that this leader has not heard of yet is refused, so that it tells its position again: a position that
        was answered counts as told.
        """
        self._follower(broker)
        self.check_epoch(position.leader_epoch)
        log = self.log
        offset = position.offset
        diverging = self._parting(position)
        records = None
        if diverging is None:
            if not log.log_start_offset <= offset <= log.log_end_offset:
                raise CodedError(ErrorCode.offset_out_of_range)
            if offset < log.log_end_offset:
                records = log.read(offset, max_bytes, log.log_end_offset)
                if records is not None:
                    self.replicated_out += records.length
        return FetchedPartition(
            self.index, 0, self.high_watermark, self.last_stable_offset, log.log_start_offset, records, None, diverging
        )

    def drop_laggards(self, now: float, longest: float, propose: ProposeIsr) -> None:
        """Propose an ISR without the followers that lag."""
        followers = self.followers
        if followers is None:
            return
        laggards = followers.laggards(self.log.log_end_offset, now, longest)
        if laggards:
            propose(followers.ask_for(leaving=laggards))

    # Following

    @property
    def position(self) -> tuple[int, int]:
        """How far a follower has come: the end of what it holds, and the latest epoch it knows."""
        epoch = self.log.latest_epoch()
        return self.log.log_end_offset, -1 if epoch is None else epoch

    @property
    def may_follow(self) -> bool:
        """Whether the log can take what a leader sends. Others never tell a position: it would acknowledge."""
        return self.log.health in _FOLLOWING

    @property
    def is_followed(self) -> bool:
        """Whether a fetcher follows the leader for it."""
        return self.on_settled is not None

    @property
    def may_lead(self) -> bool:
        """Whether the log holds what it held, and can be read."""
        return self.log.health in _LEADING

    @property
    def may_acknowledge(self) -> bool:
        """Whether a follower may report its position, which acknowledges what lies before it."""
        return self.may_follow and self.is_settled

    @property
    def is_settled(self) -> bool:
        """Whether everything in the log can be acknowledged."""
        return not self.is_durable or self.log.synced_offset >= self.log.log_end_offset

    def append_fetched(self, records: memoryview, leader: PartitionProgress) -> None:
        """Take what the leader sent for the end of this log."""
        log = self.log
        self.leader_end_offset = leader.log_end_offset
        if len(records):
            self.replicated_in += len(records)
            if log.log_start_offset == log.log_end_offset:
                self._begin_with(records)
            log.append_as_follower(records, leader.log_end_offset)
            if self.is_durable:
                self._flusher.request(log, self.synced)
            log.last_stable_offset(self.high_watermark)
        if log.log_start_offset < leader.log_start_offset <= log.log_end_offset:
            log.advance_start(leader.log_start_offset)
        self._advance(min(leader.high_watermark, log.log_end_offset))

    def _begin_with(self, records: memoryview) -> None:
        """The leader's log may begin inside a batch, whose earlier records were deleted: an empty log that is to
        begin there has to take the whole batch."""
        if len(records) < HEADER_SIZE:
            return
        first = read_header(records)
        if first.base_offset < self.log.log_end_offset <= first.last_offset:
            self.restart_at(first.base_offset)

    def truncate_to_match(self, leader: EpochEnd) -> None:
        """Cut what the leader does not have: everything after the end of the last epoch that both know."""
        log = self.log
        end = log.log_end_offset
        log.truncate_to(agreed_end(log, leader))
        if log.log_end_offset < end:
            logger.warning(
                "log truncated",
                log=log.name,
                end_offset=log.log_end_offset,
                dropped=end - log.log_end_offset,
                leader=self.state.leader,
                reason="the leader does not have these records",
            )
        self.high_watermark = min(self.high_watermark, log.log_end_offset)

    def restart_at(self, offset: int) -> None:
        """Begin anew where the leader's log begins: it has deleted what comes before."""
        self.log.restart_at(offset)
        self.high_watermark = offset


def diverging_at(log: Log, offset: int, last_fetched_epoch: int, unknown: ErrorCode) -> EpochEnd | None:
    """Where the log of someone who stands at an offset parts from this one; None where it does not.

    Raises `CodedError` with the given code for an epoch that nothing is known of.
    """
    if last_fetched_epoch < 0:
        return None
    epoch, end_offset = log.end_offset_for_epoch(last_fetched_epoch)
    if epoch < 0:
        raise CodedError(unknown, f"nothing is known of leader epoch {last_fetched_epoch}")
    if epoch < last_fetched_epoch or end_offset < offset:
        return EpochEnd(epoch, end_offset)
    return None


def agreed_end(log: Log, leader: EpochEnd) -> int:
    """Where a follower's log is to be cut, when its leader says where their epochs part.

    Where the leader's epoch is unknown here the end of the one before it is as far as we can agree, and the next fetch
    asks again from there.
    """
    epoch, own_end = log.end_offset_for_epoch(leader.epoch) if leader.epoch >= 0 else (-1, -1)
    if epoch < 0:
        return leader.end_offset
    return min(leader.end_offset, own_end) if epoch == leader.epoch else own_end
