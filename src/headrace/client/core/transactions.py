"""Producer ids and transactions, by the first transaction protocol: requests, and what their answers say."""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from headrace.protocol.errors import ErrorCode
from headrace.protocol.topic_partition import TopicPartition, indexes_by_topic


class ProducerId(NamedTuple):
    """A producer id and its epoch."""

    id: int
    epoch: int


NOBODY: Final = ProducerId(-1, -1)
"""A producer without sequence numbers: a repeated batch is a second one."""


def init_producer_request(transactional_id: str | None, timeout_ms: int, before: ProducerId = NOBODY) -> dict[str, Any]:
    """InitProducerId: an id, or for a transactional id a new epoch that fences older ones."""
    return {
        "transactional_id": transactional_id,
        "transaction_timeout": timeout_ms,
        "producer_id": before.id,
        "producer_epoch": before.epoch,
    }


def read_producer(answer: Any) -> ProducerId:
    """The producer in an answer that is no error."""
    return ProducerId(int(answer.producer_id), int(answer.producer_epoch))


def add_partitions_request(
    transactional_id: str, producer: ProducerId, partitions: Iterable[TopicPartition]
) -> dict[str, Any]:
    """AddPartitionsToTxn, as clients ask it."""
    topics = [{"name": topic, "partitions": indexes} for topic, indexes in indexes_by_topic(partitions).items()]
    return {
        "v3_and_below_transactional_id": transactional_id,
        "v3_and_below_producer_id": producer.id,
        "v3_and_below_producer_epoch": producer.epoch,
        "v3_and_below_topics": topics,
    }


def read_added(answer: Any) -> list[ErrorCode]:
    """The codes of all partitions, the telling ones first: one partition's error keeps a broker from trying others."""
    codes = {p.partition_error_code for t in answer.results_by_topic_v3_and_below for p in t.results_by_partition}
    return sorted(codes, key=lambda code: code is ErrorCode.operation_not_attempted)


def end_request(transactional_id: str, producer: ProducerId, *, commit: bool) -> dict[str, Any]:
    """EndTxn: commit or abort."""
    return {
        "transactional_id": transactional_id,
        "producer_id": producer.id,
        "producer_epoch": producer.epoch,
        "committed": commit,
    }


def list_transactions_request(
    states: Iterable[str] = (),
    producer_ids: Iterable[int] = (),
    longer_than_ms: int = -1,
    pattern: str | None = None,
) -> dict[str, Any]:
    """ListTransactions, by states, producers, duration and a pattern of ids."""
    return {
        "state_filters": list(states),
        "producer_id_filters": list(producer_ids),
        "duration_filter": longer_than_ms,
        "transactional_id_pattern": pattern,
    }
