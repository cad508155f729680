"""What consumers of the classic protocol tell each other through the broker: subscriptions and assignments.

The broker reads them only where a group has members of both protocols. Version 0 of a subscription has topics and data
of the assignor; 1 adds what the member owns, 2 its generation, 3 its rack. Assignments are the same in all versions.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from struct import Struct
from typing import Final
from uuid import UUID

from headrace.cluster.image import ClusterImage
from headrace.coordinator.runtime.fields import Reader, i32s, plain_text

from .member import Assignment

_I16: Final = Struct(">h")
_I32: Final = Struct(">i")
Named = dict[str, frozenset[int]]
"""Partitions by the name of their topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """What a classic consumer wants, and what it owns while it asks."""

    version: int
    topics: frozenset[str]
    owned: Named = field(default_factory=dict)
    rack_id: str | None = None


def parse_subscription(data: bytes) -> Subscription:
    """A consumer's metadata; `BadRecord` when it is not one."""
    reader = Reader(data)
    version = reader.i16()
    topics = frozenset(reader.nullable_text() or "" for _ in range(reader.count()))
    reader.data()
    owned = _read_partitions(reader) if version >= 1 and not reader.is_done else {}
    if version >= 2 and not reader.is_done:
        reader.i32()
    rack_id = reader.nullable_text() if version >= 3 and not reader.is_done else None
    return Subscription(version=version, topics=topics, owned=owned, rack_id=rack_id or None)


def parse_assignment(data: bytes) -> tuple[Named, bytes]:
    """What a leader assigned, and data of its assignor; `BadRecord` when it is not that. Nothing is no partitions."""
    if not data:
        return {}, b""
    reader = Reader(data)
    reader.i16()
    return _read_partitions(reader), reader.data()


def write_assignment(version: int, assigned: Assignment, image: ClusterImage) -> bytes:
    """Partitions as a leader would assign them; topics that are gone are left out."""
    topics = [(topic, indexes) for topic_id, indexes in assigned.items() if (topic := image.topic_by_id(topic_id))]
    out = bytearray(_I16.pack(version) + _I32.pack(len(topics)))
    for topic, indexes in topics:
        out += plain_text(topic.name) + _I32.pack(len(indexes)) + i32s(sorted(indexes))
    return bytes(out + _I32.pack(-1))


def by_id(named: Mapping[str, Iterable[int]], image: ClusterImage) -> dict[UUID, frozenset[int]]:
    """Partitions by the id of their topic; topics that are gone are left out."""
    found = ((image.topic(name), frozenset(indexes)) for name, indexes in named.items())
    return {topic.id: indexes for topic, indexes in found if topic is not None and indexes}


def _read_partitions(reader: Reader) -> Named:
    return {reader.nullable_text() or "": frozenset(reader.i32s()) for _ in range(reader.count())}
