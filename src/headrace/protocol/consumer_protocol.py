"""What consumers of the classic protocol tell each other through the broker: subscriptions and assignments.

Version 0 of a subscription has topics and data of the assignor; 1 adds what the member owns, 2 its generation, 3 its
rack. Assignments are the same in all versions. Lengths are plain: int16 before a text, int32 before bytes and arrays,
-1 for null. What is read may be hostile: a length is held against the bytes that are left before anything is made.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from struct import Struct, error, unpack
from typing import Final

CONSUMER: Final = "consumer"
"""The protocol type of groups whose members speak this. Other kinds of member (Kafka Connect's workers, say) have
metadata of their own; the broker does not look into those."""
_I16: Final = Struct(">h")
_I32: Final = Struct(">i")
_NULL: Final = _I32.pack(-1)

Partitions = dict[str, tuple[int, ...]]
"""Partitions by the names of their topics."""


class NotConsumerProtocol(Exception):
    """Bytes that are no subscription, or no assignment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """What a consumer wants to read, and what it owns while it asks."""

    version: int
    topics: frozenset[str]
    owned: dict[str, frozenset[int]] = field(default_factory=dict)
    rack_id: str | None = None


def encode_subscription(topics: Iterable[str]) -> bytes:
    """What a member wants to read, version 0."""
    names = sorted(set(topics))
    return _I16.pack(0) + _I32.pack(len(names)) + b"".join(map(_text, names)) + _NULL


def parse_topics(data: bytes) -> frozenset[str]:
    """The topics of a subscription of any version, whatever follows them; `NotConsumerProtocol` when it is none."""
    walk = _Walk(data)
    walk.i16()
    return walk.topics()


def parse_subscription(data: bytes) -> Subscription:
    """A subscription of any version; `NotConsumerProtocol` when it is none."""
    walk = _Walk(data)
    version = walk.i16()
    topics = walk.topics()
    walk.data()
    owned = walk.partitions() if version >= 1 and not walk.is_done else {}
    if version >= 2 and not walk.is_done:
        walk.i32()
    rack_id = walk.text() if version >= 3 and not walk.is_done else None
    return Subscription(
        version=version,
        topics=topics,
        owned={topic: frozenset(indexes) for topic, indexes in owned.items()},
        rack_id=rack_id or None,
    )


def encode_assignment(assignment: Mapping[str, Iterable[int]], version: int = 0) -> bytes:
    """What a member is to read."""
    out = bytearray(_I16.pack(version) + _I32.pack(len(assignment)))
    for topic in sorted(assignment):
        partitions = sorted(assignment[topic])
        out += _text(topic) + Struct(f">{len(partitions) + 1}i").pack(len(partitions), *partitions)
    return bytes(out + _NULL)


def parse_assignment(data: bytes) -> tuple[Partitions, bytes]:
    """What a leader assigned, and data of its assignor; `NotConsumerProtocol` when it is not that.

    Nothing at all is no partitions.
    """
    if not data:
        return {}, b""
    walk = _Walk(data)
    walk.i16()
    return walk.partitions(), walk.data()


def parse_partitions(data: bytes) -> Partitions:
    """The partitions of an assignment, whatever follows them; `NotConsumerProtocol` when it is none."""
    walk = _Walk(data)
    walk.i16()
    return walk.partitions()


class _Walk:
    """A walk over fields from the front."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def is_done(self) -> bool:
        return self._at >= len(self._data)

    def i16(self) -> int:
        return self._number(_I16)

    def i32(self) -> int:
        return self._number(_I32)

    def text(self) -> str | None:
        size = self.i16()
        if size == -1:
            return None
        try:
            return self._take(size).decode()
        except UnicodeDecodeError:
            raise NotConsumerProtocol(f"the text before byte {self._at} is not UTF-8") from None

    def data(self) -> bytes:
        """Bytes; none where they are null."""
        size = self.i32()
        return b"" if size == -1 else self._take(size)

    def topics(self) -> frozenset[str]:
        return frozenset([self.text() or "" for _ in range(self._count())])

    def partitions(self) -> Partitions:
        return {self.text() or "": self._i32s() for _ in range(self._count())}

    def _i32s(self) -> tuple[int, ...]:
        count = self._count()
        return unpack(f">{count}i", self._take(4 * count))

    def _count(self) -> int:
        """How many entries an array has, each of at least a byte; 0 where it is null."""
        size = self.i32()
        count = max(size, 0)
        if size < -1 or count > len(self._data) - self._at:
            raise NotConsumerProtocol(f"{size} entries in the {len(self._data) - self._at} bytes that are left")
        return count

    def _number(self, kind: Struct) -> int:
        try:
            (value,) = kind.unpack_from(self._data, self._at)
        except error:
            raise NotConsumerProtocol(f"a field of {kind.size} bytes at byte {self._at} of {len(self._data)}") from None
        self._at += kind.size
        return int(value)

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if size < 0 or end > len(self._data):
            raise NotConsumerProtocol(f"a field of {size} bytes at byte {self._at} of {len(self._data)}")
        found = self._data[self._at : end]
        self._at = end
        return found


def _text(text: str) -> bytes:
    data = text.encode()
    return _I16.pack(len(data)) + data
