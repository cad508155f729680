"""DescribeGroups, versions 0-6, ListGroups, 0-5, DeleteGroups, 0-2, and OffsetDelete, 0.

- DescribeGroups knows classic groups. One that is not there is in the state Dead; from v6 on it is
  GROUP_ID_NOT_FOUND. Members' metadata and assignments are shown of a stable group only, as with Kafka.
- ListGroups: v4 filters by state, v5 by type, both whatever their case. COORDINATOR_LOAD_IN_PROGRESS while groups are
  being read, as a list that lacks some would look complete.
- DeleteGroups takes groups without members (else NON_EMPTY_GROUP), with their offsets.
- OffsetDelete refuses partitions of a topic that members read (GROUP_SUBSCRIBED_TO_TOPIC), and groups whose members
  are no consumers, of which nobody can tell (NON_EMPTY_GROUP).
"""

from collections import defaultdict
from typing import Any, Final

from headrace.coordinator.groups.classic import CLASSIC
from headrace.net.pacing import paced
from headrace.protocol.acl import CLUSTER_NAME, AclOperation, ResourceType
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import CodedError, ErrorCode

from ..context import Context, RequestInfo
from .authorized import may, may_see, require, with_operations

_FIRST_WITH_MISSING_GROUPS: Final = 6


async def handle_describe_groups(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    asked = getattr(request, "include_authorized_operations", False)
    groups = [await _describe(ctx, info, group_id) async for group_id in paced(request.groups or ())]
    return {"throttle_time": 0, "groups": [with_operations(ctx, info, group, asked) async for group in paced(groups)]}


async def _describe(ctx: Context, info: RequestInfo, group_id: str) -> dict[str, Any]:
    try:
        require(ctx, info, AclOperation.DESCRIBE, ResourceType.GROUP, group_id)
        return dict(await ctx.groups.describe(CLASSIC, group_id))
    except CodedError as error:
        return _not_described(group_id, error, info.version)


def _not_described(group_id: str, error: CodedError, version: int) -> dict[str, Any]:
    is_missing = error.code is ErrorCode.group_id_not_found
    is_told = not is_missing or version >= _FIRST_WITH_MISSING_GROUPS
    return {
        "error_code": error.code if is_told else ErrorCode.none,
        "error_message": error.message if is_told else None,
        "group_id": group_id,
        "group_state": "Dead" if is_missing else "",
        "protocol_type": "",
        "protocol_data": "",
        "members": (),
    }


async def handle_list_groups(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    states = getattr(request, "states_filter", None) or ()
    types = getattr(request, "types_filter", None) or ()
    sees_all = may_see(ctx, info, AclOperation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
    return {
        "throttle_time": 0,
        "error_code": ErrorCode.none,
        "groups": [
            {
                "group_id": group.group_id,
                "protocol_type": group.protocol_type or "",
                "group_state": group.state_name,
                "group_type": group.type.value,
            }
            async for group in paced(await ctx.groups.list_groups(states, types))
            if sees_all or may_see(ctx, info, AclOperation.DESCRIBE, ResourceType.GROUP, group.group_id)
        ],
    }


async def handle_delete_groups(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    results = []
    async for group_id in paced(dict.fromkeys(request.groups_names or ())):
        code = ErrorCode.none
        try:
            require(ctx, info, AclOperation.DELETE, ResourceType.GROUP, group_id)
            await ctx.groups.delete_group(group_id)
        except CodedError as error:
            code = error.code
        results.append({"group_id": group_id, "error_code": code})
    return {"throttle_time": 0, "results": results}


async def handle_offset_delete(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    require(ctx, info, AclOperation.DELETE, ResourceType.GROUP, request.group_id)
    known: dict[str, list[int]] = defaultdict(list)
    answers: dict[str, dict[int, ErrorCode]] = {}
    for topic in request.topics or ():
        is_allowed = may(ctx, info, AclOperation.READ, ResourceType.TOPIC, topic.name)
        found = ctx.image.topic(topic.name) if is_allowed else None
        count = 0 if found is None else len(found.partitions)
        codes = answers.setdefault(topic.name, {})
        for asked in topic.partitions or ():
            codes[asked.partition_index] = (
                ErrorCode.unknown_topic_or_partition if is_allowed else ErrorCode.topic_authorization_failed
            )
            if 0 <= asked.partition_index < count:
                known[topic.name].append(asked.partition_index)
    for name, codes in (await ctx.groups.offsets.delete(request.group_id, known)).items():
        answers[name].update(codes)
    return {
        "error_code": ErrorCode.none,
        "throttle_time": 0,
        "topics": [
            {
                "name": name,
                "partitions": [{"partition_index": index, "error_code": code} for index, code in codes.items()],
            }
            for name, codes in answers.items()
        ],
    }


HANDLERS: Final = {
    ApiKey.DESCRIBE_GROUPS: handle_describe_groups,
    ApiKey.LIST_GROUPS: handle_list_groups,
    ApiKey.DELETE_GROUPS: handle_delete_groups,
    ApiKey.OFFSET_DELETE: handle_offset_delete,
}
