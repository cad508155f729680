"""How a follower asks its leader for records: an exchange of our own brokers only, made for very many partitions.

Kafka's Fetch names every partition in every request, or makes the leader look at every one of a session. Here a link
between two brokers is the session, and each message holds only what has changed: a request tells new positions (which
are acknowledgements), an answer brings only partitions that have something to say. Entries are of fixed size, so that
neither side decodes them one field at a time.

    request   wait ms i32 | max bytes i32 | count i32 | Position*
    answer    count i32 | Progress* | the records of each, in that order

A position with leader epoch -1 is withdrawn: the follower no longer asks for that partition.
"""

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Final, NamedTuple

from .errors import ProtocolViolation

_REQUEST: Final = Struct(">iii")
_POSITION: Final = Struct(">16siiqi")
_COUNT: Final = Struct(">i")
_PROGRESS: Final = Struct(">16siiqhqqiqi")
WITHDRAWN: Final = -1


class Position(NamedTuple):
    """From where a follower wants to go on."""

    topic_id: bytes
    partition: int
    leader_epoch: int
    offset: int
    last_fetched_epoch: int


class Progress(NamedTuple):
    """What a leader has to say of a partition. `diverging_end` is -1 unless the follower's log has to be cut."""

    topic_id: bytes
    partition: int
    leader_epoch: int
    """Of the position that is answered: an answer that comes after another election means nothing any more."""
    offset: int
    """Of the position that is answered; -1 where only the high watermark is told."""
    code: int
    high_watermark: int
    log_start_offset: int
    diverging_epoch: int
    diverging_end: int
    size: int
    """Bytes of records."""


class Asked(NamedTuple):
    """A request."""

    max_wait_ms: int
    max_bytes: int
    positions: list[Position]


def encode_positions(max_wait_ms: int, max_bytes: int, positions: Sequence[Position]) -> bytearray:
    """The body of a request."""
    out = bytearray(_REQUEST.pack(max_wait_ms, max_bytes, len(positions)))
    for position in positions:
        out += _POSITION.pack(*position)
    return out


def decode_positions(body: memoryview) -> Asked:
    """A request; `ProtocolViolation` where it is none."""
    if len(body) < _REQUEST.size:
        raise ProtocolViolation("a replication request that ends too early")
    max_wait_ms, max_bytes, count = _REQUEST.unpack_from(body)
    entries = body[_REQUEST.size :]
    if len(entries) != count * _POSITION.size:
        raise ProtocolViolation(f"{len(entries)} bytes of positions where {count} are announced")
    return Asked(max_wait_ms, max_bytes, [Position._make(values) for values in _POSITION.iter_unpack(entries)])


def encode_progress(entries: Iterable[Progress]) -> bytearray:
    """The head of an answer; the records follow it."""
    out = bytearray(_COUNT.size)
    count = 0
    for entry in entries:
        out += _PROGRESS.pack(*entry)
        count += 1
    _COUNT.pack_into(out, 0, count)
    return out


def decode_progress(body: memoryview) -> list[tuple[Progress, memoryview]]:
    """An answer: what each partition has to say, and its records."""
    if len(body) < _COUNT.size:
        raise ProtocolViolation("a replication answer that ends too early")
    (count,) = _COUNT.unpack_from(body)
    start = _COUNT.size + count * _PROGRESS.size
    if count < 0 or start > len(body):
        raise ProtocolViolation(f"a replication answer of {len(body)} bytes cannot have {count} partitions")
    entries = [Progress._make(values) for values in _PROGRESS.iter_unpack(body[_COUNT.size : start])]
    found: list[tuple[Progress, memoryview]] = []
    for entry in entries:
        end = start + entry.size
        if entry.size < 0 or end > len(body):
            raise ProtocolViolation("a replication answer with fewer records than it announces")
        found.append((entry, body[start:end]))
        start = end
    return found
