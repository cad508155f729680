"""Produce: what each partition answered. The request is `protocol.produce_request`."""

from typing import Any, Final, NamedTuple

from headrace.protocol.errors import ErrorCode
from headrace.protocol.topic_partition import TopicPartition

ALL_IN_SYNC: Final = -1
"""Acknowledgements to wait for: those of all replicas in sync."""
_UNKNOWN: Final = -1


class Produced(NamedTuple):
    """The response for one partition's batch."""

    code: ErrorCode
    base_offset: int
    """-1 where the broker does not say."""
    append_time: int
    """Milliseconds; -1 where the topic keeps the producer's own times."""
    message: str


UNANSWERED: Final = Produced(ErrorCode.unknown_server_error, _UNKNOWN, _UNKNOWN, "")
"""What to make of a partition that an answer does not have."""


def read_produced(answer: Any) -> dict[TopicPartition, Produced]:
    """The response for each batch of a request."""
    return {
        TopicPartition(topic.name, int(part.index)): Produced(
            part.error_code,
            int(part.base_offset),
            _milliseconds(part.log_append_time),
            getattr(part, "error_message", None) or "",
        )
        for topic in answer.responses
        for part in topic.partition_responses
    }


def _milliseconds(time: Any) -> int:
    if time is None:
        return _UNKNOWN
    return round(time.timestamp() * 1000) if hasattr(time, "timestamp") else int(time)
