"""Where transactions and logs meet: what a log's side needs of the transaction coordinator, and gives to it.

The coordinator ends a transaction by a `TransactionMarker` on each of its partitions (`ReplicaManager.append_marker` on
their leaders). The log's side asks back through a `TransactionVerifier`, so that nothing is appended as part of a
transaction that the coordinator does not know to be open.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol
from uuid import UUID

from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.topic_partition import TopicPartition

NO_SEQUENCE: Final = -1
MOST_SEQUENCES: Final = 10_000
"""Producers of one partition whose lowest sequence number is kept while they are verified."""
EPOCH_BUMPING: Final = 2
"""The `transaction.version` from which on each marker has a producer epoch that no batch before it had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionMarker:
    """What ends a transaction on a partition. From `transaction_version` 2 on `producer_epoch` is the one after that
    of the transaction's batches: nothing of it can be appended later."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    committed: bool
    transaction_version: int = 1


class ProducerTransaction(Protocol):
    """What a log knows of a producer."""

    @property
    def epoch(self) -> int: ...
    @property
    def coordinator_epoch(self) -> int: ...
    @property
    def transaction_first_offset(self) -> int: ...


def check_operator_marker(producer: ProducerTransaction | None, marker: TransactionMarker) -> bool:
    """Whether there is anything to end with a marker that no coordinator has sent; `CodedError` if it may not.

    It may name the epochs that are known here, and no others: a later one would shut out the producer, or its
    coordinator, for good.
    """
    if producer is None or producer.transaction_first_offset < 0:
        return False
    if marker.committed or marker.coordinator_epoch > max(producer.coordinator_epoch, 0):
        raise CodedError(
            ErrorCode.cluster_authorization_failed,
            "only a transaction coordinator commits, or has an epoch that is not known yet",
        )
    if marker.producer_epoch != producer.epoch:
        raise CodedError(
            ErrorCode.invalid_producer_epoch,
            f"producer {marker.producer_id} has epoch {producer.epoch} here, the marker {marker.producer_epoch}",
        )
    return True


class TransactionVerifier(Protocol):
    """What produce requests need of the transaction coordinator."""

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        topic_ids: Mapping[str, UUID],
        *,
        add: bool,
    ) -> Mapping[TopicPartition, ErrorCode]:
        """For each partition whether it is part of the producer's open transaction; with `add` it becomes so.

        `topic_ids` are those of the logs that are appended to: the coordinator may know an older topic of that name, or
        a newer one, and would send its marker there.

        Codes are those of AddPartitionsToTxn: `none`, or TRANSACTION_ABORTABLE where the partition is not in it,
        INVALID_PRODUCER_EPOCH or PRODUCER_FENCED, INVALID_PRODUCER_ID_MAPPING, CONCURRENT_TRANSACTIONS,
        COORDINATOR_NOT_AVAILABLE, COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR, NETWORK_EXCEPTION. Never raises.
        """
        ...


class Verification:
    """Permission to begin a transaction on a partition, valid until it has begun or a marker for the producer comes."""

    __slots__ = ("producer_epoch",)

    def __init__(self, producer_epoch: int) -> None:
        self.producer_epoch = producer_epoch


class Verifications:
    """The verifications of one partition, by producer.

    What the coordinator said of a transaction holds no more once a marker has ended it: a batch that was verified
    before and comes to be appended after would begin a transaction that nobody ends.

    The lowest sequence number that a producer has come with is kept until its transaction begins: where its first
    batch is told to come again, those after it must not be taken before it.
    """

    __slots__ = ("_by_producer", "_lowest")

    def __init__(self) -> None:
        self._by_producer: dict[int, Verification] = {}
        self._lowest: dict[int, tuple[int, int]] = {}
        """Epoch and sequence number, the producer that came first before the others."""

    def begin(self, producer_id: int, producer_epoch: int, sequence: int = NO_SEQUENCE) -> Verification:
        """A verification, taken before the coordinator is asked; concurrent requests of one producer share it."""
        self._note_sequence(producer_id, producer_epoch, sequence)
        known = self._by_producer.get(producer_id)
        if known is None or known.producer_epoch != producer_epoch:
            known = self._by_producer[producer_id] = Verification(producer_epoch)
        return known

    def _note_sequence(self, producer_id: int, epoch: int, sequence: int) -> None:
        known = self._lowest.get(producer_id)
        if sequence == NO_SEQUENCE or (known is not None and known[0] == epoch and known[1] <= sequence):
            return
        if known is None and len(self._lowest) >= MOST_SEQUENCES:
            del self._lowest[next(iter(self._lowest))]
        self._lowest[producer_id] = (epoch, sequence)

    def check(self, producer_id: int, verification: Verification | None) -> None:
        """`CodedError` unless a transaction may begin with this."""
        if verification is None or self._by_producer.get(producer_id) is not verification:
            raise CodedError(
                ErrorCode.invalid_txn_state, f"the batch of producer {producer_id} is not part of an open transaction"
            )

    def check_sequence(self, producer_id: int, producer_epoch: int, sequence: int) -> None:
        """`CodedError` where a transaction would begin after a batch that has come before, and was not appended."""
        epoch, lowest = self._lowest.get(producer_id, (producer_epoch, sequence))
        if epoch == producer_epoch and sequence > lowest:
            raise CodedError(
                ErrorCode.out_of_order_sequence_number,
                f"sequence number {sequence} of producer {producer_id} comes before {lowest}, which was sent first",
            )

    def postpone(self, producer_id: int) -> None:
        """Whether the transaction may begin is not known yet: its producer is to come again."""
        self._by_producer.pop(producer_id, None)

    def end(self, producer_id: int) -> None:
        """The transaction has begun, or is not to be."""
        self._by_producer.pop(producer_id, None)
        self._lowest.pop(producer_id, None)

    def marked(self, marker: TransactionMarker) -> None:
        """A transaction has ended. A marker of an epoch of its own ends what came before that epoch, and not what is
        about to begin in it: its producer may go on before all markers are written."""
        known = self._by_producer.get(marker.producer_id)
        if known is not None and _ends(marker, known.producer_epoch):
            del self._by_producer[marker.producer_id]
        epoch, _ = self._lowest.get(marker.producer_id, (marker.producer_epoch + 1, NO_SEQUENCE))
        if _ends(marker, epoch):
            del self._lowest[marker.producer_id]

    def clear(self) -> None:
        """This broker leads no more, or anew: others may have written markers meanwhile."""
        self._by_producer.clear()
        self._lowest.clear()


def _ends(marker: TransactionMarker, epoch: int) -> bool:
    own = marker.transaction_version >= EPOCH_BUMPING
    return epoch < marker.producer_epoch or (epoch == marker.producer_epoch and not own)
