"""A consumer group as ConsumerGroupDescribe shows it."""

from typing import Any

from headrace.cluster.image import ClusterImage
from headrace.protocol.errors import ErrorCode

from .member import Assignment, Member
from .state import GroupState


def describe(group_id: str, state_name: str, assignor: str, state: GroupState, image: ClusterImage) -> dict[str, Any]:
    """One entry of the answer."""
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "group_id": group_id,
        "group_state": state_name,
        "group_epoch": state.epoch,
        "assignment_epoch": state.target_epoch,
        "assignor_name": assignor,
        "members": [_member(member, state.target_of(member.id), image) for member in state.members.values()],
    }


def _member(member: Member, target: Assignment, image: ClusterImage) -> dict[str, Any]:
    return {
        "member_id": member.id,
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "member_epoch": member.epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": sorted(member.subscribed_topic_names),
        "subscribed_topic_regex": member.subscribed_topic_regex,
        "assignment": _named(member.assigned, image),
        "target_assignment": _named(target, image),
        "member_type": 1 if member.classic is None else 0,
    }


def _named(assignment: Assignment, image: ClusterImage) -> dict[str, Any]:
    topics = ((image.topic_by_id(topic_id), partitions) for topic_id, partitions in assignment.items())
    return {
        "topic_partitions": [
            {"topic_id": topic.id, "topic_name": topic.name, "partitions": sorted(partitions)}
            for topic, partitions in topics
            if topic is not None
        ]
    }
