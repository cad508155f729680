"""ListOffsets: where partitions begin and end, and the first offset of a time."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from headrace.protocol.errors import ErrorCode
from headrace.protocol.topic_partition import TopicPartition, values_by_topic

EARLIEST: Final = -2
LATEST: Final = -1
"""Timestamps that mean the two ends of a partition."""
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
NOT_A_REPLICA: Final = -1
DEBUGGING_REPLICA: Final = -2
"""Lets any replica answer, for operators who compare them."""
UNKNOWN_EPOCH: Final = -1


class OffsetQuery(NamedTuple):
    """What to look for: a time in milliseconds, `EARLIEST` or `LATEST`."""

    timestamp: int
    leader_epoch: int = UNKNOWN_EPOCH


class ListedOffset(NamedTuple):
    """What a partition answered; `offset` is -1 where no record is that late."""

    code: ErrorCode
    offset: int
    timestamp: int
    leader_epoch: int


def list_offsets_request(
    queries: Mapping[TopicPartition, OffsetQuery], *, isolation: int, replica_id: int = NOT_A_REPLICA
) -> dict[str, Any]:
    """The values of a ListOffsets request to the leader of all these partitions."""
    topics = [
        {
            "name": topic,
            "partitions": [
                {
                    "partition_index": index,
                    "timestamp": query.timestamp,
                    "current_leader_epoch": query.leader_epoch,
                }
                for index, query in some
            ],
        }
        for topic, some in values_by_topic(queries).items()
    ]
    return {"replica_id": replica_id, "isolation_level": isolation, "topics": topics}


def read_offsets(answer: Any) -> dict[TopicPartition, ListedOffset]:
    """What each partition answered."""
    return {
        TopicPartition(topic.name, int(p.partition_index)): ListedOffset(
            p.error_code, int(p.offset), int(p.timestamp), int(getattr(p, "leader_epoch", UNKNOWN_EPOCH))
        )
        for topic in answer.topics
        for p in topic.partitions
    }
