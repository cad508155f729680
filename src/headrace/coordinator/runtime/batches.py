"""Batches of the internal topic: many small records in, keys and values out, both as fast as Python allows.

A commit of a thousand offsets is one batch; a start reads millions of records. So the general record code
(`protocol.records`), which knows headers and codecs, is used only where a batch has them.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from headrace.kernels.varints import varint
from headrace.protocol.batch import (
    CODEC_MASK,
    CONTROL_BIT,
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    NO_PRODUCER,
    TRANSACTIONAL_BIT,
    BatchHeader,
    crc_matches,
    read_header,
    seal,
)
from headrace.protocol.records import decode_records

from .fields import BadRecord

Pair = tuple[bytes, bytes | None]
"""A record's key and value."""


_SMALL: Final = tuple(varint(number) for number in range(1 << 11))
_KNOWN: Final = len(_SMALL)
_START: Final = b"\0\0"
"""A record's attributes and its timestamp's distance from the batch's: none."""
_NO_HEADERS: Final = b"\0"
_NULL: Final = b"\1"


def build_batch(
    pairs: Sequence[Pair], timestamp: int, *, producer_id: int = NO_PRODUCER, producer_epoch: int = -1
) -> memoryview:
    """A sealed batch of these records; with a producer's id one of its transaction."""
    parts: list[bytes] = []
    for delta, (key, value) in enumerate(pairs):
        size = len(key)
        number = _SMALL[delta] if delta < _KNOWN else varint(delta)
        key_size = _SMALL[size] if size < _KNOWN else varint(size)
        if value is None:
            value_size, value = _NULL, b""
        else:
            value_size = _SMALL[len(value)] if len(value) < _KNOWN else varint(len(value))
        size += 3 + len(number) + len(key_size) + len(value_size) + len(value)
        parts += (
            _SMALL[size] if size < _KNOWN else varint(size),
            _START,
            number,
            key_size,
            key,
            value_size,
            value,
            _NO_HEADERS,
        )
    body = b"".join(parts)
    batch = memoryview(bytearray(HEADER_SIZE + len(body)))
    batch[HEADER_SIZE:] = body
    count = len(pairs)
    length = len(batch) - LOG_OVERHEAD
    attributes = TRANSACTIONAL_BIT if producer_id != NO_PRODUCER else 0
    producer = (producer_id, producer_epoch, -1)
    HEADER.pack_into(batch, 0, 0, length, -1, MAGIC, 0, attributes, count - 1, timestamp, timestamp, *producer, count)
    seal(batch)
    return batch


def read_batches(data: bytes) -> Iterator[tuple[BatchHeader, list[Pair]]]:
    """The whole batches at the start of some bytes of a log; of one that ends a transaction, see `marker_of`."""
    position = 0
    while position + HEADER_SIZE <= len(data):
        header = read_header(data, position)
        end = position + header.size
        if end > len(data):
            return
        batch = memoryview(data)[position:end]
        if not crc_matches(batch, header.crc):
            raise BadRecord(f"the batch at offset {header.base_offset} does not match its CRC-32C")
        if header.attributes & (CODEC_MASK | CONTROL_BIT):
            yield header, [(record.key or b"", record.value) for record in decode_records(batch)]
        else:
            yield header, _plain_pairs(data, position + HEADER_SIZE, header.record_count)
        position = end


def _plain_pairs(data: bytes, position: int, count: int) -> list[Pair]:
    """The records of a sound batch that is not compressed. Its CRC was checked, so its lengths are ours."""
    pairs: list[Pair] = []
    for _ in range(count):
        size = data[position]
        position += 1
        if size > 0x7F:
            size, position = _longer(size, data, position)
        end = position + (size >> 1)
        position += 1
        while data[position] > 0x7F:
            position += 1
        position += 1
        while data[position] > 0x7F:
            position += 1
        position += 1
        size = data[position]
        position += 1
        if size > 0x7F:
            size, position = _longer(size, data, position)
        start = position
        position += size >> 1
        key = data[start:position]
        size = data[position]
        position += 1
        if size > 0x7F:
            size, position = _longer(size, data, position)
        pairs.append((key, None if size & 1 else data[position : position + (size >> 1)]))
        position = end
    return pairs


def _longer(first: int, data: bytes, position: int) -> tuple[int, int]:
    """A varint of more than one byte, still zigzag-coded, and the position after it."""
    value = first & 0x7F
    shift = 7
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
