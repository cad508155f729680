"""DescribeShareGroupOffsets, versions 0-1, AlterShareGroupOffsets, 0, and DeleteShareGroupOffsets, 0: where share
groups are in partitions, for operators. The rules are in `coordinator.groups.share.offsets`.

- Describe tells the start offset: everything before it is done with. Without topics all partitions are told that the
  group has state in. -1 is a partition that no member has read yet. v1 tells the lag: the records from there to the
  high watermark that are not acknowledged or given up, -1 where that is not known. A group, a topic or a partition that
  is not there is no error.
- Alter and Delete take groups without members (else NON_EMPTY_GROUP), and answer each partition, or topic, by itself.
  Alter makes a group that is not there. To Delete a topic in which the group has no state is
  UNKNOWN_TOPIC_OR_PARTITION.
- After Alter the lag is known at once; in Kafka not before a member has read.
"""

from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

from headrace.net.pacing import paced
from headrace.protocol.acl import AclOperation, ResourceType
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.topic_partition import TopicPartition
from headrace.replication.share_state import UNINITIALIZED, UNKNOWN_COUNT, ShareStateSummary

from ..context import Context, RequestInfo
from .authorized import may, may_see, refused, require

_UNKNOWN: Final = -1
_DESCRIBE: Final = AclOperation.DESCRIBE
_READ: Final = AclOperation.READ
_TOPIC: Final = ResourceType.TOPIC
_NO_ID: Final = UUID(int=0)


async def handle_describe_offsets(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    groups = [await _describe_group(ctx, info, asked) async for asked in paced(request.groups or ())]
    return {"throttle_time": 0, "groups": groups}


async def _describe_group(ctx: Context, info: RequestInfo, asked: Any) -> dict[str, Any]:
    try:
        require(ctx, info, _DESCRIBE, ResourceType.GROUP, asked.group_id)
        topics = await _describe_topics(ctx, info, asked)
    except CodedError as error:
        return {"group_id": asked.group_id, "topics": (), "error_code": error.code, "error_message": error.message}
    return {"group_id": asked.group_id, "topics": topics, "error_code": ErrorCode.none, "error_message": None}


async def _describe_topics(ctx: Context, info: RequestInfo, asked: Any) -> list[dict[str, Any]]:
    """Who may not describe a topic is not told of it, unless it was asked for by its name."""
    wanted = None if asked.topics is None else {topic.topic_name: topic.partitions or () for topic in asked.topics}
    allowed = {name: may(ctx, info, _DESCRIBE, _TOPIC, name) async for name in paced(wanted or ())}
    known = None if wanted is None else {name: indexes for name, indexes in wanted.items() if allowed[name]}
    found = await ctx.groups.share_offsets.describe(asked.group_id, known)
    if wanted is None:
        found = {name: of_topic for name, of_topic in found.items() if may_see(ctx, info, _DESCRIBE, _TOPIC, name)}
    ends = await ctx.ends.of(
        {TopicPartition(name, index) async for name, of_topic in paced(found.items()) for index in of_topic}
    )
    described = [
        _topic(
            ctx,
            name,
            [_described(index, told, ends.get(TopicPartition(name, index))) async for index, told in paced(items)],
        )
        for name, of_topic in found.items()
        if (items := of_topic.items())
    ]
    for name in (name for name, is_allowed in allowed.items() if not is_allowed):
        error = refused(info, _DESCRIBE, _TOPIC, name)
        indexes = (wanted or {})[name]
        described.append(_topic(ctx, name, [_described(index, error, None) async for index in paced(indexes)]))
    return described


def _topic(ctx: Context, name: str, partitions: list[dict[str, Any]]) -> dict[str, Any]:
    return {"topic_name": name, "topic_id": _topic_id(ctx, name), "partitions": partitions}


def _topic_id(ctx: Context, name: str) -> UUID:
    topic = ctx.image.topic(name)
    return _NO_ID if topic is None else topic.id


def _described(index: int, told: ShareStateSummary | CodedError, end: int | None) -> dict[str, Any]:
    if isinstance(told, CodedError):
        offsets = {"start_offset": _UNKNOWN, "leader_epoch": 0, "lag": _UNKNOWN}
        return {"partition_index": index, **offsets, "error_code": told.code, "error_message": told.message}
    return {
        "partition_index": index,
        "start_offset": told.start_offset,
        "leader_epoch": max(told.leader_epoch, 0),
        "lag": _lag(told, end),
        "error_code": ErrorCode.none,
        "error_message": None,
    }


def _lag(told: ShareStateSummary, end: int | None) -> int:
    if end is None or told.start_offset == UNINITIALIZED or told.delivery_complete_count == UNKNOWN_COUNT:
        return _UNKNOWN
    return max(end - told.start_offset - told.delivery_complete_count, 0)


async def handle_alter_offsets(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    require(ctx, info, _READ, ResourceType.GROUP, request.group_id)
    offsets: dict[str, dict[int, int]] = {}
    async for topic in paced(request.topics or ()):
        of_topic = offsets.setdefault(topic.topic_name, {})
        of_topic.update({each.partition_index: each.start_offset async for each in paced(topic.partitions or ())})
    denied = {
        name: refused(info, _READ, _TOPIC, name)
        async for name in paced(offsets)
        if not may(ctx, info, _READ, _TOPIC, name)
    }
    allowed = {name: of_topic for name, of_topic in offsets.items() if name not in denied}
    codes = await ctx.groups.share_offsets.alter(request.group_id, allowed)
    responses = []
    for name, of_topic in offsets.items():
        errors: Mapping[int, CodedError | None] = codes.get(name) or dict.fromkeys(of_topic, denied.get(name))
        partitions = [{"partition_index": index, **_error(errors[index])} async for index in paced(of_topic)]
        responses.append(_topic(ctx, name, partitions))
    return {"throttle_time": 0, "error_code": ErrorCode.none, "error_message": None, "responses": responses}


async def handle_delete_offsets(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    require(ctx, info, AclOperation.DELETE, ResourceType.GROUP, request.group_id)
    names = list(dict.fromkeys(topic.topic_name for topic in request.topics or ()))
    denied = {
        name: refused(info, _READ, _TOPIC, name)
        async for name in paced(names)
        if not may(ctx, info, _READ, _TOPIC, name)
    }
    ids = {name: _topic_id(ctx, name) async for name in paced(names)}
    errors: dict[str, CodedError | None] = {**denied}
    errors |= await ctx.groups.share_offsets.delete(request.group_id, [name for name in names if name not in denied])
    responses = [{"topic_name": name, "topic_id": ids[name], **_error(errors[name])} async for name in paced(names)]
    return {"throttle_time": 0, "error_code": ErrorCode.none, "error_message": None, "responses": responses}


def _error(error: CodedError | None) -> dict[str, Any]:
    if error is None:
        return {"error_code": ErrorCode.none, "error_message": None}
    return {"error_code": error.code, "error_message": error.message}


HANDLERS: Final = {
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: handle_describe_offsets,
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: handle_alter_offsets,
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: handle_delete_offsets,
}
