"""One partition of `__transaction_state`, and the transactional ids whose state is in it.

What always holds here:

1.  Memory is what the log says, plus what nobody has heard of yet: an answer leaves, and a marker is sent, only once
    the record that it follows from is committed. So no partition learns of an end that a crash could take back.
2.  What cannot be written never happened. What was written and cannot be committed here is forgotten: the shard reads
    its log again, or another broker does.
"""

import asyncio
from collections.abc import Callable, Sequence
from math import inf
from typing import Final

import structlog

from headrace.coordinator.runtime.batches import Pair, build_batch
from headrace.coordinator.runtime.shard import Phase, Shard, unavailable
from headrace.net.clock import Clock
from headrace.protocol.batch import BatchHeader, read_header
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.replication.partition import Partition
from headrace.storage.log import Origin

from .model import Transaction
from .records import decode_key, decode_value, encode_key, encode_value
from .states import State

log = structlog.get_logger(__name__)

ANSWER_SECONDS: Final = 10.0
"""How long an answer waits for its record to be committed; the record may be later, and what follows from it is."""

Prepared = Callable[["TransactionShard", Transaction], None]
"""Called when it is certain how a transaction ends: its partitions are to be told."""


class Entry:
    """A transactional id: its transaction, and the end of the log when that was written."""

    __slots__ = ("end", "ended_by", "is_fenced", "settled", "since", "transaction")

    def __init__(self, transaction: Transaction, end: int, since: float) -> None:
        self.transaction = transaction
        self.end = end
        self.since = since
        """When the transaction began, on a clock that nobody sets: one on which it can be timed out."""
        self.settled: asyncio.Future[None] | None = None
        """Done when the transaction is no longer being ended; there while somebody waits for that."""
        self.ended_by: tuple[int, int, int] | None = None
        """The producer id and epoch of the last one that ended a transaction, and the number of its connection."""
        self.is_fenced = False
        """Whether a later coordinator of the id has written markers: this one has nothing to say about it any more."""


class TransactionShard(Shard):
    """The transactional ids of one partition."""

    contents = "transactions"

    def __init__(self, partition: Partition, clock: Clock, prepared: Prepared) -> None:
        super().__init__(partition)
        self.entries: dict[str, Entry] = {}
        self._clock = clock
        self._prepared = prepared
        self._loads = 0

    # Loading

    def _forget(self) -> None:
        self._loads += 1
        self.entries.clear()

    def _replay(self, header: BatchHeader, pairs: Sequence[Pair]) -> None:
        for key, value in pairs:
            transactional_id = decode_key(key)
            if transactional_id is None:
                continue
            if value is None:
                self.entries.pop(transactional_id, None)
            else:
                transaction = decode_value(transactional_id, value)
                self.entries[transactional_id] = Entry(transaction, header.last_offset + 1, self._began(transaction))

    def _began(self, transaction: Transaction) -> float:
        """When a transaction began that is found in the log: by the time of day, of which there is no other."""
        lasted_ms = min(max(self._clock.now_ms() - transaction.start_ms, 0), transaction.timeout_ms)
        return self._clock.monotonic() - lasted_ms / 1000

    def _has_read(self) -> None:
        for entry in self.entries.values():
            entry.end = self._end

    def _is_loaded(self) -> None:
        """Go on with what was being ended."""
        for entry in list(self.entries.values()):
            if entry.transaction.is_prepared:
                self._tell_after_commit(entry.transaction, self._end)

    # Acting

    def get(self, transactional_id: str) -> Transaction | None:
        entry = self.entries.get(transactional_id)
        return None if entry is None else entry.transaction

    def write(self, transaction: Transaction) -> None:
        """Keep a transaction; a prepared one is told to its partitions once that is certain.

        `CodedError` if it cannot be written, and then nothing has changed.
        """
        transactional_id = transaction.transactional_id
        end = self._append(transactional_id, encode_value(transaction))
        entry = self.entries.get(transactional_id)
        if entry is None:
            entry = self.entries[transactional_id] = Entry(transaction, end, self._clock.monotonic())
        if entry.transaction.state is not State.ONGOING:
            entry.since = self._clock.monotonic()
        entry.transaction, entry.end = transaction, end
        if transaction.is_prepared:
            self._tell_after_commit(transaction, end)
        else:
            _settle(entry)

    def lasted_ms(self, transactional_id: str) -> int:
        """For how long the transaction of an id has lasted, whatever was done to the time of day meanwhile."""
        return round((self._clock.monotonic() - self.entries[transactional_id].since) * 1000)

    def forget(self, transactional_id: str) -> None:
        """Let go of an id that has expired."""
        self._append(transactional_id, None)
        self.entries.pop(transactional_id, None)

    def _append(self, transactional_id: str, value: bytes | None) -> int:
        batch = build_batch([(encode_key(transactional_id), value)], self._clock.now_ms())
        try:
            return self.partition.append(batch, read_header(batch), Origin.COORDINATOR).last_offset + 1
        except CodedError as error:
            raise unavailable(error) from error

    def _tell_after_commit(self, transaction: Transaction, end: int) -> None:
        loads = self._loads

        def committed(error: CodedError | None) -> None:
            if error is not None:
                self.give_up(error)
            elif self.phase is Phase.ACTIVE and loads == self._loads:
                self._prepared(self, transaction)

        self._after_commit(end, committed, inf)

    async def committed(self, transactional_id: str) -> None:
        """Returns once everything that is known of an id is committed; `CodedError` where that does not happen."""
        entry = self.entries.get(transactional_id)
        end = self.partition.log.log_end_offset if entry is None else entry.end
        if self.partition.high_watermark >= end:
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def committed(error: CodedError | None) -> None:
            if error is not None and error.code is not ErrorCode.request_timed_out:
                self.give_up(error)
            if not done.done():
                done.set_exception(unavailable(error)) if error is not None else done.set_result(None)

        self._after_commit(end, committed, self._clock.monotonic() + ANSWER_SECONDS)
        await done

    def _after_commit(self, end: int, done: Callable[[CodedError | None], None], deadline: float) -> None:
        if self.partition.high_watermark >= end:
            done(None)
        else:
            self.partition.commits.wait(end, done, deadline)

    def settled(self, transactional_id: str) -> "asyncio.Future[None]":
        """Done when the transaction of an id, which is being ended, no longer is, or is no longer ours."""
        entry = self.entries[transactional_id]
        if entry.settled is None:
            entry.settled = asyncio.get_running_loop().create_future()
        return entry.settled

    def is_ending(self, transaction: Transaction) -> bool:
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
                "a later coordinator speaks for a transactional id",
                id=transactional_id,
                partition=self.partition.log.name,
                epoch=self.leader_epoch,
            )

    def check_not_fenced(self, transactional_id: str) -> None:
        """NOT_COORDINATOR where a later coordinator speaks for an id, of which this broker has yet to hear."""
        entry = self.entries.get(transactional_id)
        if entry is not None and entry.is_fenced:
            raise CodedError(ErrorCode.not_coordinator, f"a later coordinator speaks for {transactional_id!r}")

    def give_up(self, error: CodedError) -> None:
        """What was written here may never be committed: forget it, and read the log again when somebody asks."""
        if self.phase is Phase.ACTIVE:
            log.warning("transactions could not be written", partition=self.partition.log.name, reason=error.message)
            self.phase = Phase.FAILED
            self._forget_all()

    def close(self) -> None:
        """Speak for the ids no longer."""
        self.phase = Phase.CLOSED
        self._forget_all()

    def _forget_all(self) -> None:
        entries, self.entries = self.entries, {}
        for entry in entries.values():
            _settle(entry)


def _settle(entry: Entry) -> None:
    settled, entry.settled = entry.settled, None
    if settled is not None and not settled.done():
        settled.set_result(None)
