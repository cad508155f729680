"""Asks the coordinator of a transaction, here or on another broker, whether a partition is part of it.

Leaders ask before they append what a producer writes in a transaction, and group coordinators before they keep offsets
that are committed in one (KIP-890): so nothing that comes after the end of a transaction gets into it, or into a log.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from headrace.net.peers import Peers, PeerUnreachable, Purpose
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.replication.transactions import TopicPartition

from .decisions import Producer
from .service import NEWER, TransactionCoordinator

VERIFY_SECONDS: Final = 5.0
_VERSION: Final = 5


class Verifier:
    """Implements `replication.transactions.TransactionVerifier`."""

    def __init__(self, broker_id: int, coordinator: TransactionCoordinator, peers: Peers | None) -> None:
        self._broker_id = broker_id
        self._coordinator = coordinator
        self._peers = peers

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        add: bool,
    ) -> Mapping[TopicPartition, ErrorCode]:
        """See `TransactionVerifier`."""
        producer = Producer(producer_id, producer_epoch)
        try:
            leader = await self._coordinator.shards.leader(transactional_id)
            if leader == self._broker_id:
                return await self._ask_here(transactional_id, producer, partitions, add)
            return await self._ask(leader, transactional_id, producer, partitions, add)
        except PeerUnreachable:
            return dict.fromkeys(partitions, ErrorCode.network_exception)
        except CodedError as error:
            return dict.fromkeys(partitions, error.code)

    async def _ask_here(
        self, transactional_id: str, producer: Producer, partitions: Sequence[TopicPartition], add: bool
    ) -> Mapping[TopicPartition, ErrorCode]:
        if not add:
            return await self._coordinator.verify(transactional_id, producer, partitions)
        return await self._coordinator.add_partitions(transactional_id, producer, partitions, version=NEWER)

    async def _ask(
        self, leader: int, transactional_id: str, producer: Producer, partitions: Sequence[TopicPartition], add: bool
    ) -> Mapping[TopicPartition, ErrorCode]:
        if self._peers is None:
            raise CodedError(ErrorCode.not_coordinator)
        topics: dict[str, list[int]] = {}
        for topic, index in partitions:
            topics.setdefault(topic, []).append(index)
        asked = {
            "transactional_id": transactional_id,
            "producer_id": producer.id,
            "producer_epoch": producer.epoch,
            "verify_only": not add,
            "topics": [{"name": name, "partitions": indexes} for name, indexes in topics.items()],
        }
        answer = await self._peers.ask(
            leader,
            ApiKey.ADD_PARTITIONS_TO_TXN,
            _VERSION,
            {"transactions": [asked]},
            purpose=Purpose.VERIFY,
            timeout=VERIFY_SECONDS,
        )
        return _codes(answer, partitions)


def _codes(answer: Any, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, ErrorCode]:
    if answer.error_code is not ErrorCode.none:
        return dict.fromkeys(partitions, answer.error_code)
    found = {
        (topic.name, result.partition_index): result.partition_error_code
        for transaction in answer.results_by_transaction
        for topic in transaction.topic_results
        for result in topic.results_by_partition
    }
    return {where: found.get(where, ErrorCode.unknown_server_error) for where in partitions}
