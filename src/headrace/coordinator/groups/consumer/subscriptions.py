"""From what members are subscribed to, to topics as an assignor sees them."""

from collections.abc import Iterable, Mapping
from typing import Final
from uuid import UUID

from headrace.cluster.image import ClusterImage, Topic

from .assignors import TopicShape
from .member import ConsumerMember

Resolved = Mapping[str, frozenset[str]]
"""The topics that match each expression."""


_HASH: Final = 2**64 - 1


def subscribed_names(member: ConsumerMember, resolved: Resolved) -> frozenset[str]:
    """The names a member is subscribed to, one by one or by its expression."""
    if not member.subscribed_topic_regex:
        return member.subscribed_topic_names
    return member.subscribed_topic_names | resolved.get(member.subscribed_topic_regex, frozenset())


def topic_ids(names: Iterable[str], image: ClusterImage) -> frozenset[UUID]:
    """The ids of those topics that exist."""
    found = (image.topic(name) for name in names)
    return frozenset(topic.id for topic in found if topic is not None)


def shapes(topics: Iterable[Topic], racks: Mapping[int, str]) -> dict[UUID, TopicShape]:
    """Topics as an assignor sees them."""
    return {
        topic.id: TopicShape(partitions=len(topic.partitions), racks=_partition_racks(topic, racks)) for topic in topics
    }


def metadata_hash(names: Iterable[str], image: ClusterImage) -> int:
    """A number that changes with what an assignor sees of these topics: ids, partition counts and racks."""
    racks = racks_of(image)
    topics = [topic for topic in map(image.topic, names) if topic is not None]
    if not racks:
        return sum([hash((topic.id.int, len(topic.partitions))) for topic in topics]) & _HASH
    return sum([_hash_with_racks(topic, racks) for topic in topics]) & _HASH


def _hash_with_racks(topic: Topic, racks: Mapping[int, str]) -> int:
    """Texts hash differently in each process: their bytes do not."""
    shown = tuple([int.from_bytes(repr(sorted(each)).encode()) for each in _partition_racks(topic, racks)])
    return hash((topic.id.int, len(topic.partitions), shown))


def racks_of(image: ClusterImage) -> dict[int, str]:
    """The racks of those brokers that have one."""
    return {broker.id: broker.rack for broker in image.brokers.values() if broker.rack}


def _partition_racks(topic: Topic, racks: Mapping[int, str]) -> tuple[frozenset[str], ...]:
    if not racks:
        return ()
    return tuple(
        frozenset(racks[replica] for replica in partition.replicas if replica in racks)
        for partition in topic.partitions
    )
