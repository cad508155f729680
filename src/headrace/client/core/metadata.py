"""A client's metadata: brokers, topics, leaders, and the coordinators of groups and transactional ids.

`Metadata` only remembers; a driver asks with `metadata_request`, and hands the answer in with `learn`. Metadata decides
whether a topic exists: a leader that does not know a partition is one to look for again. As news of a topic takes a
moment to be everywhere, one that is unknown is asked for `UNKNOWN_TOPIC_TRIES` times before it is believed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from math import inf
from typing import Any, Final, NamedTuple

from headrace.net.address import Address
from headrace.protocol.errors import ErrorCode

UNKNOWN_TOPIC_TRIES: Final = 3
"""Times that a topic or a partition must be unknown before it is taken not to exist."""
INTERNAL_PREFIX: Final = "__"


class CoordinatorKind(IntEnum):
    """What a FindCoordinator request is about: a group or a transactional id."""

    GROUP = 0
    TRANSACTION = 1


class Leader(NamedTuple):
    """A partition's leader and leader epoch; `node` is -1 while it has none."""

    node: int
    epoch: int


class PartitionRoute(NamedTuple):
    """The broker that leads a partition, and what its topic is called on the wire."""

    node: int
    epoch: int
    topic_id: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicImage:
    """A topic; `id` is None with brokers that have no topic ids."""

    name: str
    id: bytes | None
    is_internal: bool
    leaders: Mapping[int, Leader]
    led: tuple[int, ...] = field(init=False)
    """The partitions that have a leader."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "led", tuple(index for index, leader in self.leaders.items() if leader.node >= 0))

    @property
    def partitions(self) -> int:
        return len(self.leaders)

    def route(self, partition: int) -> PartitionRoute | None:
        """Who leads a partition; None while nobody does. `KeyError` for a partition that there is not."""
        leader = self.leaders[partition]
        return None if leader.node < 0 else PartitionRoute(leader.node, leader.epoch, self.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataImage:
    """One answer to Metadata; `errors` has the topics that there is nothing else to say about."""

    cluster_id: str
    controller_id: int
    nodes: Mapping[int, Address]
    topics: Mapping[str, TopicImage]
    errors: Mapping[str, ErrorCode]

    def error_of(self, topic: str) -> ErrorCode | None:
        """Why there is no image of a topic that was asked for; None where there is one."""
        if topic in self.topics:
            return None
        return self.errors.get(topic, ErrorCode.unknown_topic_or_partition)


class Metadata:
    """What one client has learnt so far. Times are the driver's, of any monotonic clock.

    A client that lives long begins anew with more than `most` topics, or coordinators.
    """

    def __init__(self, most: float = inf) -> None:
        self._most = most
        self.cluster_id = ""
        self.controller_id = -1
        self.nodes: dict[int, Address] = {}
        self._topics: dict[str, tuple[TopicImage, float]] = {}
        self._coordinators: dict[tuple[int, str], int] = {}

    def learn(self, image: MetadataImage, now: float) -> None:
        """Take in an answer. Brokers that it does not name are gone, unless it names none."""
        self.cluster_id = image.cluster_id or self.cluster_id
        self.controller_id = image.controller_id
        if image.nodes:
            self.nodes = dict(image.nodes)
        self._make_room(self._topics)
        self._topics.update({name: (topic, now) for name, topic in image.topics.items()})

    def topic(self, name: str, since: float) -> TopicImage | None:
        """What was learnt of a topic after a time."""
        image, seen_at = self._topics.get(name, (None, since))
        return image if seen_at > since else None

    def forget_topics(self, names: Iterable[str] | None = None) -> None:
        """Forget the leaders of these topics, or of all: one has moved."""
        if names is None:
            self._topics.clear()
            return
        for name in names:
            self._topics.pop(name, None)

    def coordinator(self, kind: CoordinatorKind, key: str) -> int | None:
        """The broker that coordinates a group or a transactional id, if that is known."""
        node = self._coordinators.get((kind, key))
        return node if node in self.nodes else None

    def learn_coordinator(self, kind: CoordinatorKind, key: str, node: int, address: Address) -> None:
        self.nodes[node] = address
        self._make_room(self._coordinators)
        self._coordinators[kind, key] = node

    def forget_coordinator(self, kind: CoordinatorKind, key: str) -> None:
        self._coordinators.pop((kind, key), None)

    def forget_controller(self) -> None:
        self.controller_id = -1

    def _make_room(self, remembered: dict[Any, Any]) -> None:
        if len(remembered) > self._most:
            remembered.clear()


def metadata_request(topics: Iterable[str] | None, *, create: bool = False) -> dict[str, Any]:
    """The values of a Metadata request for some topics, none, or all (None); `create` lets the broker make them."""
    return {
        "topics": None if topics is None else [{"name": name, "topic_id": None} for name in topics],
        "allow_auto_topic_creation": create,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }


def read_metadata(answer: Any) -> MetadataImage:
    """The image in an answer of any version."""
    topics = {}
    errors = {}
    for topic in answer.topics:
        if topic.error_code is ErrorCode.none:
            topics[topic.name] = _topic_image(topic)
        else:
            errors[topic.name] = topic.error_code
    return MetadataImage(
        cluster_id=answer.cluster_id or "",
        controller_id=int(answer.controller_id),
        nodes={int(broker.node_id): Address(broker.host, broker.port) for broker in answer.brokers},
        topics=topics,
        errors=errors,
    )


def _topic_image(topic: Any) -> TopicImage:
    topic_id = getattr(topic, "topic_id", None)
    leaders = {
        int(p.partition_index): Leader(int(p.leader_id), getattr(p, "leader_epoch", -1))
        for p in sorted(topic.partitions, key=_index)
    }
    return TopicImage(
        name=topic.name,
        id=None if topic_id is None else topic_id.bytes,
        is_internal=topic.is_internal or topic.name.startswith(INTERNAL_PREFIX),
        leaders=leaders,
    )


def _index(partition: Any) -> int:
    return int(partition.partition_index)
