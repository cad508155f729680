"""What operators ask of groups: to list, describe and delete them, and to delete single offsets."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from headrace.protocol.errors import CodedError, ErrorCode

from .classic import ClassicGroup
from .group import Group
from .journal import Pair
from .records import offset_key, offset_prefix
from .service import GroupCoordinator
from .shard import Shard
from .turns import in_turns

Codes = dict[str, dict[int, ErrorCode]]
"""Codes by topic and partition."""


async def list_groups(coordinator: GroupCoordinator, states: Iterable[str], types: Iterable[str]) -> list[Group]:
    """The groups that are in one of the states and of one of the types, whatever their case; none stands for any."""
    wanted_states = {state.strip().lower() for state in states}
    wanted_types = {kind.strip().lower() for kind in types}
    return [
        group
        async for shard, group_id in in_turns(_ids(coordinator.shards.all()))
        if (group := coordinator.group(shard, group_id)) is not None
        and (not wanted_states or group.state_name.lower() in wanted_states)
        and (not wanted_types or group.type.value.lower() in wanted_types)
    ]


def _ids(shards: Iterable[Shard]) -> Iterator[tuple[Shard, str]]:
    """Every group once, be it one that has only offsets; others may come and go meanwhile."""
    for shard in shards:
        with_members, with_offsets = list(shard.groups), list(shard.offsets.groups())
        yield from ((shard, group_id) for group_id in with_members)
        yield from ((shard, group_id) for group_id in with_offsets if group_id not in shard.groups)


async def describe_classic(coordinator: GroupCoordinator, group_id: str) -> Mapping[str, Any]:
    """A classic group in the words of DescribeGroups; GROUP_ID_NOT_FOUND when there is none of that id."""
    shard = coordinator.shard(group_id)
    group = coordinator.group(shard, group_id)
    if not isinstance(group, ClassicGroup):
        problem = "not found" if group is None else "is not a classic group"
        raise CodedError(ErrorCode.group_id_not_found, f"Group {group_id} {problem}.")
    described = group.describe()
    await coordinator.committed(shard)
    return described


async def delete_group(coordinator: GroupCoordinator, group_id: str) -> None:
    """Delete a group without members, and its offsets."""
    shard = coordinator.shard(group_id)
    group = coordinator.group(shard, group_id)
    if group is None:
        raise CodedError(ErrorCode.group_id_not_found)
    group.check_delete()
    remove(coordinator, shard, group)
    await coordinator.committed(shard)


def remove(coordinator: GroupCoordinator, shard: Shard, group: Group) -> None:
    """Write a group and its offsets out of the log, and forget them."""
    offsets = shard.tombstones(group.group_id)
    own: list[Pair] = [(write.key, write.value) for write in group.tombstones()]
    coordinator.write(shard, [*offsets, *own])
    shard.offsets.forget(offsets)
    shard.forget(group.group_id)


async def delete_offsets(
    coordinator: GroupCoordinator, group_id: str, partitions: Mapping[str, Sequence[int]]
) -> Codes:
    """Delete offsets of topics that no member reads; the code of each partition."""
    shard = coordinator.shard(group_id)
    group = coordinator.group(shard, group_id)
    if group is None:
        raise CodedError(ErrorCode.group_id_not_found)
    group.check_offset_delete()
    codes: Codes = {}
    tombstones: list[Pair] = []
    read = group.subscribed_topics()
    for topic, indexes in partitions.items():
        subscribed = topic in read
        code = ErrorCode.group_subscribed_to_topic if subscribed else ErrorCode.none
        codes[topic] = dict.fromkeys(indexes, code)
        if not subscribed:
            keys = {offset_key(offset_prefix(group_id, topic), index) for index in indexes}
            tombstones += [pair for pair in shard.tombstones(group_id, topic) if pair[0] in keys]
    if tombstones:
        coordinator.write(shard, tombstones)
        shard.offsets.forget(tombstones)
    await coordinator.committed(shard)
    return codes
