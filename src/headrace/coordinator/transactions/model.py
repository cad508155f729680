"""A transactional id as the coordinator knows it: a value. What may happen to it is in `transactions.decisions`."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final
from uuid import UUID

from headrace.protocol.topic_partition import TopicPartition
from headrace.replication.transactions import EPOCH_BUMPING

from .states import PREPARED, TRANSITIONS, Event, TransactionState

NO_ID: Final = -1
NO_EPOCH: Final = -1
NO_TIME: Final = -1
LAST_EPOCH: Final = 32_766
"""The last epoch that a producer is given. One more is left for the markers that end its last transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionMetadata:
    """The producer that has the id, and its transaction. Everything but `last_producer_epoch` is stored."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    topic_ids: Mapping[str, UUID] = field(default_factory=dict)
    """The ids of their topics, by name, as they were when partitions were added last: a topic that is made anew under
    its name is another one. Records of Kafka's have none."""
    start_ms: int = NO_TIME
    """When the transaction began: a time of day, as all here."""
    update_ms: int = NO_TIME
    previous_producer_id: int = NO_ID
    """The id before this one, whose epochs were used up: requests that come late may still name it."""
    next_producer_id: int = NO_ID
    """The id after this one, where its epochs are used up and its last transaction is being ended."""
    client_version: int = 0
    """The transaction.version that the producer goes by: 2 where each transaction has its own epoch."""
    last_producer_epoch: int = NO_EPOCH
    """The epoch before this one, where its producer was given this one: it may ask again."""

    @property
    def is_exhausted(self) -> bool:
        """Whether this producer id has no epoch left for another producer."""
        return self.producer_epoch >= LAST_EPOCH

    @property
    def is_prepared(self) -> bool:
        return self.state in PREPARED

    @property
    def is_committed(self) -> bool:
        return self.state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)

    @property
    def bumps_epochs(self) -> bool:
        return self.client_version >= EPOCH_BUMPING

    def moved(self, event: Event, now_ms: int, **changes: Any) -> "TransactionMetadata":
        """The transaction after an event, along the table."""
        return replace(self, state=TRANSITIONS[self.state, event], update_ms=now_ms, **changes)

    def is_overdue(self, lasted_ms: int) -> bool:
        """Whether it is open for longer than its `transaction.timeout.ms`."""
        return self.state is TransactionState.ONGOING and lasted_ms > self.timeout_ms
