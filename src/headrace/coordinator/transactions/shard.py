"""One partition of `__transaction_state`, and the transactional ids whose state is in it.

What always holds here:

1.  Memory is what the log says, plus what nobody has heard of yet: an answer leaves, and a marker is sent, only once
    the record that it follows from is committed. So no partition learns of an end that a crash could take back.
2.  What cannot be written never happened. What was written and cannot be committed here is forgotten: the shard reads
    its log again, or another broker does.
"""

import asyncio
from collections.abc import Callable
from math import inf
from typing import Final

import structlog

from headrace.coordinator.journal import build_batch, read_batches
from headrace.coordinator.records import BadRecord
from headrace.coordinator.shard import SLICE_BYTES, Phase
from headrace.net.clock import Clock
from headrace.protocol.batch import read_header
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.replication.partition import Partition
from headrace.storage.disk import StorageError

from .model import Transaction
from .records import decode_key, decode_value, encode_key, encode_value

log = structlog.get_logger(__name__)

ANSWER_SECONDS: Final = 10.0
"""How long an answer waits for its record to be committed; the record may be later, and what follows from it is."""

Prepared = Callable[["TransactionShard", Transaction], None]
"""Called when it is certain how a transaction ends: its partitions are to be told."""


class Entry:
    """A transactional id: its transaction, and the end of the log when that was written."""

    __slots__ = ("end", "ended_by", "settled", "transaction")

    def __init__(self, transaction: Transaction, end: int) -> None:
        self.transaction = transaction
        self.end = end
        self.settled: asyncio.Future[None] | None = None
        """Done when the transaction is no longer being ended; there while somebody waits for that."""
        self.ended_by: tuple[int, int, int] | None = None
        """The producer id and epoch of the last one that ended a transaction, and the number of its connection."""


class TransactionShard:
    """The transactional ids of one partition."""

    def __init__(self, partition: Partition, clock: Clock, prepared: Prepared) -> None:
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        is_new = partition.log.log_start_offset == partition.log.log_end_offset
        self.phase = Phase.ACTIVE if is_new else Phase.LOADING
        self.entries: dict[str, Entry] = {}
        self._clock = clock
        self._prepared = prepared
        self._loads = 0

    # Loading

    async def load(self) -> None:
        """Read the log from its start to its end, a slice at a time; then go on with what was being ended."""
        if self.phase is Phase.CLOSED:
            return
        self.phase = Phase.LOADING
        self._loads += 1
        self.entries.clear()
        end = self.partition.log.log_end_offset
        try:
            await self._read_log(end)
        except Exception as error:  # whatever its records are, they must not keep the others from loading
            if self.phase is Phase.LOADING:
                self.phase = Phase.FAILED
            is_foreseen = isinstance(error, CodedError | StorageError | BadRecord)
            name = self.partition.log.name
            log.error("transactions could not be loaded", partition=name, reason=str(error), exc_info=not is_foreseen)
            return
        if self.phase is not Phase.LOADING:
            return
        self.phase = Phase.ACTIVE
        for entry in list(self.entries.values()):
            entry.end = end
            if entry.transaction.is_prepared:
                self._tell_after_commit(entry.transaction, end)

    async def _read_log(self, end: int) -> None:
        records = self.partition.log
        offset = records.log_start_offset
        while offset < end and self.phase is Phase.LOADING:
            found = records.read(offset, SLICE_BYTES, end)
            if found is None:
                return
            reached = self._replay(found.file.pread(found.length, found.position), offset)
            if reached == offset:
                raise BadRecord(f"there is no whole batch at offset {offset}")
            offset = reached
            await asyncio.sleep(0)

    def _replay(self, data: bytes, offset: int) -> int:
        """The offset after the last whole batch."""
        for header, pairs in read_batches(data):
            offset = header.last_offset + 1
            for key, value in pairs:
                transactional_id = decode_key(key)
                if transactional_id is None:
                    continue
                if value is None:
                    self.entries.pop(transactional_id, None)
                else:
                    self.entries[transactional_id] = Entry(decode_value(transactional_id, value), offset)
        return offset

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
            entry = self.entries[transactional_id] = Entry(transaction, end)
        entry.transaction, entry.end = transaction, end
        if transaction.is_prepared:
            self._tell_after_commit(transaction, end)
        else:
            _settle(entry)

    def forget(self, transactional_id: str) -> None:
        """Let go of an id that has expired."""
        self._append(transactional_id, None)
        self.entries.pop(transactional_id, None)

    def _append(self, transactional_id: str, value: bytes | None) -> int:
        batch = build_batch([(encode_key(transactional_id), value)], self._clock.now_ms())
        try:
            return self.partition.append_own(batch, read_header(batch)).last_offset + 1
        except CodedError as error:
            raise _unavailable(error) from error

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
                done.set_exception(_unavailable(error)) if error is not None else done.set_result(None)

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


def _unavailable(error: CodedError) -> CodedError:
    return CodedError(ErrorCode.coordinator_not_available, error.message)
