"""Produce, by hand: the one request whose bytes are worth not copying, and its response.

Versions 3-13. From 9 on lengths are varints and structs end in tagged fields; from 13 on a topic is named by its id.
A partition's records come out as a writable view into the connection's buffer.
"""

from collections.abc import Iterable
from struct import Struct
from typing import Final, NamedTuple
from uuid import UUID

from .encode import write_count, write_topic, write_uvarint
from .errors import ErrorCode, ProtocolViolation

FIRST_FLEXIBLE: Final = 9
FIRST_WITH_IDS: Final = 13
FIRST_WITH_ZSTD: Final = 7

_I16: Final = Struct(">h")
_I32: Final = Struct(">i")
_ACKS_TIMEOUT: Final = Struct(">hi")


class PartitionRecords(NamedTuple):
    """What goes to one partition; None where the client sent null."""

    partition: int
    records: memoryview | None


class TopicRecords(NamedTuple):
    """What goes to one topic, by name or (from version 13) by id."""

    name: str
    id: UUID | None
    partitions: list[PartitionRecords]


class ProduceRequest(NamedTuple):
    """A Produce request of any version."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[TopicRecords]


class PartitionAnswer(NamedTuple):
    """What one partition answers."""

    partition: int
    code: int = 0
    base_offset: int = -1
    log_append_time: int = -1
    log_start_offset: int = -1
    message: str | None = None


class _Reader:
    __slots__ = ("data", "end", "position")

    def __init__(self, data: memoryview, position: int) -> None:
        self.data = data
        self.position = position
        self.end = len(data)

    def take(self, size: int) -> memoryview:
        start = self.position
        after = start + size
        if size < 0 or after > self.end:
            raise ProtocolViolation(f"a length of {size} where {self.end - start} bytes are left")
        self.position = after
        return self.data[start:after]

    def i16(self) -> int:
        return int(_I16.unpack(self.take(2))[0])

    def i32(self) -> int:
        return int(_I32.unpack(self.take(4))[0])

    def uvarint(self) -> int:
        value = shift = 0
        position, data, end = self.position, self.data, self.end
        while position < end and shift <= 28:
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                self.position = position
                return value
            shift += 7
        raise ProtocolViolation("a varint that does not end")

    def count(self, smallest: int, flexible: bool) -> int:
        count = self.uvarint() - 1 if flexible else self.i32()
        if count * smallest > self.end - self.position:
            raise ProtocolViolation(f"an array of {count} where {self.end - self.position} bytes are left")
        return max(count, 0)

    def text(self, flexible: bool) -> str | None:
        size = self.uvarint() - 1 if flexible else self.i16()
        if size < 0:
            return None
        try:
            return str(self.take(size), "utf-8")
        except UnicodeDecodeError as error:
            raise ProtocolViolation("a string that is not UTF-8") from error

    def records(self, flexible: bool) -> memoryview | None:
        size = self.uvarint() - 1 if flexible else self.i32()
        return None if size < 0 else self.take(size)

    def skip_tags(self) -> None:
        for _ in range(self.uvarint()):
            self.uvarint()
            self.take(self.uvarint())


def parse_request(data: memoryview, position: int, version: int) -> ProduceRequest:
    """The request whose body starts at a position of a frame."""
    flexible = version >= FIRST_FLEXIBLE
    reader = _Reader(data, position)
    transactional_id = reader.text(flexible)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack(reader.take(6))
    topics = [_parse_topic(reader, version, flexible) for _ in range(reader.count(3, flexible))]
    if flexible:
        reader.skip_tags()
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _parse_topic(reader: _Reader, version: int, flexible: bool) -> TopicRecords:
    if version >= FIRST_WITH_IDS:
        name, topic_id = "", UUID(bytes=bytes(reader.take(16)))
    else:
        name, topic_id = reader.text(flexible) or "", None
    partitions = []
    for _ in range(reader.count(5, flexible)):
        partitions.append(PartitionRecords(reader.i32(), reader.records(flexible)))
        if flexible:
            reader.skip_tags()
    if flexible:
        reader.skip_tags()
    return TopicRecords(name, topic_id, partitions)


_V2_PARTITION: Final = Struct(">ihqq")
_V5_PARTITION: Final = Struct(">ihqqq")
_NO_ERRORS_V8: Final = b"\0\0\0\0\xff\xff"
_NO_ERRORS_V9: Final = b"\x01\0\0"


def write_response(
    out: bytearray, version: int, topics: Iterable[tuple[TopicRecords, list[PartitionAnswer]]], throttle_ms: int = 0
) -> None:
    """Append the body of a response to `out`."""
    flexible = version >= FIRST_FLEXIBLE
    answered = list(topics)
    write_count(out, len(answered), flexible)
    for topic, partitions in answered:
        write_topic(out, topic.name, topic.id, by_id=version >= FIRST_WITH_IDS, flexible=flexible)
        write_count(out, len(partitions), flexible)
        for partition in partitions:
            _write_partition(out, partition, version)
        if flexible:
            out.append(0)
    out += _I32.pack(throttle_ms)
    if flexible:
        out.append(0)


def _write_partition(out: bytearray, answer: PartitionAnswer, version: int) -> None:
    if version >= 5:
        out += _V5_PARTITION.pack(*answer[:5])
    else:
        out += _V2_PARTITION.pack(*answer[:4])
    if version < 8:
        return
    if answer.message is None:
        out += _NO_ERRORS_V9 if version >= FIRST_FLEXIBLE else _NO_ERRORS_V8
        return
    message = answer.message.encode()[:1024]
    if version >= FIRST_FLEXIBLE:
        out.append(1)
        write_uvarint(out, len(message) + 1)
        out += message
        out.append(0)
    else:
        out += _I32.pack(0) + _I16.pack(len(message)) + message


def refused(topic: TopicRecords, code: ErrorCode, message: str | None = None) -> list[PartitionAnswer]:
    """The same error for every partition of a topic."""
    return [PartitionAnswer(p.partition, code.value, message=message) for p in topic.partitions]
