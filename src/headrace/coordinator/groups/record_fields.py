"""The parts that records of several kinds of group are made of: keys, sets of names, assignments."""

from collections.abc import Mapping, Sequence, Set
from struct import Struct
from typing import Final
from uuid import UUID

from headrace.coordinator.runtime.fields import FieldReader, i32s, plain_text, write_compact_text
from headrace.protocol.encode import write_uvarint

_I16: Final = Struct(">h")
_NO_TAGS: Final = 0


def record_key(kind: int, *names: str) -> bytes:
    """A key: its type, and the names of the group and of what in it the record is about."""
    return _I16.pack(kind) + b"".join(map(plain_text, names))


def record_body(value: bytes) -> FieldReader:
    """The fields of a value of version 0, which is flexible."""
    reader = FieldReader(value)
    reader.version(newest=0, first_compact=0)
    return reader


def write_texts(out: bytearray, texts: Sequence[str]) -> None:
    write_uvarint(out, len(texts) + 1)
    for text in texts:
        write_compact_text(out, text)


def write_assignment(out: bytearray, assignment: Mapping[UUID, Set[int]]) -> None:
    write_uvarint(out, len(assignment) + 1)
    for topic, partitions in assignment.items():
        out += topic.bytes
        write_uvarint(out, len(partitions) + 1)
        out += i32s(sorted(partitions))
        out.append(_NO_TAGS)


def read_texts(body: FieldReader) -> frozenset[str]:
    return frozenset([body.text() for _ in range(body.count())])


def read_assignment(body: FieldReader) -> dict[UUID, frozenset[int]]:
    found = {}
    for _ in range(body.count()):
        topic = UUID(bytes=body.take(16))
        found[topic] = frozenset(body.i32s())
        body.tags()
    return found
