"""Asks the coordinator of a transaction, here or on another broker, whether a partition is part of it.

Leaders ask before they append what a producer writes in a transaction, and group coordinators before they keep offsets
that are committed in one (KIP-890): so nothing that comes after the end of a transaction gets into it, or into a log.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from headrace.net.peers import Peers, PeerUnreachable, Purpose
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.peer import InternalApi, PeerMessage
from headrace.protocol.topic_partition import TopicPartition

from .decisions import ProducerIdAndEpoch
from .service import NEWER, TransactionCoordinator

VERIFY_SECONDS: Final = 5.0


class VerifyRequest(NamedTuple):
    """Whether partitions are part of a producer's open transaction; with `add` they become so."""

    transactional_id: str
    producer: ProducerIdAndEpoch
    partitions: Sequence[TopicPartition]
    topic_ids: Mapping[str, UUID]
    add: bool

    def encoded(self) -> dict[str, Any]:
        """For another broker."""
        return {
            "transactional_id": self.transactional_id,
            "producer": self.producer,
            "partitions": self.partitions,
            "topic_ids": {name: topic_id.hex for name, topic_id in self.topic_ids.items()},
            "add": self.add,
        }

    @classmethod
    def decoded(cls, values: Mapping[str, Any]) -> "VerifyRequest":
        return cls(
            values["transactional_id"],
            ProducerIdAndEpoch(*values["producer"]),
            [TopicPartition(name, index) for name, index in values["partitions"]],
            {name: UUID(hex=topic_id) for name, topic_id in values["topic_ids"].items()},
            values["add"],
        )


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
        topic_ids: Mapping[str, UUID],
        *,
        add: bool,
    ) -> Mapping[TopicPartition, ErrorCode]:
        """See `TransactionVerifier`."""
        request = VerifyRequest(
            transactional_id, ProducerIdAndEpoch(producer_id, producer_epoch), partitions, topic_ids, add
        )
        try:
            leader = await self._coordinator.runtime.leader(transactional_id)
            if leader == self._broker_id:
                return await self._answer(request)
            return await self._ask(leader, request)
        except PeerUnreachable:
            return dict.fromkeys(partitions, ErrorCode.network_exception)
        except CodedError as error:
            return dict.fromkeys(partitions, error.code)

    async def _ask(self, leader: int, request: VerifyRequest) -> Mapping[TopicPartition, ErrorCode]:
        if self._peers is None:
            raise CodedError(ErrorCode.not_coordinator)
        values = request.encoded()
        answer = await self._peers.tell(
            leader, InternalApi.VERIFY, values, purpose=Purpose.VERIFY, timeout=VERIFY_SECONDS
        )
        return dict(zip(request.partitions, map(ErrorCode, answer["codes"]), strict=True))

    async def serve(self, message: PeerMessage) -> PeerMessage:
        """The answer to another broker's request; `CodedError` where this broker is not the coordinator."""
        request = VerifyRequest.decoded(message.values)
        codes = await self._answer(request)
        return PeerMessage({"codes": [codes[partition].value for partition in request.partitions]})

    async def _answer(self, request: VerifyRequest) -> Mapping[TopicPartition, ErrorCode]:
        """What the coordinator, which is here, says."""
        transactional_id, producer, partitions, topic_ids, add = request
        if not add:
            return await self._coordinator.verify(transactional_id, producer, partitions, topic_ids)
        return await self._coordinator.add_partitions(transactional_id, producer, partitions, topic_ids, version=NEWER)
