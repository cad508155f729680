"""A ConsumerGroupHeartbeat as the group sees it, what makes one invalid, and how it is answered."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from headrace.config import shown
from headrace.coordinator.runtime.fields import LARGEST_TEXT
from headrace.protocol.errors import CodedError, ErrorCode

from .member import AWAY, JOINING, LEFT, Assignment, Member, is_within

FIRST_WITH_OWN_IDS: Final = 1
"""From this version on members choose their ids (KIP-1082)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRequest:
    """What a member says; None where nothing changed since it last said it."""

    token: object
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    subscribed_topic_names: frozenset[str] | None = None
    subscribed_topic_regex: str | None = None
    server_assignor: str | None = None
    owned: Assignment | None = None
    client_id: str = ""
    client_host: str = ""

    @property
    def is_full(self) -> bool:
        """It says everything, as after an error: it may have missed what it was assigned."""
        subscribes = self.subscribed_topic_names is not None or self.subscribed_topic_regex is not None
        return self.rebalance_timeout_ms != -1 and subscribes and self.owned is not None


def check_request(group_id: str, request: HeartbeatRequest, version: int, assignors: tuple[str, ...]) -> None:
    """`CodedError` for what no group could serve."""
    epoch = request.member_epoch
    if version >= FIRST_WITH_OWN_IDS or epoch > JOINING or epoch == LEFT:
        _not_blank(request.member_id, "MemberId can't be empty.")
    _not_blank(group_id, "GroupId can't be empty.")
    if len(request.member_id.encode()) > LARGEST_TEXT:
        raise _invalid(f"MemberId can't be longer than {LARGEST_TEXT} bytes.")
    _not_blank(request.instance_id, "InstanceId can't be empty.")
    _not_blank(request.rack_id, "RackId can't be empty.")
    if epoch == JOINING:
        _check_joining(request)
    elif epoch == AWAY and request.instance_id is None:
        raise _invalid("InstanceId can't be null.")
    elif epoch < AWAY:
        raise _invalid("MemberEpoch is invalid.")
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise CodedError(
            ErrorCode.unsupported_assignor,
            f"ServerAssignor {shown(request.server_assignor)} is not supported. "
            f"Supported assignors: {', '.join(assignors)}.",
        )


def _check_joining(request: HeartbeatRequest) -> None:
    if request.rebalance_timeout_ms == -1:
        raise _invalid("RebalanceTimeoutMs must be provided in first request.")
    if request.owned is None or request.owned:
        raise _invalid("TopicPartitions must be empty when (re-)joining.")
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        raise _invalid("Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.")


def check_epoch(member: Member, request: HeartbeatRequest) -> None:
    """FENCED_MEMBER_EPOCH unless the member's epoch is its own, or the one before whose successor it may have missed.

    A member that joins anew has given everything up, whatever its epoch was (KAFKA-19233).
    """
    received = request.member_epoch
    if received in (member.epoch, JOINING):
        return
    if received == member.previous_epoch < member.epoch and is_within(request.owned, member.assigned):
        return
    order = "greater" if received > member.epoch else "smaller"
    raise CodedError(
        ErrorCode.fenced_member_epoch,
        f"The consumer group member has a {order} member epoch ({received}) than the one known by the group "
        f"coordinator ({member.epoch}). The member must abandon all its partitions and rejoin.",
    )


def answer(member_id: str, epoch: int, interval_ms: int = 0, assigned: Assignment | None = None) -> dict[str, Any]:
    """The answer to a heartbeat; `assigned` only where it changed or was asked for."""
    return {
        "throttle_time": 0,
        "error_code": ErrorCode.none,
        "error_message": None,
        "member_id": member_id,
        "member_epoch": epoch,
        "heartbeat_interval": interval_ms,
        "assignment": None if assigned is None else {"topic_partitions": _topic_partitions(assigned)},
    }


def refusal(error: CodedError) -> dict[str, Any]:
    """The answer to a heartbeat that cannot be served."""
    return {
        "throttle_time": 0,
        "error_code": error.code,
        "error_message": error.message,
        "member_id": None,
        "member_epoch": 0,
        "heartbeat_interval": 0,
        "assignment": None,
    }


def _topic_partitions(assigned: Assignment) -> list[Mapping[str, Any]]:
    return [{"topic_id": topic, "partitions": sorted(partitions)} for topic, partitions in assigned.items()]


def _not_blank(text: str | None, message: str) -> None:
    if text is not None and not text.strip():
        raise _invalid(message)


def _invalid(message: str) -> CodedError:
    return CodedError(ErrorCode.invalid_request, message)
