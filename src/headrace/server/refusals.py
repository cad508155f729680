"""Which batches of idempotent producers a connection was just refused, so that those behind them are refused as well.

A producer has up to five batches for a partition under way. When the first is refused for a reason that passes, such as
too few replicas in sync, and it passes before the second is served, then the second is out of order; or it is appended,
where the partition does not know the producer yet. Clients must expect that of Kafka, but not all draw the right
conclusion. librdkafka then begins a new producer epoch and sends everything that is unanswered with new numbers, which
writes twice what is in the log already; and it takes what it sent before an appended batch for appended. So here a run
of batches that was sent in one go is refused as a whole, until its first comes again.
"""

from typing import Final, NamedTuple

from headrace.cluster.topics import MAX_NAME
from headrace.protocol.batch import HEADER_SIZE, BatchHeader, read_header
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.produce import TopicRecords

_PASSING: Final = frozenset(
    {
        ErrorCode.not_leader_or_follower,
        ErrorCode.leader_not_available,
        ErrorCode.not_enough_replicas,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
        ErrorCode.kafka_storage_error,
        ErrorCode.concurrent_transactions,
    }
)
"""What a producer is told that is to send its batch again, and nothing was appended."""
_MOST_UNDER_WAY: Final = 5
"""Who sends more batches in a row does not wait for answers, and may not mean to send the first again."""
_MOST_RUNS: Final = 1_000
_SEQUENCES: Final = 1 << 31

Place = tuple[str, bytes | None, int, int]
"""A topic by name and id, a partition, a producer id."""


class RefusedRun(NamedTuple):
    """Batches of a producer that were refused one after another."""

    epoch: int
    next_sequence: int
    length: int
    code: ErrorCode


Refusals = dict[Place, RefusedRun]
"""What one connection was refused last."""


def check_order(refusals: Refusals, topic: TopicRecords, index: int, records: memoryview | None) -> None:
    """`CodedError` for a batch that was sent right behind a refused one."""
    header = _numbered(records)
    if header is None:
        return
    key = (topic.name, topic.id, index, header.producer_id)
    run = refusals.get(key)
    if run is None:
        return
    if _continues(run, header) and run.length < _MOST_UNDER_WAY:
        raise CodedError(run.code, "a batch that comes before this one was refused, and has to be sent again first")
    del refusals[key]


def note_refusal(
    refusals: Refusals, topic: TopicRecords, index: int, records: memoryview | None, code: ErrorCode
) -> None:
    """Remember a batch that was refused, if it is one that comes again.

    Not for a name that no topic can have: a connection would keep a thousand of any length.
    """
    header = _numbered(records) if code in _PASSING and len(topic.name) <= MAX_NAME else None
    if header is None:
        return
    key = (topic.name, topic.id, index, header.producer_id)
    before = refusals.pop(key, None)
    length = before.length + 1 if before is not None and _continues(before, header) else 1
    if len(refusals) >= _MOST_RUNS:
        del refusals[next(iter(refusals))]
    next_sequence = (header.base_sequence + header.last_offset_delta + 1) % _SEQUENCES
    refusals[key] = RefusedRun(header.producer_epoch, next_sequence, length, code)


def _numbered(records: memoryview | None) -> BatchHeader | None:
    """The header of a batch that has a sequence number."""
    if records is None or len(records) < HEADER_SIZE:
        return None
    header = read_header(records)
    return header if header.producer_id >= 0 and header.base_sequence >= 0 else None


def _continues(run: RefusedRun, header: BatchHeader) -> bool:
    return header.producer_epoch == run.epoch and header.base_sequence == run.next_sequence
