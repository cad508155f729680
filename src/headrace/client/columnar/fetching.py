"""Fetching a range of offsets, decided without I/O: the next fetch of a partition, and what its answer means.

A range ends at its `end`, which need not hold a record: compaction, control batches and aborted transactions leave
holes. What was fetched says where to go on: after the last whole batch. When nothing is there any more although the
partition goes on to `end` or beyond, the rest of the range is a hole; a broker may also give nothing because it was
slow, so it must say so a few times.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

from headrace.protocol.errors import ErrorCode
from headrace.protocol.fetch_request import FetchPartition, fetch_request
from headrace.protocol.fetched import PartitionRecords
from headrace.protocol.topic_partition import TopicPartition

from ..core.codes import Remedy, code_of, is_retriable, remedy_of
from .decode import FetchDecoder
from .retry import Patience

SMALLEST_ASKED: Final = 64 * 1024
GUESSED_RECORD: Final = 1024
"""Bytes of a record before any was seen."""
SURE_AFTER: Final = 3
"""Empty answers in a row that prove a hole."""
HOLE_WAIT_MS: Final = 500
"""How long a broker may wait for data that it did not find at once."""


class FetchStep(Enum):
    """What an answer means for a partition."""

    RECORDS = auto()
    """There are records; `next_offset` is past them."""
    DONE = auto()
    """No record is left before the range's end."""
    ASK = auto()
    """Nothing was learnt: ask again."""
    EMPTY = auto()
    """There may be nothing more: ask again to be sure."""
    WAIT = auto()
    """Not yet: ask again in a moment."""
    STALE = auto()
    """Another broker is to be asked: look for the leader, then ask again."""
    LEADER = auto()
    """This replica cannot tell: ask the leader again."""
    GONE = auto()
    """The leader is to confirm that offsets of the range are not in the log."""
    REFUSED = auto()
    """The answer is an error that stays."""


@dataclass(slots=True, kw_only=True)
class PartitionRead:
    """How far a range has been read."""

    topic_partition: TopicPartition
    next_offset: int
    end: int
    decoder: FetchDecoder
    topic_id: bytes | None = None
    epoch: int = -1
    replica: int | None = None
    """The broker that the leader sent us to."""
    bytes_per_offset: float = GUESSED_RECORD
    empty_answers: int = 0
    retry_at: float = 0.0
    patience: Patience | None = None
    """How long failures are put up with; None while there are none."""

    @property
    def is_done(self) -> bool:
        return self.next_offset >= self.end

    def topic_key(self, *, by_id: bool) -> str | bytes:
        """What an answer calls the topic."""
        return self.topic_id if by_id and self.topic_id is not None else self.topic_partition.topic

    def wanted_bytes(self, most: int) -> int:
        """About what is left, so that a short range of a long log does not bring much that nobody wants."""
        left = (self.end - self.next_offset) * self.bytes_per_offset * 1.1 + SMALLEST_ASKED
        return int(min(left, most))

    def advance(self, next_offset: int, size: int) -> None:
        """Go on behind what was fetched."""
        self.bytes_per_offset = size / (next_offset - self.next_offset)
        self.next_offset = next_offset
        self.empty_answers = 0
        self.patience = None


def step_after(state: PartitionRead, answer: PartitionRecords, *, read_committed: bool, is_alone: bool) -> FetchStep:
    """What an answer means; `is_alone` is whether no other partition took room in the same response."""
    code = code_of(answer.code)
    if code is not ErrorCode.none:
        return _step_after_error(state, code)
    if answer.preferred_read_replica >= 0:
        return FetchStep.ASK
    if len(answer.records):
        return FetchStep.RECORDS
    return _step_after_nothing(state, answer, read_committed, is_alone)


def _step_after_error(state: PartitionRead, code: ErrorCode) -> FetchStep:
    if code is ErrorCode.offset_out_of_range:
        return FetchStep.GONE if state.replica is None else FetchStep.LEADER
    if remedy_of(code) is Remedy.REFRESH_METADATA:
        return FetchStep.STALE
    return FetchStep.WAIT if is_retriable(code) else FetchStep.REFUSED


def _step_after_nothing(
    state: PartitionRead, answer: PartitionRecords, read_committed: bool, is_alone: bool
) -> FetchStep:
    if not is_alone:
        return FetchStep.ASK
    if answer.high_watermark < state.end:
        return FetchStep.GONE if state.replica is None else FetchStep.LEADER
    if read_committed and 0 <= answer.last_stable_offset < state.end:
        return FetchStep.WAIT
    return FetchStep.DONE if state.empty_answers + 1 >= SURE_AFTER else FetchStep.EMPTY


def end_of_batches(records: memoryview, start: int) -> int:
    """The offset after the last batch that is there whole; `start` when none is."""
    from ._decoding import LAST_OFFSET  # compiles or loads the kernels, and numba with them
    from ._heads import read_heads

    heads, _ = read_heads(records)
    return max(start, int(heads[:, LAST_OFFSET].max()) + 1) if len(heads) else start


def next_fetch(
    states: Sequence[PartitionRead],
    *,
    max_bytes: int,
    partition_bytes: int,
    read_committed: bool,
    rack: str,
) -> dict[str, Any]:
    """The values of the next Fetch request; it waits at the broker only where all partitions may have no more."""
    waits = all(state.empty_answers for state in states)
    return fetch_request(
        (
            FetchPartition(
                state.topic_partition,
                state.next_offset,
                state.wanted_bytes(partition_bytes),
                state.epoch,
                state.topic_id,
            )
            for state in states
        ),
        max_wait_ms=HOLE_WAIT_MS if waits else 0,
        min_bytes=int(waits),
        max_bytes=max_bytes,
        isolation=int(read_committed),
        rack=rack,
    )
