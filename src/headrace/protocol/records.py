"""Single records: for whatever must look inside a batch (lookups by time, compaction, tools, tests).

The hot paths never come here. A record is

    length varint | attributes i8 | timestamp delta varint | offset delta varint
    | key length varint, key | value length varint, value | header count varint, (key, value)*

where every varint is zigzag-coded and a length of -1 stands for null.
"""

from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple

from headrace.kernels.varints import varint

from . import compression
from .batch import (
    APPEND_TIME_BIT,
    CODEC_MASK,
    CONTROL_BIT,
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    NO_PRODUCER,
    NO_TIMESTAMP,
    TRANSACTIONAL_BIT,
    BatchHeader,
    read_header,
    seal,
)
from .errors import CodedError, ErrorCode

_CONTROL_KEY: Final = Struct(">hh")
_CONTROL_VALUE: Final = Struct(">hi")
_LONGEST_VARINT: Final = 10
_NULL: Final = 1
"""How a length of -1 is written."""
_NULL_BYTE: Final = bytes([_NULL])
_new: Final = tuple.__new__
_KEPT_VARINTS: Final = 512
_VARINTS: Final = [varint(value) for value in range(_KEPT_VARINTS)]
_REVERSIBLE: Final = "surrogateescape"

ABORT_MARKER: Final = 0
COMMIT_MARKER: Final = 1

Headers = tuple[tuple[str, bytes | None], ...]


class Record(NamedTuple):
    """One message. `offset` is absolute; a null key or value is None."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class Marker(NamedTuple):
    """What the control batch that ends a transaction says."""

    committed: bool
    coordinator_epoch: int


def decode_records(
    batch: bytes | bytearray | memoryview, limit: int = compression.DECOMPRESSED_LIMIT, *, exact: bool = False
) -> list[Record]:
    """The records of one whole batch; `CodedError` when they are not what the header promises.

    A header's name that is not UTF-8 is shown with replacement characters, as Kafka's clients do. With `exact` it comes
    out of `encode_batch` again as it went in, but may hold surrogates.
    """
    return list(iterate_records(batch, limit, exact=exact))


def iterate_records(
    batch: bytes | bytearray | memoryview, limit: int = compression.DECOMPRESSED_LIMIT, *, exact: bool = False
) -> Iterator[Record]:
    """As `decode_records`, one by one: a record as an object takes many times the memory of its bytes."""
    header = read_header(batch)
    body = memoryview(batch)[HEADER_SIZE : header.size]
    codec = header.attributes & CODEC_MASK
    data = bytes(body) if codec == compression.NONE else compression.decompress(codec, body, limit)
    append_time = header.max_timestamp if header.attributes & APPEND_TIME_BIT else None
    errors = _REVERSIBLE if exact else "replace"
    try:
        yield from _decoded(data, header, append_time, errors)
    except IndexError as error:
        raise _malformed(str(error)) from error


def readable_records(batch: bytes | bytearray | memoryview, *, exact: bool = False) -> list[Record] | CodedError:
    """The records of one whole batch, or why nobody can read them: for readers that then go on behind it."""
    try:
        return decode_records(batch, exact=exact)
    except CodedError as error:
        return error


def _decoded(data: bytes, header: BatchHeader, append_time: int | None, errors: str) -> Iterator[Record]:
    """The records one by one. Numbers of one byte, and lengths of two, are read without a call: it is readers' loop."""
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    size, position = len(data), 0
    for _ in range(header.record_count):
        byte, second = data[position], data[position + 1]
        if byte >= 0x80 and second < 0x80 and not byte & 1:
            position += 2
            end = position + ((byte & 0x7F | second << 7) >> 1)
        else:
            length, position = _read_varint(data, position)
            end = position + length if length >= 0 else size + 1
        if end > size:
            raise _malformed("a record is cut short")
        position += 1
        if (byte := data[position]) < 0x80:
            delta_ms, position = (byte >> 1) ^ -(byte & 1), position + 1
        else:
            delta_ms, position = _read_varint(data, position)
        if (byte := data[position]) < 0x80:
            delta, position = (byte >> 1) ^ -(byte & 1), position + 1
        else:
            delta, position = _read_varint(data, position)
        key: bytes | None = None
        if data[position] == _NULL:
            position += 1
        else:
            key, position = _read_bytes(data, position, end)
        value: bytes | None = None
        if (byte := data[position]) == _NULL:
            position += 1
        elif byte >= 0x80 and (second := data[position + 1]) < 0x80 and not byte & 1:
            position += 2
            stop = position + ((byte & 0x7F | second << 7) >> 1)
            if stop > end:
                raise _malformed("a field is longer than its record")
            value, position = data[position:stop], stop
        else:
            value, position = _read_bytes(data, position, end)
        headers: Headers = ()
        if data[position]:
            headers, position = _read_headers(data, position, end, errors)
        else:
            position += 1
        if position != end:
            raise _malformed("a record does not fill its length")
        timestamp = base_timestamp + delta_ms if append_time is None else append_time
        yield _new(Record, (base_offset + delta, timestamp, key, value, headers))
    if position != size:
        raise _malformed(f"{size - position} bytes follow the last record")


def _read_length(data: bytes, position: int) -> tuple[int, int]:
    """A varint that most often has two bytes."""
    byte = data[position]
    if byte >= 0x80 and data[position + 1] < 0x80:
        value = byte & 0x7F | data[position + 1] << 7
        return (value >> 1) ^ -(value & 1), position + 2
    return _read_varint(data, position)


def _read_headers(data: bytes, position: int, end: int, errors: str) -> tuple[Headers, int]:
    count, position = _read_varint(data, position)
    if not count:
        return (), position
    if not 0 < count <= end - position:
        raise _malformed(f"a record cannot have {count} headers")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        key, position = _read_bytes(data, position, end)
        if key is None:
            raise _malformed("a header has no key")
        value, position = _read_bytes(data, position, end)
        headers.append((key.decode(errors=errors), value))
    return tuple(headers), position


def _read_bytes(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    length, position = _read_length(data, position)
    if length < 0:
        if length != -1:
            raise _malformed(f"a length cannot be {length}")
        return None, position
    stop = position + length
    if stop > end:
        raise _malformed("a field is longer than its record")
    return data[position:stop], stop


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    byte = data[position]
    position += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position
    value = byte & 0x7F
    shift = 7
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position
        shift += 7
        if shift >= 7 * _LONGEST_VARINT:
            raise _malformed("a varint has more than ten bytes")


def _malformed(reason: str) -> CodedError:
    return CodedError(ErrorCode.corrupt_message, f"the records of a batch are malformed: {reason}")


def encode_batch(
    records: Iterable[Record],
    *,
    base_offset: int | None = 0,
    last_offset: int | None = None,
    codec: int = compression.NONE,
    leader_epoch: int = -1,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    append_time: int | None = None,
    level: int | None = None,
) -> bytearray:
    """A sealed batch of these records.

    With a `base_offset` of 0 (as a producer sends it) records are numbered from 0 on, whatever their `offset`
    says. With None the records keep their own offsets: that is how a compacted batch is written. `last_offset`
    makes the batch span offsets up to there although its last records are gone.
    """
    items = list(records)
    keep_offsets = base_offset is None
    first = (items[0].offset if items else 0) if base_offset is None else base_offset
    deltas = [record.offset - first for record in items] if keep_offsets else range(len(items))
    last_delta = (deltas[-1] if items else 0) if last_offset is None else last_offset - first
    return _encode_batch(
        zip(items, deltas, strict=True),
        head=BatchHeader(
            base_offset=first,
            batch_length=0,
            leader_epoch=leader_epoch,
            magic=MAGIC,
            crc=0,
            attributes=_attributes(codec, transactional, control, append_time),
            last_offset_delta=last_delta,
            base_timestamp=items[0].timestamp if items else NO_TIMESTAMP,
            max_timestamp=_max_timestamp(items, append_time),
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            record_count=len(items),
        ),
        level=level,
    )


def encode_sparse_batch(records: Iterable[Record], *, head: BatchHeader) -> bytearray:
    """A sealed batch with this head, whose length, CRC and record count are filled in here; records keep offsets."""
    return _encode_batch(((record, record.offset - head.base_offset) for record in records), head=head)


def _encode_batch(records: Iterable[tuple[Record, int]], *, head: BatchHeader, level: int | None = None) -> bytearray:
    body = bytearray()
    count = 0
    for record, delta in records:
        _write_record(body, record, record.timestamp - head.base_timestamp, delta)
        count += 1
    packed = compression.compress(head.codec, body, level) if head.codec else body
    batch = bytearray(HEADER_SIZE) + packed
    length = len(batch) - LOG_OVERHEAD
    HEADER.pack_into(batch, 0, *head._replace(batch_length=length, record_count=count, crc=0))
    seal(memoryview(batch))
    return batch


def _attributes(codec: int, transactional: bool, control: bool, append_time: int | None) -> int:
    attributes = codec
    attributes |= TRANSACTIONAL_BIT if transactional else 0
    attributes |= CONTROL_BIT if control else 0
    return attributes | (APPEND_TIME_BIT if append_time is not None else 0)


def _max_timestamp(records: Sequence[Record], append_time: int | None) -> int:
    if append_time is not None:
        return append_time
    return max((record.timestamp for record in records), default=NO_TIMESTAMP)


def _write_record(out: bytearray, record: Record, timestamp_delta: int, offset_delta: int) -> None:
    key, value, headers = record[2], record[3], record[4]
    parts = [b"\0", _varint(timestamp_delta), _varint(offset_delta)]
    parts += (_NULL_BYTE,) if key is None else (_varint(len(key)), key)
    parts += (_NULL_BYTE,) if value is None else (_varint(len(value)), value)
    parts.append(_varint(len(headers)))
    for name, content in headers:
        encoded = name.encode(errors=_REVERSIBLE)
        parts += (_varint(len(encoded)), encoded)
        parts += (_NULL_BYTE,) if content is None else (_varint(len(content)), content)
    body = b"".join(parts)
    out += _varint(len(body))
    out += body


def _varint(value: int) -> bytes:
    return _VARINTS[value] if 0 <= value < _KEPT_VARINTS else varint(value)


def encode_marker(
    *, committed: bool, producer_id: int, producer_epoch: int, coordinator_epoch: int, timestamp: int
) -> bytearray:
    """The control batch that ends a transaction."""
    key = _CONTROL_KEY.pack(0, COMMIT_MARKER if committed else ABORT_MARKER)
    value = _CONTROL_VALUE.pack(0, coordinator_epoch)
    return encode_batch(
        [Record(0, timestamp, key, value)],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )


def decode_marker(batch: bytes | bytearray | memoryview) -> Marker | None:
    """What a control batch says about its transaction; None when it is of another kind, or was emptied."""
    records = decode_records(batch)
    return marker_of((records[0].key, records[0].value)) if records else None


def marker_of(record: tuple[bytes | None, bytes | None]) -> Marker | None:
    """What a control record, by its key and value, says about its transaction; None when it is of another kind."""
    key, value = record
    if key is None or len(key) < _CONTROL_KEY.size:
        raise _malformed("a control record has no key")
    _, kind = _CONTROL_KEY.unpack_from(key)
    if kind not in (ABORT_MARKER, COMMIT_MARKER):
        return None
    if value is None or len(value) < _CONTROL_VALUE.size:
        raise _malformed("a transaction marker has no coordinator epoch")
    _, coordinator_epoch = _CONTROL_VALUE.unpack_from(value)
    return Marker(kind == COMMIT_MARKER, coordinator_epoch)
