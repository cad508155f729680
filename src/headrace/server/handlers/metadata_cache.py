"""Topics as Metadata answers have them, in bytes.

An answer may hold 100,000 topics, and every client of a large cluster asks again every few minutes. So each topic's
bytes are kept until it changes, for each version asked for; and as most partitions of a cluster are alike, so are
theirs. Who asks on a listener that not all brokers have is told other leaders, and so there are bytes of its own. The
layout of a topic is written here by hand, three times as fast as from its shape:

    error code i16 | name | id (v10+) | is internal (v1+) | partitions | authorized operations (v8+) | tags (v9+)
"""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import cache
from struct import Struct
from typing import Any, Final, NamedTuple, get_args

from kio.index import load_response_schema

from headrace.cluster.image import ClusterImage, PartitionState, Topic
from headrace.protocol.api import ApiKey
from headrace.protocol.encode import encode_entity, encode_response, write_uvarint
from headrace.protocol.errors import ErrorCode
from headrace.protocol.schema import response_shape

NO_LEADER: Final = -1
_SPARE: Final = 1000
_MOST_PARTITIONS: Final = 10_000
_MOST_REACHES: Final = 8
_FIRST_WITH_INTERNAL: Final = 1
_FIRST_WITH_LISTENER_ERRORS: Final = 6
_FIRST_WITH_OPERATIONS: Final = 8
_FIRST_WITH_IDS: Final = 10
_I32: Final = Struct(">i").pack
_Form = tuple[int, int]
_SIZES_AFTER_TOPICS: Final = {"cluster_authorized_operations": 4, "error_code": 2}


class ReachableBrokers(NamedTuple):
    """The brokers that clients of one listener can reach."""

    alive: frozenset[int]
    reachable: frozenset[int]
    """Those that have the listener."""

    @classmethod
    def of(cls, image: ClusterImage, listener: str) -> "ReachableBrokers":
        return cls(frozenset(image.brokers), image.reachable(listener))


class TopicCache:
    """The encoded topics of one image."""

    def __init__(self) -> None:
        self._alive: frozenset[int] = frozenset()
        self._of_reach: dict[ReachableBrokers, _Encoder] = {}

    def encoded(
        self, topics: Iterable[Topic], image: ClusterImage, version: int, operations: int, listener: str
    ) -> list[bytes]:
        """Each topic as an element of the `topics` array of that version."""
        reach = ReachableBrokers.of(image, listener)
        if reach.alive != self._alive or (reach not in self._of_reach and len(self._of_reach) >= _MOST_REACHES):
            self._alive = reach.alive
            self._of_reach.clear()
        encoder = self._of_reach.get(reach)
        if encoder is None:
            encoder = self._of_reach[reach] = _Encoder(reach)
        return encoder.encoded(topics, image, version, operations)


class _Encoder:
    """The encoded topics, for those who reach the same brokers."""

    def __init__(self, reach: ReachableBrokers) -> None:
        self._reach = reach
        self._forms: dict[_Form, dict[str, tuple[Topic, bytes]]] = {}
        self._partitions: dict[tuple[int, int, PartitionState], bytes] = {}

    def encoded(self, topics: Iterable[Topic], image: ClusterImage, version: int, operations: int) -> list[bytes]:
        kept = self._forms.setdefault((version, operations), {})
        if len(kept) > 2 * len(image) + _SPARE:
            kept.clear()
        encodings = []
        for topic in topics:
            entry = kept.get(topic.name)
            if entry is None or entry[0] is not topic:
                entry = kept[topic.name] = (topic, self._encode(topic, version, operations))
            encodings.append(entry[1])
        return encodings

    def _encode(self, topic: Topic, version: int, operations: int) -> bytes:
        flexible = _is_flexible(version)
        out = bytearray(b"\x00\x00")
        name = topic.name.encode()
        if flexible:
            write_uvarint(out, len(name) + 1)
        else:
            out += len(name).to_bytes(2, "big")
        out += name
        if version >= _FIRST_WITH_IDS:
            out += topic.id.bytes
        if version >= _FIRST_WITH_INTERNAL:
            out.append(topic.internal)
        _write_count(out, len(topic.partitions), flexible)
        for index, state in enumerate(topic.partitions):
            out += self._partition(version, index, state)
        if version >= _FIRST_WITH_OPERATIONS:
            out += _I32(operations)
        if flexible:
            out.append(0)
        return bytes(out)

    def _partition(self, version: int, index: int, state: PartitionState) -> bytes:
        key = (version, index, state)
        encoding = self._partitions.get(key)
        if encoding is None:
            if len(self._partitions) >= _MOST_PARTITIONS:
                self._partitions.clear()
            values = describe_partition(index, state, self._reach, version)
            encoding = self._partitions[key] = bytes(
                encode_entity(_entity_of(_topic_entity(version), "partitions"), values)
            )
        return encoding


def describe_partition(
    index: int, state: PartitionState, reach: ReachableBrokers, version: int = _FIRST_WITH_LISTENER_ERRORS
) -> dict[str, Any]:
    """A partition; `version` is Metadata's."""
    led = state.leader in reach.reachable
    return {
        "error_code": ErrorCode.none if led else _unreachable(state.leader, reach, version),
        "partition_index": index,
        "leader_id": state.leader if led else NO_LEADER,
        "leader_epoch": state.leader_epoch,
        "replica_nodes": state.replicas,
        "isr_nodes": state.isr,
        "offline_replicas": [replica for replica in state.replicas if replica not in reach.reachable],
        "eligible_leader_replicas": state.elr,
        "last_known_elr": state.last_known_elr,
    }


def _unreachable(leader: int, reach: ReachableBrokers, version: int) -> ErrorCode:
    lacks_listener = leader in reach.alive and version >= _FIRST_WITH_LISTENER_ERRORS
    return ErrorCode.listener_not_found if lacks_listener else ErrorCode.leader_not_available


def encode_topic(version: int, values: Mapping[str, Any]) -> bytes:
    return bytes(encode_entity(_topic_entity(version), values))


def assemble(
    version: int, values: Mapping[str, Any], topics: list[bytes], more: bytearray, more_count: int
) -> bytearray:
    """The body of a Metadata response from its other values and its topics' bytes.

    Of those that are joined already it becomes part: they may be many, and to copy them takes a millisecond.
    """
    body = encode_response(ApiKey.METADATA, version, {**values, "topics": ()})
    shape = response_shape(ApiKey.METADATA, version)
    after = sum(size for name, size in _SIZES_AFTER_TOPICS.items() if shape.has(name)) + shape.flexible
    count_size = 1 if shape.flexible else 4
    tail = body[len(body) - after :]
    del body[len(body) - after - count_size :]
    _write_count(body, len(topics) + more_count, shape.flexible)
    body += b"".join(topics)
    if not more:
        return body + tail
    more[:0] = body
    more += tail
    return more


def _write_count(out: bytearray, count: int, flexible: bool) -> None:
    if flexible:
        write_uvarint(out, count + 1)
    else:
        out += _I32(count)


@cache
def _is_flexible(version: int) -> bool:
    return response_shape(ApiKey.METADATA, version).flexible


@cache
def _topic_entity(version: int) -> type:
    return _entity_of(load_response_schema(ApiKey.METADATA, version), "topics")


@cache
def _entity_of(entity: Any, array: str) -> type:
    (annotation,) = (field.type for field in fields(entity) if field.name == array)
    found: type = get_args(annotation)[0]
    return found
