"""What a cluster says of itself, as plain values: its brokers, its topics, who leads what."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from headrace.net.address import Address
from headrace.protocol.errors import ErrorCode

INTERNAL_PREFIX = "__"


class Leader(NamedTuple):
    """Who leads a partition; `node` is -1 while nobody does."""

    node: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicImage:
    """A topic; `id` is None with brokers that have no topic ids."""

    name: str
    id: bytes | None
    is_internal: bool
    leaders: Mapping[int, Leader]

    @property
    def partitions(self) -> int:
        return len(self.leaders)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterImage:
    """One answer to Metadata; `errors` has the topics that there is nothing else to say about."""

    nodes: Mapping[int, Address]
    topics: Mapping[str, TopicImage]
    errors: Mapping[str, ErrorCode]


def image_of(answer: Any) -> ClusterImage:
    """The image in an answer of any version."""
    topics = {}
    errors = {}
    for topic in answer.topics:
        if topic.error_code is ErrorCode.none:
            topics[topic.name] = _topic(topic)
        else:
            errors[topic.name] = topic.error_code
    nodes = {int(broker.node_id): Address(broker.host, broker.port) for broker in answer.brokers}
    return ClusterImage(nodes=nodes, topics=topics, errors=errors)


def _topic(topic: Any) -> TopicImage:
    topic_id = getattr(topic, "topic_id", None)
    leaders = {p.partition_index: Leader(int(p.leader_id), getattr(p, "leader_epoch", -1)) for p in topic.partitions}
    return TopicImage(
        name=topic.name,
        id=None if topic_id is None else topic_id.bytes,
        is_internal=topic.is_internal or topic.name.startswith(INTERNAL_PREFIX),
        leaders=leaders,
    )
