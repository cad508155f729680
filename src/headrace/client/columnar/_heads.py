"""The heads of a fetch's batches, as a table, and what is wrong where the table ends before the bytes do."""

from typing import Final

import numpy as np
import numpy.typing as npt

from ...protocol.batch import HEADER_SIZE, MAGIC, BatchHeader, read_header
from ...protocol.compression import CODECS
from . import _decoding as kernels
from ._damage import UnreadableBatch
from ._memory import address_of, pool_array

_MAGIC_AT: Final = 16
_LAST_OFFSET: Final = 2**63 - 2
_CODEC_IDS: Final = frozenset(CODECS.values())

Table = npt.NDArray[np.int64]
"""A row for each batch; the columns are those of `_decoding`."""


def read_heads(records: memoryview) -> tuple[Table, int]:
    """The heads of all batches that are whole, up to the first that cannot be read, and how far in the bytes they go.

    What is there after them is for `check_rest` to judge.
    """
    room = len(records) // HEADER_SIZE
    table = pool_array(room * kernels.COLUMNS, np.int64)[: room * kernels.COLUMNS].reshape(room, kernels.COLUMNS)
    rows, stop = kernels.read_heads(address_of(records), len(records), table)
    return table[:rows], stop


def extent(records: memoryview, offset: int) -> tuple[int, int]:
    """The first and last offset of the batch that holds an offset; -1 and -1 where no whole batch does."""
    heads, _ = read_heads(records)
    holding = np.flatnonzero((heads[:, kernels.BASE_OFFSET] <= offset) & (offset <= heads[:, kernels.LAST_OFFSET]))
    if not len(holding):
        return -1, -1
    first, last = heads[holding[0], [kernels.BASE_OFFSET, kernels.LAST_OFFSET]].tolist()
    return first, last


def check_rest(records: memoryview, position: int, expected: int) -> None:
    """What is at a position must be nothing, or the begin of a batch that was cut short; raises `UnreadableBatch`.

    `expected` is the offset that it should begin at.
    """
    if position + HEADER_SIZE <= len(records):
        header = read_header(records, position)
        if header.magic != MAGIC:
            raise _wrong_magic(header.magic, expected)
        _check_head(header, expected)
    elif position + _MAGIC_AT < len(records):  # message sets of old formats can be shorter than the head of a batch
        magic = records[position + _MAGIC_AT]
        if magic != MAGIC:
            raise _wrong_magic(magic, expected)


def _wrong_magic(magic: int, offset: int) -> UnreadableBatch:
    if 0 <= magic < MAGIC:
        return UnreadableBatch(
            f"messages are stored in the old format v{magic}, only v2 (Kafka 0.11 and later) can be read; "
            "write the topic anew with a current producer",
            offset,
            "UNSUPPORTED_FOR_MESSAGE_FORMAT",
        )
    return UnreadableBatch(f"a record batch has magic {magic}, not {MAGIC}", offset)


def _check_head(header: BatchHeader, expected: int) -> None:
    """The conditions are those of the kernel."""
    if header.size < HEADER_SIZE:
        raise UnreadableBatch(f"a batch says it has {header.size} bytes, its head alone has {HEADER_SIZE}", expected)
    if not 0 <= header.base_offset <= _LAST_OFFSET - max(header.last_offset_delta, 0):
        raise UnreadableBatch(f"a batch cannot begin at offset {header.base_offset}", expected)
    if header.last_offset_delta < 0 or header.record_count < 0:
        raise UnreadableBatch(
            f"a batch cannot have {header.record_count} records up to offset delta {header.last_offset_delta}",
            header.base_offset,
        )
    if header.codec not in _CODEC_IDS:
        raise UnreadableBatch(f"there is no compression codec {header.codec}", header.base_offset)
    if header.record_count > kernels.MOST_RECORDS:
        raise UnreadableBatch(f"a batch of {header.record_count} records is too large", header.base_offset)
