"""What one broker is asked, on a connection that is there: the cluster, ends of logs, sizes, groups, settings.

Any broker that speaks Kafka's protocol can be asked; what an older one does not serve is left out.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from headrace.client.columnar.channel import Channel
from headrace.client.core.errors import ConnectionLost
from headrace.client.core.groups import committed_request, read_committed
from headrace.client.core.health import DESCRIBE_HEALTH, VERSION, describe_health_request, read_health
from headrace.client.core.metadata import metadata_request
from headrace.client.core.offsets import (
    EARLIEST,
    LATEST,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    OffsetQuery,
    list_offsets_request,
)
from headrace.client.core.offsets import read_offsets as read_listed
from headrace.client.core.topics import describe_configs_request
from headrace.health import HealthReport
from headrace.protocol.api import ApiKey
from headrace.protocol.consumer_protocol import NotConsumerProtocol, parse_partitions
from headrace.protocol.encode import encode_request
from headrace.protocol.errors import ErrorCode
from headrace.protocol.topic_partition import TopicPartition

from .operations import PAGE, partition_view
from .overview import BrokerView, ClusterView, PartitionView, all_brokers
from .samples import GroupReading, Offsets

BATCH: Final = 1000
"""Partitions, topics or groups of one request."""
_CLASSIC, _CONSUMER = "classic", "consumer"
_MOVES_TIMEOUT_MS: Final = 1000


class ListedGroup(NamedTuple):
    """A group of a coordinator's list."""

    group: str
    state: str
    type: str
    protocol_type: str


class LogDirs(NamedTuple):
    """The logs of a broker, and the disks that they are on as far as it tells."""

    sizes: Offsets
    total: int | None
    free: int | None


def read_report(channel: Channel) -> HealthReport:
    """How the broker is, by its own account. One that knows no such request closes the connection."""
    channel.send(DESCRIBE_HEALTH, VERSION, describe_health_request())
    return read_health(channel.receive().body)


def read_cluster(channel: Channel) -> ClusterView:
    """Brokers and partitions as this broker knows them, be it from before it lost its cluster.

    One that has lost it hangs up once it has answered Metadata, which is therefore asked after the partitions.
    """
    partitions = [partition_view(topic.name, each) for topic in _read_topics(channel) for each in topic.partitions]
    answer = channel.ask(ApiKey.METADATA, metadata_request([]))
    living = [BrokerView(id=b.node_id, host=b.host, port=b.port, rack=b.rack) for b in answer.brokers]
    moving = _read_moves(channel)
    for at, each in enumerate(partitions) if moving else ():
        if each.key in moving:
            adding, removing = moving[each.key]
            partitions[at] = replace(each, adding=adding, removing=removing)
    partitions.sort(key=_key)
    controller = int(answer.controller_id)
    return ClusterView(
        cluster_id=answer.cluster_id or "",
        controller=controller if controller >= 0 else None,
        brokers=all_brokers(living, partitions),
        partitions=tuple(partitions),
    )


def _key(partition: PartitionView) -> TopicPartition:
    return partition.key


def _read_topics(channel: Channel) -> Iterator[Any]:
    if ApiKey.DESCRIBE_TOPIC_PARTITIONS not in channel.served:
        answer = channel.ask(ApiKey.METADATA, metadata_request(None))
        yield from (topic for topic in answer.topics if topic.error_code is ErrorCode.none)
        return
    cursor: dict[str, Any] | None = None
    while True:
        asked = {"topics": [], "response_partition_limit": PAGE, "cursor": cursor}
        answer = channel.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, asked)
        yield from (topic for topic in answer.topics if topic.error_code is ErrorCode.none)
        if answer.next_cursor is None:
            return
        cursor = {
            "topic_name": answer.next_cursor.topic_name,
            "partition_index": answer.next_cursor.partition_index,
        }


def _read_moves(channel: Channel) -> dict[TopicPartition, tuple[tuple[int, ...], tuple[int, ...]]]:
    """Who comes and who goes; nobody where the controller cannot be asked."""
    if ApiKey.LIST_PARTITION_REASSIGNMENTS not in channel.served:
        return {}
    try:
        answer = channel.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, {"timeout": _MOVES_TIMEOUT_MS, "topics": None})
    except ConnectionLost:
        return {}
    return {
        TopicPartition(topic.name, p.partition_index): (tuple(p.adding_replicas), tuple(p.removing_replicas))
        for topic in answer.topics
        for p in topic.partitions
    }


def read_ends(
    channel: Channel, partitions: Iterable[PartitionView], *, committed_only: bool = False
) -> dict[TopicPartition, int]:
    """Where partitions end that the broker leads: their high watermarks, or where the first open transaction begins.

    Those that it does not lead (any more) are left out.
    """
    return _read_offsets(channel, partitions, LATEST, READ_COMMITTED if committed_only else READ_UNCOMMITTED)


def read_starts(channel: Channel, partitions: Iterable[PartitionView]) -> dict[TopicPartition, int]:
    """Where partitions begin that the broker leads."""
    return _read_offsets(channel, partitions, EARLIEST, READ_UNCOMMITTED)


def _read_offsets(
    channel: Channel, partitions: Iterable[PartitionView], which: int, isolation: int
) -> dict[TopicPartition, int]:
    queries = {p.key: OffsetQuery(which) for p in partitions}
    if not queries:
        return {}
    answer = channel.ask(ApiKey.LIST_OFFSETS, list_offsets_request(queries, isolation=isolation))
    return {where: listed.offset for where, listed in read_listed(answer).items() if listed.code is ErrorCode.none}


def read_log_dirs(channel: Channel) -> LogDirs:
    """What the broker holds."""
    answer = channel.ask(ApiKey.DESCRIBE_LOG_DIRS, {"topics": None})
    sizes = {
        TopicPartition(topic.name, p.partition_index): int(p.partition_size)
        for directory in answer.results
        for topic in directory.topics
        for p in topic.partitions
        if not p.is_future_key
    }
    total = [int(getattr(directory, "total_bytes", -1)) for directory in answer.results]
    free = [int(getattr(directory, "usable_bytes", -1)) for directory in answer.results]
    known = bool(total) and min(*total, *free) >= 0
    return LogDirs(sizes, sum(total) if known else None, sum(free) if known else None)


def list_groups(channel: Channel) -> list[ListedGroup] | None:
    """The groups that the broker coordinates; None while it reads them, or where it does not let them be listed."""
    answer = channel.ask(ApiKey.LIST_GROUPS, {"states_filter": [], "types_filter": []})
    if answer.error_code is not ErrorCode.none:
        return None
    return [
        ListedGroup(
            each.group_id,
            getattr(each, "group_state", ""),
            (getattr(each, "group_type", "") or _CLASSIC).lower(),
            each.protocol_type,
        )
        for each in answer.groups
    ]


def read_groups(channel: Channel, groups: Sequence[ListedGroup]) -> list[GroupReading]:
    """Members and committed offsets of groups that the broker coordinates."""
    members = {
        **_classic_members(channel, [g.group for g in groups if g.type == _CLASSIC]),
        **_consumer_members(channel, [g.group for g in groups if g.type == _CONSUMER]),
    }
    committed = _committed(channel, [g.group for g in groups if g.protocol_type in ("", "consumer")])
    return [
        GroupReading(
            group=each.group,
            state=state or each.state,
            type=each.type,
            members=count,
            committed=committed.get(each.group, {}),
            assigned=assigned,
        )
        for each in groups
        for state, count, assigned in [members.get(each.group, ("", 0, frozenset()))]
    ]


_Members = dict[str, tuple[str, int, frozenset[TopicPartition]]]
"""By group: its state, how many members it has, and what they are to read."""


def _classic_members(channel: Channel, groups: list[str]) -> _Members:
    if not groups:
        return {}
    answer = channel.ask(ApiKey.DESCRIBE_GROUPS, {"groups": groups, "include_authorized_operations": False})
    return {
        group.group_id: (
            group.group_state,
            len(group.members),
            frozenset(where for member in group.members for where in _assignment(bytes(member.member_assignment))),
        )
        for group in answer.groups
        if group.error_code is ErrorCode.none
    }


def _assignment(data: bytes) -> list[TopicPartition]:
    """What a member is to read; nothing where it is none of a consumer."""
    try:
        assigned = parse_partitions(data) if data else {}
    except NotConsumerProtocol:
        return []
    return [TopicPartition(topic, index) for topic, indexes in assigned.items() for index in indexes]


def _consumer_members(channel: Channel, groups: list[str]) -> _Members:
    if not groups or ApiKey.CONSUMER_GROUP_DESCRIBE not in channel.served:
        return {}
    asked = {"group_ids": groups, "include_authorized_operations": False}
    answer = channel.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, asked)
    return {
        group.group_id: (
            group.group_state,
            len(group.members),
            frozenset(
                TopicPartition(topic.topic_name, index)
                for member in group.members
                for topic in member.assignment.topic_partitions
                for index in topic.partitions
            ),
        )
        for group in answer.groups
        if group.error_code is ErrorCode.none
    }


def _committed(channel: Channel, groups: list[str]) -> dict[str, Offsets]:
    """What groups have committed, all requests under way at the same time."""
    version = channel.version_of(ApiKey.OFFSET_FETCH)
    for group in groups:
        values = committed_request(group, None, require_stable=False)
        channel.send(ApiKey.OFFSET_FETCH, version, [encode_request(ApiKey.OFFSET_FETCH, version, values)])
    committed: dict[str, Offsets] = {}
    for group in groups:
        answer = channel.receive_entity()
        if getattr(answer, "error_code", ErrorCode.none) is ErrorCode.none:
            committed[group] = {
                where: each.committed.offset
                for where, each in read_committed(answer).items()
                if each.committed is not None
            }
    return committed


Settings = Mapping[str, str | None]


def read_settings(channel: Channel, kind: int, names: Sequence[str], settings: list[str]) -> dict[str, Settings]:
    """Some settings of topics or brokers, by their names; those that do not exist are left out."""
    settings_of: dict[str, Settings] = {}
    for start in range(0, len(names), BATCH):
        asked = describe_configs_request(kind, names[start : start + BATCH], settings)
        for result in channel.ask(ApiKey.DESCRIBE_CONFIGS, asked).results:
            if result.error_code is ErrorCode.none:
                settings_of[result.resource_name] = {entry.name: entry.value for entry in result.configs}
    return settings_of
