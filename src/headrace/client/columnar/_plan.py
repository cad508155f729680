"""What of a fetch to decode: the batches to show, in sources of bytes that a kernel goes through one after another."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ...protocol.batch import APPEND_TIME_BIT, HEADER_SIZE, BatchHeader
from ...protocol.compression import NONE
from ._batches import Aborted, check_count, check_crc, decompressed, whole_batches

BYTES_AT_ONCE: Final = 64 << 20
ROWS_AT_ONCE: Final = 1 << 20
"""What one plan holds at most, unless a single batch has more. They bound the memory that a well compressed fetch
takes, and keep each column within the reach of Arrow's 32-bit offsets."""


class Span(NamedTuple):
    """The records of one batch: where they are in their source, and what its head says of them.

    The order is that of the columns in `_decode_kernels`.
    """

    at: int
    stop: int
    records: int
    base_offset: int
    last_delta: int
    base_time: int
    append_time: int
    is_append_time: int
    rows: int = 0


class Source(NamedTuple):
    """Bytes, and where in them the records of which batches are."""

    data: memoryview
    spans: list[Span]


@dataclass(slots=True)
class Plan:
    """The sources in the order of their offsets, and what they hold at most."""

    next_offset: int
    sources: list[Source] = field(default_factory=list)
    size: int = 0
    rows: int = 0

    def has_room(self, span: Span) -> bool:
        size, rows = self.size + span.stop - span.at, self.rows + span.records
        return not self.rows or (size <= BYTES_AT_ONCE and rows <= ROWS_AT_ONCE)

    def add(self, data: memoryview, span: Span) -> None:
        if not self.sources or self.sources[-1].data is not data:
            self.sources.append(Source(data, []))
        self.sources[-1].spans.append(span)
        self.size += span.stop - span.at
        self.rows += span.records


def plan_fetch(
    records: memoryview, start: int, end: int, transactions: Sequence[tuple[int, int]], *, check_crcs: bool
) -> Plan:
    """The batches with records of start <= offset < end that are neither control batches nor aborted, as many as one
    plan may hold. Raises `BadBatch`.
    """
    plan = Plan(start)
    aborted = Aborted(transactions)
    for position, header in whole_batches(records, start):
        if header.base_offset >= end:
            plan.next_offset = max(plan.next_offset, end)
            break
        batch = records[position : position + header.size]
        is_asked_for = header.last_offset >= start
        if check_crcs and is_asked_for:
            check_crc(header, batch)
        is_shown = not (aborted.hides(header, batch) or header.is_control)
        if is_asked_for and is_shown and header.record_count:
            data, span = _locate(records, position, header, batch)
            if not plan.has_room(span):
                break
            plan.add(data, span)
        plan.next_offset = max(plan.next_offset, header.last_offset + 1)
    return plan


def _locate(records: memoryview, position: int, header: BatchHeader, batch: memoryview) -> tuple[memoryview, Span]:
    """Where the records of a batch are: in the fetch itself, or in their own bytes once they are decompressed."""
    data, at, stop = records, position + HEADER_SIZE, position + header.size
    if header.codec != NONE:
        data = decompressed(header, batch)
        at, stop = 0, len(data)
    check_count(header, stop - at)
    return data, Span(
        at,
        stop,
        header.record_count,
        header.base_offset,
        header.last_offset_delta,
        header.base_timestamp,
        header.max_timestamp,
        int(bool(header.attributes & APPEND_TIME_BIT)),
    )
