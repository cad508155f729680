"""What a log remembers of idempotent and transactional producers, so that a retry appears once and in order.

Of each producer the last five batches are kept. A batch that repeats one of them is a duplicate and gets the old
answer; one that follows the last is new; anything else is out of order. `check` decides, purely; `Producers`
holds the states of one log, tells which of their transactions are open, and brings it all to disk and back in Kafka's
`.snapshot` format:

    version i16 = 1 | crc u32, CRC-32C of what follows | count i32 | entries:
    producer id i64, epoch i16, last sequence i32, last offset i64, offset delta i32, timestamp i64,
    coordinator epoch i32, first offset of the open transaction i64

Kafka writes one entry per producer. We write one per remembered batch, oldest first: Kafka's reader keeps the last
one, ours all, so that duplicates are still recognised after a restart.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from itertools import chain
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from headrace.protocol.batch import NO_TIMESTAMP, TRANSACTIONAL_BIT, BatchHeader
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.records import Marker

REMEMBERED_BATCHES: Final = 5
NO_SEQUENCE: Final = -1
NO_OFFSET: Final = -1
NO_COORDINATOR: Final = -1
_SEQUENCES: Final = 1 << 31
_HALF: Final = 1 << 30

_new_tuple: Final = tuple.__new__  # a third of what a NamedTuple's own constructor costs

_SNAPSHOT_VERSION: Final = 1
_SNAPSHOT_HEAD: Final = Struct(">hI")
_SNAPSHOT_COUNT: Final = Struct(">i")
_SNAPSHOT_ENTRY: Final = Struct(">qhiqiqiq")


class ProducerBatch(NamedTuple):
    """A batch that may come again."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def base_offset(self) -> int:
        return self.last_offset - self.offset_delta

    @property
    def base_sequence(self) -> int:
        return (self.last_sequence - self.offset_delta) % _SEQUENCES


class EndedTransaction(NamedTuple):
    """A transaction that a marker has ended, which stands at `last_offset`."""

    producer_id: int
    first_offset: int
    last_offset: int
    committed: bool
    last_stable_offset: int
    """Where the oldest transaction begins that is open then; the marker's end when there is none."""


class ProducerState:
    """One producer as this log knows it. `batches` are the last five, oldest first."""

    __slots__ = ("batches", "coordinator_epoch", "epoch", "last_timestamp", "next_sequence", "transaction_first_offset")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: deque[ProducerBatch] = deque(maxlen=REMEMBERED_BATCHES)
        self.next_sequence = 0
        self.coordinator_epoch = NO_COORDINATOR
        self.transaction_first_offset = NO_OFFSET
        self.last_timestamp = NO_TIMESTAMP

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        return self.batches[-1].last_offset if self.batches else NO_OFFSET


def check(state: ProducerState | None, header: BatchHeader) -> ProducerBatch | None:
    """Whether a producer's batch may be appended: None when it may, the old batch when it repeats one.

    Raises `CodedError` when the batch is neither.
    """
    if state is None:
        return None
    if state.transaction_first_offset >= 0 and not header.attributes & TRANSACTIONAL_BIT:
        raise CodedError(
            ErrorCode.invalid_txn_state, f"producer {header.producer_id} has an open transaction, the batch is in none"
        )
    if header.producer_epoch != state.epoch:
        _check_epoch(state, header)
        return None
    if header.base_sequence == state.next_sequence:
        return None
    return _find_duplicate(state, header)


def _check_epoch(state: ProducerState, header: BatchHeader) -> None:
    if header.producer_epoch < state.epoch:
        raise CodedError(
            ErrorCode.invalid_producer_epoch,
            f"producer {header.producer_id} has epoch {state.epoch} here, the batch has {header.producer_epoch}",
        )
    if header.base_sequence != 0:
        raise _out_of_order(header, f"a new producer epoch starts with 0, not {header.base_sequence}")


def _find_duplicate(state: ProducerState, header: BatchHeader) -> ProducerBatch:
    last_sequence = (header.base_sequence + header.last_offset_delta) % _SEQUENCES
    for batch in state.batches:
        if batch.last_sequence == last_sequence and batch.offset_delta == header.last_offset_delta:
            return batch
    if not state.batches:
        raise _out_of_order(header, f"expected 0, the batch has {header.base_sequence}")
    oldest = state.batches[0].base_sequence
    if 0 < (oldest - last_sequence) % _SEQUENCES < _HALF:
        raise CodedError(
            ErrorCode.duplicate_sequence_number,
            f"producer {header.producer_id} has sent sequence number {header.base_sequence} long ago",
        )
    raise _out_of_order(header, f"expected {state.next_sequence}, not {header.base_sequence}")


def check_epoch(state: ProducerState | None, header: BatchHeader) -> None:
    """`CodedError` if a batch that a coordinator made for a producer, without sequence number, is of an old epoch."""
    if state is not None and header.producer_epoch < state.epoch:
        _check_epoch(state, header)


def check_marker(state: ProducerState | None, header: BatchHeader, marker: Marker, *, bumped: bool) -> None:
    """`CodedError` unless a coordinator may end a producer's transaction with this marker.

    With `bumped` the marker's epoch is one that no batch of its transaction had. Then the producer's own epoch is that
    of a marker that comes again; or, with a transaction open, of one that comes late and must not end the next one.
    """
    if state is None:
        return
    epoch = header.producer_epoch
    if epoch < state.epoch or (bumped and epoch == state.epoch and state.transaction_first_offset >= 0):
        raise CodedError(
            ErrorCode.invalid_producer_epoch,
            f"producer {header.producer_id} has epoch {state.epoch} here, the marker {epoch}",
        )
    if marker.coordinator_epoch < state.coordinator_epoch:
        raise CodedError(
            ErrorCode.transaction_coordinator_fenced,
            f"a coordinator of epoch {state.coordinator_epoch} has ended transactions of producer "
            f"{header.producer_id} here, the marker is of epoch {marker.coordinator_epoch}",
        )


def _out_of_order(header: BatchHeader, reason: str) -> CodedError:
    return CodedError(
        ErrorCode.out_of_order_sequence_number,
        f"sequence number of producer {header.producer_id} out of order: {reason}",
    )


class Producers:
    """The producers of one log, by id."""

    __slots__ = ("_ended", "_open", "_states")

    def __init__(self) -> None:
        self._states: dict[int, ProducerState] = {}
        self._open: dict[int, int] = {}
        """Where each open transaction began, the oldest first."""
        self._ended: deque[EndedTransaction] = deque()
        """Those whose marker may not be committed yet, in the order of their markers."""

    def __len__(self) -> int:
        return len(self._states)

    def get(self, producer_id: int) -> ProducerState | None:
        return self._states.get(producer_id)

    def view(self) -> Mapping[int, ProducerState]:
        return self._states

    def note(self, header: BatchHeader, base_offset: int) -> None:
        """Remember a batch of records that has been written at an offset."""
        state = self._of_epoch(header)
        delta = header.last_offset_delta
        timestamp = header.max_timestamp
        if header.base_sequence >= 0:
            last_sequence = (header.base_sequence + delta) % _SEQUENCES
            state.next_sequence = (last_sequence + 1) % _SEQUENCES
            state.batches.append(_new_tuple(ProducerBatch, (last_sequence, base_offset + delta, delta, timestamp)))
        if timestamp > state.last_timestamp:
            state.last_timestamp = timestamp
        if header.attributes & TRANSACTIONAL_BIT and state.transaction_first_offset < 0:
            state.transaction_first_offset = self._open[header.producer_id] = base_offset

    def note_marker(self, header: BatchHeader, offset: int, marker: Marker) -> EndedTransaction | None:
        """Remember a marker that has been written at an offset; the transaction it ended, if there was one here."""
        state = self._of_epoch(header)
        state.coordinator_epoch = max(state.coordinator_epoch, marker.coordinator_epoch)
        state.transaction_first_offset = NO_OFFSET
        state.last_timestamp = max(state.last_timestamp, header.max_timestamp)
        first_offset = self._open.pop(header.producer_id, None)
        if first_offset is None:
            return None
        stable = next(iter(self._open.values()), offset + 1)
        ended = EndedTransaction(header.producer_id, first_offset, offset, marker.committed, stable)
        self._ended.append(ended)
        return ended

    def has_open(self, producer_id: int, epoch: int) -> bool:
        """Whether a producer of this epoch has an open transaction."""
        state = self._states.get(producer_id)
        return state is not None and state.epoch == epoch and state.transaction_first_offset >= 0

    def _of_epoch(self, header: BatchHeader) -> ProducerState:
        state = self._states.get(header.producer_id)
        if state is None:
            state = self._states[header.producer_id] = ProducerState(header.producer_epoch)
        elif state.epoch != header.producer_epoch:
            state.epoch = header.producer_epoch
            state.batches.clear()
            state.next_sequence = 0
        return state

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Forget producers that have been silent for long and have no open transaction."""
        oldest = now_ms - expiration_ms
        silent = [
            producer_id
            for producer_id, state in self._states.items()
            if state.last_timestamp <= oldest and state.transaction_first_offset < 0
        ]
        for producer_id in silent:
            del self._states[producer_id]

    @property
    def is_unstable(self) -> bool:
        """Whether any transaction is open, or its end perhaps not committed yet."""
        return bool(self._open or self._ended)

    def first_open_offset(self) -> int | None:
        """Where the oldest open transaction began."""
        return next(iter(self._open.values()), None)

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """Where the oldest transaction began that is open, or whose end is not committed yet.

        The high watermark must never be less than in the call before.
        """
        ended = self._ended
        while ended and ended[0].last_offset < high_watermark:
            ended.popleft()
        if not ended:
            return self.first_open_offset()
        return min(chain((transaction.first_offset for transaction in ended), list(self._open.values())[:1]))

    def encode(self) -> bytes:
        """The snapshot file."""
        entries = [_SNAPSHOT_ENTRY.pack(*entry) for entry in self._entries()]
        body = _SNAPSHOT_COUNT.pack(len(entries)) + b"".join(entries)
        return _SNAPSHOT_HEAD.pack(_SNAPSHOT_VERSION, crc32c(body)) + body

    def _entries(self) -> Iterator[tuple[int, ...]]:
        for producer_id, state in self._states.items():
            none_yet = [ProducerBatch(NO_SEQUENCE, NO_OFFSET, 0, state.last_timestamp)]
            for batch in state.batches or none_yet:
                yield (
                    producer_id,
                    state.epoch,
                    batch.last_sequence,
                    batch.last_offset,
                    batch.offset_delta,
                    batch.timestamp,
                    state.coordinator_epoch,
                    state.transaction_first_offset,
                )

    @classmethod
    def decode(cls, data: bytes) -> "Producers | None":
        """What a snapshot file holds; None when it is damaged."""
        body = data[_SNAPSHOT_HEAD.size :]
        if len(body) < _SNAPSHOT_COUNT.size:
            return None
        version, crc = _SNAPSHOT_HEAD.unpack_from(data)
        (count,) = _SNAPSHOT_COUNT.unpack_from(body)
        if version != _SNAPSHOT_VERSION or len(body) != _SNAPSHOT_COUNT.size + count * _SNAPSHOT_ENTRY.size:
            return None
        if crc32c(body) != crc:
            return None
        producers = cls()
        for entry in _SNAPSHOT_ENTRY.iter_unpack(body[_SNAPSHOT_COUNT.size :]):
            producers._restore(*entry)
        producers._open = dict(sorted(producers._open.items(), key=lambda item: item[1]))
        return producers

    def _restore(
        self,
        producer_id: int,
        epoch: int,
        last_sequence: int,
        last_offset: int,
        offset_delta: int,
        timestamp: int,
        coordinator_epoch: int,
        transaction_first_offset: int,
    ) -> None:
        state = self._states.setdefault(producer_id, ProducerState(epoch))
        state.coordinator_epoch = coordinator_epoch
        state.transaction_first_offset = transaction_first_offset
        if transaction_first_offset >= 0:
            self._open[producer_id] = transaction_first_offset
        state.last_timestamp = max(state.last_timestamp, timestamp)
        if last_sequence != NO_SEQUENCE:
            state.batches.append(ProducerBatch(last_sequence, last_offset, offset_delta, timestamp))
            state.next_sequence = (last_sequence + 1) % _SEQUENCES
