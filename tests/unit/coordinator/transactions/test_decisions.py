"""What follows from what is known: Kafka's rules, case by case."""

from dataclasses import replace
from uuid import UUID

import pytest

from headrace.coordinator.transactions import decisions
from headrace.coordinator.transactions.decisions import WANTS_ID, ProducerIdAndEpoch, TxnOutcome
from headrace.coordinator.transactions.model import LAST_EPOCH, TransactionMetadata
from headrace.coordinator.transactions.states import PREPARED, RESTING, TRANSITIONS, Event, TransactionState
from headrace.protocol.errors import ErrorCode
from headrace.protocol.topic_partition import TopicPartition

NOW = 1_000
NEWER = 2
A = TopicPartition("t", 0)
B = TopicPartition("t", 1)
IDS = {"t": UUID(int=1)}
OTHER_IDS = {"t": UUID(int=2)}


def known(state: TransactionState = TransactionState.EMPTY, epoch: int = 5, **changes: object) -> TransactionMetadata:
    partitions = frozenset({A}) if state in (TransactionState.ONGOING, *PREPARED) else frozenset()
    made = TransactionMetadata(
        transactional_id="x",
        producer_id=7,
        producer_epoch=epoch,
        timeout_ms=100,
        state=state,
        partitions=partitions,
        topic_ids=IDS if partitions else {},
        start_ms=500,
        update_ms=600,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def init(
    transaction: TransactionMetadata | None, expected: ProducerIdAndEpoch | None = None, new_id: int | None = None
) -> TxnOutcome:
    return decisions.init(transaction, "x", expected, 100, NOW, new_id)


def written(decision: TxnOutcome) -> TransactionMetadata:
    assert decision.write is not None
    return decision.write


# A producer takes the id


def test_a_new_id_needs_a_new_producer() -> None:
    assert init(None) is WANTS_ID
    assert init(None, new_id=9).producer == ProducerIdAndEpoch(9, 0)


@pytest.mark.parametrize("state", sorted(RESTING, key=str))
def test_a_new_producer_shuts_out_the_one_before(state: TransactionState) -> None:
    decision = init(known(state))
    assert (decision.code, decision.producer, written(decision).state) == (
        ErrorCode.none,
        (7, 6),
        TransactionState.EMPTY,
    )


@pytest.mark.parametrize("state", sorted(PREPARED, key=str))
def test_nobody_takes_an_id_whose_transaction_is_being_ended(state: TransactionState) -> None:
    assert init(known(state)) == TxnOutcome(ErrorCode.concurrent_transactions)


def test_an_open_transaction_is_aborted_first_under_an_epoch_that_nobody_is_given() -> None:
    decision = init(known(TransactionState.ONGOING))
    assert decision.code is ErrorCode.concurrent_transactions
    assert (written(decision).state, written(decision).producer_epoch) == (TransactionState.PREPARE_ABORT, 6)
    assert written(decision).partitions == {A}


def test_a_producer_that_lost_its_place_goes_on_and_may_ask_twice() -> None:
    first = init(known(), ProducerIdAndEpoch(7, 5))
    again = init(written(first), ProducerIdAndEpoch(7, 5))
    assert first.producer == again.producer == (7, 6)
    assert init(written(init(written(first))), ProducerIdAndEpoch(7, 5)).code is ErrorCode.producer_fenced


@pytest.mark.parametrize("stranger", [ProducerIdAndEpoch(8, 5), ProducerIdAndEpoch(7, 4), ProducerIdAndEpoch(7, 6)])
@pytest.mark.parametrize("state", [TransactionState.EMPTY, TransactionState.ONGOING, TransactionState.COMPLETE_COMMIT])
def test_who_no_longer_has_the_id_disturbs_nobody(state: TransactionState, stranger: ProducerIdAndEpoch) -> None:
    assert init(known(state), stranger) == TxnOutcome(ErrorCode.producer_fenced)


def test_a_producer_whose_epochs_are_used_up_gets_another_id() -> None:
    assert init(known(epoch=LAST_EPOCH)) is WANTS_ID
    assert init(known(epoch=LAST_EPOCH), new_id=9).producer == ProducerIdAndEpoch(9, 0)
    first = init(known(epoch=LAST_EPOCH), ProducerIdAndEpoch(7, LAST_EPOCH), new_id=9)
    assert written(first).previous_producer_id == 7
    assert init(written(first), ProducerIdAndEpoch(7, LAST_EPOCH)).producer == ProducerIdAndEpoch(9, 0)


# Partitions


@pytest.mark.parametrize("state", [*sorted(RESTING, key=str), TransactionState.ONGOING])
def test_partitions_begin_a_transaction_or_join_it(state: TransactionState) -> None:
    write = written(decisions.add(known(state), ProducerIdAndEpoch(7, 5), frozenset({B}), IDS, NOW, 0))
    assert write.state is TransactionState.ONGOING
    assert write.partitions == ({A, B} if state is TransactionState.ONGOING else {B})
    assert write.start_ms == (500 if state is TransactionState.ONGOING else NOW)


def test_a_transaction_keeps_the_ids_of_its_topics_until_everyone_knows_how_it_ended() -> None:
    begun = written(decisions.add(known(), ProducerIdAndEpoch(7, 5), frozenset({A}), IDS, NOW, 0))
    again = written(decisions.add(begun, ProducerIdAndEpoch(7, 5), frozenset({A}), OTHER_IDS, NOW, 0))
    assert (begun.topic_ids, again.topic_ids) == (IDS, OTHER_IDS)
    ending = written(decisions.end(again, ProducerIdAndEpoch(7, 5), True, NOW, 0, None))
    assert ending.topic_ids == OTHER_IDS
    assert decisions.complete(ending, NOW).topic_ids == {}


def test_a_partition_of_another_topic_of_that_name_is_not_in_the_transaction() -> None:
    transaction, producer = known(TransactionState.ONGOING), ProducerIdAndEpoch(7, 5)
    assert decisions.verify(transaction, producer, [A], IDS) == {A: ErrorCode.none}
    assert decisions.verify(transaction, producer, [A], OTHER_IDS) == {A: ErrorCode.transaction_abortable}
    of_kafka = replace(transaction, topic_ids={})
    assert decisions.verify(of_kafka, producer, [A], OTHER_IDS) == {A: ErrorCode.none}


def test_partitions_that_are_in_it_already_cost_nothing() -> None:
    assert (
        decisions.add(known(TransactionState.ONGOING), ProducerIdAndEpoch(7, 5), frozenset({A}), IDS, NOW, 0)
        == TxnOutcome()
    )


@pytest.mark.parametrize(
    ("transaction", "producer", "code"),
    [
        (None, ProducerIdAndEpoch(7, 5), ErrorCode.invalid_producer_id_mapping),
        (known(), ProducerIdAndEpoch(8, 5), ErrorCode.invalid_producer_id_mapping),
        (known(), ProducerIdAndEpoch(7, 4), ErrorCode.producer_fenced),
        (known(), ProducerIdAndEpoch(7, 6), ErrorCode.producer_fenced),
        (known(TransactionState.PREPARE_COMMIT), ProducerIdAndEpoch(7, 5), ErrorCode.concurrent_transactions),
        (known(TransactionState.PREPARE_ABORT), ProducerIdAndEpoch(7, 5), ErrorCode.concurrent_transactions),
        (
            known(TransactionState.PREPARE_ABORT, next_producer_id=9),
            ProducerIdAndEpoch(9, 0),
            ErrorCode.concurrent_transactions,
        ),
    ],
)
def test_who_may_not_add_may_not_be_verified_either(
    transaction: TransactionMetadata | None, producer: ProducerIdAndEpoch, code: ErrorCode
) -> None:
    assert decisions.add(transaction, producer, frozenset({A}), IDS, NOW, 0) == TxnOutcome(code)
    assert decisions.verify(transaction, producer, [A, B], IDS) == {A: code, B: code}


def test_a_partition_is_verified_only_while_it_is_in_the_open_transaction() -> None:
    both = decisions.verify(known(TransactionState.ONGOING), ProducerIdAndEpoch(7, 5), [A, B], IDS)
    assert both == {A: ErrorCode.none, B: ErrorCode.transaction_abortable}
    after = decisions.verify(known(TransactionState.COMPLETE_COMMIT), ProducerIdAndEpoch(7, 5), [A], IDS)
    assert after == {A: ErrorCode.transaction_abortable}


# The end, in the older protocol

OLDER_ENDS = {
    (TransactionState.EMPTY, True): ErrorCode.invalid_txn_state,
    (TransactionState.EMPTY, False): ErrorCode.invalid_txn_state,
    (TransactionState.PREPARE_COMMIT, True): ErrorCode.concurrent_transactions,
    (TransactionState.PREPARE_COMMIT, False): ErrorCode.invalid_txn_state,
    (TransactionState.PREPARE_ABORT, True): ErrorCode.invalid_txn_state,
    (TransactionState.PREPARE_ABORT, False): ErrorCode.concurrent_transactions,
    (TransactionState.COMPLETE_COMMIT, True): ErrorCode.none,
    (TransactionState.COMPLETE_COMMIT, False): ErrorCode.invalid_txn_state,
    (TransactionState.COMPLETE_ABORT, True): ErrorCode.invalid_txn_state,
    (TransactionState.COMPLETE_ABORT, False): ErrorCode.none,
}


@pytest.mark.parametrize(("state", "committed"), OLDER_ENDS)
def test_the_older_protocol_ends_only_what_is_open(state: TransactionState, committed: bool) -> None:
    decision = decisions.end(known(state), ProducerIdAndEpoch(7, 5), committed, NOW, 0, None)
    assert (decision.code, decision.write) == (OLDER_ENDS[state, committed], None)


@pytest.mark.parametrize("committed", [True, False])
def test_the_older_protocol_keeps_the_epoch(committed: bool) -> None:
    decision = decisions.end(known(TransactionState.ONGOING), ProducerIdAndEpoch(7, 5), committed, NOW, 0, None)
    prepared = TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT
    assert (written(decision).state, written(decision).producer_epoch) == (prepared, 5)


@pytest.mark.parametrize("version", [0, NEWER])
@pytest.mark.parametrize(
    ("producer", "code"),
    [
        (ProducerIdAndEpoch(8, 5), ErrorCode.invalid_producer_id_mapping),
        (ProducerIdAndEpoch(7, 4), ErrorCode.producer_fenced),
        (ProducerIdAndEpoch(7, 6), ErrorCode.producer_fenced),
    ],
)
def test_only_the_producer_that_has_the_id_ends_its_transaction(
    version: int, producer: ProducerIdAndEpoch, code: ErrorCode
) -> None:
    assert decisions.end(known(TransactionState.ONGOING), producer, True, NOW, version, None) == TxnOutcome(code)
    assert decisions.end(None, producer, True, NOW, version, None).code is ErrorCode.invalid_producer_id_mapping


# The end, in the newer protocol


def ended(committed: bool, epoch: int = 5, new_id: int | None = None) -> TransactionMetadata:
    return written(
        decisions.end(
            known(TransactionState.ONGOING, epoch), ProducerIdAndEpoch(7, epoch), committed, NOW, NEWER, new_id
        )
    )


@pytest.mark.parametrize("committed", [True, False])
def test_the_newer_protocol_gives_a_new_epoch_with_each_end(committed: bool) -> None:
    decision = decisions.end(known(TransactionState.ONGOING), ProducerIdAndEpoch(7, 5), committed, NOW, NEWER, None)
    assert (decision.producer, written(decision).producer_epoch) == (ProducerIdAndEpoch(7, 6), 6)


@pytest.mark.parametrize("committed", [True, False])
def test_who_asks_again_is_told_the_same_and_nothing_is_done_twice(committed: bool) -> None:
    prepared = ended(committed)
    again = decisions.end(prepared, ProducerIdAndEpoch(7, 5), committed, NOW, NEWER, None)
    assert (again.code, again.write) == (ErrorCode.concurrent_transactions, None)
    complete = decisions.complete(prepared, NOW)
    again = decisions.end(complete, ProducerIdAndEpoch(7, 5), committed, NOW, NEWER, None)
    assert (again.code, again.write, again.producer) == (ErrorCode.none, None, ProducerIdAndEpoch(7, 6))
    other = decisions.end(complete, ProducerIdAndEpoch(7, 5), not committed, NOW, NEWER, None)
    assert other == TxnOutcome(ErrorCode.invalid_txn_state)


@pytest.mark.parametrize("committed", [True, False])
def test_a_late_end_never_decides_a_later_transaction(committed: bool) -> None:
    complete = decisions.complete(ended(True), NOW)
    later = written(decisions.add(complete, ProducerIdAndEpoch(7, 6), frozenset({B}), IDS, NOW, NEWER))
    assert decisions.end(later, ProducerIdAndEpoch(7, 5), committed, NOW, NEWER, None) == TxnOutcome(
        ErrorCode.producer_fenced
    )


@pytest.mark.parametrize("state", sorted(RESTING, key=str))
def test_the_newer_protocol_may_abort_what_was_never_added_to(state: TransactionState) -> None:
    decision = decisions.end(known(state), ProducerIdAndEpoch(7, 5), False, NOW, NEWER, None)
    assert (written(decision).state, decision.producer) == (TransactionState.PREPARE_ABORT, ProducerIdAndEpoch(7, 6))
    assert decisions.end(known(state), ProducerIdAndEpoch(7, 5), True, NOW, NEWER, None) == TxnOutcome(
        ErrorCode.invalid_txn_state
    )


def test_an_end_of_the_older_protocol_is_no_earlier_end_of_the_newer_one() -> None:
    stale = decisions.end(known(TransactionState.COMPLETE_COMMIT), ProducerIdAndEpoch(7, 4), True, NOW, NEWER, None)
    assert stale == TxnOutcome(ErrorCode.producer_fenced)


def test_after_the_last_epoch_the_next_producer_id_takes_over() -> None:
    last = known(TransactionState.ONGOING, LAST_EPOCH)
    assert decisions.end(last, ProducerIdAndEpoch(7, LAST_EPOCH), True, NOW, NEWER, None) is WANTS_ID
    decision = decisions.end(last, ProducerIdAndEpoch(7, LAST_EPOCH), True, NOW, NEWER, 9)
    assert (decision.producer, written(decision).producer_epoch) == (ProducerIdAndEpoch(9, 0), LAST_EPOCH + 1)
    complete = decisions.complete(written(decision), NOW)
    assert (complete.producer_id, complete.producer_epoch, complete.previous_producer_id) == (9, 0, 7)
    again = decisions.end(complete, ProducerIdAndEpoch(7, LAST_EPOCH), True, NOW, NEWER, None)
    assert (again.code, again.producer) == (ErrorCode.none, ProducerIdAndEpoch(9, 0))


# Time


def test_what_has_timed_out_is_aborted_and_its_producer_shut_out() -> None:
    transaction = known(TransactionState.ONGOING)
    assert (transaction.is_overdue(100), transaction.is_overdue(101)) == (False, True)
    assert not known(TransactionState.PREPARE_COMMIT).is_overdue(10**9)
    aborted = decisions.complete(written(decisions.fence(transaction, NOW)), NOW)
    assert decisions.end(aborted, ProducerIdAndEpoch(7, 5), True, NOW, 0, None) == TxnOutcome(ErrorCode.producer_fenced)
    newer = decisions.end(aborted, ProducerIdAndEpoch(7, 5), True, NOW, NEWER, None)
    assert newer == TxnOutcome(ErrorCode.invalid_txn_state)
    assert init(aborted, ProducerIdAndEpoch(7, 5)).producer == ProducerIdAndEpoch(7, 6)


def test_a_fenced_producer_at_its_last_epoch_leaves_no_epoch_that_overflows() -> None:
    last = known(TransactionState.ONGOING, LAST_EPOCH)
    assert decisions.fence(last, NOW) is WANTS_ID
    complete = decisions.complete(written(decisions.fence(last, NOW, 9)), NOW)
    assert (complete.producer_id, complete.producer_epoch) == (9, 0)


@pytest.mark.parametrize("state", list(TransactionState))
def test_only_ids_at_rest_expire(state: TransactionState) -> None:
    assert decisions.is_expired(known(state), 600 + 50, 50) == (state in RESTING)
    assert not decisions.is_expired(known(state), 600 + 49, 50)


# The table


def test_an_outcome_that_is_decided_is_decided_for_ever() -> None:
    for prepared, complete in (
        (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT),
        (TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT),
    ):
        ways = {event: after for (before, event), after in TRANSITIONS.items() if before is prepared}
        assert ways == {Event.MARKERS_WRITTEN: complete}
