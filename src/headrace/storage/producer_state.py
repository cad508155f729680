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

The producers that wrote last are objects; all others rest as packed rows, see `resting`. Those that stand for
idempotency keys (the upper half of the ids) write once and are remembered for a shorter time of their own.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from headrace.protocol.batch import FIRST_KEY_PRODUCER, NO_TIMESTAMP, TRANSACTIONAL_BIT, BatchHeader
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.records import Marker

from .resting import OLDER_BATCH, ROW, RestingProducers
from .settings import DAY_MS, HOUR_MS

REMEMBERED_BATCHES: Final = 5
NO_SEQUENCE: Final = -1
NO_OFFSET: Final = -1
NO_COORDINATOR: Final = -1
_SEQUENCES: Final = 1 << 31
_OLDER_KEPT: Final = (REMEMBERED_BATCHES - 2) * OLDER_BATCH.size
_FARTHEST: Final = (1 << 32) - 1
_MOST_AWAKE: Final = 256
"""Producers of a log that are objects, of ten times the size; when there are more, the half that came first rests."""

_SNAPSHOT_VERSION: Final = 1
_SNAPSHOT_HEAD: Final = Struct(">hI")
_SNAPSHOT_COUNT: Final = Struct(">i")
_SNAPSHOT_ENTRY: Final = Struct(">qhiqiqiq")


class ProducerBatch(NamedTuple):
    """A batch that may come again."""

    last_sequence: int
    last_offset: int
    offset_delta: int

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
    """One producer as this log knows it."""

    __slots__ = (
        "coordinator_epoch",
        "epoch",
        "last_offset",
        "last_sequence",
        "last_timestamp",
        "next_sequence",
        "offset_delta",
        "older",
        "transaction_first_offset",
    )

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.next_sequence = 0
        self.last_sequence = NO_SEQUENCE
        self.last_offset = NO_OFFSET
        self.offset_delta = 0
        self.older = b""
        """The batches before the last, as in a row of `resting`."""
        self.coordinator_epoch = NO_COORDINATOR
        self.transaction_first_offset = NO_OFFSET
        self.last_timestamp = NO_TIMESTAMP

    @property
    def batches(self) -> list[ProducerBatch]:
        """The last five batches, oldest first."""
        if self.last_sequence == NO_SEQUENCE:
            return []
        batches = [ProducerBatch(self.last_sequence, self.last_offset, self.offset_delta)]
        for distance, offset_delta in OLDER_BATCH.iter_unpack(self.older):
            after = batches[-1]
            last_sequence = (after.base_sequence - 1) % _SEQUENCES
            batches.append(ProducerBatch(last_sequence, after.last_offset - distance, offset_delta))
        return batches[::-1]

    def add(self, base_sequence: int, last_offset: int, offset_delta: int) -> None:
        """Note the last batch. Those before it are kept as long as they lead up to it.

        A gap shows that the leader had forgotten the producer, and with it them. Nobody repeats a batch that lies four
        billion offsets back.
        """
        distance = last_offset - self.last_offset
        if base_sequence == self.next_sequence and self.last_sequence >= 0 and distance <= _FARTHEST:
            self.older = OLDER_BATCH.pack(distance, self.offset_delta) + self.older[:_OLDER_KEPT]
        else:
            self.older = b""
        self.last_sequence = last_sequence = (base_sequence + offset_delta) % _SEQUENCES
        self.next_sequence = (last_sequence + 1) % _SEQUENCES
        self.last_offset = last_offset
        self.offset_delta = offset_delta

    def begin_epoch(self, epoch: int) -> None:
        """The next batch is the first of an epoch."""
        self.epoch = epoch
        self.next_sequence = 0
        self.last_sequence, self.last_offset, self.offset_delta, self.older = NO_SEQUENCE, NO_OFFSET, 0, b""

    def packed(self, producer_id: int) -> bytes:
        """The row for `resting`."""
        return (
            ROW.pack(
                producer_id,
                len(self.older) // OLDER_BATCH.size,
                self.epoch,
                self.coordinator_epoch,
                self.last_timestamp,
                self.last_sequence,
                self.last_offset,
                self.offset_delta,
            )
            + self.older
        )


def _unpacked(row: bytes, open_transactions: Mapping[int, int]) -> tuple[int, ProducerState]:
    producer_id, _, epoch, coordinator_epoch, timestamp, last_sequence, last_offset, offset_delta = ROW.unpack_from(row)
    state = ProducerState(epoch)
    state.coordinator_epoch = coordinator_epoch
    state.last_timestamp = timestamp
    state.next_sequence = (last_sequence + 1) % _SEQUENCES
    state.last_sequence = last_sequence
    state.last_offset = last_offset
    state.offset_delta = offset_delta
    state.older = row[ROW.size :]
    state.transaction_first_offset = open_transactions.get(producer_id, NO_OFFSET)
    return producer_id, state


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
    """Only a batch that is remembered is known to be in the log. One that comes before all of those may have been
    refused, and others after it taken: to call it a duplicate would tell its producer that it was written."""
    last_sequence = (header.base_sequence + header.last_offset_delta) % _SEQUENCES
    for batch in state.batches:
        if batch.last_sequence == last_sequence and batch.offset_delta == header.last_offset_delta:
            return batch
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


class Producers(Mapping[int, ProducerState]):
    """The producers of one log, by id. A state is changed only here, and to be asked for anew after every call."""

    __slots__ = ("_awake", "_ended", "_keys", "_open", "_resting")

    def __init__(self) -> None:
        self._awake: dict[int, ProducerState] = {}
        self._resting = RestingProducers(DAY_MS)
        self._keys = RestingProducers(HOUR_MS)
        """Producers that stand for idempotency keys."""
        self._open: dict[int, int] = {}
        """Where each open transaction began, the oldest first."""
        self._ended: deque[EndedTransaction] = deque()
        """Those whose marker may not be committed yet, in the order of their markers."""

    def __len__(self) -> int:
        return len(self._awake) + len(self._resting) + len(self._keys)

    def __contains__(self, producer_id: object) -> bool:
        return isinstance(producer_id, int) and self._find(producer_id) is not None

    def __getitem__(self, producer_id: int) -> ProducerState:
        state = self._find(producer_id)
        if state is None:
            raise KeyError(producer_id)
        return state

    def __iter__(self) -> Iterator[int]:
        return (producer_id for producer_id, _ in self.states())

    def states(self) -> Iterator[tuple[int, ProducerState]]:
        """All of them; those that rest, rest on."""
        yield from self._awake.items()
        for row in chain(self._resting.rows(), self._keys.rows()):
            yield _unpacked(row, self._open)

    def _find(self, producer_id: int) -> ProducerState | None:
        state = self._awake.get(producer_id)
        if state is None:
            row = self._rest_of(producer_id).find(producer_id)
            state = None if row is None else _unpacked(row, self._open)[1]
        return state

    def awake(self, producer_id: int) -> ProducerState | None:
        """A producer that is about to write."""
        state = self._awake.get(producer_id)
        if state is None:
            row = self._rest_of(producer_id).remove(producer_id)
            if row is not None:
                _, state = _unpacked(row, self._open)
                self._add(producer_id, state)
        return state

    def _rest_of(self, producer_id: int) -> RestingProducers:
        return self._resting if producer_id < FIRST_KEY_PRODUCER else self._keys

    def _add(self, producer_id: int, state: ProducerState) -> None:
        if len(self._awake) >= _MOST_AWAKE:
            self._rest(_MOST_AWAKE // 2)
        self._awake[producer_id] = state

    def rest(self) -> None:
        """Pack all of them; each unpacks when it writes again."""
        self._rest(len(self._awake))
        self._awake = {}  # an emptied one keeps its memory

    def _rest(self, count: int) -> None:
        for producer_id in list(islice(self._awake, count)):
            state = self._awake.pop(producer_id)
            self._rest_of(producer_id).put(state.packed(producer_id), state.last_timestamp)

    def copy(self) -> "Producers":
        """What is known now, for another thread."""
        self.rest()
        producers = Producers()
        producers._resting, producers._keys = self._resting.copy(), self._keys.copy()
        producers._open = self._open.copy()
        return producers

    def note(self, header: BatchHeader, base_offset: int) -> None:
        """Remember a batch of records that has been written at an offset."""
        state = self._awake.get(header.producer_id)
        if state is None or state.epoch != header.producer_epoch:
            state = self._of_epoch(header)
        delta = header.last_offset_delta
        timestamp = header.max_timestamp
        if header.base_sequence >= 0:
            state.add(header.base_sequence, base_offset + delta, delta)
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
        return producer_id in self._open and self[producer_id].epoch == epoch

    def _of_epoch(self, header: BatchHeader) -> ProducerState:
        state = self.awake(header.producer_id)
        if state is None:
            state = ProducerState(header.producer_epoch)
            self._add(header.producer_id, state)
        elif state.epoch != header.producer_epoch:
            state.begin_epoch(header.producer_epoch)
        return state

    def expire(self, now_ms: int, expiration_ms: int, key_expiration_ms: int | None = None) -> None:
        """Forget producers that have been silent for long and have no open transaction; keys maybe sooner.

        Those that rest may stay for an eighth of that time longer.
        """
        if key_expiration_ms is None or key_expiration_ms > expiration_ms:
            key_expiration_ms = expiration_ms
        self._resting.expire_after(expiration_ms)
        self._keys.expire_after(key_expiration_ms)
        self.rest()
        self._resting.expire(now_ms, expiration_ms, self._open)
        self._keys.expire(now_ms, key_expiration_ms, self._open)

    def generations(self) -> list[int]:
        """When producers that rest wrote last: for each generation of them a time before which they did."""
        return [*self._resting.generations(), *self._keys.generations()]

    def forget(self, generation: int, count: int) -> int:
        """Forget so many producers of a generation, or few more, none with an open transaction; how many went."""
        forgotten = 0
        for resting in (self._resting, self._keys):
            if generation in resting.generations() and forgotten < count:
                forgotten += resting.forget(generation, count - forgotten, self._open)
        return forgotten

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
        """The snapshot file. It takes about a second for a million producers: of many on a `copy`, off the loop."""
        self.rest()
        body = bytearray(_SNAPSHOT_COUNT.size)
        unpack, pack, first_offset_of = ROW.unpack_from, _SNAPSHOT_ENTRY.pack, self._open.get
        for row in chain(self._resting.rows(), self._keys.rows()):
            producer_id, older, epoch, coordinator_epoch, timestamp, sequence, offset, delta = unpack(row)
            rest = timestamp, coordinator_epoch, first_offset_of(producer_id, NO_OFFSET)
            if older:
                for batch in _unpacked(row, self._open)[1].batches[:-1]:
                    body += pack(producer_id, epoch, *batch, *rest)
            body += pack(producer_id, epoch, sequence, offset, delta, *rest)
        _SNAPSHOT_COUNT.pack_into(body, 0, len(body) // _SNAPSHOT_ENTRY.size)
        return _SNAPSHOT_HEAD.pack(_SNAPSHOT_VERSION, crc32c(body)) + body

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
        state = self.awake(producer_id)
        if state is None:
            state = ProducerState(epoch)
            self._add(producer_id, state)
        state.coordinator_epoch = coordinator_epoch
        state.transaction_first_offset = transaction_first_offset
        if transaction_first_offset >= 0:
            self._open[producer_id] = transaction_first_offset
        state.last_timestamp = max(state.last_timestamp, timestamp)
        if last_sequence != NO_SEQUENCE:
            state.add((last_sequence - offset_delta) % _SEQUENCES, last_offset, offset_delta)
