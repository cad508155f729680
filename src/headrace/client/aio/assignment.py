"""What members of a consumer group tell each other, and who reads what: Kafka's consumer protocol, range assignor."""

from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from struct import Struct
from struct import error as StructError  # noqa: N812 - an exception's name
from typing import Final

_I16: Final = Struct(">h")
_I32: Final = Struct(">i")
RANGE: Final = "range"
WHOLE: Final = "headrace-whole"
"""All partitions to one member: for what must be done in one place at a time."""
CONSUMER: Final = "consumer"

Assignment = dict[str, list[int]]
"""Partitions by topic."""


def encode_subscription(topics: Iterable[str]) -> bytes:
    """What a member wants to read, version 0."""
    names = sorted(set(topics))
    return _I16.pack(0) + _I32.pack(len(names)) + b"".join(map(_text, names)) + _I32.pack(-1)


def decode_subscription(data: bytes) -> list[str]:
    """What a member wants to read, of any version; nothing where it cannot be read."""
    try:
        names, _ = _texts(memoryview(data), 2)
    except (StructError, IndexError, UnicodeDecodeError):
        return []
    return names


def encode_assignment(assignment: Mapping[str, Iterable[int]]) -> bytes:
    """What a member is to read, version 0."""
    out = bytearray(_I16.pack(0) + _I32.pack(len(assignment)))
    for topic in sorted(assignment):
        partitions = sorted(assignment[topic])
        out += _text(topic) + _I32.pack(len(partitions))
        out += b"".join(map(_I32.pack, partitions))
    return bytes(out + _I32.pack(-1))


def decode_assignment(data: bytes) -> Assignment:
    """What a member is to read, of any version; nothing where it cannot be read."""
    view = memoryview(data)
    found: Assignment = {}
    try:
        (count,) = _I32.unpack_from(view, 2)
        at = 6
        for _ in range(count):
            topic, at = _one_text(view, at)
            (partitions,) = _I32.unpack_from(view, at)
            at += 4
            found[topic] = [_I32.unpack_from(view, at + 4 * i)[0] for i in range(partitions)]
            at += 4 * partitions
    except (StructError, IndexError, UnicodeDecodeError):
        return {}
    return found


def assign_range(wanted: Mapping[str, Iterable[str]], partitions: Mapping[str, int]) -> dict[str, Assignment]:
    """Kafka's range assignor: of each topic the members that want it get runs of partitions, by their ids."""
    found: dict[str, Assignment] = {member: {} for member in wanted}
    for topic, count in partitions.items():
        members = sorted(member for member, topics in wanted.items() if topic in set(topics))
        share, extra = divmod(count, len(members)) if members else (0, 0)
        start = 0
        for position, member in enumerate(members):
            size = share + (1 if position < extra else 0)
            if size:
                found[member][topic] = list(range(start, start + size))
            start += size
    return found


def assign_whole(wanted: Mapping[str, Iterable[str]], partitions: Mapping[str, int]) -> dict[str, Assignment]:
    """Everything to one member, which the members' ids decide: different groups have different owners."""
    found: dict[str, Assignment] = {member: {} for member in wanted}
    owner = max(wanted, key=lambda member: blake2b(member.encode(), digest_size=8).digest())
    found[owner] = {topic: list(range(count)) for topic, count in partitions.items() if count}
    return found


Assign = Callable[[Mapping[str, Iterable[str]], Mapping[str, int]], dict[str, Assignment]]
ASSIGNORS: Final[Mapping[str, Assign]] = {RANGE: assign_range, WHOLE: assign_whole}


def _text(text: str) -> bytes:
    data = text.encode()
    return _I16.pack(len(data)) + data


def _texts(view: memoryview, at: int) -> tuple[list[str], int]:
    (count,) = _I32.unpack_from(view, at)
    at += 4
    names = []
    for _ in range(count):
        name, at = _one_text(view, at)
        names.append(name)
    return names, at


def _one_text(view: memoryview, at: int) -> tuple[str, int]:
    (size,) = _I16.unpack_from(view, at)
    end = at + 2 + size
    if size < 0 or end > len(view):
        raise IndexError("a text is cut short")
    return str(view[at + 2 : end], "utf-8"), end
