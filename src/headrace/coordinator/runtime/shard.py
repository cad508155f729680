"""One partition of an internal topic that this broker leads, and the state that its records keep.

What always holds:

1.  State is what the log says: it is changed by replaying records, and by decisions whose records are written. A
    decision whose records cannot be written has not happened.
2.  Records are written in the order of the decisions, each decision as one batch.
3.  A reply leaves, and whatever else follows from a decision, only once its records are committed: nobody learns what a
    crash could take back, nor sees it by reading.
4.  Where what was written cannot be committed the shard gives up: requests that wait get
    COORDINATOR_NOT_AVAILABLE, and the log is read again with the next one.

Whatever keeps state on an internal topic is a subclass: it says how each kind of record is replayed, and what becomes
of those who wait when the shard is closed or gives up.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from enum import Enum
from math import inf
from typing import ClassVar, Final

import structlog

from headrace.net.clock import Clock
from headrace.protocol.batch import BatchHeader, read_header
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.replication.partition import Partition
from headrace.storage.disk import StorageError
from headrace.storage.log import Origin

from .batches import Pair, build_batch, read_batches
from .decision import Decision, Reply, deliver
from .fields import BadRecord, key_kind
from .timers import Scheduler, Timers

log = structlog.get_logger(__name__)

SLICE_BYTES: Final = 128 * 1024
"""How much of the log is read before other work runs: about 3 ms."""

Replay = Callable[[bytes, bytes | None], None]
"""Takes the key and the value of a record, as they were once written; a value of None is a tombstone."""
Done = Callable[[CodedError | None], None]


class Phase(Enum):
    """Where a shard is between taking over its partition and coordinating what is in it."""

    LOADING = "loading"
    ACTIVE = "active"
    FAILED = "failed"
    CLOSED = "closed"


class Shard(ABC):
    """A partition and its state, which is served once it is loaded."""

    contents: ClassVar[str]
    """What the state is, for the log."""

    def __init__(self, partition: Partition, clock: Clock, scheduler: Scheduler) -> None:
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        is_new = partition.log.log_start_offset == partition.log.log_end_offset
        self.phase = Phase.ACTIVE if is_new else Phase.LOADING
        self.failures = 0
        """How often in a row the log could not be read."""
        self.failure = ""
        """Why, the last time."""
        self.clock = clock
        self.timers = Timers(scheduler, clock, self._on_timer)
        self._end = partition.log.log_end_offset
        """What is before this offset is in the state."""
        self._loads = 0

    def now_ms(self) -> int:
        """The time that timers go by."""
        return int(self.clock.monotonic() * 1000)

    # What a kind of state says; the methods that are not abstract do nothing unless they are overridden

    @property
    @abstractmethod
    def replays(self) -> Mapping[int, Replay]:
        """How records are replayed, by their kind (`fields.key_kind`); others are passed over."""

    @abstractmethod
    def _clear(self) -> None:
        """Start from nothing: the log is read next."""

    @abstractmethod
    def _resign(self, code: ErrorCode) -> None:
        """Answer everyone who waits with a code, and forget the state."""

    def _has_read(self) -> None:  # noqa: B027
        """All is read, but nobody is answered yet. What is raised here makes the load fail."""

    def _is_loaded(self) -> None:  # noqa: B027
        """Begin to act."""

    def _on_timer(self, key: str, name: Hashable) -> None:  # noqa: B027
        """A timer that a decision has set expires."""

    def _has_appended(self, records: Sequence[Pair], offset: int) -> None:  # noqa: B027
        """Records were written at an offset."""

    # Loading

    async def load(self) -> None:
        """Read the log from its start to its end, a slice at a time."""
        if self.phase is Phase.CLOSED:
            return
        self.phase = Phase.LOADING
        self._loads += 1
        self._end = self.partition.log.log_end_offset
        self._clear()
        try:
            await self._read_log(self._end)
            if self.phase is Phase.LOADING:
                self._has_read()
        except Exception as error:  # whatever its records are, they must not keep the others from loading
            self._load_failed(error)
            return
        if self.phase is Phase.LOADING:
            self.phase = Phase.ACTIVE
            self.failures = 0
            self._is_loaded()

    def _load_failed(self, error: Exception) -> None:
        if self.phase is Phase.LOADING:
            self.phase = Phase.FAILED
        self.failures += 1
        self.failure = str(error)
        is_foreseen = isinstance(error, CodedError | StorageError | BadRecord)
        event = f"{self.contents} could not be loaded"
        log.error(event, partition=self.partition.log.name, reason=str(error), exc_info=not is_foreseen)

    async def _read_log(self, end: int) -> None:
        records = self.partition.log
        offset = records.log_start_offset
        while offset < end and self.phase is Phase.LOADING:
            found = records.read(offset, SLICE_BYTES, end)
            if found is None:
                return
            reached = offset
            for header, pairs in read_batches(found.file.pread(found.length, found.position)):
                self._replay_batch(header, pairs)
                reached = header.last_offset + 1
            if reached == offset:
                raise BadRecord(f"there is no whole batch at offset {offset}")
            offset = reached
            await asyncio.sleep(0)

    def _replay_batch(self, header: BatchHeader, pairs: Sequence[Pair]) -> None:  # noqa: ARG002 - for those who need it
        for key, value in pairs:
            self.replay(key, value)

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Take a record in, by its kind."""
        replay = self.replays.get(key_kind(key))
        if replay is not None:
            replay(key, value)

    # Acting

    def commit(self, key: str, decision: Decision) -> None:
        """Let a decision about a key take effect. `CodedError` if it cannot be written: then nothing has changed."""
        if decision.records:
            try:
                self._append(decision.records)
            except CodedError as error:
                raise unavailable(error) from error
        decision.take_effect()
        for name, at_ms in decision.timers:
            self.timers.set(key, name, at_ms)
        if decision.replies:
            self.after_commit(lambda error: deliver(decision.replies, error))
        for follow_up in decision.follow_ups:
            self.when_committed(follow_up)

    def _append(self, records: Sequence[Pair]) -> None:
        batch = build_batch(records, self.clock.now_ms())
        appended = self.partition.append(batch, read_header(batch), Origin.COORDINATOR)
        self._end = appended.last_offset + 1
        self._has_appended(records, appended.base_offset)

    def after_commit(self, done: Done, end: int | None = None, deadline: float = inf) -> None:
        """Call once everything written so far, or all before an offset, is committed, or with the error that keeps it
        from being so: where that is not only late the shard gives up."""
        end = self._end if end is None else end
        if self.partition.high_watermark >= end:
            done(None)
            return

        def committed(error: CodedError | None) -> None:
            if error is not None and error.code is not ErrorCode.request_timed_out:
                self.give_up(error)
            done(None if error is None else unavailable(error))

        self.partition.commits.wait(end, committed, deadline)

    def when_committed(self, follow_up: Callable[[], None]) -> None:
        """Call once everything written so far is committed, unless the state was forgotten meanwhile."""
        loads = self._loads

        def committed(error: CodedError | None) -> None:
            if error is None and self.phase is Phase.ACTIVE and loads == self._loads:
                follow_up()

        self.after_commit(committed)

    async def committed(self, end: int | None = None, deadline: float = inf) -> None:
        """Returns once everything written so far, or all before an offset, is committed; `CodedError` otherwise."""
        if self.partition.high_watermark >= (self._end if end is None else end):
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def committed(error: CodedError | None) -> None:
            if not done.done():
                done.set_exception(error) if error is not None else done.set_result(None)

        self.after_commit(committed, end, deadline)
        await done

    # Ending

    def give_up(self, error: CodedError, replies: Iterable[Reply] = ()) -> None:
        """What was decided here may never be committed: forget it, and read the log again with the next request."""
        deliver(replies, unavailable(error))
        if self.phase is Phase.ACTIVE:
            log.warning(
                f"{self.contents} could not be written", partition=self.partition.log.name, reason=error.message
            )
            self.phase = Phase.FAILED
            self.timers.clear()
            self._resign(ErrorCode.coordinator_not_available)

    def close(self) -> None:
        """This broker is no longer the coordinator: requests that wait get NOT_COORDINATOR."""
        self.phase = Phase.CLOSED
        self.timers.clear()
        self._resign(ErrorCode.not_coordinator)


def unavailable(error: CodedError) -> CodedError:
    """The answer when something could not be written or committed: COORDINATOR_NOT_AVAILABLE, so that clients retry."""
    return CodedError(ErrorCode.coordinator_not_available, error.message)
