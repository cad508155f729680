"""The consumer protocol of classic members in a group with members of both kinds: topics by name there, by id here."""

from collections.abc import Iterable, Mapping
from uuid import UUID

from headrace.cluster.image import ClusterImage
from headrace.coordinator.groups.targets import Assignment
from headrace.protocol.consumer_protocol import encode_assignment


def write_assignment(version: int, assigned: Assignment, image: ClusterImage) -> bytes:
    """Partitions as a leader would assign them; topics that are gone are left out."""
    topics = ((image.topic_by_id(topic_id), indexes) for topic_id, indexes in assigned.items())
    return encode_assignment({topic.name: indexes for topic, indexes in topics if topic is not None}, version)


def by_id(named: Mapping[str, Iterable[int]], image: ClusterImage) -> dict[UUID, frozenset[int]]:
    """Partitions by the id of their topic; topics that are gone are left out."""
    found = ((image.topic(name), frozenset(indexes)) for name, indexes in named.items())
    return {topic.id: indexes for topic, indexes in found if topic is not None and indexes}
