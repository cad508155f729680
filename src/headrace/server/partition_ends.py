"""Where partitions end, whoever leads them: the leaders are asked."""

from collections.abc import Mapping, Set
from typing import Any, Final

import structlog

from headrace.cluster.image import NO_LEADER, ClusterImage
from headrace.net.pacing import paced
from headrace.net.peers import Peers, PeerUnreachable, Purpose
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.topic_partition import TopicPartition
from headrace.replication.replica_manager import ReplicaManager

log = structlog.get_logger(__name__)

_ASK_SECONDS: Final = 3.0
_MOST_ASKED: Final = 2_000
"""Partitions of one request."""
_LATEST: Final = -1
_VERSION: Final = 7


class PartitionEnds:
    """Knows the high watermarks of partitions that this broker leads, and asks for those of others."""

    def __init__(self, *, broker_id: int, image: ClusterImage, replicas: ReplicaManager, peers: Peers | None) -> None:
        self._broker_id = broker_id
        self._image = image
        self._replicas = replicas
        self._peers = peers

    async def of(self, partitions: Set[TopicPartition]) -> dict[TopicPartition, int]:
        """The high watermarks of partitions, where they can be known now."""
        ends: dict[TopicPartition, int] = {}
        elsewhere: dict[int, list[TopicPartition]] = {}
        async for key in paced(partitions):
            leader = self._leader(key)
            if leader == self._broker_id:
                try:
                    partition = self._replicas.partition(*key)
                except CodedError:
                    continue
                if partition.is_leader and partition.knows_high_watermark:
                    ends[key] = partition.high_watermark
            elif leader != NO_LEADER:
                elsewhere.setdefault(leader, []).append(key)
        if self._peers is not None:
            for leader, keys in elsewhere.items():
                for start in range(0, len(keys), _MOST_ASKED):
                    ends.update(await self._ask(self._peers, leader, keys[start : start + _MOST_ASKED]))
        return ends

    def _leader(self, key: TopicPartition) -> int:
        topic = self._image.topic(key.topic)
        if topic is None or not 0 <= key.partition < len(topic.partitions):
            return NO_LEADER
        return topic.partitions[key.partition].leader

    async def _ask(self, peers: Peers, leader: int, keys: list[TopicPartition]) -> dict[TopicPartition, int]:
        by_topic: dict[str, list[dict[str, int]]] = {}
        for topic, index in keys:
            asked = {"partition_index": index, "current_leader_epoch": -1, "timestamp": _LATEST}
            by_topic.setdefault(topic, []).append(asked)
        values: Mapping[str, Any] = {
            "replica_id": -1,
            "isolation_level": 0,
            "topics": [{"name": topic, "partitions": partitions} for topic, partitions in by_topic.items()],
        }
        try:
            answer = await peers.ask(
                leader, ApiKey.LIST_OFFSETS, _VERSION, values, purpose=Purpose.FORWARD, timeout=_ASK_SECONDS
            )
        except PeerUnreachable as error:
            log.debug("ends of partitions could not be asked for", leader=leader, reason=str(error))
            return {}
        return {
            TopicPartition(topic.name, partition.partition_index): partition.offset
            for topic in answer.topics
            for partition in topic.partitions
            if partition.error_code is ErrorCode.none
        }
