"""What members of the new protocol (KIP-848) ask of the coordinator, and what operators ask about their groups."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from headrace.protocol.errors import CodedError, ErrorCode

from .classic import ClassicGroup
from .consumer import ConsumerGroup, HeartbeatRequest, check_request
from .effects import Effect, Write
from .service import Answer, GroupCoordinator, check_text
from .shard import Shard
from .turns import in_turns


async def heartbeat(coordinator: GroupCoordinator, group_id: str, request: HeartbeatRequest, version: int) -> Answer:
    """ConsumerGroupHeartbeat. A group is made when its first member joins, also in place of an empty classic one."""
    check_request(group_id, request, version, coordinator.consumer_settings(group_id).assignors)
    check_text(group_id)
    shard = coordinator.shard(group_id)
    group, effects = _group(coordinator, shard, group_id, is_joining=request.member_epoch == 0)
    member_id = request.member_id or coordinator.new_member_id()
    token = coordinator.token()
    decided = group.heartbeat(replace(request, token=token, member_id=member_id), shard.now_ms())
    if group is not shard.groups.get(group_id) and any(isinstance(effect, Write) for effect in decided):
        decided = [*effects, *decided]
        shard.replace(group)
    shard.carry_out(group, decided)
    return await token


def _group(
    coordinator: GroupCoordinator, shard: Shard, group_id: str, *, is_joining: bool
) -> tuple[ConsumerGroup, list[Effect]]:
    """The group, and what has to be done first where it is a new one and the member is let in."""
    found = coordinator.group(shard, group_id)
    if isinstance(found, ConsumerGroup):
        return found, []
    if not is_joining:
        raise _not_found(group_id, is_there=found is not None)
    group = coordinator.new_consumer(group_id)
    if not isinstance(found, ClassicGroup) or found.is_blank:
        return group, []
    if found.is_empty:
        return group, [*found.tombstones()]
    return group, group.take_over(found, shard.now_ms())


async def describe(
    coordinator: GroupCoordinator, group_ids: Sequence[str]
) -> list[Mapping[str, Any] | tuple[str, CodedError]]:
    """Each group in the words of ConsumerGroupDescribe, or its id and what is in the way."""
    found: list[Mapping[str, Any] | tuple[str, CodedError]] = []
    async for group_id in in_turns(group_ids):
        try:
            check_text(group_id)
            shard = coordinator.shard(group_id)
            group = coordinator.group(shard, group_id)
            if not isinstance(group, ConsumerGroup):
                raise _not_found(group_id, is_there=isinstance(group, ClassicGroup))
            described = group.describe()
            await coordinator.committed(shard)
        except CodedError as error:
            found.append((group_id, error))
        else:
            found.append(described)
    return found


def _not_found(group_id: str, *, is_there: bool) -> CodedError:
    message = f"Group {group_id} is not a consumer group." if is_there else f"Group {group_id} not found."
    return CodedError(ErrorCode.group_id_not_found, message)
