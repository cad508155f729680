"""ConsumerGroupHeartbeat, versions 0-1, and ConsumerGroupDescribe, versions 0-1: the new group protocol (KIP-848).

A member's heartbeat says what it is subscribed to and what it owns, and is answered with what it is to own; the rules
are in `coordinator.groups.consumer`. Fields that did not change since the last heartbeat are null.

- Heartbeat v0: a member that joins without an id is given one. v1: members choose their ids; a subscription can be a
  regular expression, which matches whole names and is resolved here, without looks around and references to groups.
- Describe answers each group by itself; GROUP_ID_NOT_FOUND for one that is not there or speaks the classic protocol.
  v1 tells which members speak which protocol.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from headrace.coordinator.groups.consumer import CONSUMER, HeartbeatRequest
from headrace.net.pacing import paced
from headrace.protocol.acl import AclOperation, ResourceType
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import CodedError, ErrorCode

from ..context import Context, RequestInfo
from .authorized import is_free, may, may_see, require, with_operations

_MS: Final = timedelta(milliseconds=1)
_DESCRIBE: Final = AclOperation.DESCRIBE


async def handle_consumer_group_heartbeat(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    names, owned = request.subscribed_topic_names, request.topic_partitions
    require(ctx, info, AclOperation.READ, ResourceType.GROUP, request.group_id)
    async for name in paced(() if is_free(ctx, info) else dict.fromkeys(names or ())):
        require(ctx, info, _DESCRIBE, ResourceType.TOPIC, name)
    heartbeat = HeartbeatRequest(
        token=None,
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout // _MS,
        subscribed_topic_names=None if names is None else frozenset(names),
        subscribed_topic_regex=getattr(request, "subscribed_topic_regex", None),
        server_assignor=request.server_assignor,
        owned=None if owned is None else {topic.topic_id: frozenset(topic.partitions) for topic in owned},
        client_id=info.client_id or "",
        client_host=f"/{info.host}",
        sees=None if is_free(ctx, info) else lambda name: may_see(ctx, info, _DESCRIBE, ResourceType.TOPIC, name),
    )
    return dict(await ctx.groups.consumer_heartbeat(request.group_id, heartbeat, info.version))


async def handle_consumer_group_describe(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    asked = request.include_authorized_operations
    groups = [await _describe(ctx, info, group_id) async for group_id in paced(dict.fromkeys(request.group_ids or ()))]
    return {"throttle_time": 0, "groups": [with_operations(ctx, info, group, asked) for group in groups]}


async def _describe(ctx: Context, info: RequestInfo, group_id: str) -> Mapping[str, Any]:
    try:
        require(ctx, info, _DESCRIBE, ResourceType.GROUP, group_id)
        described = await ctx.groups.describe(CONSUMER, group_id)
        if not is_free(ctx, info):
            _require_topics(ctx, info, described)
        return described
    except CodedError as error:
        return _refused(group_id, error)


def _require_topics(ctx: Context, info: RequestInfo, described: Mapping[str, Any]) -> None:
    """Who may not describe a topic that a member reads is told nothing of the group, as by Kafka."""
    names = {
        topic["topic_name"]
        for member in described["members"]
        for assignment in (member["assignment"], member["target_assignment"])
        for topic in assignment["topic_partitions"]
    }
    if not all(may(ctx, info, _DESCRIBE, ResourceType.TOPIC, name) for name in sorted(names)):
        raise CodedError(
            ErrorCode.topic_authorization_failed,
            "The group has described topic(s) that the client is not authorized to describe.",
        )


def _refused(group_id: str, error: CodedError) -> dict[str, Any]:
    return {
        "error_code": error.code,
        "error_message": error.message,
        "group_id": group_id,
        "group_state": "",
        "group_epoch": 0,
        "assignment_epoch": 0,
        "assignor_name": "",
        "members": (),
    }


HANDLERS: Final = {
    ApiKey.CONSUMER_GROUP_HEARTBEAT: handle_consumer_group_heartbeat,
    ApiKey.CONSUMER_GROUP_DESCRIBE: handle_consumer_group_describe,
}
