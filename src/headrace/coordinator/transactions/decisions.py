"""What the coordinator decides: pure functions from what it knows of a transactional id to what becomes of it.

Two protocols meet here (KIP-890). In the older one a producer keeps its epoch from one transaction to the next; in the
newer one each end of a transaction gives it a new epoch, so that nothing that comes late fits a later transaction. A
coordinator that ends a transaction itself, for a new producer or after the timeout, always raises the epoch.

An epoch is never given to anybody while the transaction before it may still be open somewhere: requests that come
while a transaction is being ended are CONCURRENT_TRANSACTIONS, and clients ask again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from uuid import UUID

from headrace.protocol.errors import ErrorCode
from headrace.protocol.topic_partition import TopicPartition
from headrace.replication.transactions import EPOCH_BUMPING

from .model import LAST_EPOCH, NO_EPOCH, NO_ID, TransactionMetadata
from .states import RESTING, Event, TransactionState


class ProducerIdAndEpoch(NamedTuple):
    """A producer id and epoch, as requests name one."""

    id: int
    epoch: int


NOBODY: Final = ProducerIdAndEpoch(NO_ID, NO_EPOCH)


@dataclass(frozen=True, slots=True)
class TxnOutcome:
    """What a request comes to: the transaction that is to be written first, and the answer. A prepared transaction that
    was written is followed by its markers."""

    code: ErrorCode = ErrorCode.none
    write: TransactionMetadata | None = None
    producer: ProducerIdAndEpoch = NOBODY
    """The producer id and epoch of the answer."""


_NO_PARTITIONS: Final[dict[str, Any]] = {"partitions": frozenset(), "topic_ids": {}}
WANTS_ID: Final = TxnOutcome(ErrorCode.concurrent_transactions)
"""This needs a producer id that no other ever had: ask again with one."""


def init(
    known: TransactionMetadata | None,
    transactional_id: str,
    expected: ProducerIdAndEpoch | None,
    timeout_ms: int,
    now_ms: int,
    new_id: int | None,
) -> TxnOutcome:
    """A producer takes the id, and shuts out who had it. One that had it itself names what it was: `expected`."""
    if known is None:
        if new_id is None:
            return WANTS_ID
        made = TransactionMetadata(
            transactional_id=transactional_id,
            producer_id=new_id,
            producer_epoch=0,
            timeout_ms=timeout_ms,
            update_ms=now_ms,
        )
        return _granted(made)
    if expected is not None and not _may_continue(known, expected):
        return TxnOutcome(ErrorCode.producer_fenced)
    if known.is_prepared:
        return TxnOutcome(ErrorCode.concurrent_transactions)
    if known.state is TransactionState.ONGOING:
        return fence(known, now_ms, new_id)
    return _take(known, expected, timeout_ms, now_ms, new_id)


def _may_continue(known: TransactionMetadata, expected: ProducerIdAndEpoch) -> bool:
    """Whether this is the producer that has the id, or had it last and may not know what it has become."""
    if expected.id == known.producer_id:
        return expected.epoch in (known.producer_epoch, known.last_producer_epoch)
    return expected.id == known.previous_producer_id and expected.epoch == known.last_producer_epoch == LAST_EPOCH


def _take(
    known: TransactionMetadata, expected: ProducerIdAndEpoch | None, timeout_ms: int, now_ms: int, new_id: int | None
) -> TxnOutcome:
    fresh: dict[str, Any] = {"timeout_ms": timeout_ms, "start_ms": -1, **_NO_PARTITIONS}
    if expected is not None and expected.epoch != known.producer_epoch:
        return _granted(known.moved(Event.INIT, now_ms, **fresh))  # it asks again: the answer was lost
    last = NO_EPOCH if expected is None else known.producer_epoch
    if not known.is_exhausted:
        epoch = known.producer_epoch + 1
        return _granted(known.moved(Event.INIT, now_ms, producer_epoch=epoch, last_producer_epoch=last, **fresh))
    if new_id is None:
        return WANTS_ID
    previous = NO_ID if expected is None else known.producer_id
    ids = {"producer_id": new_id, "previous_producer_id": previous}
    return _granted(known.moved(Event.INIT, now_ms, producer_epoch=0, last_producer_epoch=last, **ids, **fresh))


def _granted(write: TransactionMetadata) -> TxnOutcome:
    return TxnOutcome(write=write, producer=ProducerIdAndEpoch(write.producer_id, write.producer_epoch))


def fence(known: TransactionMetadata, now_ms: int, new_id: int | None = None) -> TxnOutcome:
    """Abort an open transaction whatever its producer wants: who asks is to try again once that is done."""
    if known.is_exhausted and new_id is None:
        return WANTS_ID
    fenced = known.moved(Event.FENCE, now_ms)
    return TxnOutcome(ErrorCode.concurrent_transactions, _prepared(fenced, Event.ABORT, now_ms, EPOCH_BUMPING, new_id))


def add(
    known: TransactionMetadata | None,
    producer: ProducerIdAndEpoch,
    partitions: frozenset[TopicPartition],
    topic_ids: Mapping[str, UUID],
    now_ms: int,
    version: int,
) -> TxnOutcome:
    """Partitions become part of the transaction, with the ids of their topics; the first ones begin it."""
    refused = _refused(known, producer)
    if refused is not None or known is None:
        return TxnOutcome(refused or ErrorCode.invalid_producer_id_mapping)
    changes = {"partitions": partitions, "topic_ids": topic_ids, "start_ms": now_ms, "client_version": version}
    if known.state is TransactionState.ONGOING:
        together, ids = known.partitions | partitions, {**known.topic_ids, **topic_ids}
        if together == known.partitions and ids == known.topic_ids:
            return TxnOutcome()
        changes |= {"partitions": together, "topic_ids": ids, "start_ms": known.start_ms}
    return TxnOutcome(write=known.moved(Event.ADD, now_ms, **changes))


def verify(
    known: TransactionMetadata | None,
    producer: ProducerIdAndEpoch,
    partitions: Iterable[TopicPartition],
    topic_ids: Mapping[str, UUID],
) -> Mapping[TopicPartition, ErrorCode]:
    """Of each partition whether it is part of the producer's open transaction, and of the topic that is meant."""
    refused = _refused(known, producer)
    if refused is not None or known is None:
        return dict.fromkeys(partitions, refused or ErrorCode.invalid_producer_id_mapping)
    ours = known.partitions if known.state is TransactionState.ONGOING else frozenset()
    others = {name for name, kept in known.topic_ids.items() if topic_ids.get(name, kept) != kept}
    return {
        each: ErrorCode.none if each in ours and each[0] not in others else ErrorCode.transaction_abortable
        for each in partitions
    }


def _refused(known: TransactionMetadata | None, producer: ProducerIdAndEpoch) -> ErrorCode | None:
    """Why a producer cannot work in a transaction now."""
    if known is None:
        return ErrorCode.invalid_producer_id_mapping
    if known.is_prepared and producer.id == known.next_producer_id != NO_ID:
        return ErrorCode.concurrent_transactions
    if known.producer_id != producer.id:
        return ErrorCode.invalid_producer_id_mapping
    if _is_fenced(known, producer):
        return ErrorCode.producer_fenced
    return ErrorCode.concurrent_transactions if known.is_prepared else None


def _is_fenced(known: TransactionMetadata, producer: ProducerIdAndEpoch) -> bool:
    """Whether another has the id now: what this one still asks for must not become part of the other's transaction."""
    return known.producer_epoch != producer.epoch


def end(
    known: TransactionMetadata | None,
    producer: ProducerIdAndEpoch,
    committed: bool,
    now_ms: int,
    version: int,
    new_id: int | None,
) -> TxnOutcome:
    """The producer commits or aborts."""
    if known is None:
        return TxnOutcome(ErrorCode.invalid_producer_id_mapping)
    event = Event.COMMIT if committed else Event.ABORT
    if version >= EPOCH_BUMPING:
        return _end_with_epoch(known, producer, event, now_ms, version, new_id)
    if known.producer_id != producer.id:
        return TxnOutcome(ErrorCode.invalid_producer_id_mapping)
    if _is_fenced(known, producer):
        return TxnOutcome(ErrorCode.producer_fenced)
    if known.state is TransactionState.ONGOING:
        return TxnOutcome(write=_prepared(known, event, now_ms, version, None), producer=producer)
    if known.state is TransactionState.EMPTY or known.is_committed != committed:
        return TxnOutcome(ErrorCode.invalid_txn_state)
    return TxnOutcome(ErrorCode.concurrent_transactions if known.is_prepared else ErrorCode.none, producer=producer)


def _end_with_epoch(
    known: TransactionMetadata,
    producer: ProducerIdAndEpoch,
    event: Event,
    now_ms: int,
    version: int,
    new_id: int | None,
) -> TxnOutcome:
    """The newer protocol: the epoch identifies the transaction. The one before the current is ended already."""
    wanted_commit = event is Event.COMMIT
    if _was_ended(known, producer):
        if (
            known.state not in (TransactionState.EMPTY, TransactionState.ONGOING)
            and known.is_committed == wanted_commit
        ):
            now = ProducerIdAndEpoch(known.producer_id, known.producer_epoch)
            return TxnOutcome(ErrorCode.concurrent_transactions) if known.is_prepared else TxnOutcome(producer=now)
        is_later = known.state in (TransactionState.EMPTY, TransactionState.ONGOING)
        return TxnOutcome(ErrorCode.producer_fenced if is_later else ErrorCode.invalid_txn_state)
    refused = _refused(known, producer)
    if refused is not None:
        return TxnOutcome(refused)
    if wanted_commit and known.state is not TransactionState.ONGOING:
        return TxnOutcome(ErrorCode.invalid_txn_state)
    if known.is_exhausted and new_id is None:
        return WANTS_ID
    prepared = _prepared(known, event, now_ms, version, new_id)
    return TxnOutcome(write=prepared, producer=_successor(prepared))


def _was_ended(known: TransactionMetadata, producer: ProducerIdAndEpoch) -> bool:
    """Whether a producer names the epoch whose transaction was ended last."""
    if not known.bumps_epochs:
        return False
    if producer.id == known.producer_id:
        return producer.epoch == known.producer_epoch - 1
    is_previous = producer.id == known.previous_producer_id != NO_ID
    return is_previous and producer.epoch == LAST_EPOCH and known.producer_epoch == 0


def _prepared(
    known: TransactionMetadata, event: Event, now_ms: int, version: int, new_id: int | None
) -> TransactionMetadata:
    changes: dict[str, Any] = {"client_version": version}
    if version >= EPOCH_BUMPING:
        changes |= {"producer_epoch": known.producer_epoch + 1, "last_producer_epoch": known.producer_epoch}
        if known.is_exhausted and new_id is not None:
            changes["next_producer_id"] = new_id
    if known.state in RESTING:
        changes |= {"start_ms": now_ms, **_NO_PARTITIONS}
    return known.moved(event, now_ms, **changes)


def _successor(prepared: TransactionMetadata) -> ProducerIdAndEpoch:
    if prepared.next_producer_id != NO_ID:
        return ProducerIdAndEpoch(prepared.next_producer_id, 0)
    return ProducerIdAndEpoch(prepared.producer_id, prepared.producer_epoch)


def complete(known: TransactionMetadata, now_ms: int) -> TransactionMetadata:
    """Every partition knows how the transaction ended. Where its producer id is used up the next one takes over."""
    changes: dict[str, Any] = {"next_producer_id": NO_ID, **_NO_PARTITIONS}
    if known.next_producer_id != NO_ID:
        changes |= {
            "producer_id": known.next_producer_id,
            "producer_epoch": 0,
            "previous_producer_id": known.producer_id,
        }
    return known.moved(Event.MARKERS_WRITTEN, now_ms, **changes)


def is_expired(known: TransactionMetadata, now_ms: int, expiration_ms: int) -> bool:
    """Whether an id was not used for so long that it is forgotten."""
    return known.state in RESTING and now_ms - known.update_ms >= expiration_ms
