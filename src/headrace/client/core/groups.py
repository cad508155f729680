"""Groups: their coordinators, committed offsets, and the classic protocol of membership."""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from headrace.net.address import Address
from headrace.protocol.consumer_protocol import CONSUMER, encode_assignment, encode_subscription
from headrace.protocol.errors import ErrorCode
from headrace.protocol.topic_partition import TopicPartition, indexes_by_topic, values_by_topic

from .codes import Remedy, remedy_of

_NOTHING: Final = -1


class GroupMembership(NamedTuple):
    """Member id and generation in a group; the default is that of a client that is not a member."""

    member_id: str = ""
    generation: int = -1


NOT_A_MEMBER: Final = GroupMembership()


class Coordinator(NamedTuple):
    """The broker that coordinates a group or a transactional id."""

    node: int
    address: Address


class CommittedOffset(NamedTuple):
    """What a group commits for a partition."""

    offset: int
    metadata: str = ""


class FetchedOffset(NamedTuple):
    """What a coordinator says of a partition; `committed` is None where nothing is."""

    code: ErrorCode
    committed: CommittedOffset | None


def find_coordinator_request(kind: int, key: str) -> dict[str, Any]:
    """FindCoordinator for one group or transactional id."""
    return {"key": key, "key_type": kind}


def read_coordinator(answer: Any) -> Coordinator:
    """The coordinator in an answer that is no error."""
    return Coordinator(int(answer.node_id), Address(answer.host, answer.port))


def commit_request(
    group: str, offsets: Mapping[TopicPartition, CommittedOffset], standing: GroupMembership = NOT_A_MEMBER
) -> dict[str, Any]:
    """OffsetCommit, as a member or as somebody who is none."""
    topics = [
        {
            "name": topic,
            "partitions": [
                {"partition_index": index, "committed_offset": offset, "committed_metadata": metadata}
                for index, (offset, metadata) in some
            ],
        }
        for topic, some in values_by_topic(offsets).items()
    ]
    return {
        "group_id": group,
        "generation_id_or_member_epoch": standing.generation,
        "member_id": standing.member_id,
        "topics": topics,
        "retention_time": -1,
    }


def read_refused_commits(answer: Any) -> dict[TopicPartition, ErrorCode]:
    """The partitions whose offsets were not committed, and why."""
    return {
        TopicPartition(topic.name, int(p.partition_index)): p.error_code
        for topic in answer.topics
        for p in topic.partitions
        if p.error_code is not ErrorCode.none
    }


def commit_passes(code: ErrorCode) -> bool:
    """Whether a refused commit may be accepted later. A partition that does not exist is not the coordinator's to look
    for again."""
    return remedy_of(code) in (Remedy.RETRY, Remedy.FIND_COORDINATOR)


def committed_request(
    group: str, partitions: Iterable[TopicPartition] | None, *, require_stable: bool
) -> dict[str, Any]:
    """OffsetFetch for some partitions, or all; `require_stable` waits for transactions that may still commit."""
    asked = None
    if partitions is not None:
        asked = [{"name": topic, "partition_indexes": some} for topic, some in indexes_by_topic(partitions).items()]
    return {"group_id": group, "topics": asked, "require_stable": require_stable}


def read_committed(answer: Any) -> dict[TopicPartition, FetchedOffset]:
    """What a group has committed of each partition of an answer that is no error as a whole."""
    return {
        TopicPartition(topic.name, int(p.partition_index)): FetchedOffset(
            p.error_code,
            None if p.committed_offset == _NOTHING else CommittedOffset(int(p.committed_offset), p.metadata or ""),
        )
        for topic in answer.topics
        for p in topic.partitions
    }


def join_request(
    group: str, standing: GroupMembership, *, topics: Iterable[str], assignor: str, session_ms: int, rebalance_ms: int
) -> dict[str, Any]:
    """JoinGroup of a consumer that subscribes to topics."""
    return {
        "group_id": group,
        "session_timeout": session_ms,
        "rebalance_timeout": rebalance_ms,
        "member_id": standing.member_id,
        "protocol_type": CONSUMER,
        "protocols": [{"name": assignor, "metadata": encode_subscription(topics)}],
    }


def sync_request(
    group: str, standing: GroupMembership, protocol: str | None, shares: Mapping[str, Mapping[str, Iterable[int]]]
) -> dict[str, Any]:
    """SyncGroup; `shares` has what each member is to read, from the member that leads the group."""
    return {
        "group_id": group,
        "generation_id": standing.generation,
        "member_id": standing.member_id,
        "protocol_type": CONSUMER,
        "protocol_name": protocol,
        "assignments": [
            {"member_id": member, "assignment": encode_assignment(share)} for member, share in shares.items()
        ],
    }


def heartbeat_request(group: str, standing: GroupMembership) -> dict[str, Any]:
    """Heartbeat of a member."""
    return {"group_id": group, "generation_id": standing.generation, "member_id": standing.member_id}


def leave_request(group: str, standing: GroupMembership) -> dict[str, Any]:
    """LeaveGroup of one member."""
    leaving = {"member_id": standing.member_id, "group_instance_id": None}
    return {"group_id": group, "members": [leaving]}
