"""Transactions for those who run a cluster: which there are, who writes in them, and how to end one that hangs."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from headrace.client.columnar.channel import Channel
from headrace.client.columnar.retry import refused_or_again
from headrace.client.core.metadata import CoordinatorKind
from headrace.client.core.transactions import init_producer_request, list_transactions_request
from headrace.client.errors import ClientError
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode
from headrace.protocol.topic_partition import TopicPartition
from headrace.protocol.transactions import DescribedTransaction

from .operations import Operations

T = TypeVar("T")

_FENCE_TIMEOUT_MS: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTransaction:
    id: str
    producer_id: int
    state: str
    coordinator: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveProducer:
    """A producer that a partition remembers."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    last_timestamp: int
    start_offset: int | None
    """Where its open transaction begins, if it has one."""


def active_producers(described: Any) -> list[ActiveProducer]:
    """The producers in what DescribeProducers answered of a partition."""
    return [
        ActiveProducer(
            producer_id=each.producer_id,
            producer_epoch=each.producer_epoch,
            coordinator_epoch=each.coordinator_epoch,
            last_timestamp=each.last_timestamp,
            start_offset=each.current_txn_start_offset if each.current_txn_start_offset >= 0 else None,
        )
        for each in described.active_producers
    ]


class TransactionOperations(Operations):
    """The transactions of one cluster. Each method raises `ClientError`."""

    def list_transactions(
        self,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        longer_than_ms: int = -1,
        pattern: str | None = None,
    ) -> list[ListedTransaction]:
        """What every broker knows, by transactional id."""
        asked = list_transactions_request(states, producer_ids, longer_than_ms, pattern)

        def listed(channel: Channel) -> Any:
            answer = channel.ask(ApiKey.LIST_TRANSACTIONS, asked)
            _check(answer.error_code, "transactions")
            return answer

        transactions: list[ListedTransaction] = []
        for broker in self._cluster.brokers():
            answer = self._at(broker, listed)
            if answer.unknown_state_filters:
                raise ClientError(f"there is no state {', '.join(answer.unknown_state_filters)}", "INVALID_REQUEST")
            transactions += [
                ListedTransaction(
                    id=each.transactional_id,
                    producer_id=each.producer_id,
                    state=each.transaction_state,
                    coordinator=broker,
                )
                for each in answer.transaction_states
            ]
        return sorted(transactions, key=lambda each: each.id)

    def describe_transaction(self, transactional_id: str) -> DescribedTransaction:
        """What the coordinator of a transactional id knows of it."""

        def attempt(channel: Channel) -> DescribedTransaction:
            (described,) = channel.describe_transactions([transactional_id])
            if described.error_code is ErrorCode.transactional_id_not_found:
                raise ClientError(
                    f"nobody has the transactional id '{transactional_id}'; `headrace txn list` shows those there are",
                    "TRANSACTIONAL_ID_NOT_FOUND",
                )
            _check(described.error_code, f"transactional id '{transactional_id}'")
            return described

        return self._cluster.with_coordinator(CoordinatorKind.TRANSACTION, transactional_id, attempt)

    def fence(self, transactional_id: str) -> None:
        """Shut out whoever has a transactional id; what it has open is aborted."""
        values = init_producer_request(transactional_id, _FENCE_TIMEOUT_MS)

        def attempt(channel: Channel) -> None:
            _check(channel.ask(ApiKey.INIT_PRODUCER_ID, values).error_code, f"transactional id '{transactional_id}'")

        self._cluster.with_coordinator(CoordinatorKind.TRANSACTION, transactional_id, attempt)

    def producers(self, topic: str, partition: int) -> list[ActiveProducer]:
        """The producers that a partition remembers, those with an open transaction first."""
        asked = {"topics": [{"name": topic, "partition_indexes": [partition]}]}

        def described(channel: Channel) -> Any:
            found = channel.ask(ApiKey.DESCRIBE_PRODUCERS, asked).topics[0].partitions[0]
            _check(found.error_code, f"topic '{topic}' partition {partition}")
            return found

        producers = active_producers(self._cluster.with_leader(TopicPartition(topic, partition), described))
        return sorted(producers, key=lambda each: (each.start_offset is None, each.start_offset))

    def abort_hanging(self, topic: str, partition: int, start_offset: int) -> ActiveProducer:
        """End the transaction that begins at an offset of a partition, there alone, whatever its coordinator thinks."""
        matches = [each for each in self.producers(topic, partition) if each.start_offset == start_offset]
        if not matches:
            raise ClientError(
                f"topic '{topic}' partition {partition}: no open transaction begins at offset {start_offset}; "
                f"`headrace txn producers {topic} --partition {partition}` shows those there are",
                "INVALID_TXN_STATE",
            )
        (producer,) = matches
        marker = {
            "producer_id": producer.producer_id,
            "producer_epoch": producer.producer_epoch,
            "transaction_result": False,
            "topics": [{"name": topic, "partition_indexes": [partition]}],
            "coordinator_epoch": max(producer.coordinator_epoch, 0),
        }

        def marked(channel: Channel) -> None:
            written = channel.ask(ApiKey.WRITE_TXN_MARKERS, {"markers": [marker]}).markers[0].topics[0].partitions[0]
            if written.error_code is ErrorCode.invalid_txn_state:
                raise ClientError(
                    f"topic '{topic}' partition {partition}: this transaction does not hang, its coordinator knows it; "
                    f"`headrace txn list --producer-id {producer.producer_id}` shows its id, `headrace txn abort ID` "
                    f"ends it everywhere",
                    "INVALID_TXN_STATE",
                )
            _check(written.error_code, f"topic '{topic}' partition {partition}")

        self._cluster.with_leader(TopicPartition(topic, partition), marked)
        return producer

    def _at(self, broker: int, work: Callable[[Channel], T]) -> T:
        def attempt() -> T:
            with self._cluster.channel_to(broker) as channel:
                return work(channel)

        return self._cluster.retried(attempt)


def _check(code: ErrorCode, what: str) -> None:
    """Raises `TryAgain` for what passes: to be called within an attempt, which is then made again."""
    if code is not ErrorCode.none:
        raise refused_or_again(code, what)
