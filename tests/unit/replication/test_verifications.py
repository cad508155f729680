"""Producers whose transactions are about to begin on a partition."""

import pytest

from headrace.protocol.errors import CodedError, ErrorCode
from headrace.replication import transactions
from headrace.replication.transactions import TransactionMarker, Verifications

PRODUCER, EPOCH = 7, 3


def postponed(*sequences: int) -> Verifications:
    """A producer has come with these, and is to come again."""
    found = Verifications()
    for sequence in sequences:
        found.begin(PRODUCER, EPOCH, sequence)
        found.postpone(PRODUCER)
    return found


def test_a_transaction_begins_with_the_lowest_sequence_number_that_has_come() -> None:
    found = postponed(5, 4, 6)
    found.check_sequence(PRODUCER, EPOCH, 4)
    with pytest.raises(CodedError) as refused:
        found.check_sequence(PRODUCER, EPOCH, 5)
    assert refused.value.code is ErrorCode.out_of_order_sequence_number


def test_another_epoch_begins_anew() -> None:
    found = postponed(0)
    found.check_sequence(PRODUCER, EPOCH + 1, 9)
    found.begin(PRODUCER, EPOCH + 1, 9)
    found.check_sequence(PRODUCER, EPOCH + 1, 9)


@pytest.mark.parametrize(
    ("epoch", "version", "is_forgotten"), [(EPOCH, 1, True), (EPOCH + 1, 2, True), (EPOCH, 2, False)]
)
def test_a_marker_forgets_what_its_transaction_never_wrote(epoch: int, version: int, is_forgotten: bool) -> None:
    found = postponed(0)
    marker = TransactionMarker(
        producer_id=PRODUCER,
        producer_epoch=epoch,
        coordinator_epoch=0,
        committed=False,
        transaction_version=version,
    )
    found.marked(marker)
    if is_forgotten:
        found.check_sequence(PRODUCER, EPOCH, 1)
    else:
        with pytest.raises(CodedError):
            found.check_sequence(PRODUCER, EPOCH, 1)


def test_what_has_begun_or_is_not_to_be_is_forgotten() -> None:
    found = postponed(0)
    found.end(PRODUCER)
    found.check_sequence(PRODUCER, EPOCH, 1)


def test_no_more_producers_are_kept_than_there_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "MOST_SEQUENCES", 2)
    found = Verifications()
    for producer in range(3):
        found.begin(producer, EPOCH, 0)
        found.postpone(producer)
    found.check_sequence(0, EPOCH, 1)
    for producer in (1, 2):
        with pytest.raises(CodedError):
            found.check_sequence(producer, EPOCH, 1)
