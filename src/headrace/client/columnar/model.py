"""The words the columnar client is written in: where records are, how they look as columns, what can go wrong."""

from typing import Final, NamedTuple

import pyarrow as pa

from headrace.protocol.topic_partition import TopicPartition as TopicPartition

from ..errors import ClientError

HEADERS: Final = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))

SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestampType", pa.int32()),
    ]
)
"""A record as Spark's own Kafka connector shows it; `timestampType` is 0 for the producer's time, 1 for the log's."""

SCHEMA_WITH_HEADERS: Final = SCHEMA.append(pa.field("headers", HEADERS))

EARLIEST: Final = -2
LATEST: Final = -1
"""Timestamps of ListOffsets that mean the two ends of a partition."""


class Range(NamedTuple):
    """The records of a partition from `start` up to, not including, `end`."""

    topic: str
    partition: int
    start: int
    end: int


class UnknownTopic(ClientError):
    """The topic does not exist, or no longer."""

    def __init__(self, topic: str) -> None:
        super().__init__(f"topic '{topic}' does not exist", "UNKNOWN_TOPIC_OR_PART")
        self.topic = topic


class UnknownPartition(ClientError):
    """The topic does not have this partition, or no longer since it was made anew."""

    def __init__(self, where: TopicPartition, count: int) -> None:
        super().__init__(
            f"topic '{where.topic}' has {count} partitions; there is no partition {where.partition}",
            "UNKNOWN_TOPIC_OR_PART",
        )
        self.where = where


class TopicReplaced(ClientError):
    """There is a topic of this name, but not the one that was asked for."""

    def __init__(self, topic: str) -> None:
        super().__init__(f"topic '{topic}' was deleted and made anew", "INCONSISTENT_TOPIC_ID")
        self.topic = topic


class OffsetsGone(ClientError):
    """Offsets that were asked for are not in the log: deleted by retention, or never there after the topic was
    made anew. `earliest` and `latest` are what the partition has now.
    """

    def __init__(self, where: TopicPartition, offset: int, earliest: int, latest: int) -> None:
        super().__init__(
            f"offset {offset} of '{where.topic}' partition {where.partition} is not in the log, "
            f"which has {earliest} up to {latest}",
            "OFFSET_OUT_OF_RANGE",
        )
        self.where = where
        self.offset = offset
        self.earliest = earliest
        self.latest = latest
