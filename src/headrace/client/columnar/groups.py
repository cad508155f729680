"""Committed offsets of a group, as a client that is no member of it: through the group's coordinator."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from headrace.client.columnar.channel import Channel
from headrace.client.core.errors import ConnectionLost
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode

from ..errors import ClientError
from .model import TopicPartition
from .retry import PASSING, TryAgain, refused

if TYPE_CHECKING:
    from .cluster import Cluster

T = TypeVar("T")

GROUP: Final = 0
TRANSACTION: Final = 1
_NOT_A_MEMBER: Final = {"member_id": "", "generation_id_or_member_epoch": -1, "generation_id": -1, "retention_time": -1}
_NOTHING: Final = -1

MOVED: Final = frozenset({ErrorCode.not_coordinator, ErrorCode.coordinator_not_available})
LOADING: Final = frozenset({ErrorCode.coordinator_load_in_progress, ErrorCode.rebalance_in_progress})


def commit(cluster: "Cluster", group: str, offsets: Mapping[TopicPartition, int]) -> None:
    topics: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for where, offset in offsets.items():
        topics[where.topic].append(
            {"partition_index": where.partition, "committed_offset": offset, "committed_metadata": ""}
        )
    values = {
        **_NOT_A_MEMBER,
        "group_id": group,
        "topics": [{"name": name, "partitions": partitions} for name, partitions in topics.items()],
    }

    def attempt(channel: Channel) -> None:
        answer = channel.ask(ApiKey.OFFSET_COMMIT, values)
        for topic in answer.topics:
            for partition in topic.partitions:
                if partition.error_code is not ErrorCode.none:
                    raise _commit_error(partition.error_code, group, topic.name, partition.partition_index)

    with_coordinator(cluster, group, GROUP, attempt)


def committed(cluster: "Cluster", group: str, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int | None]:
    topics: dict[str, list[int]] = defaultdict(list)
    for where in partitions:
        topics[where.topic].append(where.partition)
    values = {
        "group_id": group,
        "topics": [{"name": name, "partition_indexes": indexes} for name, indexes in topics.items()],
        "require_stable": True,
    }

    def attempt(channel: Channel) -> dict[TopicPartition, int | None]:
        answer = channel.ask(ApiKey.OFFSET_FETCH, values)
        _check(getattr(answer, "error_code", ErrorCode.none), group)
        found: dict[TopicPartition, int | None] = dict.fromkeys(partitions)
        for topic in answer.topics:
            for partition in topic.partitions:
                _check(partition.error_code, group)
                if partition.committed_offset != _NOTHING:
                    found[TopicPartition(topic.name, partition.partition_index)] = partition.committed_offset
        return found

    return with_coordinator(cluster, group, GROUP, attempt)


def with_coordinator(cluster: "Cluster", key: str, kind: int, attempt: Callable[[Channel], T]) -> T:
    """What `attempt` returns on a connection to the coordinator, found again when it moves."""

    def once() -> T:
        try:
            with cluster.channel_to(cluster.coordinator(key, kind)) as channel:
                return attempt(channel)
        except (TryAgain, ConnectionLost):
            cluster.forget_coordinator(key, kind)
            raise

    return cluster.retried(once)


def coordinator_error(code: ErrorCode, key: str, message: str | None = None) -> Exception:
    """What to raise when a coordinator cannot be found, or is not the one any more."""
    error = refused(code, f"the coordinator of '{key}'", message)
    return TryAgain(error) if code in MOVED | LOADING | PASSING else error


def _check(code: ErrorCode, group: str) -> None:
    if code is not ErrorCode.none:
        raise coordinator_error(code, group)


def _commit_error(code: ErrorCode, group: str, topic: str, partition: int) -> Exception:
    if code is ErrorCode.unknown_member_id or code is ErrorCode.illegal_generation:
        return ClientError(
            f"group '{group}' has members, and only they may commit its offsets; use a group of its own",
            code.name.upper(),
        )
    if code in MOVED | LOADING:
        return coordinator_error(code, group)
    error = refused(code, f"group '{group}' cannot commit topic '{topic}' partition {partition}")
    return TryAgain(error) if code is ErrorCode.request_timed_out else error
