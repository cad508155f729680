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
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import CodedError

from ..context import Context, RequestInfo
from .authorized import GROUP_OPERATIONS, NOT_ASKED, with_operations

_MS: Final = timedelta(milliseconds=1)


async def handle_consumer_group_heartbeat(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    names, owned = request.subscribed_topic_names, request.topic_partitions
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
    )
    return dict(await ctx.groups.consumer_heartbeat(request.group_id, heartbeat, info.version))


async def handle_consumer_group_describe(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    operations = GROUP_OPERATIONS if request.include_authorized_operations else NOT_ASKED
    groups = [await _describe(ctx, group_id) async for group_id in paced(dict.fromkeys(request.group_ids or ()))]
    return {"throttle_time": 0, "groups": [with_operations(group, operations) for group in groups]}


async def _describe(ctx: Context, group_id: str) -> Mapping[str, Any]:
    try:
        return await ctx.groups.describe(CONSUMER, group_id)
    except CodedError as error:
        return _refused(group_id, error)


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
