"""ElectLeaders, versions 0-2, AlterPartitionReassignments, versions 0-1, ListPartitionReassignments, version 0.

- ElectLeaders: v0 elects preferred replicas; v1 asks for preferred (0) or unclean (1) elections. Null asks for all
  partitions, of which only those that changed or could not are told. An unclean election takes the living replica whose
  log reaches furthest. Our own types from 64 on designate a replica: 64 + its position in the list of replicas; Kafka
  refuses types that it does not know.
- AlterPartitionReassignments: null replicas undo the move that is under way. A move ends when everyone who is to hold
  the partition is in sync; until then it is listed. From v1 on a request can forbid another number of replicas.
- Both are the controller's: other brokers forward them.
"""

from collections.abc import Iterable
from typing import Any, Final

from headrace.cluster.image import PartitionState, Topic
from headrace.net.pacing import gather_limited, paced
from headrace.protocol.acl import CLUSTER_NAME, AclOperation, ResourceType
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import CodedError, ErrorCode

from ..context import Context, RequestInfo
from .authorized import may, refused, require_cluster

PREFERRED: Final = 0
UNCLEAN: Final = 1
DESIGNATED: Final = 64
"""The first of the types that name a replica by its position."""


async def handle_elect_leaders(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    kind = getattr(request, "election_type", 0)
    topics = request.topic_partitions
    if not _may_alter(ctx, info):
        return await _none_elected(topics or (), refused(info, AclOperation.ALTER, ResourceType.CLUSTER))
    if topics is None:
        pairs = [(topic.name, index) for topic in ctx.image.topics() for index in range(len(topic.partitions))]
    else:
        pairs = [(topic.topic, index) async for topic in paced(topics) for index in topic.partitions or ()]
    outcomes = await _outcomes(ctx, pairs, kind)
    by_topic: dict[str, list[dict[str, Any]]] = {}
    async for (name, index), error in paced(zip(pairs, outcomes, strict=True)):
        if topics is None and error is not None and error.code is ErrorCode.election_not_needed:
            continue
        by_topic.setdefault(name, []).append({"partition_id": index, **_result(error)})
    results = [{"topic": name, "partition_result": found} for name, found in by_topic.items()]
    return {"throttle_time": 0, "error_code": ErrorCode.none, "replica_election_results": results}


def _may_alter(ctx: Context, info: RequestInfo) -> bool:
    return may(ctx, info, AclOperation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)


async def _none_elected(topics: Iterable[Any], error: CodedError) -> dict[str, Any]:
    results = [
        {
            "topic": topic.topic,
            "partition_result": [{"partition_id": index, **_result(error)} for index in topic.partitions or ()],
        }
        async for topic in paced(topics)
    ]
    return {"throttle_time": 0, "error_code": error.code, "replica_election_results": results}


async def _outcomes(ctx: Context, pairs: list[tuple[str, int]], kind: int) -> list[CodedError | None]:
    if kind == PREFERRED:
        return await gather_limited(lambda pair: _elect(ctx, *pair), pairs)
    if kind != UNCLEAN and kind < DESIGNATED:
        return [CodedError(ErrorCode.invalid_request, f"Unknown election type {kind}") for _ in pairs]
    try:
        return await ctx.controller.elect_uncleanly(pairs, None if kind == UNCLEAN else kind - DESIGNATED)
    except CodedError as error:
        return [error for _ in pairs]


async def _elect(ctx: Context, name: str, index: int) -> CodedError | None:
    try:
        await ctx.controller.elect(name, index)
    except CodedError as error:
        return error
    return None


async def handle_alter_reassignments(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    require_cluster(ctx, info, AclOperation.ALTER)
    responses = []
    may_resize = getattr(request, "allow_replication_factor_change", True)
    async for topic in paced(request.topics or ()):
        name = topic.name

        async def moved(asked: Any, name: str = name) -> dict[str, Any]:
            error = await _reassign(ctx, name, asked, may_resize)
            return {"partition_index": asked.partition_index, **_result(error)}

        responses.append({"name": name, "partitions": await gather_limited(moved, topic.partitions or ())})
    return {
        "throttle_time": 0,
        "allow_replication_factor_change": may_resize,
        "error_code": ErrorCode.none,
        "error_message": None,
        "responses": responses,
    }


async def _reassign(ctx: Context, name: str, reassignment: Any, may_resize: bool) -> CodedError | None:
    target = None if reassignment.replicas is None else tuple(reassignment.replicas)
    try:
        if target == ():
            raise CodedError(ErrorCode.invalid_replica_assignment, "Empty replica list specified in reassignment.")
        if target is not None and not may_resize:
            _refuse_another_size(ctx.image.topic(name), reassignment.partition_index, len(target))
        await ctx.controller.reassign(name, reassignment.partition_index, target)
    except CodedError as error:
        return error
    return None


def _refuse_another_size(topic: Topic | None, index: int, size: int) -> None:
    if topic is None or not 0 <= index < len(topic.partitions):
        return
    state = topic.partitions[index]
    if len(state.replicas) - len(state.adding) != size:
        raise CodedError(
            ErrorCode.invalid_replication_factor,
            f"The replication factor is changed from {len(state.replicas) - len(state.adding)} to {size}",
        )


def _result(error: CodedError | None) -> dict[str, Any]:
    if error is None:
        return {"error_code": ErrorCode.none, "error_message": None}
    return {"error_code": error.code, "error_message": error.message}


async def handle_list_reassignments(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    require_cluster(ctx, info, AclOperation.DESCRIBE)
    indexes_of = None
    if request.topics is not None:
        indexes_of = {topic.name: set(topic.partition_indexes or ()) async for topic in paced(request.topics)}
    topics = []
    async for topic in paced(list(ctx.image.topics())):
        if indexes_of is not None and topic.name not in indexes_of:
            continue
        wanted = range(len(topic.partitions)) if indexes_of is None else sorted(indexes_of[topic.name])
        moving = list(_moving(topic.partitions, wanted))
        if moving:
            topics.append({"name": topic.name, "partitions": moving})
    return {"throttle_time": 0, "error_code": ErrorCode.none, "error_message": None, "topics": topics}


def _moving(states: tuple[PartitionState, ...], indexes: Iterable[int]) -> Iterable[dict[str, Any]]:
    for index in indexes:
        if 0 <= index < len(states) and (states[index].adding or states[index].removing):
            state = states[index]
            yield {
                "partition_index": index,
                "replicas": state.replicas,
                "adding_replicas": state.adding,
                "removing_replicas": state.removing,
            }


HANDLERS: Final = {
    ApiKey.ELECT_LEADERS: handle_elect_leaders,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: handle_alter_reassignments,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: handle_list_reassignments,
}
