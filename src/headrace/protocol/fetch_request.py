"""A Fetch request as a reader sends it, outside any session: the values of all versions. Its answer is `fetched`."""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple
from uuid import UUID

from .topic_partition import TopicPartition

NOT_A_REPLICA: Final = -1
NO_SESSION: Final = -1


class FetchPartition(NamedTuple):
    """A partition to read, from where, and how much of it at most."""

    topic_partition: TopicPartition
    offset: int
    max_bytes: int
    leader_epoch: int = -1
    topic_id: bytes | None = None


def fetch_request(
    partitions: Iterable[FetchPartition],
    *,
    max_wait_ms: int,
    min_bytes: int,
    max_bytes: int,
    isolation: int = 0,
    rack: str = "",
) -> dict[str, Any]:
    """The values of a Fetch request, which waits at the broker for `min_bytes`; isolation 1 is read_committed."""
    topics: dict[str, dict[str, Any]] = {}
    for topic_partition, offset, most, leader_epoch, topic_id in partitions:
        topic = topics.get(topic_partition.topic)
        if topic is None:
            name = {"topic": topic_partition.topic, "topic_id": None if topic_id is None else UUID(bytes=topic_id)}
            topic = topics[topic_partition.topic] = {**name, "partitions": []}
        topic["partitions"].append(
            {
                "partition": topic_partition.partition,
                "current_leader_epoch": leader_epoch,
                "fetch_offset": offset,
                "partition_max_bytes": most,
            }
        )
    return {
        "replica_id": NOT_A_REPLICA,
        "max_wait": max_wait_ms,
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "isolation_level": isolation,
        "session_epoch": NO_SESSION,
        "topics": list(topics.values()),
        "forgotten_topics_data": (),
        "rack_id": rack,
    }
