"""DescribeCluster, versions 0-2, DescribeLogDirs, versions 1-5, AlterReplicaLogDirs, versions 1-2, and
DescribeProducers, version 0.

- DescribeCluster: v1 asks for brokers (1) or controllers (2). Controllers are not a kind of their own here, so 2 is
  MISMATCHED_ENDPOINT_TYPE, as a Kafka broker answers, and any other UNSUPPORTED_ENDPOINT_TYPE. v2 can ask for fenced
  brokers; there are none. Brokers are told by their endpoints of the listener on which the request came.
- DescribeLogDirs: null asks for every partition; those that are not held here are left out. A broker has one log
  directory. v4 adds the size of its disk; v5 whether it takes new partitions, which it always does.
- AlterReplicaLogDirs: a broker has one log directory, any other is LOG_DIR_NOT_FOUND. To name it changes nothing, as in
  Kafka, where a log is there already; REPLICA_NOT_AVAILABLE where none is. With `?refetch` behind it a failed log
  begins anew, empty, and fetches everything from the leader; NOT_ENOUGH_REPLICAS where no other replica is in sync,
  unless it is `?start-empty`; INVALID_REQUEST where the log has not failed.
- DescribeProducers: the producers a partition remembers, with the start of their open transaction.
"""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

from headrace.net.pacing import paced
from headrace.protocol.acl import CLUSTER_NAME, AclOperation, ResourceType
from headrace.protocol.api import REFETCH, START_EMPTY, ApiKey
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.replication.partition import Partition
from headrace.storage.disk import StorageError

from ..context import Context, RequestInfo, reachable_controller
from .authorized import NOT_ASKED, cluster_operations, may, require, require_cluster

BROKERS: Final = 1
CONTROLLERS: Final = 2


async def handle_describe_cluster(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    endpoint_type = getattr(request, "endpoint_type", BROKERS)
    image = ctx.image
    answer: dict[str, Any] = {
        "throttle_time": 0,
        "error_code": ErrorCode.none,
        "error_message": None,
        "endpoint_type": endpoint_type,
        "cluster_id": image.cluster_id,
        "controller_id": reachable_controller(ctx, info),
        "brokers": (),
        "cluster_authorized_operations": NOT_ASKED,
    }
    if endpoint_type != BROKERS:
        mismatched = endpoint_type == CONTROLLERS
        answer["error_code"] = ErrorCode.mismatched_endpoint_type if mismatched else ErrorCode.unsupported_endpoint_type
        answer["error_message"] = f"Endpoint type {endpoint_type} was asked for; this is a broker (1)"
        return answer
    if request.include_cluster_authorized_operations:
        answer["cluster_authorized_operations"] = cluster_operations(ctx, info)
    answer["brokers"] = [
        {"broker_id": b.id, "host": endpoint.host, "port": endpoint.port, "rack": b.rack, "is_fenced": False}
        for b in image.brokers.values()
        if (endpoint := b.endpoint(info.listener)) is not None
    ]
    return answer


async def handle_describe_log_dirs(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    require_cluster(ctx, info, AclOperation.DESCRIBE)
    held = list(ctx.replicas.hosted()) if request.topics is None else await _held(ctx, request.topics)
    by_topic: dict[str, list[dict[str, Any]]] = {}
    async for partition in paced(held):
        by_topic.setdefault(partition.topic, []).append(_size(partition))
    total, usable = ctx.replicas.disk_usage()
    directory = {
        "error_code": ErrorCode.none,
        "log_dir": ctx.replicas.log_directory,
        "topics": [{"name": name, "partitions": partitions} for name, partitions in by_topic.items()],
        "total_bytes": total,
        "usable_bytes": usable,
        "is_cordoned": False,
    }
    return {"throttle_time": 0, "error_code": ErrorCode.none, "results": [directory]}


async def _held(ctx: Context, topics: Iterable[Any]) -> list[Partition]:
    asked = {(topic.topic, index): None async for topic in paced(topics) for index in topic.partitions or ()}
    held = []
    async for name, index in paced(asked):
        with suppress(CodedError):
            held.append(ctx.replicas.partition(name, index))
    return held


def _size(partition: Partition) -> dict[str, Any]:
    return {
        "partition_index": partition.index,
        "partition_size": partition.log.size_bytes,
        "offset_lag": max(0, partition.high_watermark - partition.log.log_end_offset),
        "is_future_key": False,
    }


async def handle_alter_replica_log_dirs(
    ctx: Context,
    request: Any,
    info: RequestInfo,
) -> dict[str, Any]:
    """A broker has one directory, so that nothing moves; `headrace log refetch` asks here, too."""
    partitions_of: dict[str, list[dict[str, Any]]] = {}
    is_allowed = may(ctx, info, AclOperation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)
    for directory in request.dirs or ():
        for topic in directory.topics or ():
            for index in topic.partitions or ():
                code = ErrorCode.cluster_authorization_failed
                if is_allowed:
                    code = await _altered(ctx, directory.path, topic.name, index)
                partitions_of.setdefault(topic.name, []).append({"partition_index": index, "error_code": code})
    results = [{"topic_name": name, "partitions": partitions} for name, partitions in partitions_of.items()]
    return {"throttle_time": 0, "results": results}


async def _altered(ctx: Context, path: str, topic: str, index: int) -> ErrorCode:
    directory = path.removesuffix(REFETCH).removesuffix(START_EMPTY)
    if directory.rstrip("/") != ctx.replicas.log_directory.rstrip("/"):
        return ErrorCode.log_dir_not_found
    if path == directory:
        return _placed(ctx, topic, index)
    try:
        await ctx.replicas.refetch(topic, index, start_empty=path.endswith(START_EMPTY))
    except CodedError as error:
        return error.code
    except StorageError:
        return ErrorCode.kafka_storage_error
    return ErrorCode.none


def _placed(ctx: Context, topic: str, index: int) -> ErrorCode:
    """Whether a replica is in the broker's directory."""
    try:
        log = ctx.replicas.partition(topic, index).log
    except CodedError as error:
        return ErrorCode.replica_not_available if error.code is ErrorCode.not_leader_or_follower else error.code
    return ErrorCode.none if log.offline is None else ErrorCode.kafka_storage_error


async def handle_describe_producers(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    return {
        "throttle_time": 0,
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    _producers(ctx, info, topic.name, index)
                    async for index in paced(dict.fromkeys(topic.partition_indexes or ()))
                ],
            }
            async for topic in paced(request.topics or ())
        ],
    }


def _producers(ctx: Context, info: RequestInfo, topic: str, index: int) -> dict[str, Any]:
    try:
        require(ctx, info, AclOperation.READ, ResourceType.TOPIC, topic)
        states = ctx.replicas.partition(topic, index).log.producers()
    except CodedError as error:
        return {
            "partition_index": index,
            "error_code": error.code,
            "error_message": error.message,
            "active_producers": (),
        }
    active = [
        {
            "producer_id": producer_id,
            "producer_epoch": state.epoch,
            "last_sequence": state.last_sequence,
            "last_timestamp": state.last_timestamp,
            "coordinator_epoch": state.coordinator_epoch,
            "current_txn_start_offset": state.transaction_first_offset,
        }
        for producer_id, state in states.states()
    ]
    return {
        "partition_index": index,
        "error_code": ErrorCode.none,
        "error_message": None,
        "active_producers": active,
    }


HANDLERS: Final = {
    ApiKey.DESCRIBE_CLUSTER: handle_describe_cluster,
    ApiKey.ALTER_REPLICA_LOG_DIRS: handle_alter_replica_log_dirs,
    ApiKey.DESCRIBE_LOG_DIRS: handle_describe_log_dirs,
    ApiKey.DESCRIBE_PRODUCERS: handle_describe_producers,
}
