"""What of a fetch to decode: the batches to show, each as a span of bytes that a kernel goes through."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ...protocol.batch import APPEND_TIME_BIT, HEADER_SIZE, BatchHeader
from ...protocol.compression import NONE
from ._batches import Aborted, Unpacker, check_count, check_crc, whole_batches
from ._memory import address_of

BYTES_AT_ONCE: Final = 64 << 20
ROWS_AT_ONCE: Final = 1 << 20
"""What one plan holds at most, unless a single batch has more. They bound the memory that a well compressed fetch
takes, and keep each column within the reach of Arrow's 32-bit offsets."""


class Span(NamedTuple):
    """The records of one batch: the addresses where they begin and end, and what their head says of them.

    The order is that of the columns in `_decoding`.
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


@dataclass(slots=True)
class Plan:
    """The spans in the order of their offsets, and what they hold at most."""

    next_offset: int
    spans: list[Span] = field(default_factory=list)
    size: int = 0
    rows: int = 0
    kept: list[memoryview] = field(default_factory=list)
    """What the spans' addresses are in."""
    unpacker: Unpacker = field(default_factory=Unpacker)

    def has_room(self, span: Span) -> bool:
        size, rows = self.size + span.stop - span.at, self.rows + span.records
        return not self.rows or (size <= BYTES_AT_ONCE and rows <= ROWS_AT_ONCE)

    def add(self, span: Span) -> None:
        self.spans.append(span)
        self.size += span.stop - span.at
        self.rows += span.records


def plan_fetch(
    records: memoryview, start: int, end: int, transactions: Sequence[tuple[int, int]], *, check_crcs: bool
) -> Plan:
    """The batches with records of start <= offset < end that are neither control batches nor aborted, as many as one
    plan may hold. Raises `BadBatch`.
    """
    plan = Plan(start, kept=[records])
    aborted = Aborted(transactions)
    address = address_of(records)
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
            span = _located(header, batch, address + position, plan)
            if not plan.has_room(span):
                break
            plan.add(span)
        plan.next_offset = max(plan.next_offset, header.last_offset + 1)
    return plan


def _located(header: BatchHeader, batch: memoryview, address: int, plan: Plan) -> Span:
    """Where the records of a batch are: in the fetch itself, or in their own memory once they are decompressed."""
    at, size = address + HEADER_SIZE, header.size - HEADER_SIZE
    if header.codec != NONE:
        data = plan.unpacker.unpack(header, batch)
        plan.kept.append(data)
        at, size = address_of(data), len(data)
    check_count(header, size)
    return Span(
        at,
        at + size,
        header.record_count,
        header.base_offset,
        header.last_offset_delta,
        header.base_timestamp,
        header.max_timestamp,
        int(bool(header.attributes & APPEND_TIME_BIT)),
    )
