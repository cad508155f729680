"""Topics as Metadata answers have them, in bytes.

Encoding takes some microseconds for each partition, an answer may hold 100,000 topics, and every client of a large
cluster asks again every few minutes. So each topic's bytes are kept until it changes, for each version asked for.
"""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import cache
from typing import Any, Final, get_args

from kio.index import load_response_schema

from headrace.cluster.image import ClusterImage, PartitionState, Topic
from headrace.protocol.api import ApiKey
from headrace.protocol.encode import encode_entity, encode_response, write_uvarint
from headrace.protocol.errors import ErrorCode
from headrace.protocol.schema import response_shape

NO_LEADER: Final = -1
_SPARE: Final = 1000
_Form = tuple[int, int]
_SIZES_AFTER_TOPICS: Final = {"cluster_authorized_operations": 4, "error_code": 2}


class TopicCache:
    """The encoded topics of one image."""

    def __init__(self) -> None:
        self._alive: frozenset[int] = frozenset()
        self._forms: dict[_Form, dict[str, tuple[Topic, bytes]]] = {}

    def encoded(self, topics: Iterable[Topic], image: ClusterImage, version: int, operations: int) -> list[bytes]:
        """Each topic as an element of the `topics` array of that version."""
        alive = frozenset(image.brokers)
        if alive != self._alive:
            self._alive = alive
            self._forms.clear()
        kept = self._forms.setdefault((version, operations), {})
        if len(kept) > 2 * len(image) + _SPARE:
            kept.clear()
        found = []
        for topic in topics:
            entry = kept.get(topic.name)
            if entry is None or entry[0] is not topic:
                values = describe_topic(topic, alive, operations)
                entry = kept[topic.name] = (topic, encode_topic(version, values))
            found.append(entry[1])
        return found


def describe_topic(topic: Topic, alive: frozenset[int], operations: int) -> dict[str, Any]:
    """A topic in the field names of Metadata and DescribeTopicPartitions."""
    return {
        "error_code": ErrorCode.none,
        "name": topic.name,
        "topic_id": topic.id,
        "is_internal": topic.internal,
        "partitions": [describe_partition(index, state, alive) for index, state in enumerate(topic.partitions)],
        "topic_authorized_operations": operations,
    }


def describe_partition(index: int, state: PartitionState, alive: frozenset[int]) -> dict[str, Any]:
    led = state.leader in alive
    return {
        "error_code": ErrorCode.none if led else ErrorCode.leader_not_available,
        "partition_index": index,
        "leader_id": state.leader if led else NO_LEADER,
        "leader_epoch": state.leader_epoch,
        "replica_nodes": state.replicas,
        "isr_nodes": state.isr,
        "offline_replicas": [replica for replica in state.replicas if replica not in alive],
        "eligible_leader_replicas": (),
        "last_known_elr": (),
    }


def encode_topic(version: int, values: Mapping[str, Any]) -> bytes:
    return bytes(encode_entity(_topic_entity(version), values))


def assemble(version: int, values: Mapping[str, Any], topics: list[bytes]) -> bytearray:
    """The body of a Metadata response from its other values and its topics' bytes."""
    body = encode_response(ApiKey.METADATA, version, {**values, "topics": ()})
    shape = response_shape(ApiKey.METADATA, version)
    after = sum(size for name, size in _SIZES_AFTER_TOPICS.items() if shape.has(name)) + shape.flexible
    count_size = 1 if shape.flexible else 4
    tail = body[len(body) - after :]
    del body[len(body) - after - count_size :]
    if shape.flexible:
        write_uvarint(body, len(topics) + 1)
    else:
        body += len(topics).to_bytes(4, "big")
    body += b"".join(topics)
    body += tail
    return body


@cache
def _topic_entity(version: int) -> type:
    entity = load_response_schema(ApiKey.METADATA, version)
    (annotation,) = (field.type for field in fields(entity) if field.name == "topics")
    found: type = get_args(annotation)[0]
    return found
