"""How a follower asks its leader for records: an exchange of our own brokers only, made for very many partitions.

Kafka's Fetch names every partition in every request, or makes the leader look at every one of a session. Here a link
between two brokers has a session, and each message holds only what has changed: a request tells new positions (which
are acknowledgements), an answer brings only partitions that have something to say. Entries are of fixed size, so that
neither side decodes them one field at a time.

    request   session i64 | number i32 | broker epoch i64 | wait ms i32 | max bytes i32 | count i32 | FetchPosition*
    answer    code i16 | count i32 | PartitionProgress* | the records of each, in that order

Requests of a session are numbered from 0. One that is not the next, as when the link was made anew, is answered with
FETCH_SESSION_ID_NOT_FOUND, and the follower begins another session with all its positions.

A position with leader epoch -1 is withdrawn: the follower no longer asks for that partition.
"""

from collections.abc import Iterable
from struct import Struct
from typing import Final, NamedTuple

from .errors import CodedError, ErrorCode, ProtocolViolation

_REQUEST: Final = Struct(">qiqiii")
_POSITION: Final = Struct(">16siiqiq")
_ANSWER: Final = Struct(">hi")
_PROGRESS: Final = Struct(">16siiqhqqqiqi")
WITHDRAWN: Final = -1


class FetchPosition(NamedTuple):
    """From where a follower wants to go on."""

    topic_id: bytes
    partition: int
    leader_epoch: int
    offset: int
    last_fetched_epoch: int
    log_start_offset: int
    """Where its own log begins."""


class PartitionProgress(NamedTuple):
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
    log_end_offset: int
    diverging_epoch: int
    diverging_end: int
    size: int
    """Bytes of records."""


class Asked(NamedTuple):
    """A request."""

    session: int
    number: int
    broker_epoch: int
    """The follower's registration: acknowledgements of an earlier one do not let it into an ISR."""
    max_wait_ms: int
    max_bytes: int
    positions: list[FetchPosition]


def encode_positions(request: Asked) -> bytearray:
    """The body of a request."""
    *head, positions = request
    out = bytearray(_REQUEST.pack(*head, len(positions)))
    for position in positions:
        out += _POSITION.pack(*position)
    return out


def decode_positions(body: memoryview) -> Asked:
    """A request; `ProtocolViolation` where it is none."""
    if len(body) < _REQUEST.size:
        raise ProtocolViolation("a replication request that ends too early")
    session, number, broker_epoch, max_wait_ms, max_bytes, count = _REQUEST.unpack_from(body)
    entries = body[_REQUEST.size :]
    if len(entries) != count * _POSITION.size:
        raise ProtocolViolation(f"{len(entries)} bytes of positions where {count} are announced")
    positions = [FetchPosition._make(values) for values in _POSITION.iter_unpack(entries)]
    return Asked(session, number, broker_epoch, max_wait_ms, max_bytes, positions)


def encode_progress(entries: Iterable[PartitionProgress]) -> bytearray:
    """The head of an answer; the records follow it."""
    out = bytearray(_ANSWER.size)
    count = 0
    for entry in entries:
        out += _PROGRESS.pack(*entry)
        count += 1
    _ANSWER.pack_into(out, 0, 0, count)
    return out


def encode_refusal(code: int) -> bytearray:
    """The answer to a request of no session."""
    return bytearray(_ANSWER.pack(code, 0))


def decode_progress(body: memoryview) -> list[tuple[PartitionProgress, memoryview]]:
    """An answer: what each partition has to say, and its records; `CodedError` where the whole was refused."""
    if len(body) < _ANSWER.size:
        raise ProtocolViolation("a replication answer that ends too early")
    code, count = _ANSWER.unpack_from(body)
    if code:
        raise CodedError(ErrorCode(code))
    start = _ANSWER.size + count * _PROGRESS.size
    if count < 0 or start > len(body):
        raise ProtocolViolation(f"a replication answer of {len(body)} bytes cannot have {count} partitions")
    entries = [PartitionProgress._make(values) for values in _PROGRESS.iter_unpack(body[_ANSWER.size : start])]
    progress: list[tuple[PartitionProgress, memoryview]] = []
    for entry in entries:
        end = start + entry.size
        if entry.size < 0 or end > len(body):
            raise ProtocolViolation("a replication answer with fewer records than it announces")
        progress.append((entry, body[start:end]))
        start = end
    return progress
