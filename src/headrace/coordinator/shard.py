"""One partition of the internal topic, and the groups whose state is in it.

What always holds here:

1.  Memory is what the log says, plus what no client has heard of yet. An answer leaves only once everything that was
    written before it is committed; so no client learns what a crash could take back, nor sees it by reading.
2.  A decision whose records cannot be written never happened: the shard forgets everything, tells those who wait that
    it is not available, and reads its log again.
3.  Records are written in the order of the decisions, each decision as one batch.
"""

import asyncio
from collections.abc import Callable, Hashable, Iterable, Sequence
from enum import Enum
from typing import Final

import structlog

from headrace.net.clock import Clock
from headrace.protocol.batch import read_header
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.records import marker_of
from headrace.replication.partition import Partition
from headrace.replication.transactions import Verification
from headrace.storage.disk import StorageError

from .alarms import Alarms, Scheduler
from .effects import Alarm, Effect, Reply, Write
from .group import Group
from .journal import Pair, build_batch, read_batches
from .offsets import Offsets
from .pending import PendingOffsets
from .records import OFFSET_KEYS, BadRecord, group_of, key_kind

log = structlog.get_logger(__name__)

SLICE_BYTES: Final = 128 * 1024
"""How much of the log is read before others get a turn: about 3 ms of work."""

MakeGroup = Callable[[int, str], Group | None]
"""A group for a kind of record (see `records.key_kind`) and an id; None for kinds that nobody here knows."""


class Phase(Enum):
    """Where a shard is between taking over its partition and speaking for its groups."""

    LOADING = "loading"
    ACTIVE = "active"
    FAILED = "failed"
    CLOSED = "closed"


class Shard:
    """The groups of one partition."""

    def __init__(self, partition: Partition, clock: Clock, scheduler: Scheduler, make_group: MakeGroup) -> None:
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        is_new = partition.log.log_start_offset == partition.log.log_end_offset
        self.phase = Phase.ACTIVE if is_new else Phase.LOADING
        self.groups: dict[str, Group] = {}
        self.offsets = Offsets()
        self.pending = PendingOffsets()
        self._ended: list[tuple[int, bool, int]] = []
        """Transactions that ended while the log was read."""
        self.deleted_topics: set[str] = set()
        """Topics that were deleted while the log could not be written; their offsets go once it is loaded."""
        self._clock = clock
        self._make_group = make_group
        self._alarms = Alarms(scheduler, clock, self._ring)
        self._end = partition.log.log_end_offset
        """The offset after the last record that was written, whether committed or not."""

    def now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)

    # Loading

    async def load(self) -> None:
        """Read the log from its start to its end, a slice at a time."""
        if self.phase is Phase.CLOSED:
            return
        self.phase = Phase.LOADING
        self._end = self.partition.log.log_end_offset
        self.groups.clear()
        self.offsets, self.pending, self._ended = Offsets(), PendingOffsets(), []
        try:
            await self._read_log()
            self._catch_up()
            self._forget_deleted()
        except Exception as error:  # whatever its records are, they must not keep the others from loading
            if self.phase is Phase.LOADING:
                self.phase = Phase.FAILED
            is_foreseen = isinstance(error, CodedError | StorageError | BadRecord)
            name = self.partition.log.name
            log.error("groups could not be loaded", partition=name, reason=str(error), exc_info=not is_foreseen)
            return
        if self.phase is not Phase.LOADING:
            return
        self.phase = Phase.ACTIVE
        for group in list(self.groups.values()):
            if self.phase is Phase.ACTIVE:
                self.carry_out(group, group.on_loaded(self.now_ms()))

    async def _read_log(self) -> None:
        records = self.partition.log
        offset = records.log_start_offset
        while offset < self._end and self.phase is Phase.LOADING:
            found = records.read(offset, SLICE_BYTES, self._end)
            if found is None:
                return
            reached = self._replay(found.file.pread(found.length, found.position), offset)
            if reached == offset:
                raise BadRecord(f"there is no whole batch at offset {offset}")
            offset = reached
            await asyncio.sleep(0)

    def _catch_up(self) -> None:
        """Markers are written whether or not the log is being read: those beyond its end as it was count now."""
        for producer_id, committed, offset in self._ended:
            if offset >= self._end:
                self._end_transaction(producer_id, committed, offset)
        self._ended = []

    def _forget_deleted(self) -> None:
        if self.phase is not Phase.LOADING:
            return
        for topic in list(self.deleted_topics):
            for group_id in list(self.offsets.groups()):
                values = self.offsets.topics(group_id).get(topic, ())
                tombstones = self.offsets.tombstones(group_id, topic, list(values))
                if tombstones:
                    self.append(tombstones)
                    self.offsets.forget(tombstones)
            self.deleted_topics.discard(topic)

    def _replay(self, data: bytes, offset: int) -> int:
        """The offset after the last whole batch."""
        for header, pairs in read_batches(data):
            offset = header.last_offset + 1
            if header.is_control:
                marker = marker_of(pairs[0]) if pairs else None
                if marker is not None:
                    self._end_transaction(header.producer_id, marker.committed, header.last_offset)
            elif header.is_transactional:
                self.pending.add(header.producer_id, pairs, header.base_offset)
            else:
                self._take(pairs, header.base_offset)
        return offset

    def _take(self, pairs: Sequence[Pair], offset: int) -> None:
        if self.pending:
            self.pending.note_decided([pair for pair in pairs if key_kind(pair[0]) in OFFSET_KEYS], offset)
        self.offsets.replay(pairs, self._replay_group)

    def _replay_group(self, key: bytes, value: bytes | None) -> None:
        group_id = group_of(key)
        kind = key_kind(key)
        group = self.groups.get(group_id)
        if group is None and value is None:
            return
        made = self._make_group(kind, group_id)
        if made is None:
            return
        if group is None or group.type is not made.type:
            if value is None:
                return
            group = self.groups[group_id] = made
        group.replay(key, value)
        if group.is_dead:
            del self.groups[group_id]

    # Acting

    def carry_out(self, group: Group, effects: Sequence[Effect]) -> None:
        """Do what a group has decided."""
        if group.successor is not None:
            self.groups[group.group_id] = group.successor
        replies = [effect for effect in effects if isinstance(effect, Reply)]
        pairs: list[Pair] = [(effect.key, effect.value) for effect in effects if isinstance(effect, Write)]
        if pairs:
            try:
                self.append(pairs)
            except CodedError as error:
                self._give_up(error, replies)
                return
        for effect in effects:
            if isinstance(effect, Alarm):
                self._alarms.set(group.group_id, effect.name, effect.at_ms)
        if replies:
            self.after_commit(lambda error: _deliver(replies, error))

    def append(self, pairs: Sequence[Pair]) -> None:
        """Write records as one batch; `CodedError` if they cannot be written, and then nothing was."""
        batch = build_batch(pairs, self._clock.now_ms())
        appended = self.partition.append_own(batch, read_header(batch))
        self._end = appended.last_offset + 1
        if self.pending:
            self.pending.note_decided([p for p in pairs if key_kind(p[0]) in OFFSET_KEYS], appended.base_offset)

    # Transactions

    def append_pending(
        self, producer_id: int, producer_epoch: int, pairs: Sequence[Pair], verification: Verification | None
    ) -> None:
        """Write offsets as part of a producer's transaction: they count once that is committed."""
        batch = build_batch(pairs, self._clock.now_ms(), producer_id=producer_id, producer_epoch=producer_epoch)
        appended = self.partition.append_for(batch, read_header(batch), verification)
        self._end = appended.last_offset + 1
        self.pending.add(producer_id, pairs, appended.base_offset)

    def transaction_ended(self, producer_id: int, committed: bool, offset: int) -> None:
        """The marker that ends a producer's transaction was committed at an offset of the partition."""
        if self.phase is Phase.ACTIVE:
            self._end_transaction(producer_id, committed, offset)
        elif self.phase is Phase.LOADING:
            self._ended.append((producer_id, committed, offset))

    def _end_transaction(self, producer_id: int, committed: bool, offset: int) -> None:
        self.offsets.replay(self.pending.end(producer_id, offset, committed=committed), self._replay_group)

    # Ending

    def after_commit(self, done: Callable[[CodedError | None], None]) -> None:
        """Call once everything written so far is committed, or with the error that keeps it from being so."""
        if self.partition.high_watermark >= self._end:
            done(None)
            return

        def committed(error: CodedError | None) -> None:
            if error is not None and self.phase is Phase.ACTIVE:
                self._give_up(error, ())
            done(None if error is None else _unavailable(error))

        self.partition.commits.wait(self._end, committed)

    def replace(self, group: Group) -> None:
        """Put a group in the place of one of the same id, whose members are told to join again."""
        former = self.groups.get(group.group_id)
        if former is not None:
            _deliver(former.resign(ErrorCode.rebalance_in_progress), None)
        self.forget(group.group_id)
        self.groups[group.group_id] = group

    def forget(self, group_id: str) -> None:
        """Drop a group that is no more, with its alarms."""
        self.groups.pop(group_id, None)
        self._alarms.forget(group_id)

    def close(self, code: ErrorCode) -> None:
        """Speak for the groups no longer; everyone who waits is told so."""
        self.phase = Phase.CLOSED
        self._resign(code)

    def _give_up(self, error: CodedError, replies: Iterable[Reply]) -> None:
        log.warning("groups could not be written", partition=self.partition.log.name, reason=error.message)
        self.phase = Phase.FAILED
        _deliver(replies, _unavailable(error))
        self._resign(ErrorCode.coordinator_not_available)

    def _resign(self, code: ErrorCode) -> None:
        self._alarms.clear()
        for group in self.groups.values():
            _deliver(group.resign(code), None)
        self.groups.clear()
        self.offsets, self.pending = Offsets(), PendingOffsets()

    def _ring(self, group_id: str, name: Hashable) -> None:
        group = self.groups.get(group_id)
        if group is None or self.phase is not Phase.ACTIVE:
            return
        self.carry_out(group, group.on_alarm(name, self.now_ms()))


def _unavailable(error: CodedError) -> CodedError:
    return CodedError(ErrorCode.coordinator_not_available, error.message)


def _deliver(replies: Iterable[Reply], error: CodedError | None) -> None:
    """Tokens are futures of the service; a request that nobody waits for any more is left alone."""
    for reply in replies:
        token = reply.token
        assert isinstance(token, asyncio.Future)
        if token.done():
            continue
        if error is None:
            token.set_result(reply.values)
        else:
            token.set_exception(error)
