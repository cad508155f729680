"""Where transactions and logs meet: what a log's side needs of the transaction coordinator, and gives to it.

The coordinator ends a transaction by a `TransactionMarker` on each of its partitions (`ReplicaManager.append_marker` on
their leaders). The log's side asks back through a `TransactionVerifier`, so that nothing is appended as part of a
transaction that the coordinator does not know to be open.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from headrace.protocol.errors import ErrorCode

TopicPartition = tuple[str, int]

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


class TransactionVerifier(Protocol):
    """The transaction coordinator, as those see it who append for a producer."""

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        add: bool,
    ) -> Mapping[TopicPartition, ErrorCode]:
        """For each partition whether it is part of the producer's open transaction; with `add` it becomes so.

        Codes are those of AddPartitionsToTxn: `none`, or TRANSACTION_ABORTABLE where the partition is not in it,
        INVALID_PRODUCER_EPOCH or PRODUCER_FENCED, INVALID_PRODUCER_ID_MAPPING, CONCURRENT_TRANSACTIONS,
        COORDINATOR_NOT_AVAILABLE, COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR, NETWORK_EXCEPTION. Never raises.
        """
        ...
