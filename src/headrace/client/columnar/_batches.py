"""Which batches of a fetch hold records to show: decided from their heads alone, before any record is looked at.

A transaction that was aborted begins at a known offset and ends with its producer's abort marker. What the producer
wrote in between is left out. Fetch names the aborted transactions of the range it answers for, so nothing of this
needs to be remembered from one fetch to the next.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from ...protocol.batch import HEADER_SIZE, MAGIC, SMALLEST_RECORD, BatchHeader, crc_matches, read_header
from ...protocol.compression import CODECS, unpack
from ...protocol.errors import CodedError, ErrorCode
from ...protocol.records import decode_marker
from ._memory import Arena

_MAGIC_AT: Final = 16
_LAST_OFFSET: Final = 2**63 - 2
_CODEC_IDS: Final = frozenset(CODECS.values())

BATCH_LIMIT: Final = 512 << 20
"""Bytes that the records of one batch may decompress to."""
MOST_RECORDS: Final = 8_000_000
"""Records that one batch may have: with their topic's name beside each they still fit into one Arrow array."""
_MARGIN: Final = 1.1
CORRUPT: Final = ErrorCode.corrupt_message.name.upper()


class BadBatch(Exception):  # noqa: N818 - named for what was found
    """A batch that cannot be read, the offset it should begin at, and Kafka's name for the reason."""

    def __init__(self, reason: str, offset: int, code: str = CORRUPT) -> None:
        super().__init__(reason)
        self.reason = reason
        self.offset = offset
        self.code = code


def whole_batches(records: memoryview, start: int) -> Iterator[tuple[int, BatchHeader]]:
    """Position and head of each batch that is there from its first byte to its last.

    `start` is the offset that was asked for, for the words of an error.
    """
    position = 0
    expected = start
    while position + HEADER_SIZE <= len(records):
        header = read_header(records, position)
        if header.magic != MAGIC:
            raise _wrong_magic(header.magic, expected)
        _check_head(header, expected)
        if position + header.size > len(records):
            return
        yield position, header
        expected = header.last_offset + 1
        position += header.size
    # Message sets of old formats can be shorter than the head of a batch.
    if position + _MAGIC_AT < len(records) and records[position + _MAGIC_AT] != MAGIC:
        raise _wrong_magic(records[position + _MAGIC_AT], expected)


def _wrong_magic(magic: int, offset: int) -> BadBatch:
    if 0 <= magic < MAGIC:
        return BadBatch(
            f"messages are stored in the old format v{magic}, only v2 (Kafka 0.11 and later) can be read; "
            "write the topic anew with a current producer",
            offset,
            "UNSUPPORTED_FOR_MESSAGE_FORMAT",
        )
    return BadBatch(f"a record batch has magic {magic}, not {MAGIC}", offset)


def _check_head(header: BatchHeader, expected: int) -> None:
    if header.size < HEADER_SIZE:
        raise BadBatch(f"a batch says it has {header.size} bytes, its head alone has {HEADER_SIZE}", expected)
    if not 0 <= header.base_offset <= _LAST_OFFSET - max(header.last_offset_delta, 0):
        raise BadBatch(f"a batch cannot begin at offset {header.base_offset}", expected)
    if header.last_offset_delta < 0 or header.record_count < 0:
        raise BadBatch(
            f"a batch cannot have {header.record_count} records up to offset delta {header.last_offset_delta}",
            header.base_offset,
        )
    if header.codec not in _CODEC_IDS:
        raise BadBatch(f"there is no compression codec {header.codec}", header.base_offset)
    if header.record_count > MOST_RECORDS:
        raise BadBatch(f"a batch of {header.record_count} records is too large", header.base_offset)


class Aborted:
    """Whether a batch belongs to a transaction that was aborted; ask for each batch of a fetch, in order."""

    def __init__(self, transactions: Sequence[tuple[int, int]]) -> None:
        self._waiting = sorted(transactions, key=lambda transaction: transaction[1], reverse=True)
        self._open: set[int] = set()

    def hides(self, header: BatchHeader, batch: memoryview) -> bool:
        while self._waiting and self._waiting[-1][1] <= header.last_offset:
            self._open.add(self._waiting.pop()[0])
        if header.producer_id not in self._open:
            return False
        if header.is_control:
            if is_abort_marker(header, batch):
                self._open.discard(header.producer_id)
            return True
        return header.is_transactional


def is_abort_marker(header: BatchHeader, batch: memoryview) -> bool:
    """Whether a control batch says that its producer's transaction was aborted."""
    try:
        marker = decode_marker(batch)
    except (CodedError, ValueError) as error:
        raise BadBatch(f"a control batch cannot be read: {error}", header.base_offset) from error
    return marker is not None and not marker.committed


def check_crc(header: BatchHeader, batch: memoryview) -> None:
    if not crc_matches(batch, header.crc):
        raise BadBatch("a batch does not match its CRC-32C", header.base_offset)


def check_count(header: BatchHeader, size: int) -> None:
    """A head may promise no more records than its batch has bytes for."""
    if header.record_count > size // SMALLEST_RECORD:
        raise BadBatch(f"{size} bytes cannot hold {header.record_count} records", header.base_offset)


class Unpacker:
    """Decompresses the batches of a fetch one after another."""

    def __init__(self) -> None:
        self._arena: Arena | None = None
        self._ratio = 0.0

    def unpack(self, header: BatchHeader, batch: memoryview) -> memoryview:
        """The bytes of a batch's records. Raises `BadBatch`."""
        arena = self._arena = self._arena or Arena()
        packed = batch[HEADER_SIZE:]
        guess = int(len(packed) * self._ratio * _MARGIN)  # batches of a partition compress much alike
        try:
            data = unpack(header.codec, packed, BATCH_LIMIT, guess=guess, allocate=arena.room)
        except CodedError as error:
            raise BadBatch(error.message, header.base_offset) from error
        self._ratio = max(self._ratio, len(data) / max(len(packed), 1))
        return arena.take(len(data))
