"""ShareGroupHeartbeat and ShareGroupDescribe, version 1 of each: members of share groups (KIP-932).

A member's heartbeat says which topics it is subscribed to, and is answered with the partitions it is to read; the rules
are in `coordinator.groups.share`. What did not change since the last heartbeat is null.

- The first heartbeat of a group is answered once the share coordinator has state for what is to be read, or after three
  seconds. Kafka answers it at once, without an assignment.
- A group of another type is GROUP_ID_NOT_FOUND, also one without members.
- Describe answers each group by itself; GROUP_ID_NOT_FOUND for one that is not there or of another type.
- Who subscribes to more than 10,000 topics gets INVALID_REQUEST; Kafka takes them all.
- Left out: version 0 of each, which was Kafka 4.0's preview.
"""

from collections.abc import Mapping
from typing import Any, Final

from headrace.coordinator.groups.share import SHARE, ShareHeartbeat
from headrace.net.pacing import paced
from headrace.protocol.acl import AclOperation, ResourceType
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import CodedError, ErrorCode

from ..context import Context, RequestInfo
from .authorized import is_free, may, require, with_operations

_DESCRIBE: Final = AclOperation.DESCRIBE


async def handle_share_group_heartbeat(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    names = request.subscribed_topic_names
    require(ctx, info, AclOperation.READ, ResourceType.GROUP, request.group_id)
    async for name in paced(() if is_free(ctx, info) else dict.fromkeys(names or ())):
        require(ctx, info, _DESCRIBE, ResourceType.TOPIC, name)
    heartbeat = ShareHeartbeat(
        token=None,
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        rack_id=request.rack_id,
        subscribed_topic_names=None if names is None else frozenset(names),
        client_id=info.client_id or "",
        client_host=f"/{info.host}",
    )
    return dict(await ctx.groups.share_heartbeat(request.group_id, heartbeat))


async def handle_share_group_describe(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    asked = request.include_authorized_operations
    groups = [await _describe(ctx, info, group_id) async for group_id in paced(dict.fromkeys(request.group_ids or ()))]
    told = [with_operations(ctx, info, group, asked) async for group in paced(groups)]
    return {"throttle_time": 0, "groups": told}


async def _describe(ctx: Context, info: RequestInfo, group_id: str) -> Mapping[str, Any]:
    try:
        require(ctx, info, _DESCRIBE, ResourceType.GROUP, group_id)
        described = await ctx.groups.describe(SHARE, group_id)
        if not is_free(ctx, info):
            _require_topics(ctx, info, described)
    except CodedError as error:
        return _refused(group_id, error)
    return described


def _require_topics(ctx: Context, info: RequestInfo, described: Mapping[str, Any]) -> None:
    """Who may not describe a topic that a member reads is told nothing of the group, as by Kafka."""
    names = {topic["topic_name"] for each in described["members"] for topic in each["assignment"]["topic_partitions"]}
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
    ApiKey.SHARE_GROUP_HEARTBEAT: handle_share_group_heartbeat,
    ApiKey.SHARE_GROUP_DESCRIBE: handle_share_group_describe,
}
