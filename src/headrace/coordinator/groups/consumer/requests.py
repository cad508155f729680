"""Requests of members as a consumer group sees them: what makes one invalid, what the member is after it, and how it is
answered."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from headrace.cluster.image import ClusterImage
from headrace.config import shown
from headrace.coordinator.groups.classic import JoinRequest
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
from headrace.protocol.consumer_protocol import CONSUMER, Subscription
from headrace.protocol.errors import CodedError, ErrorCode

from .member import AWAY, ClassicMetadata, ConsumerMember, is_within

FIRST_WITH_OWN_IDS: Final = 1
"""From this version on members choose their ids (KIP-1082)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRequest:
    """The fields of a ConsumerGroupHeartbeat; None where unchanged since the last one."""

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
    sees: Callable[[str], bool] | None = None
    """Which topics the member may know of, where not all: an expression stands for no others."""

    @property
    def is_full(self) -> bool:
        """It says everything, as after an error: it may have missed what it was assigned."""
        subscribes = self.subscribed_topic_names is not None or self.subscribed_topic_regex is not None
        return self.rebalance_timeout_ms != -1 and subscribes and self.owned is not None


def check_request(group_id: str, request: HeartbeatRequest, version: int, assignors: tuple[str, ...]) -> None:
    """`CodedError` for what no group could serve."""
    epoch = request.member_epoch
    if version >= FIRST_WITH_OWN_IDS or epoch > JOINING or epoch == LEFT:
        check_not_blank(request.member_id, "MemberId can't be empty.")
    check_not_blank(group_id, "GroupId can't be empty.")
    if len(request.member_id.encode()) > LARGEST_TEXT:
        raise invalid_request(f"MemberId can't be longer than {LARGEST_TEXT} bytes.")
    check_not_blank(request.instance_id, "InstanceId can't be empty.")
    check_not_blank(request.rack_id, "RackId can't be empty.")
    if epoch == JOINING:
        _check_joining(request)
    elif epoch == AWAY and request.instance_id is None:
        raise invalid_request("InstanceId can't be null.")
    elif epoch < AWAY:
        raise invalid_request("MemberEpoch is invalid.")
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise CodedError(
            ErrorCode.unsupported_assignor,
            f"ServerAssignor {shown(request.server_assignor)} is not supported. "
            f"Supported assignors: {', '.join(assignors)}.",
        )


def _check_joining(request: HeartbeatRequest) -> None:
    if request.rebalance_timeout_ms == -1:
        raise invalid_request("RebalanceTimeoutMs must be provided in first request.")
    if request.owned is None or request.owned:
        raise invalid_request("TopicPartitions must be empty when (re-)joining.")
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        raise invalid_request("Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.")


def check_epoch(member: ConsumerMember, request: HeartbeatRequest) -> None:
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


def after_heartbeat(old: ConsumerMember, request: HeartbeatRequest) -> ConsumerMember:
    """The member as it is after what it said. Who joins says everything: a static member that returns with another
    subscription keeps nothing of its former one."""
    if request.member_epoch == JOINING:
        old = replace(
            old, subscribed_topic_names=frozenset(), subscribed_topic_regex=None, rack_id=None, server_assignor=None
        )
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    timeout = request.rebalance_timeout_ms
    return replace(
        old,
        instance_id=old.instance_id if request.instance_id is None else request.instance_id,
        rack_id=old.rack_id if request.rack_id is None else request.rack_id,
        rebalance_timeout_ms=old.rebalance_timeout_ms if timeout == -1 else timeout,
        server_assignor=old.server_assignor if request.server_assignor is None else request.server_assignor,
        subscribed_topic_names=old.subscribed_topic_names if names is None else names,
        subscribed_topic_regex=old.subscribed_topic_regex if regex is None else regex,
        client_id=request.client_id,
        client_host=request.client_host,
        classic=None,
    )


def after_join(old: ConsumerMember, request: JoinRequest, subscription: Subscription) -> ConsumerMember:
    """The member as it is after a JoinGroup of the classic protocol."""
    return replace(
        old,
        instance_id=request.instance_id,
        rack_id=subscription.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        server_assignor=None,
        subscribed_topic_names=subscription.topics,
        subscribed_topic_regex="",
        client_id=request.client_id,
        client_host=request.client_host,
        classic=ClassicMetadata(
            session_timeout_ms=request.session_timeout_ms, protocols=tuple(request.protocols.items())
        ),
    )


def check_own_epoch(member: ConsumerMember, epoch: int) -> None:
    """`CodedError` unless a member that commits or fetches offsets names its own epoch, or generation."""
    if epoch == member.epoch:
        return
    if member.classic is not None:
        raise CodedError(
            ErrorCode.illegal_generation,
            f"The received generation id {epoch} does not match the expected member epoch {member.epoch}.",
        )
    raise CodedError(
        ErrorCode.stale_member_epoch,
        f"The received member epoch {epoch} does not match the expected member epoch {member.epoch}.",
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
    return {
        "throttle_time": 0,
        "error_code": error.code,
        "error_message": error.message,
        "member_id": None,
        "member_epoch": 0,
        "heartbeat_interval": 0,
        "assignment": None,
    }


def join_answer(member: ConsumerMember) -> dict[str, Any]:
    """The answer to a JoinGroup of the classic protocol."""
    assert member.classic is not None
    return {
        "throttle_time": 0,
        "error_code": ErrorCode.none,
        "generation_id": member.epoch,
        "protocol_type": CONSUMER,
        "protocol_name": member.classic.protocols[0][0],
        "leader": "",
        "skip_assignment": False,
        "member_id": member.id,
        "members": (),
    }


def describe_member(member: ConsumerMember, target: Assignment, image: ClusterImage) -> dict[str, Any]:
    """A member as ConsumerGroupDescribe shows it."""
    return {
        "member_id": member.id,
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "member_epoch": member.epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": sorted(member.subscribed_topic_names),
        "subscribed_topic_regex": member.subscribed_topic_regex,
        "assignment": named_partitions(member.assigned, image),
        "target_assignment": named_partitions(target, image),
        "member_type": 1 if member.classic is None else 0,
    }
