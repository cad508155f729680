"""Arrow columns to record batches."""

from collections.abc import Callable
from struct import Struct
from typing import Final, NamedTuple

import pyarrow as pa

from ...protocol.batch import (
    CRC_START,
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    NO_PRODUCER,
    TRANSACTIONAL_BIT,
    BatchHeader,
    seal,
)
from ...protocol.compression import CODECS, GZIP, LZ4, NONE, ZSTD, compress
from ..errors import ClientError
from ._memory import Arena, address_of

_LARGEST: Final = 2**31 - 1
_ATTRIBUTES: Final = Struct(">h")
_PRODUCER: Final = Struct(">qhi")
_PRODUCER_AT: Final = 43
_LEVELS: Final = {GZIP: (1, 9), LZ4: (1, 17), ZSTD: (-131072, 22)}
"""The least and the greatest level of each codec that has any, as Kafka bounds them."""
_MOST_FOR_A_ROW: Final = 40
"""Bytes of a record besides its key, its value and its headers."""
_DEFAULT_LEVELS: Final = {LZ4: 1}
"""As in Java: lz4 is there to be fast, its levels from 3 on are five times slower."""


class EncodedBatch(NamedTuple):
    """A whole record batch as a producer sends it, but for its producer's fields and its CRC: see `seal_for`."""

    data: memoryview
    count: int  # type: ignore[assignment] # shadows tuple.count


def encode_rows(
    rows: pa.RecordBatch,
    *,
    compression: str = "none",
    level: int | None = None,
    batch_bytes: int = 1 << 20,
    now_ms: int,
) -> list[EncodedBatch]:
    """The rows as record batches, in their order, each of at most `batch_bytes` before compression unless a single
    record is larger.

    Columns: value, and where wanted key (both binary or strings), timestamp (timestamps or dates; `now_ms` where there
    is none) and headers (lists of key and value). Other columns are left out. `ClientError` for columns of other types.
    """
    codec = _codec(compression)
    level = _level(compression, codec, level)
    _check_size(batch_bytes)
    columns = _Columns(rows, now_ms)
    limit = min(batch_bytes, columns.most_bytes)
    arena = Arena(columns.most_bytes)
    batches: list[EncodedBatch] = []
    first, wanted = 0, limit
    while first < rows.num_rows:
        done = columns.encode(first, arena.room(wanted), limit)
        wanted = limit if done.count else _checked(done.size_needed, first)
        if done.count:
            batches.append(EncodedBatch(_packed(arena, done, codec, level), done.count))
            first += done.count
    return batches


class _Written(NamedTuple):
    """What the kernel says of the batch it wrote."""

    count: int  # type: ignore[assignment] # shadows tuple.count
    size: int
    base_time: int
    latest: int
    size_needed: int


class _Columns:
    """The columns of rows as the kernel reads them."""

    def __init__(self, rows: pa.RecordBatch, now_ms: int) -> None:
        from . import _encoding, _inputs  # compiles or loads the kernels, and numba with them

        self._kernel: Callable[..., tuple[int, int, int, int, int]] = _encoding.encode_batch
        there = {name: rows.column(n) for n, name in enumerate(rows.schema.names)}
        if "value" not in there:
            raise ClientError(f"rows need a column 'value', these have {', '.join(there) or 'none'}", "_INVALID_ARG")
        nothing = pa.nulls(rows.num_rows)
        key = _inputs.binary_input(there.get("key", nothing), "key")
        value = _inputs.binary_input(there["value"], "value")
        headers = _inputs.header_inputs(there.get("headers", nothing))
        self._kept = (key, value, *headers)
        size = sum(column.array.nbytes for column in self._kept if column.array is not None)
        self.most_bytes = HEADER_SIZE + _MOST_FOR_A_ROW * rows.num_rows + 2 * size
        """What all rows take at most: the length of an element has no more bytes than its data and offset together."""
        self._times = _inputs.times_input(there.get("timestamp", nothing), now_ms)
        self._inputs = (
            rows.num_rows,
            key.addresses,
            value.addresses,
            address_of(self._times),
            *(column.addresses for column in headers),
        )

    def encode(self, first: int, room: memoryview, limit: int) -> _Written:
        """Write one batch: see `_encoding.encode_batch`."""
        return _Written(*self._kernel(first, *self._inputs, address_of(room), len(room), limit))


def _codec(name: str) -> int:
    codec = CODECS.get(name)
    if codec is None:
        raise ClientError(f"there is no compression '{name}'; use one of {', '.join(CODECS)}", "_INVALID_ARG")
    return codec


def _level(compression: str, codec: int, level: int | None) -> int | None:
    if level is None or codec not in _LEVELS:
        return _DEFAULT_LEVELS.get(codec)
    least, greatest = _LEVELS[codec]
    if not least <= level <= greatest:
        raise ClientError(
            f"the level of {compression} must be between {least} and {greatest}, not {level}", "_INVALID_ARG"
        )
    return level


def _check_size(batch_bytes: int) -> None:
    if not 0 < batch_bytes <= _LARGEST:
        raise ClientError(f"a batch has between 1 and {_LARGEST} bytes, not {batch_bytes}", "_INVALID_ARG")


def _checked(size: int, row: int) -> int:
    """The size that a record wants, when it can be had."""
    if size < 0:
        raise ClientError(f"a header of row {row} has no key", "_INVALID_ARG")
    if size > _LARGEST:
        raise ClientError(f"row {row} is too large for a record: {size} bytes", "MSG_SIZE_TOO_LARGE")
    return size


def _packed(arena: Arena, done: _Written, codec: int, level: int | None) -> memoryview:
    """The batch at the arena's begin, with its head, and compressed."""
    data = arena.room(done.size)[: done.size]
    if codec == NONE:
        data = arena.take(done.size)
    else:
        data = memoryview(bytearray(HEADER_SIZE) + compress(codec, data[HEADER_SIZE:], level))
    head = BatchHeader(
        base_offset=0,
        batch_length=len(data) - LOG_OVERHEAD,
        leader_epoch=-1,
        magic=MAGIC,
        crc=0,
        attributes=codec,
        last_offset_delta=done.count - 1,
        base_timestamp=done.base_time,
        max_timestamp=done.latest,
        producer_id=NO_PRODUCER,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=done.count,
    )
    HEADER.pack_into(data, 0, *head)
    return data


def seal_for(batch: EncodedBatch, producer_id: int, epoch: int, base_sequence: int, *, transactional: bool) -> None:
    """Write who sends the batch into it, and its CRC; again when it is sent as someone else."""
    data = batch.data
    (attributes,) = _ATTRIBUTES.unpack_from(data, CRC_START)
    bit = TRANSACTIONAL_BIT if transactional else 0
    _ATTRIBUTES.pack_into(data, CRC_START, attributes & ~TRANSACTIONAL_BIT | bit)
    _PRODUCER.pack_into(data, _PRODUCER_AT, producer_id, epoch, base_sequence)
    seal(data)
