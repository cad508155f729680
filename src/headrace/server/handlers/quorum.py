"""DescribeQuorum, versions 0-2.

There is no quorum of controllers: the store elects one of the brokers, and the others follow its feed of changes. That
answers what operators ask a quorum: who is the active controller (leader), in which controller epoch, and how far each
broker has come. Every broker can be elected, so all that live are voters; observers are none.

- Offsets count the changes of this controller epoch; a lone broker's, those since it started. -1 is a broker that has
  not taken up everything once.
- v1 adds when a broker asked last, and when it last had everything; v2 where it is reached.
- Any other partition than `__cluster_metadata` 0 is UNKNOWN_TOPIC_OR_PARTITION.
"""

from collections.abc import Sequence
from typing import Any, Final

from headrace.cluster.image import NO_LEADER, BrokerNode, Endpoint
from headrace.cluster.metadata_writer import Quorum, QuorumReplica
from headrace.config.listeners import PLAINTEXT
from headrace.protocol.acl import AclOperation
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode

from ..context import Context, RequestInfo
from .authorized import require_cluster

METADATA_TOPIC: Final = "__cluster_metadata"
_UNKNOWN: Final = -1


async def handle_describe_quorum(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    require_cluster(ctx, info, AclOperation.DESCRIBE)
    quorum = await ctx.controller.describe_quorum()
    topics = [
        {
            "topic_name": topic.topic_name,
            "partitions": [
                _partition(ctx, quorum, topic.topic_name, partition.partition_index)
                for partition in topic.partitions or ()
            ],
        }
        for topic in request.topics or ()
    ]
    nodes = [
        {
            "node_id": node.id,
            "listeners": [{"name": e.name, "host": e.host, "port": e.port} for e in _endpoints(node)],
        }
        for node in ctx.image.brokers.values()
        if node.id in quorum.replicas
    ]
    return {"error_code": ErrorCode.none, "error_message": None, "topics": topics, "nodes": nodes}


def _endpoints(node: BrokerNode) -> Sequence[Endpoint]:
    return node.endpoints or [Endpoint(PLAINTEXT, PLAINTEXT, node.host, node.port)]


def _partition(ctx: Context, quorum: Quorum, topic: str, index: int) -> dict[str, Any]:
    if (topic, index) != (METADATA_TOPIC, 0):
        return {
            "partition_index": index,
            "error_code": ErrorCode.unknown_topic_or_partition,
            "error_message": f"Only partition 0 of {METADATA_TOPIC} can be described",
            "leader_id": NO_LEADER,
            "leader_epoch": _UNKNOWN,
            "high_watermark": _UNKNOWN,
            "current_voters": (),
            "observers": (),
        }
    now_ms = ctx.clock.now_ms()
    return {
        "partition_index": index,
        "error_code": ErrorCode.none,
        "error_message": None,
        "leader_id": quorum.leader,
        "leader_epoch": quorum.epoch,
        "high_watermark": quorum.offset,
        "current_voters": [_voter(broker, replica, now_ms) for broker, replica in sorted(quorum.replicas.items())],
        "observers": (),
    }


def _voter(broker: int, replica: QuorumReplica, now_ms: int) -> dict[str, Any]:
    return {
        "replica_id": broker,
        "replica_directory_id": None,
        "log_end_offset": replica.offset,
        "last_fetch_timestamp": _ago(replica.heard_seconds, now_ms),
        "last_caught_up_timestamp": _ago(replica.behind_seconds, now_ms),
    }


def _ago(seconds: float | None, now_ms: int) -> int:
    return _UNKNOWN if seconds is None else now_ms - int(seconds * 1000)


HANDLERS: Final = {ApiKey.DESCRIBE_QUORUM: handle_describe_quorum}
