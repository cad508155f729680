"""One partition of `__consumer_offsets`: the groups whose state is in it, and the offsets that they have committed."""

from collections.abc import Callable, Hashable, Mapping, Sequence

from headrace.coordinator.runtime.batches import Pair, build_batch
from headrace.coordinator.runtime.decision import Decision, deliver
from headrace.coordinator.runtime.fields import key_kind
from headrace.coordinator.runtime.shard import Phase, Replay, Shard
from headrace.coordinator.runtime.timers import Scheduler
from headrace.net.clock import Clock
from headrace.protocol.batch import BatchHeader, read_header
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.records import marker_of
from headrace.replication.partition import Partition
from headrace.replication.transactions import Verification
from headrace.storage.log import Origin

from .classic import CLASSIC
from .group import Group, group_of
from .kinds import GroupKinds
from .offsets.pending import PendingOffsets
from .offsets.records import OFFSET_KEYS
from .offsets.store import Offsets


class GroupShard(Shard):
    """The groups of one partition."""

    contents = "groups"

    def __init__(
        self,
        partition: Partition,
        clock: Clock,
        scheduler: Scheduler,
        kinds: GroupKinds,
        is_serving: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__(partition, clock, scheduler)
        self._kinds = kinds
        self._is_serving = is_serving
        self._replays: dict[int, Replay] = dict.fromkeys(OFFSET_KEYS, self._replay_offset)
        self._replays.update(dict.fromkeys(kinds.records, self._replay_group))
        self.groups: dict[str, Group] = {}
        self.offsets = Offsets()
        self.pending = PendingOffsets()
        self._ended: list[tuple[int, bool, int]] = []
        """Transactions that ended while the log was read."""
        self.deleted_topics: set[str] = set()
        """Topics that were deleted while the log could not be written; their offsets go once it is loaded."""

    def group(self, group_id: str) -> Group | None:
        """The group of that id. One that has only offsets is an empty classic group: Kafka calls it simple."""
        group = self.groups.get(group_id)
        if group is None and group_id in self.offsets:
            group = self._kinds.make(CLASSIC, group_id)
        return group

    # Loading

    @property
    def replays(self) -> Mapping[int, Replay]:
        return self._replays

    def _clear(self) -> None:
        self.groups.clear()
        self.offsets, self.pending, self._ended = Offsets(), PendingOffsets(), []

    def _has_read(self) -> None:
        self._catch_up()
        self._delete_offsets_of_deleted_topics()

    def _is_loaded(self) -> None:
        if self._is_serving():
            self.begin()

    def begin(self) -> None:
        """Start the session timers of members: clients are served from now on."""
        for group in list(self.groups.values()):
            if self.phase is Phase.ACTIVE:
                self.carry_out(group, group.on_loaded(self.now_ms()))

    def _catch_up(self) -> None:
        """Markers are written whether or not the log is being read: those beyond its end as it was count now."""
        for producer_id, committed, offset in self._ended:
            if offset >= self._end:
                self._end_transaction(producer_id, committed, offset)
        self._ended = []

    def _delete_offsets_of_deleted_topics(self) -> None:
        for topic in list(self.deleted_topics):
            for group_id in self.groups_with_offsets():
                self.delete_offsets(group_id, self.tombstones(group_id, topic))
            self.deleted_topics.discard(topic)

    def _replay_batch(self, header: BatchHeader, pairs: Sequence[Pair]) -> None:
        if header.is_control:
            marker = marker_of(pairs[0]) if pairs else None
            if marker is not None:
                self._end_transaction(header.producer_id, marker.committed, header.last_offset)
        elif header.is_transactional:
            self.pending.add(header.producer_id, pairs, header.base_offset)
        else:
            self._note_decided(pairs, header.base_offset)
            self.offsets.replay(pairs, self.replay)

    def _replay_offset(self, key: bytes, value: bytes | None) -> None:
        self.offsets.replay(((key, value),), self.replay)

    def _replay_group(self, key: bytes, value: bytes | None) -> None:
        group_id = group_of(key)
        kind = self._kinds.of_record(key_kind(key))
        group = self.groups.get(group_id)
        if group is None or group.type is not kind.type:
            if value is None:
                return
            group = self.groups[group_id] = self._kinds.make(kind, group_id)
        group.replay(key, value)
        if group.is_dead:
            del self.groups[group_id]

    # Groups

    def carry_out(self, group: Group, decision: Decision) -> None:
        """Let a decision of a group take effect. One that cannot be written makes the shard give up: a group also keeps
        what no record does, as its waiting members. A group that has become one of another kind gives way to it."""
        try:
            self.commit(group.group_id, decision)
        except CodedError as error:
            deliver(group.resign(ErrorCode.coordinator_not_available))
            self.give_up(error, decision.replies)
            return
        if group.successor is not None and self.groups.get(group.group_id) is group:
            self.groups[group.group_id] = group.successor

    def put(self, group: Group) -> None:
        """Put a group in the place of any other of its id, whose waiting members get REBALANCE_IN_PROGRESS."""
        former = self.groups.get(group.group_id)
        if former is not None:
            deliver(former.resign(ErrorCode.rebalance_in_progress))
        self._forget(group.group_id)
        self.groups[group.group_id] = group

    def remove(self, group: Group) -> None:
        """Delete a group and its offsets; `CodedError` if that cannot be written."""
        decision = Decision(self.now_ms())
        offsets = self.tombstones(group.group_id)
        decision.records += [*offsets, *group.tombstones()]
        decision.when_written(lambda: self.offsets.forget(offsets))
        decision.when_written(lambda: self._forget(group.group_id))
        self.commit(group.group_id, decision)

    def _forget(self, group_id: str) -> None:
        self.groups.pop(group_id, None)
        self.timers.cancel(group_id)

    def _on_timer(self, key: str, name: Hashable) -> None:
        group = self.groups.get(key)
        if group is not None and self.phase is Phase.ACTIVE:
            self.carry_out(group, group.on_timer(name, self.now_ms()))

    def _resign(self, code: ErrorCode) -> None:
        for group in self.groups.values():
            deliver(group.resign(code))
        self._clear()

    # Offsets

    def groups_with_offsets(self) -> list[str]:
        """The groups that have committed anything, be it in a transaction that is open."""
        return list(dict.fromkeys([*self.offsets.groups(), *self.pending.groups()]))

    def tombstones(self, group_id: str, topic: str | None = None) -> list[Pair]:
        """The records that delete all offsets of a group, of one topic or of all: also those of open transactions,
        which would come back with their markers."""
        topics = self.offsets.topics(group_id)
        names = topics if topic is None else [topic] if topic in topics else []
        known = [pair for name in names for pair in self.offsets.tombstones(group_id, name, topics[name])]
        keys = {key for key, _ in known}
        return known + [(key, None) for key in self.pending.keys(group_id, topic) if key not in keys]

    def delete_offsets(self, group_id: str, tombstones: Sequence[Pair]) -> None:
        """Write tombstones of a group's offsets; `CodedError` if that cannot be."""
        decision = Decision(self.now_ms())
        decision.records += tombstones
        decision.when_written(lambda: self.offsets.forget(tombstones))
        self.commit(group_id, decision)

    def _has_appended(self, records: Sequence[Pair], offset: int) -> None:
        self._note_decided(records, offset)

    def _note_decided(self, records: Sequence[Pair], offset: int) -> None:
        if self.pending:
            self.pending.note_decided([pair for pair in records if key_kind(pair[0]) in OFFSET_KEYS], offset)

    # Transactions

    def append_pending(
        self, producer_id: int, producer_epoch: int, pairs: Sequence[Pair], verification: Verification | None
    ) -> None:
        """Write offsets as part of a producer's transaction: they count once that is committed."""
        batch = build_batch(pairs, self.clock.now_ms(), producer_id=producer_id, producer_epoch=producer_epoch)
        appended = self.partition.append_transactional(batch, read_header(batch), verification, Origin.COORDINATOR)
        self._end = appended.last_offset + 1
        self.pending.add(producer_id, pairs, appended.base_offset)

    def transaction_ended(self, producer_id: int, committed: bool, offset: int) -> None:
        """The marker that ends a producer's transaction was committed at an offset of the partition."""
        if self.phase is Phase.ACTIVE:
            self._end_transaction(producer_id, committed, offset)
        elif self.phase is Phase.LOADING:
            self._ended.append((producer_id, committed, offset))

    def _end_transaction(self, producer_id: int, committed: bool, offset: int) -> None:
        self.offsets.replay(self.pending.end(producer_id, offset, committed=committed), self.replay)
