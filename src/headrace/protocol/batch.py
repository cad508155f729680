"""The head of a record batch, Kafka's message format v2.

A batch is opaque: the broker reads these 61 bytes, checks the CRC over what follows it, stamps the base offset
and the leader epoch (which stand before the CRC's reach), and never looks at single records on the hot path.

     0 base_offset      i64 |  stamped by the leader
     8 batch_length     i32 |  bytes after this field
    12 leader_epoch     i32 |  stamped by the leader
    16 magic            i8  |  always 2
    17 crc              u32 |  CRC-32C of everything from 21 on
    21 attributes       i16 |  0-2 codec, 3 timestamp type, 4 transactional, 5 control
    23 last_offset_delta i32
    27 base_timestamp   i64
    35 max_timestamp    i64
    43 producer_id      i64
    51 producer_epoch   i16
    53 base_sequence    i32
    57 record_count     i32
"""

from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from .errors import CodedError, ErrorCode

HEADER_SIZE: Final = 61
LOG_OVERHEAD: Final = 12
"""Bytes of a batch that its own `batch_length` does not count."""
SMALLEST_RECORD: Final = 7
"""Bytes of a record with neither key nor value: its length, and six fields of one byte."""
CRC_START: Final = 21
_MAX_TIMESTAMP: Final = 35
MAGIC: Final = 2
NO_PRODUCER: Final = -1
FIRST_KEY_PRODUCER: Final = 1 << 62
"""Producer ids from here on are hashes of idempotency keys; brokers, who count from 0, give out none of them."""
NO_TIMESTAMP: Final = -1

CODEC_MASK: Final = 0x07
APPEND_TIME_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20

HEADER: Final = Struct(">qiibIhiqqqhii")
"""The fields of `BatchHeader`, packed."""
_unpack: Final = HEADER.unpack_from
_new_tuple: Final = tuple.__new__  # half of what a NamedTuple's own constructor costs
_OFFSET: Final = Struct(">q")
_EPOCH: Final = Struct(">i")
_STAMP: Final = Struct(">qii")
"""Offset, length, leader epoch."""
_CRC: Final = Struct(">I")
_ATTRIBUTES: Final = Struct(">h")
assert HEADER.size == HEADER_SIZE


class BatchHeader(NamedTuple):
    """What the head of a batch says, field for field."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return self.batch_length + LOG_OVERHEAD

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)


def read_header(buffer: bytes | bytearray | memoryview, position: int = 0) -> BatchHeader:
    """The header at a position; the caller has made sure that its 61 bytes are there."""
    return _new_tuple(BatchHeader, _unpack(buffer, position))


def crc_matches(batch: memoryview, crc: int) -> bool:
    return bool(crc32c(batch[CRC_START:]) == crc)


def check_batch(batch: memoryview) -> BatchHeader:
    """The header of what one partition of a Produce request holds: exactly one whole and sound v2 batch.

    Raises the `CodedError` that Kafka answers with when it is anything else.
    """
    size = len(batch)
    if size < HEADER_SIZE:
        raise CodedError(ErrorCode.invalid_record, f"a record batch has at least {HEADER_SIZE} bytes, this one {size}")
    fields = _unpack(batch, 0)
    _, length, _, magic, crc, attributes, last_offset_delta, _, _, producer_id, _, base_sequence, count = fields
    if magic != MAGIC:
        raise CodedError(
            ErrorCode.invalid_record,
            f"record batches have magic {MAGIC}, this one {magic}; use a client of Kafka 0.11 or later",
        )
    if length + LOG_OVERHEAD != size:
        _raise_wrong_length(length, size)
    if crc32c(batch[CRC_START:]) != crc:
        raise CodedError(ErrorCode.corrupt_message, "the batch does not match its CRC-32C")
    if count <= 0 or last_offset_delta != count - 1:
        raise CodedError(
            ErrorCode.invalid_record,
            f"a batch of {count} records cannot have a last offset delta of {last_offset_delta}",
        )
    if attributes & CONTROL_BIT:
        raise CodedError(ErrorCode.invalid_record, "clients cannot write control batches")
    if producer_id >= 0 > base_sequence:
        raise CodedError(
            ErrorCode.invalid_record,
            f"a batch of producer {producer_id} cannot have the sequence number {base_sequence}",
        )
    return _new_tuple(BatchHeader, fields)


def _raise_wrong_length(length: int, size: int) -> None:
    expected = length + LOG_OVERHEAD
    if HEADER_SIZE <= expected < size:
        raise CodedError(
            ErrorCode.invalid_record, "a partition of a produce request must hold exactly one record batch"
        )
    raise CodedError(ErrorCode.invalid_record, f"the batch says it has {expected} bytes, {size} arrived")


def stamp(batch: memoryview, base_offset: int, leader_epoch: int) -> None:
    """Write what the leader decides into a whole batch, in place; the CRC does not cover it."""
    _STAMP.pack_into(batch, 0, base_offset, len(batch) - LOG_OVERHEAD, leader_epoch)


def stamp_append_time(batch: memoryview, now_ms: int) -> None:
    """Turn the batch into one of LogAppendTime, in place, with a new CRC."""
    (attributes,) = _ATTRIBUTES.unpack_from(batch, CRC_START)
    _ATTRIBUTES.pack_into(batch, CRC_START, attributes | APPEND_TIME_BIT)
    _OFFSET.pack_into(batch, _MAX_TIMESTAMP, now_ms)
    seal(batch)


def stamp_max_timestamp(batch: memoryview, timestamp: int) -> None:
    """Write the largest timestamp of the records, in place, with a new CRC."""
    _OFFSET.pack_into(batch, _MAX_TIMESTAMP, timestamp)
    seal(batch)


def seal(batch: memoryview) -> None:
    """Write the CRC of the batch as it is now."""
    _CRC.pack_into(batch, 17, crc32c(batch[CRC_START:]))


def replace_records(batch: memoryview, records: bytes, codec: int) -> memoryview:
    """A batch with the same head, other bytes for its records, and the codec they are packed with."""
    fresh = memoryview(bytearray(HEADER_SIZE + len(records)))
    fresh[:HEADER_SIZE] = batch[:HEADER_SIZE]
    fresh[HEADER_SIZE:] = records
    _EPOCH.pack_into(fresh, 8, len(fresh) - LOG_OVERHEAD)
    (attributes,) = _ATTRIBUTES.unpack_from(fresh, CRC_START)
    _ATTRIBUTES.pack_into(fresh, CRC_START, attributes & ~CODEC_MASK | codec)
    seal(fresh)
    return fresh
