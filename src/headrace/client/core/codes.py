"""What to do about each of Kafka's error codes: one table, for all clients.

Which codes pass by themselves is Kafka's own word (`retriable` of kio's `ErrorCode`); the table adds what must be
looked up again before the next try, and what ends a producer or a membership.
"""

from enum import Enum
from typing import Final

from headrace.protocol.errors import ErrorCode


class Remedy(Enum):
    """What a client does about an error code."""

    RETRY = "retry"
    """The same request, to the same broker, in a moment."""
    REFRESH_METADATA = "refresh metadata"
    """The broker does not lead the partition, or not as we think: ask who does, then retry there."""
    FIND_COORDINATOR = "find coordinator"
    """The broker does not coordinate the group or transactional id, or not yet: ask who does, then retry there."""
    FIND_CONTROLLER = "find controller"
    """Only the controller does that, and the broker is not it: ask who is, then retry there."""
    REJOIN_GROUP = "rejoin group"
    """The group has changed: a member joins again."""
    GIVE_UP_PRODUCER = "give up producer"
    """The producer is fenced: somebody else writes in its name, or its transaction was aborted."""
    FAIL = "fail"
    """No further try helps."""


_LOOKED_UP: Final = {
    Remedy.REFRESH_METADATA: (
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.leader_not_available,
        ErrorCode.not_leader_or_follower,
        ErrorCode.replica_not_available,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.listener_not_found,
        ErrorCode.unknown_topic_id,
        ErrorCode.inconsistent_topic_id,
        ErrorCode.kafka_storage_error,
    ),
    Remedy.FIND_COORDINATOR: (
        ErrorCode.not_coordinator,
        ErrorCode.coordinator_not_available,
        ErrorCode.coordinator_load_in_progress,
    ),
    Remedy.FIND_CONTROLLER: (ErrorCode.not_controller,),
    Remedy.REJOIN_GROUP: (
        ErrorCode.rebalance_in_progress,
        ErrorCode.illegal_generation,
        ErrorCode.unknown_member_id,
    ),
    Remedy.GIVE_UP_PRODUCER: (ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch),
}

_REMEDIES: Final = {code: Remedy.RETRY if code.retriable else Remedy.FAIL for code in ErrorCode} | {
    code: remedy for remedy, codes in _LOOKED_UP.items() for code in codes
}


def remedy_of(code: ErrorCode) -> Remedy:
    """What to do about a code."""
    return _REMEDIES[code]


def is_retriable(code: ErrorCode) -> bool:
    """Whether the same request may be answered otherwise later, there or by another broker."""
    return bool(code.retriable)


def code_of(number: int) -> ErrorCode:
    """The code of that number; one that is not known yet counts as an unknown error of the server."""
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.unknown_server_error
