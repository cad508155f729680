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

import structlog

from headrace.coordinator.groups.offsets.pending import PendingOffsets
from headrace.coordinator.groups.offsets.records import OFFSET_KEYS
from headrace.coordinator.groups.offsets.store import Offsets
from headrace.coordinator.runtime.batches import Pair, build_batch
from headrace.coordinator.runtime.decision import Alarm, Effect, Reply, Write
from headrace.coordinator.runtime.fields import key_kind
from headrace.coordinator.runtime.shard import Phase, Shard, unavailable
from headrace.coordinator.runtime.timers import Alarms, Scheduler
from headrace.net.clock import Clock
from headrace.protocol.batch import BatchHeader, read_header
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.records import marker_of
from headrace.replication.partition import Partition
from headrace.replication.transactions import Verification
from headrace.storage.log import Origin

from .classic.records import CLASSIC_KEY
from .group import Group, group_of

log = structlog.get_logger(__name__)

MakeGroup = Callable[[int, str], Group | None]
"""A group for a kind of record (see `records.key_kind`) and an id; None for kinds that nobody here knows."""


class GroupShard(Shard):
    """The groups of one partition."""

    contents = "groups"

    def __init__(
        self,
        partition: Partition,
        clock: Clock,
        scheduler: Scheduler,
        make_group: MakeGroup,
        is_serving: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__(partition)
        self._is_serving = is_serving
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

    def now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)

    def group(self, group_id: str) -> Group | None:
        """The group of that id. One that has only offsets is an empty classic group: Kafka calls it simple."""
        group = self.groups.get(group_id)
        if group is None and group_id in self.offsets:
            group = self._make_group(CLASSIC_KEY, group_id)
        return group

    # Loading

    def _forget(self) -> None:
        self.groups.clear()
        self.offsets, self.pending, self._ended = Offsets(), PendingOffsets(), []

    def _has_read(self) -> None:
        self._catch_up()
        self._forget_deleted()

    def _is_loaded(self) -> None:
        if self._is_serving():
            self.begin()

    def begin(self) -> None:
        """Let the time of members run, who can be heard from now on."""
        for group in list(self.groups.values()):
            if self.phase is Phase.ACTIVE:
                self.carry_out(group, group.on_loaded(self.now_ms()))

    def _catch_up(self) -> None:
        """Markers are written whether or not the log is being read: those beyond its end as it was count now."""
        for producer_id, committed, offset in self._ended:
            if offset >= self._end:
                self._end_transaction(producer_id, committed, offset)
        self._ended = []

    def _forget_deleted(self) -> None:
        for topic in list(self.deleted_topics):
            for group_id in self.groups_with_offsets():
                tombstones = self.tombstones(group_id, topic)
                if tombstones:
                    self.append(tombstones)
                    self.offsets.forget(tombstones)
            self.deleted_topics.discard(topic)

    def _replay(self, header: BatchHeader, pairs: Sequence[Pair]) -> None:
        if header.is_control:
            marker = marker_of(pairs[0]) if pairs else None
            if marker is not None:
                self._end_transaction(header.producer_id, marker.committed, header.last_offset)
        elif header.is_transactional:
            self.pending.add(header.producer_id, pairs, header.base_offset)
        else:
            self._take(pairs, header.base_offset)

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
        appended = self.partition.append(batch, read_header(batch), Origin.COORDINATOR)
        self._end = appended.last_offset + 1
        if self.pending:
            self.pending.note_decided([p for p in pairs if key_kind(p[0]) in OFFSET_KEYS], appended.base_offset)

    def write(self, pairs: Sequence[Pair]) -> None:
        """Write records that no group decided on: offsets, tombstones. If they cannot be written nothing changes."""
        try:
            self.append(pairs)
        except CodedError as error:
            raise unavailable(error) from error

    def remove(self, group: Group) -> None:
        """Write a group and its offsets out of the log, and forget them."""
        offsets = self.tombstones(group.group_id)
        own: list[Pair] = [(write.key, write.value) for write in group.tombstones()]
        self.write([*offsets, *own])
        self.offsets.forget(offsets)
        self.forget(group.group_id)

    # Transactions

    def append_pending(
        self, producer_id: int, producer_epoch: int, pairs: Sequence[Pair], verification: Verification | None
    ) -> None:
        """Write offsets as part of a producer's transaction: they count once that is committed."""
        batch = build_batch(pairs, self._clock.now_ms(), producer_id=producer_id, producer_epoch=producer_epoch)
        appended = self.partition.append_transactional(batch, read_header(batch), verification, Origin.COORDINATOR)
        self._end = appended.last_offset + 1
        self.pending.add(producer_id, pairs, appended.base_offset)

    def groups_with_offsets(self) -> list[str]:
        """The groups that have committed anything, be it in a transaction that is open."""
        return list(dict.fromkeys([*self.offsets.groups(), *self.pending.groups()]))

    def tombstones(self, group_id: str, topic: str | None = None) -> list[Pair]:
        """The records that forget all offsets of a group, of one topic or of all: also those of open transactions,
        which would come back with their markers."""
        topics = self.offsets.topics(group_id)
        names = topics if topic is None else [topic] if topic in topics else []
        known = [pair for name in names for pair in self.offsets.tombstones(group_id, name, topics[name])]
        keys = {key for key, _ in known}
        return known + [(key, None) for key in self.pending.keys(group_id, topic) if key not in keys]

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
            done(None if error is None else unavailable(error))

        self.partition.commits.wait(self._end, committed)

    async def committed(self) -> None:
        """Returns once everything that was written so far is committed."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def committed(error: CodedError | None) -> None:
            if not done.done():
                done.set_exception(error) if error is not None else done.set_result(None)

        self.after_commit(committed)
        await done

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

    def close(self) -> None:
        """Speak for the groups no longer; everyone who waits is told to ask who speaks for them."""
        self.phase = Phase.CLOSED
        self._resign(ErrorCode.not_coordinator)

    def _give_up(self, error: CodedError, replies: Iterable[Reply]) -> None:
        log.warning("groups could not be written", partition=self.partition.log.name, reason=error.message)
        self.phase = Phase.FAILED
        _deliver(replies, unavailable(error))
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
