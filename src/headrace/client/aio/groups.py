"""Consumer groups from outside: their offsets, their members, listed and removed."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from headrace.protocol.api import ApiKey
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.topic_partition import TopicPartition

from .cluster import Cluster, checked
from .retrying import PASSING, retried


class Standing(NamedTuple):
    """A member's place in a group; the default is that of somebody who is not a member."""

    member_id: str = ""
    generation: int = -1


NOT_A_MEMBER: Final = Standing()


class Committed(NamedTuple):
    offset: int
    metadata: str = ""


async def commit(
    cluster: Cluster, group: str, offsets: Mapping[TopicPartition, Committed], standing: Standing = NOT_A_MEMBER
) -> dict[TopicPartition, ErrorCode]:
    """Commit offsets; what was refused, and why."""
    topics: dict[str, list[dict[str, Any]]] = {}
    for (topic, partition), (offset, metadata) in offsets.items():
        entry = {"partition_index": partition, "committed_offset": offset, "committed_metadata": metadata}
        topics.setdefault(topic, []).append(entry)
    values = {
        "group_id": group,
        "generation_id_or_member_epoch": standing.generation,
        "member_id": standing.member_id,
        "topics": [{"name": name, "partitions": partitions} for name, partitions in topics.items()],
        "retention_time": -1,
    }

    async def attempt() -> dict[TopicPartition, ErrorCode]:
        connection = await cluster.to_node(await cluster.coordinator(group))
        answer = await connection.ask(ApiKey.OFFSET_COMMIT, values)
        found = {
            TopicPartition(topic.name, int(p.partition_index)): p.error_code
            for topic in answer.topics
            for p in topic.partitions
            if p.error_code is not ErrorCode.none
        }
        for code in found.values():
            if code in PASSING:
                raise CodedError(code)
        return found

    return await retried(attempt, cluster.patience, lambda: cluster.forget_coordinator(group))


async def committed(
    cluster: Cluster, group: str, partitions: Iterable[TopicPartition] | None = None
) -> dict[TopicPartition, Committed]:
    """What a group has committed, of some partitions or all; those without a commit are left out."""
    wanted: dict[str, list[int]] | None = None
    if partitions is not None:
        wanted = {}
        for topic, partition in partitions:
            wanted.setdefault(topic, []).append(partition)
    asked = None if wanted is None else [{"name": t, "partition_indexes": p} for t, p in wanted.items()]
    answer = await cluster.ask_coordinator(
        group, ApiKey.OFFSET_FETCH, {"group_id": group, "topics": asked, "require_stable": False}
    )
    found = {}
    for topic in answer.topics:
        for p in topic.partitions:
            if p.error_code is not ErrorCode.none:
                raise CodedError(p.error_code, f"offsets of group '{group}' in topic '{topic.name}'")
            if p.committed_offset >= 0:
                found[TopicPartition(topic.name, int(p.partition_index))] = Committed(
                    int(p.committed_offset), p.metadata or ""
                )
    return found


async def describe(cluster: Cluster, group: str) -> Any:
    """A group with its members, as the coordinator describes it; state `Dead` where there is none."""

    async def attempt() -> Any:
        connection = await cluster.to_node(await cluster.coordinator(group))
        values = {"groups": [group], "include_authorized_operations": False}
        (found,) = (await connection.ask(ApiKey.DESCRIBE_GROUPS, values)).groups
        return checked(found)

    return await retried(attempt, cluster.patience, lambda: cluster.forget_coordinator(group))


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
