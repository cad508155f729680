"""Producing to one partition, decided without I/O: which batch goes next, and what the answer to one means.

Batches of a partition are sent in their order, several at a time, each with the sequence number that lets the broker
tell a repeated batch from a new one. When one fails, those sent after it fail too or stand in the wrong place in the
queue, so nothing more is sent until all that are under way are answered; then the queue is sent again from its first
batch, with the same numbers. Batches that had arrived after all are recognised, and the log has each once.
"""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from headrace.protocol.errors import ErrorCode
from headrace.protocol.topic_partition import TopicPartition

from ..core.codes import Remedy, is_retriable, remedy_of
from ..core.transactions import NOBODY, ProducerId
from .encode import EncodedBatch, seal_for

FIRST_SEQUENCE: Final = 0
_SEQUENCES: Final = 2**31
"""Numbers before they start again from 0."""


class Meaning(Enum):
    """What an answer to a batch means."""

    WRITTEN = auto()
    AGAIN = auto()
    """Not written, or nobody knows: send it again."""
    ELSEWHERE = auto()
    """The same, to another broker."""
    FORGOTTEN = auto()
    """The broker forgot this producer, and did not write the batch: send it as a new one."""
    FENCED = auto()
    """Somebody else writes in this producer's name."""
    FAILED = auto()
    """It will not be written."""


FENCED: Final = "PRODUCER_FENCED"
WHY_FENCED: Final = (
    "another writer has taken over, or the cluster aborted the transaction because it was open for longer than "
    "transaction.timeout.ms"
)
"""A broker answers both alike."""


@dataclass(slots=True, kw_only=True, eq=False)
class Batch:
    """A batch on its way."""

    encoded: EncodedBatch
    sequence: int
    deadline: float
    attempts: int = 0

    @property
    def size(self) -> int:
        return len(self.encoded.data)

    @property
    def count(self) -> int:
        return self.encoded.count


@dataclass(slots=True, kw_only=True)
class PartitionQueue:
    """The batches of a partition that are not written yet, in their order; the first `in_flight` are under way."""

    topic_partition: TopicPartition
    producer: ProducerId
    transactional: bool = False
    batches: deque[Batch] = field(default_factory=deque)
    in_flight: int = 0
    has_failed: bool = False
    """One that is under way failed: the others are waited for."""
    node: int = -1
    """The broker that those under way were sent to."""
    retry_at: float = 0.0
    pause: float | None = None
    """How long to wait after the next failure; None while all is well."""
    is_forgotten: bool = False
    """The broker does not know the producer any more: a new one is to go on as soon as nothing is under way."""
    next_sequence: int = FIRST_SEQUENCE

    def add(self, encoded: EncodedBatch, deadline: float) -> Batch:
        """Put a batch behind the others, sealed for sending."""
        batch = Batch(encoded=encoded, sequence=-1, deadline=deadline)
        self._seal(batch)
        self.batches.append(batch)
        return batch

    def next_batch(self, now: float) -> Batch | None:
        """What to send now."""
        if self.has_failed or self.retry_at > now or self.in_flight >= len(self.batches):
            return None
        return self.batches[self.in_flight]

    def sent(self, node: int) -> None:
        """The next batch is under way."""
        batch = self.batches[self.in_flight]
        batch.attempts += 1
        self.in_flight += 1
        self.node = node

    def may_go_to(self, node: int) -> bool:
        """Whether a batch may be sent there: not while others are under way to another broker."""
        return not self.in_flight or self.node == node

    def written(self, batch: Batch) -> None:
        """A batch was answered well."""
        self.batches.remove(batch)
        self.pause = None
        self._answered()

    def failed(self) -> None:
        """A batch was answered otherwise, or will never be."""
        self.has_failed = True
        self._answered()

    def put_off(self, now: float, shortest: float, longest: float) -> None:
        """Send nothing for a while, which grows from one time to the next."""
        pause = shortest if self.pause is None else min(2 * self.pause, longest)
        self.pause = pause
        self.retry_at = now + pause

    def start_anew(self, producer: ProducerId) -> None:
        """Number all that is left from the first on, as another producer; nothing may be under way."""
        assert not self.in_flight
        self.is_forgotten = False
        self.producer = producer
        self.next_sequence = FIRST_SEQUENCE
        for batch in self.batches:
            self._seal(batch)

    def fate(self) -> str:
        """What is known of the records that are not acknowledged, in words."""
        sent = sum(batch.count for batch in self.batches if batch.attempts)
        unsent = sum(batch.count for batch in self.batches if not batch.attempts)
        words = f"{sent} records were sent and may be in the log or not" if sent else "no record was sent"
        return f"{words}, {unsent} more were not sent" if sent and unsent else words

    def _answered(self) -> None:
        self.in_flight -= 1
        if not self.in_flight:
            self.has_failed = False

    def _seal(self, batch: Batch) -> None:
        if self.producer == NOBODY:
            seal_for(batch.encoded, *NOBODY, -1, transactional=False)
            return
        batch.sequence = self.next_sequence
        seal_for(batch.encoded, *self.producer, batch.sequence, transactional=self.transactional)
        self.next_sequence = (self.next_sequence + batch.count) % _SEQUENCES


def meaning_of(code: ErrorCode, queue: PartitionQueue, batch: Batch) -> Meaning:
    """What an answer to a batch means, given what became of those before it."""
    if code in (ErrorCode.none, ErrorCode.duplicate_sequence_number):
        return Meaning.WRITTEN
    remedy = remedy_of(code)
    if remedy is Remedy.REFRESH_METADATA:
        return Meaning.ELSEWHERE
    if is_retriable(code):
        return Meaning.AGAIN
    if remedy is Remedy.GIVE_UP_PRODUCER:
        return Meaning.FENCED
    if code is ErrorCode.out_of_order_sequence_number and batch is not queue.batches[0]:
        return Meaning.AGAIN
    if code is ErrorCode.unknown_producer_id and not queue.transactional:
        return _meaning_of_forgotten(queue, batch)
    return Meaning.FAILED


def _meaning_of_forgotten(queue: PartitionQueue, batch: Batch) -> Meaning:
    if batch is not queue.batches[0]:
        return Meaning.AGAIN
    # A batch that was sent before may have been written before the broker forgot: a second number would double it.
    return Meaning.FORGOTTEN if batch.attempts == 1 else Meaning.FAILED
