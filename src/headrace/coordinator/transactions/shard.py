"""One partition of `__transaction_state`, and the transactional ids whose state is in it.

A marker is sent only once the record that it follows from is committed: no partition learns of an end that a crash
could take back.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from headrace.coordinator.runtime.decision import Decision
from headrace.coordinator.runtime.shard import Replay, Shard
from headrace.coordinator.runtime.timers import Scheduler
from headrace.net.clock import Clock
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.replication.partition import Partition

from .model import TransactionMetadata
from .records import KEY, decode_key, decode_value, encode_key, encode_value
from .states import TransactionState

log = structlog.get_logger(__name__)

ANSWER_SECONDS: Final = 10.0
"""How long an answer waits for its record to be committed; the record may be later, and what follows from it is."""

Prepared = Callable[["TransactionShard", TransactionMetadata], None]
"""Called when the end of a transaction is committed: its markers are to be written."""


class TxnEntry:
    """A transactional id: its transaction, and the end of the log when that was written."""

    __slots__ = ("end", "ended_by", "is_fenced", "settled", "since", "transaction")

    def __init__(self, transaction: TransactionMetadata, end: int, since: float) -> None:
        self.transaction = transaction
        self.end = end
        self.since = since
        """When the transaction began, on a clock that nobody sets: one on which it can be timed out."""
        self.settled: asyncio.Future[None] | None = None
        """Done when the transaction is no longer being ended; there while a request waits for that."""
        self.ended_by: tuple[int, int, int] | None = None
        """The producer id and epoch of the last one that ended a transaction, and the number of its connection."""
        self.is_fenced = False
        """Whether a later coordinator of the id has written markers: this one has nothing to say about it any more."""


class TransactionShard(Shard):
    """The transactional ids of one partition."""

    contents = "transactions"

    def __init__(self, partition: Partition, clock: Clock, scheduler: Scheduler, prepared: Prepared) -> None:
        super().__init__(partition, clock, scheduler)
        self.entries: dict[str, TxnEntry] = {}
        self._prepared = prepared

    # Loading

    @property
    def replays(self) -> Mapping[int, Replay]:
        return {KEY: self._replay_transaction}

    def _replay_transaction(self, key: bytes, value: bytes | None) -> None:
        transactional_id = decode_key(key)
        assert transactional_id is not None, "records of other kinds are not replayed here"
        if value is None:
            self.entries.pop(transactional_id, None)
        else:
            transaction = decode_value(transactional_id, value)
            self.entries[transactional_id] = TxnEntry(transaction, self._end, self._began(transaction))

    def _began(self, transaction: TransactionMetadata) -> float:
        """When a transaction began that is found in the log: by the time of day, of which there is no other."""
        lasted_ms = min(max(self.clock.now_ms() - transaction.start_ms, 0), transaction.timeout_ms)
        return self.clock.monotonic() - lasted_ms / 1000

    def _is_loaded(self) -> None:
        """Go on with what was being ended."""
        for entry in list(self.entries.values()):
            if entry.transaction.is_prepared:
                self._send_markers_when_committed(entry.transaction)

    def _clear(self) -> None:
        self.entries = {}

    def _resign(self, code: ErrorCode) -> None:  # noqa: ARG002 - requests that wait are decided anew, and refused then
        entries, self.entries = self.entries, {}
        for entry in entries.values():
            _settle(entry)

    # Acting

    def get(self, transactional_id: str) -> TransactionMetadata | None:
        entry = self.entries.get(transactional_id)
        return None if entry is None else entry.transaction

    def put(self, transaction: TransactionMetadata) -> None:
        """Keep a transaction; the markers of a prepared one are sent once it is committed.

        `CodedError` if it cannot be written, and then nothing has changed.
        """
        decision = Decision(self.now_ms())
        decision.record(encode_key(transaction.transactional_id), encode_value(transaction))
        decision.when_written(lambda: self._put(transaction))
        if transaction.is_prepared:
            decision.follow_ups.append(lambda: self._prepared(self, transaction))
        self.commit(transaction.transactional_id, decision)

    def _put(self, transaction: TransactionMetadata) -> None:
        entry = self.entries.get(transaction.transactional_id)
        if entry is None:
            entry = TxnEntry(transaction, self._end, self.clock.monotonic())
            self.entries[transaction.transactional_id] = entry
        if entry.transaction.state is not TransactionState.ONGOING:
            entry.since = self.clock.monotonic()
        entry.transaction, entry.end = transaction, self._end
        if not transaction.is_prepared:
            _settle(entry)

    def forget(self, transactional_id: str) -> None:
        """Delete an id that has expired."""
        decision = Decision(self.now_ms())
        decision.record(encode_key(transactional_id), None)
        decision.when_written(lambda: self._forget(transactional_id))
        self.commit(transactional_id, decision)

    def _forget(self, transactional_id: str) -> None:
        self.entries.pop(transactional_id, None)

    def _send_markers_when_committed(self, transaction: TransactionMetadata) -> None:
        self.when_committed(lambda: self._prepared(self, transaction))

    def lasted_ms(self, transactional_id: str) -> int:
        """For how long the transaction of an id has lasted, whatever was done to the time of day meanwhile."""
        return round((self.clock.monotonic() - self.entries[transactional_id].since) * 1000)

    async def id_committed(self, transactional_id: str) -> None:
        """Returns once everything that is known of an id is committed; `CodedError` where that does not happen."""
        entry = self.entries.get(transactional_id)
        await self.committed(None if entry is None else entry.end, self.clock.monotonic() + ANSWER_SECONDS)

    def settled(self, transactional_id: str) -> "asyncio.Future[None]":
        """Done when the transaction of an id, which is being ended, no longer is, or is no longer ours."""
        entry = self.entries[transactional_id]
        if entry.settled is None:
            entry.settled = asyncio.get_running_loop().create_future()
        return entry.settled

    def is_ending(self, transaction: TransactionMetadata) -> bool:
        """Whether the markers of a prepared transaction are this coordinator's to send."""
        entry = self.entries.get(transaction.transactional_id)
        return entry is not None and entry.transaction is transaction and not entry.is_fenced

    def fence(self, transactional_id: str) -> None:
        """A partition has a marker of a later coordinator: who asks for the id is to look for that one."""
        entry = self.entries.get(transactional_id)
        if entry is not None:
            entry.is_fenced = True
            _settle(entry)
            log.error(
                "a later coordinator has written markers of a transactional id",
                id=transactional_id,
                partition=self.partition.log.name,
                epoch=self.leader_epoch,
            )

    def check_not_fenced(self, transactional_id: str) -> None:
        """NOT_COORDINATOR where there is a later coordinator of an id, of which this broker does not know yet."""
        entry = self.entries.get(transactional_id)
        if entry is not None and entry.is_fenced:
            raise CodedError(
                ErrorCode.not_coordinator, f"a later coordinator has written markers of {transactional_id!r}"
            )


def _settle(entry: TxnEntry) -> None:
    settled, entry.settled = entry.settled, None
    if settled is not None and not settled.done():
        settled.set_result(None)
