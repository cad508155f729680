"""What of a fetch to decode, decided from the heads of its batches before any record is looked at."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ...protocol.batch import CODEC_MASK, CONTROL_BIT, HEADER_SIZE, SMALLEST_RECORD, TRANSACTIONAL_BIT, crc_matches
from ...protocol.compression import unpack
from ...protocol.errors import CodedError
from ...protocol.records import decode_marker
from . import _decoding as kernels
from ._damage import UnreadableBatch
from ._heads import Table, check_rest, read_heads
from ._memory import Arena, address_of

BYTES_AT_ONCE: Final = 64 << 20
ROWS_AT_ONCE: Final = 1 << 20
"""What one plan holds at most, unless a single batch has more. They bound the memory that a well compressed fetch
takes, and keep each column within the reach of Arrow's 32-bit offsets."""
BATCH_LIMIT: Final = 512 << 20
"""Bytes that the records of one batch may decompress to."""
_MARGIN: Final = 1.1
_PLACE: Final = [kernels.HEAD, kernels.STOP, kernels.CRC, kernels.BASE_OFFSET]
_CONTENT: Final = [kernels.ATTRIBUTES, kernels.RECORDS]
_TRANSACTION: Final = [kernels.PRODUCER, kernels.LAST_OFFSET, kernels.ATTRIBUTES]


@dataclass(slots=True, kw_only=True)
class DecodePlan:
    """The batches whose records are to be decoded."""

    batches: Table
    next_offset: int
    """Where to go on after them."""
    kept: list[memoryview]
    """What their addresses are in."""

    @property
    def size(self) -> int:
        """Bytes that their records have."""
        return int((self.batches[:, kernels.STOP] - self.batches[:, kernels.AT]).sum())

    @property
    def rows(self) -> int:
        """Rows that they have at most."""
        return int(self.batches[:, kernels.RECORDS].sum())


def plan_fetch(
    records: memoryview, start: int, end: int, transactions: Sequence[tuple[int, int]], *, check_crcs: bool
) -> DecodePlan:
    """The batches with records of start <= offset < end that are neither control batches nor aborted, as many as one
    plan may hold. Raises `UnreadableBatch`.
    """
    fetch = _Fetch(records, check_crcs=check_crcs)
    heads, stop = read_heads(records)
    past = np.flatnonzero(heads[:, kernels.BASE_OFFSET] >= end)
    if len(past):
        heads = heads[: past[0]]
    asked = heads[:, kernels.LAST_OFFSET] >= start
    shown = asked & (heads[:, kernels.RECORDS] > 0) & (heads[:, kernels.ATTRIBUTES] & CONTROL_BIT == 0)
    if transactions:
        shown &= ~_aborted(heads, transactions, lambda row: fetch.batch(*heads[row, _PLACE].tolist()))
    batches = fetch.prepared(heads[shown])
    if len(batches) < np.count_nonzero(shown):
        heads = heads[: np.flatnonzero(shown)[len(batches)]]
        return DecodePlan(batches=batches, next_offset=_after(heads, start), kept=fetch.kept)
    following = _after(heads, start)
    if len(past):
        following = max(following, end)
    else:
        check_rest(records, stop, following)
    return DecodePlan(batches=batches, next_offset=following, kept=fetch.kept)


def _after(heads: Table, start: int) -> int:
    return max(start, int(heads[:, kernels.LAST_OFFSET].max()) + 1) if len(heads) else start


class _Fetch:
    """The bytes of a fetch, and those that come out of them."""

    def __init__(self, records: memoryview, *, check_crcs: bool) -> None:
        self.kept = [records]
        self._records = records
        self._address = address_of(records)
        self._check_crcs = check_crcs
        self._arena: Arena | None = None
        self._ratio = 0.0

    def batch(self, at: int, stop: int, crc: int, offset: int) -> memoryview:
        """The bytes of one batch, from one address to another, which have this CRC."""
        batch = self._records[at - self._address : stop - self._address]
        if self._check_crcs and not crc_matches(batch, crc):
            raise UnreadableBatch("a batch does not match its CRC-32C", offset)
        return batch

    def prepared(self, batches: Table) -> Table:
        """As many of the batches as a plan may hold, sound as far as their heads tell, and decompressed."""
        if (batches[:, kernels.ATTRIBUTES] & CODEC_MASK).any():
            batches = self._unpacked(batches)
        else:
            batches = batches[: _fitting(batches)]
            if self._check_crcs:
                for place in batches[:, _PLACE].tolist():
                    self.batch(*place)
        _check_counts(batches)
        return batches

    def _unpacked(self, batches: Table) -> Table:
        size = rows = 0
        for n, (*place, attributes, count) in enumerate(batches[:, [*_PLACE, *_CONTENT]].tolist()):
            data = self.batch(*place)[HEADER_SIZE:]
            if attributes & CODEC_MASK:
                data = self._unpack(data, attributes & CODEC_MASK, place[-1])
                address = address_of(data)
                batches[n, kernels.AT], batches[n, kernels.STOP] = address, address + len(data)
            size, rows = size + len(data), rows + count
            if n and (size > BYTES_AT_ONCE or rows > ROWS_AT_ONCE):
                return batches[:n]
        return batches

    def _unpack(self, packed: memoryview, codec: int, offset: int) -> memoryview:
        arena = self._arena = self._arena or Arena()
        guess = int(len(packed) * self._ratio * _MARGIN)  # batches of a partition compress much alike
        try:
            data = unpack(codec, packed, BATCH_LIMIT, guess=guess, allocate=arena.room)
        except CodedError as error:
            raise UnreadableBatch(error.message, offset) from error
        self._ratio = max(self._ratio, len(data) / max(len(packed), 1))
        data = arena.take(len(data))
        self.kept.append(data)
        return data


def _fitting(batches: Table) -> int:
    """How many of the first batches a plan may hold; one in any case."""
    sizes = np.cumsum(batches[:, kernels.STOP] - batches[:, kernels.AT])
    rows = np.cumsum(batches[:, kernels.RECORDS])
    return max(int(np.count_nonzero((sizes <= BYTES_AT_ONCE) & (rows <= ROWS_AT_ONCE))), 1)


def _check_counts(batches: Table) -> None:
    """A head may promise no more records than its batch has bytes for."""
    sizes = batches[:, kernels.STOP] - batches[:, kernels.AT]
    wrong = np.flatnonzero(batches[:, kernels.RECORDS] > sizes // SMALLEST_RECORD)
    if len(wrong):
        n = wrong[0]
        raise UnreadableBatch(
            f"{sizes[n]} bytes cannot hold {batches[n, kernels.RECORDS]} records", int(batches[n, kernels.BASE_OFFSET])
        )


def _aborted(
    heads: Table, transactions: Sequence[tuple[int, int]], batch_of: Callable[[int], memoryview]
) -> npt.NDArray[np.bool_]:
    """For each batch, whether it belongs to an aborted transaction: that begins at a known offset and ends with its
    producer's abort marker. Fetch names all of the range it answers for, so nothing is remembered between fetches.

    `transactions` are (producer_id, first_offset); `batch_of` gives the bytes of a row, which are asked for where it is
    a control batch.
    """
    hidden = np.zeros(len(heads), np.bool_)
    waiting = sorted(transactions, key=lambda transaction: transaction[1], reverse=True)
    producers = {producer for producer, _ in transactions}
    suspects = np.flatnonzero(np.isin(heads[:, kernels.PRODUCER], list(producers)))
    under_way: set[int] = set()
    for row, (producer, last_offset, attributes) in zip(
        suspects.tolist(), heads[suspects][:, _TRANSACTION].tolist(), strict=True
    ):
        while waiting and waiting[-1][1] <= last_offset:
            under_way.add(waiting.pop()[0])
        if producer not in under_way:
            continue
        if not attributes & CONTROL_BIT:
            hidden[row] = bool(attributes & TRANSACTIONAL_BIT)
        elif _is_abort_marker(batch_of(row), int(heads[row, kernels.BASE_OFFSET])):
            under_way.discard(producer)
    return hidden


def _is_abort_marker(batch: memoryview, offset: int) -> bool:
    try:
        marker = decode_marker(batch)
    except (CodedError, ValueError) as error:
        raise UnreadableBatch(f"a control batch cannot be read: {error}", offset) from error
    return marker is not None and not marker.committed
