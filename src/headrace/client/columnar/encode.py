"""Arrow columns to record batches."""

from struct import Struct
from typing import Any, Final, NamedTuple

import numpy as np
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
from ...protocol.compression import CODECS, NONE, compress
from ..errors import ClientError

_LARGEST: Final = 2**31 - 1
_ATTRIBUTES: Final = Struct(">h")
_PRODUCER: Final = Struct(">qhi")
_PRODUCER_AT: Final = 43


class EncodedBatch(NamedTuple):
    """A whole record batch as a producer sends it, but for its producer's fields and its CRC: see `seal_for`."""

    data: bytearray
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
    from . import _encode_kernels as kernels

    codec = _codec(compression)
    _check_size(batch_bytes)
    columns = _columns(rows, now_ms)
    out = np.empty(max(batch_bytes, HEADER_SIZE), np.uint8)
    batches: list[EncodedBatch] = []
    first = 0
    while first < rows.num_rows:
        count, size, base_time, latest, wanted = kernels.encode_batch(first, *columns, out, batch_bytes)
        if not count:
            out = np.empty(_checked(wanted, first), np.uint8)
            continue
        head = _head(codec, count, base_time, latest)
        batches.append(EncodedBatch(_packed(out.data[:size], head, level), count))
        first += count
    return batches


def _codec(name: str) -> int:
    codec = CODECS.get(name)
    if codec is None:
        raise ClientError(f"there is no compression '{name}'; use one of {', '.join(CODECS)}", "_INVALID_ARG")
    return codec


def _check_size(batch_bytes: int) -> None:
    if not 0 < batch_bytes <= _LARGEST:
        raise ClientError(f"a batch has between 1 and {_LARGEST} bytes, not {batch_bytes}", "_INVALID_ARG")


def _columns(rows: pa.RecordBatch, now_ms: int) -> tuple[Any, Any, Any, Any, Any, Any]:
    from ._inputs import absent, binary_input, header_inputs, times_input

    there = {name: rows.column(n) for n, name in enumerate(rows.schema.names)}
    if "value" not in there:
        raise ClientError(f"rows need a column 'value', these have {', '.join(there) or 'none'}", "_INVALID_ARG")
    keys = binary_input(there["key"], "key") if "key" in there else absent()
    values = binary_input(there["value"], "value")
    headers = header_inputs(there["headers"]) if "headers" in there else (absent(), absent(), absent())
    return keys, values, times_input(there.get("timestamp"), rows.num_rows, now_ms), *headers


def _checked(wanted: int, row: int) -> int:
    """The size that a record wants, when it can be had."""
    if wanted < 0:
        raise ClientError(f"a header of row {row} has no key", "_INVALID_ARG")
    if wanted > _LARGEST:
        raise ClientError(f"row {row} is too large for a record: {wanted} bytes", "MSG_SIZE_TOO_LARGE")
    return wanted


def _head(codec: int, count: int, base_time: int, latest: int) -> BatchHeader:
    return BatchHeader(
        base_offset=0,
        batch_length=0,
        leader_epoch=-1,
        magic=MAGIC,
        crc=0,
        attributes=codec,
        last_offset_delta=count - 1,
        base_timestamp=base_time,
        max_timestamp=latest,
        producer_id=NO_PRODUCER,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=count,
    )


def _packed(batch: memoryview, head: BatchHeader, level: int | None) -> bytearray:
    if head.codec == NONE:
        data = bytearray(batch)
    else:
        data = bytearray(HEADER_SIZE)
        data += compress(head.codec, batch[HEADER_SIZE:], level)
    HEADER.pack_into(data, 0, *head._replace(batch_length=len(data) - LOG_OVERHEAD))
    return data


def seal_for(batch: EncodedBatch, producer_id: int, epoch: int, base_sequence: int, *, transactional: bool) -> None:
    """Write who sends the batch into it, and its CRC; again when it is sent as someone else."""
    data = batch.data
    (attributes,) = _ATTRIBUTES.unpack_from(data, CRC_START)
    bit = TRANSACTIONAL_BIT if transactional else 0
    _ATTRIBUTES.pack_into(data, CRC_START, attributes & ~TRANSACTIONAL_BIT | bit)
    _PRODUCER.pack_into(data, _PRODUCER_AT, producer_id, epoch, base_sequence)
    seal(memoryview(data))
