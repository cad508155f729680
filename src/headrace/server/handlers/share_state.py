"""InitializeShareGroupState, version 0, ReadShareGroupState, 0, WriteShareGroupState, 0-1, DeleteShareGroupState, 0,
and ReadShareGroupStateSummary, 0-1: the state of share groups in partitions, as brokers ask for it.

The rules are in `coordinator.share`. All of them take CLUSTER_ACTION, and answer each partition with its own code:

- NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE (it could not be written): to be tried again.
- FENCED_STATE_EPOCH for another state epoch than the one that is kept; FENCED_LEADER_EPOCH where a later leader has
  read. Who leads has to read before it writes: else it is FENCED_STATE_EPOCH, too (Kafka lets it).
- UNKNOWN_TOPIC_OR_PARTITION where the topic is not known here; not for Delete and Summary, which may come after it.
- INVALID_REQUEST for values that make no sense, and for Read and Write of what was not initialized.
- WriteShareGroupState v1 and ReadShareGroupStateSummary v1 have the count of offsets whose delivery is complete.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from headrace.net.pacing import gather_limited
from headrace.protocol.acl import AclOperation
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.replication.share_state import UNKNOWN_COUNT, SharePartition, ShareStateChange, StateBatch

from ..context import Context, RequestInfo
from ..dispatch import Handler
from .authorized import require_cluster

Values = Mapping[str, Any]
Serve = Callable[[SharePartition, Any], Awaitable[Values]]
"""Answers for one partition of a request."""


async def handle_initialize(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    async def serve(key: SharePartition, asked: Any) -> Values:
        await ctx.share.initialize(key, asked.state_epoch, asked.start_offset)
        return {}

    return await _each(ctx, request, info, serve)


async def handle_read(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    async def serve(key: SharePartition, asked: Any) -> Values:
        state = await ctx.share.read(key, asked.leader_epoch)
        return {
            "state_epoch": state.state_epoch,
            "start_offset": state.start_offset,
            "state_batches": [batch._asdict() for batch in state.batches],
        }

    return await _each(ctx, request, info, serve, {"state_epoch": 0, "start_offset": 0, "state_batches": ()})


async def handle_write(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    async def serve(key: SharePartition, asked: Any) -> Values:
        await ctx.share.write(
            key,
            ShareStateChange(
                state_epoch=asked.state_epoch,
                leader_epoch=asked.leader_epoch,
                start_offset=asked.start_offset,
                delivery_complete_count=getattr(asked, "delivery_complete_count", UNKNOWN_COUNT),
                batches=[
                    StateBatch(batch.first_offset, batch.last_offset, batch.delivery_state, batch.delivery_count)
                    for batch in asked.state_batches or ()
                ],
            ),
        )
        return {}

    return await _each(ctx, request, info, serve)


async def handle_delete(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    async def serve(key: SharePartition, asked: Any) -> Values:
        await ctx.share.delete(key)
        return {}

    return await _each(ctx, request, info, serve)


async def handle_summary(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    async def serve(key: SharePartition, asked: Any) -> Values:
        summary = await ctx.share.summary(key)
        return {
            "state_epoch": summary.state_epoch,
            "leader_epoch": summary.leader_epoch,
            "start_offset": summary.start_offset,
            "delivery_complete_count": summary.delivery_complete_count,
        }

    return await _each(ctx, request, info, serve, {"state_epoch": 0, "leader_epoch": 0, "start_offset": 0})


async def _each(
    ctx: Context, request: Any, info: RequestInfo, serve: Serve, blank: Values | None = None
) -> dict[str, Any]:
    """The answers for the partitions of a request; `blank` is what stands in one besides an error."""

    async def answer(asked: tuple[Any, Any]) -> Values:
        topic_id, partition = asked
        head = {"partition": partition.partition, "error_code": ErrorCode.none, "error_message": None}
        try:
            require_cluster(ctx, info, AclOperation.CLUSTER_ACTION)
            if topic_id is None:
                raise CodedError(ErrorCode.invalid_request, "the id of the topic is missing")
            return {**head, **await serve(SharePartition(request.group_id, topic_id, partition.partition), partition)}
        except CodedError as error:
            return {**head, **(blank or {}), "error_code": error.code, "error_message": error.message}

    asked = [(topic.topic_id, partition) for topic in request.topics or () for partition in topic.partitions or ()]
    answers = iter(await gather_limited(answer, asked))
    return {
        "results": [
            {"topic_id": topic.topic_id, "partitions": [next(answers) for _ in topic.partitions or ()]}
            for topic in request.topics or ()
        ]
    }


HANDLERS: Final[dict[ApiKey, Handler]] = {
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: handle_initialize,
    ApiKey.READ_SHARE_GROUP_STATE: handle_read,
    ApiKey.WRITE_SHARE_GROUP_STATE: handle_write,
    ApiKey.DELETE_SHARE_GROUP_STATE: handle_delete,
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: handle_summary,
}
