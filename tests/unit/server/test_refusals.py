"""Which batches count as sent behind a refused one."""

import pytest

from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.produce import TopicRecords
from headrace.server.refusals import Refusals, check_order, note_refusal
from tests.support.wire import batch_of

TOPIC = TopicRecords("orders", None, [])
TOO_FEW = ErrorCode.not_enough_replicas
LAST_SEQUENCE = (1 << 31) - 1


def batch(sequence: int, *, count: int = 1, producer: int = 7, epoch: int = 0) -> memoryview:
    values = [b"value"] * count
    return memoryview(batch_of(*values, producer_id=producer, producer_epoch=epoch, base_sequence=sequence))


def refused(*batches: memoryview, code: ErrorCode = TOO_FEW) -> Refusals:
    refusals: Refusals = {}
    for each in batches:
        note_refusal(refusals, TOPIC, 0, each, code)
    return refusals


def is_refused(refusals: Refusals, follower: memoryview, *, topic: TopicRecords = TOPIC, partition: int = 0) -> bool:
    try:
        check_order(refusals, topic, partition, follower)
    except CodedError as error:
        return error.code is TOO_FEW
    return False


def test_the_next_batch_of_a_run_is_refused_with_the_same_error() -> None:
    assert is_refused(refused(batch(10, count=3)), batch(13))
    assert is_refused(refused(batch(10), batch(11)), batch(12))
    assert is_refused(refused(batch(LAST_SEQUENCE)), batch(0))


def test_any_other_batch_is_not() -> None:
    for other in (batch(10), batch(12), batch(11, epoch=1), batch(11, producer=8), memoryview(batch_of(b"plain"))):
        assert not is_refused(refused(batch(10)), other)
    assert not is_refused(refused(batch(10)), batch(11), partition=1)
    assert not is_refused(refused(batch(10)), batch(11), topic=TopicRecords("others", None, []))


def test_a_run_ends_when_its_first_batch_comes_again() -> None:
    refusals = refused(batch(10), batch(11))
    assert not is_refused(refusals, batch(10))
    assert not is_refused(refusals, batch(12))
    assert not refusals


@pytest.mark.parametrize("code", [ErrorCode.message_too_large, ErrorCode.out_of_order_sequence_number])
def test_what_is_refused_for_good_holds_nothing_up(code: ErrorCode) -> None:
    assert not refused(batch(10), code=code)


def test_bytes_that_are_no_batch_are_not_remembered() -> None:
    assert not refused(memoryview(b""), memoryview(batch_of(b"plain")))


def test_names_that_no_topic_can_have_are_not_remembered() -> None:
    refusals: Refusals = {}
    note_refusal(refusals, TopicRecords("x" * 250, None, []), 0, batch(10), ErrorCode.unknown_topic_or_partition)
    assert not refusals


def test_a_connection_remembers_so_many_runs_and_forgets_the_oldest() -> None:
    refusals = refused(*(batch(10, producer=producer) for producer in range(1_001)))
    assert len(refusals) == 1_000
    assert not is_refused(refusals, batch(11, producer=0))
    assert is_refused(refusals, batch(11, producer=1_000))
