"""Heartbeats of members of share groups: what makes one invalid, and how it is answered."""

from dataclasses import dataclass
from typing import Any, Final

from headrace.cluster.image import ClusterImage
from headrace.coordinator.groups.targets import (
    JOINING,
    LEFT,
    Assignment,
    check_not_blank,
    invalid_request,
    named_partitions,
    topic_partitions,
)
from headrace.coordinator.runtime.fields import LARGEST_TEXT
from headrace.protocol.errors import CodedError, ErrorCode

from .records import ShareMember

MOST_TOPICS: Final = 10_000
"""That one member subscribes to: each change of any topic has all of them looked up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareHeartbeat:
    """The fields of a ShareGroupHeartbeat; None where unchanged since the last one."""

    token: object
    member_id: str
    member_epoch: int
    rack_id: str | None = None
    subscribed_topic_names: frozenset[str] | None = None
    client_id: str = ""
    client_host: str = ""

    @property
    def is_full(self) -> bool:
        """It says everything, as after an error: it may have missed what it was assigned."""
        return self.member_epoch == JOINING or self.subscribed_topic_names is not None


def check_request(group_id: str, request: ShareHeartbeat) -> None:
    """`CodedError` for what no group could serve."""
    check_not_blank(request.member_id, "MemberId can't be empty.")
    check_not_blank(group_id, "GroupId can't be empty.")
    if len(request.member_id.encode()) > LARGEST_TEXT:
        raise invalid_request(f"MemberId can't be longer than {LARGEST_TEXT} bytes.")
    check_not_blank(request.rack_id, "RackId can't be empty.")
    if request.member_epoch == JOINING and not request.subscribed_topic_names:
        raise invalid_request("SubscribedTopicNames must be set in first request.")
    if len(request.subscribed_topic_names or ()) > MOST_TOPICS:
        raise invalid_request(f"SubscribedTopicNames can't be more than {MOST_TOPICS}.")
    if request.member_epoch < LEFT:
        raise invalid_request("MemberEpoch is invalid.")


def check_epoch(member: ShareMember, request: ShareHeartbeat) -> None:
    """FENCED_MEMBER_EPOCH unless the epoch is the member's own, or the one before: it may have missed its successor."""
    received = request.member_epoch
    if received in (member.epoch, member.previous_epoch, JOINING):
        return
    order = "greater" if received > member.epoch else "smaller"
    raise CodedError(
        ErrorCode.fenced_member_epoch,
        f"The share group member has a {order} member epoch ({received}) than the one known by the group coordinator "
        f"({member.epoch}). The member must abandon all its partitions and rejoin.",
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
        "assignment": None if assigned is None else {"topic_partitions": topic_partitions(assigned)},
    }


def refusal(error: CodedError) -> dict[str, Any]:
    """The answer to a heartbeat that cannot be served."""
    return answer("", 0) | {"error_code": error.code, "error_message": error.message, "member_id": None}


def describe_member(member: ShareMember, image: ClusterImage) -> dict[str, Any]:
    """A member as ShareGroupDescribe shows it."""
    return {
        "member_id": member.id,
        "rack_id": member.rack_id,
        "member_epoch": member.epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": sorted(member.subscribed_topic_names),
        "assignment": named_partitions(member.assigned, image),
    }
