"""What consumers of the classic protocol tell each other through the broker: subscriptions and assignments.

The broker reads them only where a group has members of both protocols. Version 0 of a subscription has topics and data
of the assignor; 1 adds what the member owns, 2 its generation, 3 its rack. Assignments are the same in all versions.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from struct import Struct, error
from typing import Final
from uuid import UUID

from headrace.cluster.image import ClusterImage

from .member import Assignment

_I16: Final = Struct(">h")
_I32: Final = Struct(">i")
Named = dict[str, frozenset[int]]
"""Partitions by the name of their topic."""


class Malformed(Exception):  # noqa: N818 - named for what was found
    """Bytes that are not what a consumer sends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """What a classic consumer wants, and what it owns while it asks."""

    version: int
    topics: frozenset[str]
    owned: Named = field(default_factory=dict)
    rack_id: str | None = None


def parse_subscription(data: bytes) -> Subscription:
    """A consumer's metadata; `Malformed` when it is not one."""
    reader = _Reader(data)
    version = reader.i16()
    topics = frozenset(reader.text() or "" for _ in range(reader.i32()))
    reader.data()
    owned = reader.partitions() if version >= 1 and not reader.is_done else {}
    if version >= 2 and not reader.is_done:
        reader.i32()
    rack_id = reader.text() if version >= 3 and not reader.is_done else None
    return Subscription(version=version, topics=topics, owned=owned, rack_id=rack_id or None)


def parse_assignment(data: bytes) -> tuple[Named, bytes]:
    """What a leader assigned, and data of its assignor; `Malformed` when it is not that. Nothing is no partitions."""
    if not data:
        return {}, b""
    reader = _Reader(data)
    reader.i16()
    return reader.partitions(), reader.data()


def write_assignment(version: int, assigned: Assignment, image: ClusterImage) -> bytes:
    """Partitions as a leader would assign them; topics that are gone are left out."""
    topics = [(topic, indexes) for topic_id, indexes in assigned.items() if (topic := image.topic_by_id(topic_id))]
    out = bytearray(_I16.pack(version) + _I32.pack(len(topics)))
    for topic, indexes in topics:
        name = topic.name.encode()
        out += _I16.pack(len(name)) + name + _I32.pack(len(indexes))
        out += Struct(f">{len(indexes)}i").pack(*sorted(indexes))
    return bytes(out + _I32.pack(-1))


def by_id(named: Mapping[str, Iterable[int]], image: ClusterImage) -> dict[UUID, frozenset[int]]:
    """Partitions by the id of their topic; topics that are gone are left out."""
    found = ((image.topic(name), frozenset(indexes)) for name, indexes in named.items())
    return {topic.id: indexes for topic, indexes in found if topic is not None and indexes}


class _Reader:
    """The bytes of a message, read from the front."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def is_done(self) -> bool:
        return self._at >= len(self._data)

    def i16(self) -> int:
        return self._fixed(_I16)

    def i32(self) -> int:
        return self._fixed(_I32)

    def text(self) -> str | None:
        size = self.i16()
        try:
            return None if size < 0 else self._take(size).decode()
        except UnicodeDecodeError:
            raise Malformed("a name that is not text") from None

    def data(self) -> bytes:
        return self._take(max(self.i32(), 0))

    def partitions(self) -> Named:
        found: Named = {}
        for _ in range(self.i32()):
            name = self.text() or ""
            count = max(self.i32(), 0)
            found[name] = frozenset(Struct(f">{count}i").unpack(self._take(4 * count)))
        return found

    def _fixed(self, kind: Struct) -> int:
        try:
            value: int = kind.unpack_from(self._data, self._at)[0]
        except error:
            raise Malformed(f"it ends after {len(self._data)} bytes") from None
        self._at += kind.size
        return value

    def _take(self, size: int) -> bytes:
        taken = self._data[self._at : self._at + size]
        if len(taken) != size:
            raise Malformed(f"it ends after {len(self._data)} bytes")
        self._at += size
        return taken
