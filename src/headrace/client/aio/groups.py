"""Consumer groups from outside: their offsets, their members, listed and removed."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from headrace.protocol.api import ApiKey
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.topic_partition import TopicPartition

from ..core.codes import is_retriable
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
from .cluster import Cluster, checked
from .retrying import retried


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
    found = {}
    for where, (code, offset) in read_committed(answer).items():
        if code is not ErrorCode.none:
            raise CodedError(code, f"offsets of group '{group}' in topic '{where.topic}'")
        if offset is not None:
            found[where] = offset
    return found


async def describe(cluster: Cluster, group: str) -> Any:
    """A group with its members, as the coordinator describes it; state `Dead` where there is none."""

    async def attempt() -> Any:
        connection = await cluster.to_node(await cluster.coordinator(group))
        values = {"groups": [group], "include_authorized_operations": False}
        (found,) = (await connection.ask(ApiKey.DESCRIBE_GROUPS, values)).groups
        return checked(found)

    return await retried(attempt, cluster.patience, lambda: cluster.forget_coordinator(group))


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

    async def of(node: int) -> Any:
        values: dict[str, list[str]] = {"states_filter": [], "types_filter": []}
        return checked(await (await cluster.to_node(node)).ask(ApiKey.LIST_GROUPS, values))

    async def attempt() -> list[Any]:
        await cluster.metadata([])
        answers = await asyncio.gather(*map(of, cluster.brokers))
        found = {str(g.group_id): g for answer in answers for g in answer.groups}
        return [found[name] for name in sorted(found)]

    return await retried(attempt, cluster.patience, lambda: None)


async def delete_group(cluster: Cluster, group: str) -> None:
    """Delete a group that has no members; `CodedError` when it has some, or does not exist."""

    async def attempt() -> None:
        connection = await cluster.to_node(await cluster.coordinator(group))
        (found,) = (await connection.ask(ApiKey.DELETE_GROUPS, {"groups_names": [group]})).results
        checked(found)

    await retried(attempt, cluster.patience, lambda: cluster.forget_coordinator(group))
