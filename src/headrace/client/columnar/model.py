"""Records as columns: their schema, and ranges of them; with the names that users of the columnar client need."""

from typing import Final, NamedTuple

import pyarrow as pa

from headrace.protocol.topic_partition import TopicPartition as TopicPartition

from ..core.offsets import EARLIEST as EARLIEST
from ..core.offsets import LATEST as LATEST
from ..errors import OffsetsGone as OffsetsGone
from ..errors import TopicReplaced as TopicReplaced
from ..errors import UnknownPartition as UnknownPartition
from ..errors import UnknownTopic as UnknownTopic

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


class Range(NamedTuple):
    """The records of a partition from `start` up to, not including, `end`."""

    topic: str
    partition: int
    start: int
    end: int
