"""From what members are subscribed to, to topics as an assignor sees them."""

from collections.abc import Iterable, Mapping
from uuid import UUID

from headrace.cluster.image import Topic
from headrace.coordinator.groups.targets import partition_racks

from .assignors import TopicShape
from .member import ConsumerMember

Resolved = Mapping[str, frozenset[str]]
"""The topics that match each expression."""


def subscribed_names(member: ConsumerMember, resolved: Resolved) -> frozenset[str]:
    """The names a member is subscribed to, one by one or by its expression."""
    if not member.subscribed_topic_regex:
        return member.subscribed_topic_names
    return member.subscribed_topic_names | resolved.get(member.subscribed_topic_regex, frozenset())


def shapes(topics: Iterable[Topic], racks: Mapping[int, str]) -> dict[UUID, TopicShape]:
    """Topics as an assignor sees them."""
    return {
        topic.id: TopicShape(partitions=len(topic.partitions), racks=partition_racks(topic, racks)) for topic in topics
    }
