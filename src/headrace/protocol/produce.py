"""Produce, by hand: the one request whose bytes are worth not copying, and its response.

Versions 3-13. From 9 on lengths are varints and structs end in tagged fields; from 13 on a topic is named by its id.
A partition's records come out as a writable view into the connection's buffer.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache
from struct import Struct
from struct import error as StructError  # noqa: N812 - an exception's name
from typing import Final, NamedTuple

from .encode import write_count, write_topic, write_uvarint
from .errors import ProtocolViolation
from .guard import MOST_TAGS

MOST_PARTITIONS: Final = 50_000
"""With one small batch each they have 4 MB, more than clients put into one request."""
FIRST_FLEXIBLE: Final = 9
FIRST_WITH_IDS: Final = 13
FIRST_WITH_ZSTD: Final = 7

_I16: Final = Struct(">h")
_I32: Final = Struct(">i")
_ACKS_TIMEOUT: Final = Struct(">hi")
_ACKS_TIMEOUT_COUNT: Final = Struct(">hii")
_INDEX_SIZE: Final = Struct(">ii")
_ONE_TOPIC: Final = Struct(">bhibb")
_ONE_PARTITION: Final = Struct(">bi")
_new_tuple: Final = tuple.__new__  # half of what a NamedTuple's own constructor costs

PartitionRecords = tuple[int, memoryview | None]
"""What goes to one partition, by its index; None where the client sent null."""


class TopicRecords(NamedTuple):
    """What goes to one topic, by name or (from version 13) by id."""

    name: str
    id: bytes | None
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
    refused: tuple[tuple[int, str], ...] = ()
    """Records that are the reason, by their place in the batch."""


def parse_request(data: memoryview, position: int, version: int) -> ProduceRequest:
    """The request whose body starts at a position of a frame.

    Counts need no check of their own: each element is read, and one beyond the frame ends the reading.
    """
    try:
        if version >= FIRST_FLEXIBLE:
            return _parse_one(data, position, version) or _parse_flexible(data, position, version)
        return _parse_legacy(data, position)
    except (IndexError, StructError):
        raise ProtocolViolation("a produce request that ends too early") from None
    except UnicodeDecodeError:
        raise ProtocolViolation("a string that is not UTF-8") from None


def _parse_one(data: memoryview, at: int, version: int) -> ProduceRequest | None:
    """A request with one partition and nothing out of the ordinary, in few steps; None for any other."""
    no_transaction, acks, timeout_ms, topics, size = _ONE_TOPIC.unpack_from(data, at)
    if no_transaction or topics != 2 or (size < 0 and version < FIRST_WITH_IDS):
        return None
    at += _ONE_TOPIC.size
    name, topic_id = "", None
    if version < FIRST_WITH_IDS:
        name = str(data[at : at + size - 1], "utf-8")
        at += size - 1
    else:
        topic_id = bytes(data[at - 1 : at + 15])
        at += 15
    partitions, index = _ONE_PARTITION.unpack_from(data, at)
    at += 6
    size = data[at - 1]
    if size >= 0x80:
        size, at = _uvarint(data, at - 1)
    after = at + size - 1
    if partitions != 2 or size == 0 or data[after:].tobytes() != b"\0\0\0":
        return None
    topic = _new_tuple(TopicRecords, (name, topic_id, [(index, data[at:after])]))
    return _new_tuple(ProduceRequest, (None, acks, timeout_ms, [topic]))


def _parse_flexible(data: memoryview, at: int, version: int) -> ProduceRequest:
    size, at = _uvarint(data, at)
    transactional_id, at = _text(data, at, size - 1)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(data, at)
    count, at = _uvarint(data, at + 6)
    topics = []
    left = _less(MOST_PARTITIONS, count - 1)
    for _ in range(count - 1):
        name: str | None = ""
        topic_id = None
        if version >= FIRST_WITH_IDS:
            topic_id = bytes(data[at : at + 16])
            at += 16
        else:
            size, at = _uvarint(data, at)
            name, at = _text(data, at, size - 1)
        count, at = _uvarint(data, at)
        partitions: list[PartitionRecords] = []
        left = _less(left, count - 2)
        for _ in range(count - 1):
            (index,) = _I32.unpack_from(data, at)
            size, at = _uvarint(data, at + 4)
            records, at = _records(data, at, size - 1)
            partitions.append((index, records))
            at = at + 1 if data[at] == 0 else _skip_tags(data, at)
        at = at + 1 if data[at] == 0 else _skip_tags(data, at)
        topics.append(TopicRecords(name or "", topic_id, partitions))
    _skip_tags(data, at)
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _parse_legacy(data: memoryview, at: int) -> ProduceRequest:
    (size,) = _I16.unpack_from(data, at)
    transactional_id, at = _text(data, at + 2, size)
    acks, timeout_ms, count = _ACKS_TIMEOUT_COUNT.unpack_from(data, at)
    at += 10
    topics = []
    left = _less(MOST_PARTITIONS, count)
    for _ in range(count):
        (size,) = _I16.unpack_from(data, at)
        name, at = _text(data, at + 2, size)
        (count,) = _I32.unpack_from(data, at)
        at += 4
        partitions: list[PartitionRecords] = []
        left = _less(left, count - 1)
        for _ in range(count):
            index, size = _INDEX_SIZE.unpack_from(data, at)
            records, at = _records(data, at + 8, size)
            partitions.append((index, records))
        topics.append(TopicRecords(name or "", None, partitions))
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _less(left: int, count: int) -> int:
    """How many partitions there may still be after some. A topic counts as one of its own."""
    if count > left:
        raise ProtocolViolation(f"more than {MOST_PARTITIONS} partitions in one produce request")
    return left - max(count, 0)


def _uvarint(data: memoryview, at: int) -> tuple[int, int]:
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    value = byte & 0x7F
    for shift in (7, 14, 21, 28):
        at += 1
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
    raise ProtocolViolation("a varint that does not end")


def _text(data: memoryview, at: int, size: int) -> tuple[str | None, int]:
    if size < 0:
        return None, at
    after = at + size
    if after > len(data):
        raise ProtocolViolation(f"a length of {size} where {len(data) - at} bytes are left")
    return str(data[at:after], "utf-8"), after


def _records(data: memoryview, at: int, size: int) -> tuple[memoryview | None, int]:
    if size < 0:
        return None, at
    after = at + size
    if after > len(data):
        raise ProtocolViolation(f"a length of {size} where {len(data) - at} bytes are left")
    return data[at:after], after


def _skip_tags(data: memoryview, at: int) -> int:
    count, at = _uvarint(data, at)
    if count > MOST_TAGS:
        raise ProtocolViolation(f"{count} tagged fields; the most is {MOST_TAGS}")
    for _ in range(count):
        _, at = _uvarint(data, at)
        size, at = _uvarint(data, at)
        at += size
    return at


_V2_PARTITION: Final = Struct(">ihqq")
_V5_PARTITION: Final = Struct(">ihqqq")
_NO_ERRORS_V8: Final = b"\0\0\0\0\xff\xff"
_NO_ERRORS_V9: Final = b"\x01\0\0"


def well(partition: int, base_offset: int, log_append_time: int, log_start_offset: int) -> PartitionAnswer:
    """The answer of a partition that was written to."""
    return _new_tuple(PartitionAnswer, (partition, 0, base_offset, log_append_time, log_start_offset, None, ()))


def one_response(version: int, correlation_id: int, topic: TopicRecords, answer: PartitionAnswer) -> bytes:
    """The whole frame of a response to a request with one partition, all well: what most requests get."""
    pack, length, before, after = _around_one(version, topic.name, topic.id)
    index, code, base_offset, append_time, start = answer[:5]
    if version >= 5:
        return pack(length, correlation_id, before, index, code, base_offset, append_time, start, after)
    return pack(length, correlation_id, before, index, code, base_offset, append_time, after)


@lru_cache(maxsize=4096)
def _around_one(version: int, name: str, topic_id: bytes | None) -> tuple[Callable[..., bytes], int, bytes, bytes]:
    """What packs such a frame, its length, and what stands before and behind the partition's numbers."""
    flexible = version >= FIRST_FLEXIBLE
    before = bytearray(b"\0" if flexible else b"")
    write_count(before, 1, flexible)
    write_topic(before, name, topic_id, by_id=version >= FIRST_WITH_IDS, flexible=flexible)
    write_count(before, 1, flexible)
    after = _I32.pack(0)
    if flexible:
        after = _NO_ERRORS_V9 + b"\0" + after + b"\0"
    elif version >= 8:
        after = _NO_ERRORS_V8 + after
    numbers = _V5_PARTITION if version >= 5 else _V2_PARTITION
    frame = Struct(f">ii{len(before)}s{numbers.format[1:]}{len(after)}s")
    return frame.pack, frame.size - _I32.size, bytes(before), after


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
    flexible = version >= FIRST_FLEXIBLE
    write_count(out, len(answer.refused), flexible)
    for index, reason in answer.refused:
        out += _I32.pack(index)
        _write_text(out, reason, flexible)
        if flexible:
            out.append(0)
    _write_text(out, answer.message, flexible)
    if flexible:
        out.append(0)


def _write_text(out: bytearray, text: str, flexible: bool) -> None:
    data = text.encode()[:1024]
    if flexible:
        write_uvarint(out, len(data) + 1)
    else:
        out += _I16.pack(len(data))
    out += data
