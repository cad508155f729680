"""From what members are subscribed to, to topics as an assignor sees them."""

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from uuid import UUID

from headrace.cluster.image import ClusterImage, Topic

from ..assignors import TopicShape
from .member import Member
from .regex import matcher

Resolved = Mapping[str, frozenset[str]]
"""The topics that match each expression."""


def resolve(regex: str, image: ClusterImage) -> frozenset[str]:
    """The topics whose whole name matches. As in Kafka the cluster's own are no exception: clients leave them out."""
    matches = matcher(regex).matches
    return frozenset(topic.name for topic in image.topics() if matches(topic.name))


def subscribed_names(member: Member, resolved: Resolved) -> frozenset[str]:
    """The names a member is subscribed to, one by one or by its expression."""
    if not member.subscribed_topic_regex:
        return member.subscribed_topic_names
    return member.subscribed_topic_names | resolved.get(member.subscribed_topic_regex, frozenset())


def topic_ids(names: Iterable[str], image: ClusterImage) -> frozenset[UUID]:
    """The ids of those topics that exist."""
    found = (image.topic(name) for name in names)
    return frozenset(topic.id for topic in found if topic is not None)


def shapes(ids: Iterable[UUID], image: ClusterImage) -> dict[UUID, TopicShape]:
    """Topics as an assignor sees them."""
    racks = _racks(image)
    topics = (image.topic_by_id(topic_id) for topic_id in ids)
    return {
        topic.id: TopicShape(partitions=len(topic.partitions), racks=_partition_racks(topic, racks))
        for topic in topics
        if topic is not None
    }


def metadata_hash(names: Iterable[str], image: ClusterImage) -> int:
    """A number that changes with what an assignor sees of these topics: ids, partition counts and racks."""
    racks = _racks(image)
    topics = [topic for topic in map(image.topic, sorted(names)) if topic is not None]
    if not topics:
        return 0
    hasher = blake2b(digest_size=8)
    for topic in topics:
        hasher.update(topic.id.bytes + len(topic.partitions).to_bytes(4))
        for partition in _partition_racks(topic, racks):
            hasher.update(repr(sorted(partition)).encode())
    return int.from_bytes(hasher.digest())


def _racks(image: ClusterImage) -> dict[int, str]:
    return {broker.id: broker.rack for broker in image.brokers.values() if broker.rack}


def _partition_racks(topic: Topic, racks: Mapping[int, str]) -> tuple[frozenset[str], ...]:
    if not racks:
        return ()
    return tuple(
        frozenset(racks[replica] for replica in partition.replicas if replica in racks)
        for partition in topic.partitions
    )
