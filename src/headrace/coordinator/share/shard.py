"""One partition of `__share_group_state`, and the share-partitions whose state is in it.

A share-partition has a snapshot in the log and, after it, updates that are laid over it; after so many of these it gets
another snapshot. So what is in the log before the oldest snapshot that still counts is of no use, and is deleted
(`prune`); where that would keep nearly all, as some share-partitions are never written to again, these get their
snapshot anew at the end.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final
from uuid import UUID

from headrace.coordinator.runtime.batches import Pair
from headrace.coordinator.runtime.decision import Decision
from headrace.coordinator.runtime.fields import LONGEST_ID
from headrace.coordinator.runtime.shard import Phase, Replay, Shard
from headrace.coordinator.runtime.timers import Scheduler
from headrace.net.clock import Clock
from headrace.net.pacing import paced
from headrace.protocol.batch import BatchHeader
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.replication.partition import Partition
from headrace.replication.share_state import (
    ANY_EPOCH,
    NO_SUMMARY,
    UNCHANGED,
    UNINITIALIZED,
    UNKNOWN_COUNT,
    DeliveryState,
    SharePartition,
    ShareState,
    ShareStateChange,
    ShareStateSummary,
    StateBatch,
)

from .batches import combined
from .records import (
    SNAPSHOT,
    UPDATE,
    Snapshot,
    Update,
    decode_key,
    decode_snapshot,
    decode_update,
    encode_key,
    encode_snapshot,
    encode_update,
)

MOST_STALE: Final = 1_000
"""Records in the log of one partition, besides one for each share-partition, before snapshots are written anew."""
LARGEST_EPOCH: Final = 2**30
"""That state can begin in: who takes it from there counts on, in 32 bits."""
_STATES: Final = frozenset(DeliveryState)


class ShareEntry:
    """A share-partition: its state, where its last snapshot is in the log, and how many updates there were since."""

    __slots__ = ("snapshot_at", "state", "updates")

    def __init__(self, state: Snapshot, snapshot_at: int) -> None:
        self.state = state
        self.snapshot_at = snapshot_at
        self.updates = 0


class ShareStateShard(Shard):
    """The share-partitions of one partition."""

    contents = "share groups' state"

    def __init__(self, partition: Partition, clock: Clock, scheduler: Scheduler, updates_per_snapshot: int) -> None:
        super().__init__(partition, clock, scheduler)
        self.entries: dict[SharePartition, ShareEntry] = {}
        self._updates_per_snapshot = updates_per_snapshot
        self._replays: dict[int, Replay] = {SNAPSHOT: self._replay_snapshot, UPDATE: self._replay_update}
        self._offset = 0
        """Of the record that is being replayed, or was written last."""

    # Loading

    @property
    def replays(self) -> Mapping[int, Replay]:
        return self._replays

    def _replay_batch(self, header: BatchHeader, pairs: Sequence[Pair]) -> None:
        self._offset = header.base_offset
        super()._replay_batch(header, pairs)

    def _replay_snapshot(self, key: bytes, value: bytes | None) -> None:
        share_partition = decode_key(key)
        if value is None:
            self.entries.pop(share_partition, None)
        else:
            self.entries[share_partition] = ShareEntry(decode_snapshot(value), self._offset)

    def _replay_update(self, key: bytes, value: bytes | None) -> None:
        """Without a snapshot before it the share-partition is forgotten further on in the log."""
        entry = self.entries.get(decode_key(key))
        if entry is not None and value is not None:
            self._update(entry, decode_update(value))

    def _has_appended(self, records: Sequence[Pair], offset: int) -> None:  # noqa: ARG002
        self._offset = offset

    def _clear(self) -> None:
        self.entries = {}

    def _resign(self, code: ErrorCode) -> None:  # noqa: ARG002 - who waits for a commit is told by the partition
        self._clear()

    # Changes: each is one record, applied alike when it is written and when it is replayed

    def _update(self, entry: ShareEntry, update: Update) -> None:
        state = entry.state
        start_offset = max(state.start_offset, update.start_offset)
        entry.updates += 1
        entry.state = replace(
            state,
            leader_epoch=update.leader_epoch,
            start_offset=start_offset,
            delivery_complete_count=update.delivery_complete_count,
            batches=combined(state.batches, update.batches, start_offset),
        )

    def _write_update(self, key: SharePartition, entry: ShareEntry, update: Update) -> None:
        if entry.updates >= self._updates_per_snapshot:
            made = ShareEntry(entry.state, entry.snapshot_at)
            self._update(made, update)
            self._write_snapshot({key: self._next_snapshot(made.state)})
            return
        decision = Decision(self.now_ms())
        decision.record(encode_key(UPDATE, key), encode_update(update))
        decision.when_written(lambda: self._update(entry, update))
        self.commit(key.group_id, decision)

    def _next_snapshot(self, state: Snapshot) -> Snapshot:
        return replace(state, snapshot_epoch=state.snapshot_epoch + 1, written_ms=self.clock.now_ms())

    def _write_snapshot(self, states: Mapping[SharePartition, Snapshot]) -> None:
        decision = Decision(self.now_ms())
        for key, state in states.items():
            decision.record(encode_key(SNAPSHOT, key), encode_snapshot(state))
        decision.when_written(
            lambda: self.entries.update({key: ShareEntry(state, self._offset) for key, state in states.items()})
        )
        self.commit("", decision)

    def _forget(self, keys: Sequence[SharePartition]) -> None:
        decision = Decision(self.now_ms())
        for key in keys:
            decision.record(encode_key(SNAPSHOT, key), None)
        decision.when_written(lambda: self._drop(keys))
        self.commit("", decision)

    def _drop(self, keys: Sequence[SharePartition]) -> None:
        for key in keys:
            self.entries.pop(key, None)

    # Requests: `CodedError` with the answer otherwise

    def initialize(self, key: SharePartition, state_epoch: int, start_offset: int) -> None:
        """Begin, or begin anew. Leaders that were fenced stay so."""
        _check(key)
        if start_offset < UNINITIALIZED or not 0 <= state_epoch <= LARGEST_EPOCH:
            raise _invalid(f"{key.text} cannot begin at offset {start_offset} in state epoch {state_epoch}")
        entry = self.entries.get(key)
        before = None if entry is None else entry.state
        if before is not None:
            if state_epoch < before.state_epoch:
                raise _fenced_state(key, state_epoch, before)
            if state_epoch == before.state_epoch and start_offset in (UNINITIALIZED, before.start_offset):
                return  # a repetition: what leaders have written since then counts
        now_ms = self.clock.now_ms()
        made = Snapshot(
            snapshot_epoch=0 if before is None else before.snapshot_epoch + 1,
            state_epoch=state_epoch,
            leader_epoch=ANY_EPOCH if before is None else before.leader_epoch,
            start_offset=start_offset,
            delivery_complete_count=UNKNOWN_COUNT if start_offset == UNINITIALIZED else 0,
            created_ms=now_ms if before is None else before.created_ms,
            written_ms=now_ms,
            batches=(),
        )
        self._write_snapshot({key: made})

    def read(self, key: SharePartition, leader_epoch: int) -> ShareState:
        """The state for the leader of that epoch, which is kept: earlier ones are fenced by it."""
        entry = self._entry(key)
        state = entry.state
        if leader_epoch != ANY_EPOCH:
            if leader_epoch < state.leader_epoch:
                raise _fenced_leader(key, leader_epoch, state)
            if leader_epoch > state.leader_epoch:
                self._write_update(key, entry, _of_leader(state, leader_epoch))
        return ShareState(state_epoch=state.state_epoch, start_offset=state.start_offset, batches=state.batches)

    def write(self, key: SharePartition, change: ShareStateChange) -> None:
        """Lay a change over the state, for the leader that has read it."""
        entry = self._entry(key)
        state = entry.state
        if change.state_epoch != state.state_epoch:
            raise _fenced_state(key, change.state_epoch, state)
        if change.leader_epoch < state.leader_epoch:
            raise _fenced_leader(key, change.leader_epoch, state)
        if change.leader_epoch > state.leader_epoch or state.leader_epoch == ANY_EPOCH:
            raise CodedError(
                ErrorCode.fenced_state_epoch, f"leader epoch {change.leader_epoch} of {key.text} has not read its state"
            )
        if change.start_offset < UNCHANGED:
            raise _invalid(f"{key.text} cannot start at offset {change.start_offset}")
        for batch in change.batches:
            _check_batch(key, batch)
        update = Update(
            snapshot_epoch=state.snapshot_epoch,
            leader_epoch=change.leader_epoch,
            start_offset=change.start_offset,
            delivery_complete_count=change.delivery_complete_count,
            batches=combined((), change.batches, change.start_offset),
        )
        self._write_update(key, entry, update)

    def summary(self, key: SharePartition) -> ShareStateSummary:
        """Where the group has come to; nothing is known of one that was never initialized."""
        _check(key)
        entry = self.entries.get(key)
        if entry is None:
            return NO_SUMMARY
        state = entry.state
        return ShareStateSummary(
            state_epoch=state.state_epoch,
            leader_epoch=state.leader_epoch,
            start_offset=state.start_offset,
            delivery_complete_count=state.delivery_complete_count,
        )

    def delete(self, key: SharePartition) -> None:
        """Forget a share-partition."""
        _check(key)
        if key in self.entries:
            self._forget([key])

    def _entry(self, key: SharePartition) -> ShareEntry:
        _check(key)
        entry = self.entries.get(key)
        if entry is None:
            raise _invalid(f"{key.text} was not initialized, or was deleted")
        return entry

    # The log

    async def prune(self, was_deleted: Callable[[UUID], bool]) -> None:
        """Forget the share-partitions of deleted topics, and delete what of the log is of no use any more: not before
        what stands in its place is committed."""
        async for some in paced(_portions([key for key in self.entries if was_deleted(key.topic_id)]), 1):
            if self.phase is Phase.ACTIVE:
                self._forget(some)
        start, end = self.partition.log.log_start_offset, self._end
        if end - start > 2 * len(self.entries) + MOST_STALE:
            middle = start + (end - start) // 2
            old = [key for key, entry in self.entries.items() if entry.snapshot_at < middle]
            async for some in paced(_portions(old), 1):
                if self.phase is Phase.ACTIVE:
                    self._write_snapshot(
                        {key: self._next_snapshot(self.entries[key].state) for key in some if key in self.entries}
                    )
        if self.phase is not Phase.ACTIVE:
            return
        needed = min((entry.snapshot_at for entry in self.entries.values()), default=self._end)
        self.when_committed(lambda: self._delete_below(needed))

    def _delete_below(self, offset: int) -> None:
        if offset > self.partition.log.log_start_offset:
            self.partition.delete_below(offset, lambda _: None)


def _of_leader(state: Snapshot, leader_epoch: int) -> Update:
    """A leader that takes over changes nothing else."""
    return Update(
        snapshot_epoch=state.snapshot_epoch,
        leader_epoch=leader_epoch,
        start_offset=UNCHANGED,
        delivery_complete_count=state.delivery_complete_count,
        batches=(),
    )


def _portions(keys: Sequence[SharePartition], size: int = 100) -> list[Sequence[SharePartition]]:
    return [keys[start : start + size] for start in range(0, len(keys), size)]


def _check(key: SharePartition) -> None:
    if not key.group_id or len(key.group_id) > LONGEST_ID:
        raise _invalid(f"the group id has {len(key.group_id)} characters")
    if key.partition < 0:
        raise _invalid(f"{key.partition} is no partition")


def _check_batch(key: SharePartition, batch: StateBatch) -> None:
    first, last, state, count = batch
    if not 0 <= first <= last or state not in _STATES or count < 0:
        raise _invalid(f"offsets {first} to {last} of {key.text} cannot be in state {state}, delivered {count} times")


def _invalid(message: str) -> CodedError:
    return CodedError(ErrorCode.invalid_request, message)


def _fenced_state(key: SharePartition, state_epoch: int, state: Snapshot) -> CodedError:
    return CodedError(
        ErrorCode.fenced_state_epoch, f"{key.text} is in state epoch {state.state_epoch}, not {state_epoch}"
    )


def _fenced_leader(key: SharePartition, leader_epoch: int, state: Snapshot) -> CodedError:
    return CodedError(
        ErrorCode.fenced_leader_epoch,
        f"{key.text} was read by leader epoch {state.leader_epoch}, after leader epoch {leader_epoch}",
    )
