"""Consumer groups from outside: their offsets, their members, listed and removed."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from headrace.protocol.api import ApiKey
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.topic_partition import TopicPartition

from ..core.codes import is_retriable
from ..core.errors import VersionNotServed
from ..core.groups import (
    NOT_A_MEMBER,
    CommittedOffset,
    GroupMembership,
    commit_passes,
    commit_request,
    committed_request,
    read_committed,
    read_refused_commits,
)
from .assignment import Assignment, decode_assignment
from .cluster import Cluster, checked
from .connection import BrokerConnection
from .retrying import retried

_DESCRIBED_AT_ONCE: Final = 200


async def commit(
    cluster: Cluster,
    group: str,
    offsets: Mapping[TopicPartition, CommittedOffset],
    standing: GroupMembership = NOT_A_MEMBER,
) -> dict[TopicPartition, ErrorCode]:
    """Commit offsets; what was refused, and why."""
    values = commit_request(group, offsets, standing)

    async def attempt() -> dict[TopicPartition, ErrorCode]:
        connection = await cluster.to_node(await cluster.coordinator(group))
        answer = await connection.ask(ApiKey.OFFSET_COMMIT, values)
        refused = read_refused_commits(answer)
        for code in refused.values():
            if commit_passes(code):
                raise CodedError(code)
        return refused

    return await retried(attempt, cluster.patience, lambda: cluster.forget_coordinator(group))


async def committed(
    cluster: Cluster, group: str, partitions: Iterable[TopicPartition] | None = None
) -> dict[TopicPartition, CommittedOffset]:
    """What a group has committed, of some partitions or all; those without a commit are left out."""
    values = committed_request(group, partitions, require_stable=False)
    answer = await cluster.ask_coordinator(group, ApiKey.OFFSET_FETCH, values)
    offsets = {}
    for partition, (code, offset) in read_committed(answer).items():
        if code is not ErrorCode.none:
            raise CodedError(code, f"offsets of group '{group}' in topic '{partition.topic}'")
        if offset is not None:
            offsets[partition] = offset
    return offsets


async def describe(cluster: Cluster, group: str) -> Any:
    """A group with its members, as the coordinator describes it; state `Dead` where there is none."""

    async def attempt() -> Any:
        connection = await cluster.to_node(await cluster.coordinator(group))
        values = {"groups": [group], "include_authorized_operations": False}
        (found,) = (await connection.ask(ApiKey.DESCRIBE_GROUPS, values)).groups
        return checked(found)

    return await retried(attempt, cluster.patience, lambda: cluster.forget_coordinator(group))


class MemberOverview(NamedTuple):
    """A member of a group, of whichever protocol, and what it reads."""

    member_id: str
    instance_id: str | None
    client_id: str
    assignment: Assignment


class GroupOverview(NamedTuple):
    """A group of either protocol, with its members. One that only keeps offsets is simple."""

    group: str
    state: str
    type: str
    is_simple: bool
    assignor: str
    coordinator: int
    members: list[MemberOverview]


async def overview(cluster: Cluster, group: str) -> GroupOverview:
    """A group; `CodedError` GROUP_ID_NOT_FOUND where there is none."""

    async def attempt() -> GroupOverview:
        node = await cluster.coordinator(group)
        found = (await _overviews(cluster, node, [group])).get(group)
        if found is None:
            raise CodedError(ErrorCode.group_id_not_found, f"there is no group '{group}'")
        return found

    return await retried(attempt, cluster.patience, lambda: cluster.forget_coordinator(group))


async def overviews(cluster: Cluster) -> list[GroupOverview]:
    """Every group that the client's user may see, by name."""

    async def of(node: int) -> list[GroupOverview]:
        names = [str(each.group_id) for each in (await _listed(cluster, node)).groups]
        found: dict[str, GroupOverview] = {}
        for start in range(0, len(names), _DESCRIBED_AT_ONCE):
            found |= await _overviews(cluster, node, names[start : start + _DESCRIBED_AT_ONCE])
        return list(found.values())

    async def attempt() -> list[GroupOverview]:
        await cluster.metadata([])
        parts = await asyncio.gather(*map(of, cluster.brokers))
        return sorted((each for part in parts for each in part), key=lambda each: each.group)

    return await retried(attempt, cluster.patience, lambda: None)


async def _overviews(cluster: Cluster, node: int, names: list[str]) -> dict[str, GroupOverview]:
    """Those of a coordinator that there are; first taken for classic groups, then for those of the new protocol."""
    connection = await cluster.to_node(node)
    values = {"groups": names, "include_authorized_operations": False}
    found = {}
    for each in (await connection.ask(ApiKey.DESCRIBE_GROUPS, values)).groups:
        if each.error_code not in (ErrorCode.none, ErrorCode.group_id_not_found):
            raise CodedError(each.error_code, f"group '{each.group_id}'")
        if each.error_code is ErrorCode.none and each.group_state != "Dead":
            found[str(each.group_id)] = _classic(node, each)
    others = [name for name in names if name not in found]
    for each in await _of_new_protocol(connection, others) if others else ():
        if each.error_code is ErrorCode.none:
            found[str(each.group_id)] = _consumer(node, each)
    return found


async def _of_new_protocol(connection: BrokerConnection, names: list[str]) -> Any:
    """Nothing where the broker does not know that protocol."""
    values = {"group_ids": names, "include_authorized_operations": False}
    try:
        return (await connection.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, values)).groups
    except VersionNotServed:
        return ()


def _classic(node: int, group: Any) -> GroupOverview:
    members = [
        MemberOverview(
            member_id=each.member_id,
            instance_id=getattr(each, "group_instance_id", None),
            client_id=each.client_id,
            assignment=decode_assignment(bytes(each.member_assignment)),
        )
        for each in group.members
    ]
    is_simple = not group.protocol_type
    return GroupOverview(
        str(group.group_id), group.group_state, "Classic", is_simple, group.protocol_data, node, members
    )


def _consumer(node: int, group: Any) -> GroupOverview:
    members = [
        MemberOverview(
            member_id=each.member_id,
            instance_id=each.instance_id,
            client_id=each.client_id,
            assignment={
                str(topic.topic_name): sorted(int(index) for index in topic.partitions)
                for topic in each.assignment.topic_partitions
            },
        )
        for each in group.members
    ]
    return GroupOverview(str(group.group_id), group.group_state, "Consumer", False, group.assignor_name, node, members)


async def check_reads(cluster: Cluster, group: str) -> None:
    """`CodedError` where the client's user may not be a member of a group. It need not exist, and does not change."""

    async def attempt() -> None:
        connection = await cluster.to_node(await cluster.coordinator(group))
        values = {"group_id": group, "generation_id": -1, "member_id": "", "group_instance_id": None}
        answer = await connection.ask(ApiKey.HEARTBEAT, values)
        if answer.error_code is ErrorCode.group_authorization_failed or is_retriable(answer.error_code):
            raise CodedError(answer.error_code, f"group '{group}'")

    await retried(attempt, cluster.patience, lambda: cluster.forget_coordinator(group))


async def list_groups(cluster: Cluster) -> list[Any]:
    """Every group, asked of every broker."""

    async def attempt() -> list[Any]:
        await cluster.metadata([])
        answers = await asyncio.gather(*(_listed(cluster, node) for node in cluster.brokers))
        found = {str(g.group_id): g for answer in answers for g in answer.groups}
        return [found[name] for name in sorted(found)]

    return await retried(attempt, cluster.patience, lambda: None)


async def _listed(cluster: Cluster, node: int) -> Any:
    values: dict[str, list[str]] = {"states_filter": [], "types_filter": []}
    return checked(await (await cluster.to_node(node)).ask(ApiKey.LIST_GROUPS, values))


async def delete_group(cluster: Cluster, group: str) -> None:
    """Delete a group that has no members; `CodedError` when it has some, or does not exist."""

    async def attempt() -> None:
        connection = await cluster.to_node(await cluster.coordinator(group))
        (found,) = (await connection.ask(ApiKey.DELETE_GROUPS, {"groups_names": [group]})).results
        checked(found)

    await retried(attempt, cluster.patience, lambda: cluster.forget_coordinator(group))
