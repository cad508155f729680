"""Requests built once and sent again and again, so that the load generator costs next to nothing.

Every reply has the same size, which is all that the load generator needs to count it.
"""

import time
from dataclasses import dataclass
from struct import Struct
from typing import Final

from headrace.protocol.batch import HEADER_SIZE
from headrace.protocol.records import Record, encode_batch

from .model import BenchError

MIB: Final = 1 << 20
NEVER: Final = str(2**63 - 1)
CLIENT_ID: Final = b"bench"
_PRODUCE_VERSION: Final = 9
_FETCH_VERSION: Final = 12
_CREATE_VERSION: Final = 4
_HEAD: Final = Struct(">hhih")
_I16: Final = Struct(">h")
_I32: Final = Struct(">i")
_ACKS_TIMEOUT: Final = Struct(">hi")
_PRODUCED: Final = Struct(">ihqqq")
_FETCH: Final = Struct(">iiiibii")
_FETCH_PARTITION: Final = Struct(">iiqiqi")
_FETCHED: Final = Struct(">ihqqq")
_REPLY_HEAD: Final = 4 + 4 + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A record batch as a producer sends it."""

    data: bytes
    records: int
    value_size: int


def batch_of(records: int, value_size: int) -> Batch:
    """A batch of records without keys."""
    now = int(time.time() * 1000)
    value = bytes(n * 131 % 251 for n in range(value_size))
    data = bytes(encode_batch(Record(0, now, None, value) for _ in range(records)))
    return Batch(data=data, records=records, value_size=value_size)


def batch_up_to(size: int, value_size: int) -> Batch:
    """The largest batch of such records that has at most `size` bytes."""
    one = len(batch_of(1, value_size).data) - HEADER_SIZE
    records = max((size - HEADER_SIZE) // (one + 3), 1)
    return batch_of(records, value_size)


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _compact(text: str) -> bytes:
    data = text.encode()
    return uvarint(len(data) + 1) + data


def legacy(text: str) -> bytes:
    """A string as requests before the flexible versions have it."""
    data = text.encode()
    return _I16.pack(len(data)) + data


def request_frame(api_key: int, version: int, body: bytes, *, flexible: bool) -> bytes:
    """A request with its header and its length."""
    head = _HEAD.pack(api_key, version, 1, len(CLIENT_ID)) + CLIENT_ID + (b"\0" if flexible else b"")
    return _I32.pack(len(head) + len(body)) + head + body


def produce_frame(topic: str, batch: Batch, *, acks: int = -1, partition: int = 0) -> bytes:
    """A Produce request with one batch."""
    body = (
        b"\0"
        + _ACKS_TIMEOUT.pack(acks, 30_000)
        + b"\x02"
        + _compact(topic)
        + b"\x02"
        + _I32.pack(partition)
        + uvarint(len(batch.data) + 1)
        + batch.data
        + b"\0\0\0"
    )
    return request_frame(0, _PRODUCE_VERSION, body, flexible=True)


def produce_reply_size(topic: str) -> int:
    return _REPLY_HEAD + 1 + len(_compact(topic)) + 1 + _PRODUCED.size + 3 + 1 + 4 + 1


def produced_offset(reply: bytes, topic: str) -> int:
    """The base offset that a reply names; `BenchError` when it names an error instead."""
    at = _REPLY_HEAD + 1 + len(_compact(topic)) + 1
    _, code, base_offset, _, _ = _PRODUCED.unpack_from(reply, at)
    if code:
        raise BenchError(f"produce was answered with error code {code}")
    return int(base_offset)


def fetch_frame(topic: str, offset: int, max_bytes: int, *, max_wait_ms: int = 500, min_bytes: int = 1) -> bytes:
    """A Fetch request, outside of any session, for partition 0."""
    body = (
        _FETCH.pack(-1, max_wait_ms, min_bytes, 0x7FFFFFFF, 0, 0, -1)
        + b"\x02"
        + _compact(topic)
        + b"\x02"
        + _FETCH_PARTITION.pack(0, -1, offset, -1, -1, max_bytes)
        + b"\0\0\x01\x01\0"
    )
    return request_frame(1, _FETCH_VERSION, body, flexible=True)


def fetch_reply_head(topic: str, size: int) -> int:
    """Bytes of a Fetch reply with `size` bytes of records, besides these; three of them follow the records."""
    return _REPLY_HEAD + 10 + 1 + len(_compact(topic)) + 1 + _FETCHED.size + 1 + 4 + len(uvarint(size + 1)) + 3


def check_fetched(reply: bytes, topic: str) -> None:
    at = _REPLY_HEAD + 10 + 1 + len(_compact(topic)) + 1
    _, code, *_ = _FETCHED.unpack_from(reply, at)
    if code:
        raise BenchError(f"fetch was answered with error code {code}")


def create_topic_frame(topic: str, settings: dict[str, str], partitions: int = 1) -> bytes:
    """A CreateTopics request for one topic."""
    configs = b"".join(legacy(name) + legacy(value) for name, value in settings.items())
    body = (
        _I32.pack(1)
        + legacy(topic)
        + Struct(">ihi").pack(partitions, 1, 0)
        + _I32.pack(len(settings))
        + configs
        + Struct(">ib").pack(10_000, 0)
    )
    return request_frame(19, _CREATE_VERSION, body, flexible=False)


def check_created(reply: bytes, topic: str) -> None:
    (code,) = _I16.unpack_from(reply, 4 + 4 + 4 + 4 + len(legacy(topic)))
    if code:
        raise BenchError(f"creating topic {topic!r} was answered with error code {code}")


def api_versions_frame() -> bytes:
    return request_frame(18, 0, b"", flexible=False)
