"""FindCoordinator, versions 0-6, JoinGroup, 0-9, SyncGroup, 0-5, Heartbeat, 0-4, and LeaveGroup, 0-5.

The life of a member of a classic group; the rules are in `coordinator.groups.classic`. A JoinGroup or SyncGroup
holds its connection until the group can answer, as with Kafka: clients keep a connection for their coordinator.

- FindCoordinator makes the internal topic when the first group, or the first transactional id (key type 1), is looked
  for. v4 asks for many keys at once; v6 knows share-partitions (key type 2, `GROUP:TOPIC ID:PARTITION`), for brokers.
  Where all is well the message is NONE in v1-v3 and empty from v4 on, as with Kafka.
- JoinGroup: v1 rebalance timeout (before, the session timeout counts as both); v4 a new member is given an id and must
  join again with it (MEMBER_ID_REQUIRED); v5 static members; v7 protocol type; v9 a static leader that returns is told
  to skip the assignment.
- SyncGroup: v5 names the protocol; not to name it, or another one, is INCONSISTENT_GROUP_PROTOCOL.
- LeaveGroup: v3 many members at once, each with its own code; before, the one member's code is the answer's.
- Each answers NOT_COORDINATOR where another broker speaks for the group, COORDINATOR_LOAD_IN_PROGRESS while its state
  is being read, COORDINATOR_NOT_AVAILABLE when it cannot be written.
"""

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from enum import IntEnum
from typing import Any, Final

from headrace.cluster.image import BrokerNode
from headrace.coordinator.groups.classic import JoinRequest, LeavingMember, SyncRequest
from headrace.coordinator.runtime.fields import LARGEST_TEXT
from headrace.net.pacing import paced
from headrace.protocol.acl import AclOperation, ResourceType
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import CodedError, ErrorCode

from ..context import Context, RequestInfo
from .authorized import require, require_cluster

_FIRST_WITH_KEYS: Final = 4
_FIRST_WITH_SHARE: Final = 6
_FIRST_WITH_REQUIRED_ID: Final = 4
_FIRST_WITH_NULLABLE_PROTOCOL: Final = 7
_FIRST_WITH_SKIPPED_ASSIGNMENT: Final = 9
_FIRST_WITH_NAMED_PROTOCOL: Final = 5
_FIRST_WITH_LEAVING_MEMBERS: Final = 3
_LEAVING: Final = 1_000
"""Members that leave in one turn; more leave in several, as if each had a request of its own."""
_MS: Final = timedelta(milliseconds=1)
_LONGEST_ID: Final = LARGEST_TEXT - 64
"""Bytes of the longest text that a member id, which has a number at its end, can be made from."""


class KeyType(IntEnum):
    """What a coordinator is looked for."""

    GROUP = 0
    TRANSACTION = 1
    SHARE = 2


async def handle_find_coordinator(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    key_type = getattr(request, "key_type", KeyType.GROUP)
    if info.version < _FIRST_WITH_KEYS:
        return {"throttle_time": 0, **await _find(ctx, info, key_type, request.key)}
    keys = request.coordinator_keys or ()
    found = [{"key": key, **await _find(ctx, info, key_type, key)} async for key in paced(keys)]
    return {"throttle_time": 0, "coordinators": found}


async def _find(ctx: Context, info: RequestInfo, key_type: int, key: str) -> dict[str, Any]:
    try:
        node = await _find_node(ctx, info, key_type, key)
        endpoint = node.endpoint(info.listener)
        if endpoint is None:
            raise CodedError(
                ErrorCode.coordinator_not_available,
                f"broker {node.id} coordinates it and has no {info.listener} listener",
            )
    except CodedError as error:
        return {"error_code": error.code, "error_message": error.message, "node_id": -1, "host": "", "port": -1}
    return {
        "error_code": ErrorCode.none,
        "error_message": "NONE" if info.version < _FIRST_WITH_KEYS else "",
        "node_id": node.id,
        "host": endpoint.host,
        "port": endpoint.port,
    }


async def _find_node(ctx: Context, info: RequestInfo, key_type: int, key: str) -> BrokerNode:
    if key_type == KeyType.GROUP:
        require(ctx, info, AclOperation.DESCRIBE, ResourceType.GROUP, key)
        return await ctx.groups.find(key)
    if key_type == KeyType.TRANSACTION:
        require(ctx, info, AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, key)
        return await ctx.transactions.find(key)
    if key_type == KeyType.SHARE and info.version >= _FIRST_WITH_SHARE:
        require_cluster(ctx, info, AclOperation.CLUSTER_ACTION)
        return await ctx.share.find(key)
    raise CodedError(ErrorCode.invalid_request, f"there is no coordinator for keys of type {key_type}")


async def handle_join_group(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    session = request.session_timeout // _MS
    rebalance = getattr(request, "rebalance_timeout", None)
    instance_id = getattr(request, "group_instance_id", None)
    protocols = {protocol.name: protocol.metadata for protocol in request.protocols or ()}
    try:
        _require_reader(ctx, info, request.group_id)
        for text in (request.protocol_type, request.member_id, instance_id or "", *protocols):
            _check_length(text)
        answer = await ctx.groups.join(
            request.group_id,
            JoinRequest(
                token=None,
                member_id=request.member_id,
                instance_id=instance_id,
                client_id=(info.client_id or "")[: _LONGEST_ID // 4],
                client_host=f"/{info.host}",
                session_timeout_ms=session,
                rebalance_timeout_ms=session if rebalance is None else rebalance // _MS,
                protocol_type=request.protocol_type,
                protocols=protocols,
                must_know_its_id=info.version >= _FIRST_WITH_REQUIRED_ID,
                can_skip_assignment=info.version >= _FIRST_WITH_SKIPPED_ASSIGNMENT,
            ),
        )
    except CodedError as error:
        answer = {
            "throttle_time": 0,
            "error_code": error.code,
            "protocol_name": None,
            "leader": "",
            "member_id": request.member_id,
            "members": (),
        }
    if info.version < _FIRST_WITH_NULLABLE_PROTOCOL and answer["protocol_name"] is None:
        return {**answer, "protocol_name": ""}
    return dict(answer)


def _require_reader(ctx: Context, info: RequestInfo, group_id: str) -> None:
    require(ctx, info, AclOperation.READ, ResourceType.GROUP, group_id)


def _check_length(text: str) -> None:
    if len(text) > _LONGEST_ID // 4 and len(text.encode()) > _LONGEST_ID:
        raise CodedError(ErrorCode.invalid_request, f"a text of {len(text)} characters is more than a group can keep")


async def handle_sync_group(ctx: Context, request: Any, info: RequestInfo) -> Mapping[str, Any]:
    _require_reader(ctx, info, request.group_id)
    protocol_type = getattr(request, "protocol_type", None)
    protocol_name = getattr(request, "protocol_name", None)
    if info.version >= _FIRST_WITH_NAMED_PROTOCOL and (protocol_type is None or protocol_name is None):
        raise CodedError(ErrorCode.inconsistent_group_protocol)
    return await ctx.groups.sync(
        request.group_id,
        SyncRequest(
            token=None,
            member_id=request.member_id,
            instance_id=getattr(request, "group_instance_id", None),
            generation=request.generation_id,
            protocol_type=protocol_type,
            protocol_name=protocol_name,
            assignments={each.member_id: each.assignment for each in request.assignments or ()},
        ),
    )


async def handle_heartbeat(ctx: Context, request: Any, info: RequestInfo) -> Mapping[str, Any]:
    _require_reader(ctx, info, request.group_id)
    instance_id = getattr(request, "group_instance_id", None)
    return await ctx.groups.heartbeat(request.group_id, request.member_id, instance_id, request.generation_id)


async def handle_leave_group(ctx: Context, request: Any, info: RequestInfo) -> Mapping[str, Any]:
    _require_reader(ctx, info, request.group_id)
    if info.version >= _FIRST_WITH_LEAVING_MEMBERS:
        leaving = [
            LeavingMember(member_id=one.member_id, instance_id=one.group_instance_id)
            async for one in paced(request.members or ())
        ]
        answer: Mapping[str, Any] = await ctx.groups.leave(request.group_id, leaving[:_LEAVING])
        members = list(answer["members"])
        for start in range(_LEAVING, len(leaving), _LEAVING):
            await asyncio.sleep(0)
            answer = await ctx.groups.leave(request.group_id, leaving[start : start + _LEAVING])
            members += answer["members"]
        return {**answer, "members": members}
    answer = await ctx.groups.leave(request.group_id, [LeavingMember(member_id=request.member_id)])
    return {"throttle_time": 0, "error_code": answer["members"][0]["error_code"]}


HANDLERS: Final = {
    ApiKey.FIND_COORDINATOR: handle_find_coordinator,
    ApiKey.JOIN_GROUP: handle_join_group,
    ApiKey.SYNC_GROUP: handle_sync_group,
    ApiKey.HEARTBEAT: handle_heartbeat,
    ApiKey.LEAVE_GROUP: handle_leave_group,
}
