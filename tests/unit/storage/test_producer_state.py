"""Sequence numbers decide what is new, what is a repetition and what is out of order."""

import pytest
from crc32c import crc32c

from headrace.protocol.batch import BatchHeader
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.records import Marker
from headrace.storage.producer_state import ProducerBatch, Producers, check

LARGEST = 2**31 - 1


def header(sequence: int, count: int = 1, *, epoch: int = 0, attributes: int = 0, timestamp: int = 100) -> BatchHeader:
    return BatchHeader(0, 100, 0, 2, 0, attributes, count - 1, timestamp, timestamp, 7, epoch, sequence, count)


def producers(*headers: BatchHeader) -> Producers:
    known = Producers()
    offset = 0
    for one in headers:
        known.note(one, offset)
        offset += one.record_count
    return known


def decide(known: Producers, one: BatchHeader) -> ProducerBatch | None:
    return check(known.get(7), one)


def code_of(known: Producers, one: BatchHeader) -> ErrorCode:
    with pytest.raises(CodedError) as caught:
        decide(known, one)
    return caught.value.code


def test_an_unknown_producer_may_start_anywhere() -> None:
    assert decide(Producers(), header(42)) is None


def test_the_next_sequence_is_accepted() -> None:
    assert decide(producers(header(0, 3)), header(3)) is None


def test_a_repeated_batch_is_a_duplicate_with_its_old_offsets() -> None:
    known = producers(header(0, 3), header(3, 2), header(5))
    found = decide(known, header(3, 2))
    assert found is not None
    assert (found.base_offset, found.last_offset) == (3, 4)


def test_each_of_the_last_five_batches_is_recognised() -> None:
    known = producers(*[header(n) for n in range(8)])
    assert [decide(known, header(n)) is not None for n in range(3, 8)] == [True] * 5


def test_a_batch_that_is_not_remembered_is_out_of_order_as_it_may_not_be_in_the_log() -> None:
    known = producers(*[header(n) for n in range(8)])
    assert code_of(known, header(2)) is ErrorCode.out_of_order_sequence_number


def test_a_retry_of_what_was_refused_is_out_of_order_where_a_later_batch_was_taken() -> None:
    known = producers(header(10, 5))
    assert code_of(known, header(0, 5)) is ErrorCode.out_of_order_sequence_number
    assert code_of(known, header(0, 10)) is ErrorCode.out_of_order_sequence_number


def test_a_gap_is_out_of_order() -> None:
    assert code_of(producers(header(0)), header(2)) is ErrorCode.out_of_order_sequence_number


def test_a_batch_that_overlaps_others_is_out_of_order() -> None:
    known = producers(header(0, 2), header(2, 2))
    assert code_of(known, header(1, 2)) is ErrorCode.out_of_order_sequence_number


def test_an_older_epoch_is_fenced() -> None:
    assert code_of(producers(header(0, epoch=3)), header(1, epoch=2)) is ErrorCode.invalid_producer_epoch


def test_a_new_epoch_starts_with_zero() -> None:
    known = producers(header(0), header(1))
    assert decide(known, header(0, epoch=1)) is None
    assert code_of(known, header(2, epoch=1)) is ErrorCode.out_of_order_sequence_number


def test_a_new_epoch_forgets_the_batches_of_the_old_one() -> None:
    known = producers(header(0), header(0, epoch=1))
    state = known.get(7)
    assert state is not None
    assert (state.epoch, len(state.batches), state.last_sequence) == (1, 1, 0)


def test_sequences_wrap() -> None:
    known = producers(header(LARGEST - 1, 2))
    assert decide(known, header(0)) is None
    assert code_of(known, header(1)) is ErrorCode.out_of_order_sequence_number
    across = producers(header(LARGEST, 3))
    assert decide(across, header(2)) is None
    assert decide(across, header(LARGEST, 3)) is not None


def test_remembered_batches_are_recognised_across_the_wrap() -> None:
    known = producers(*[header((LARGEST - 1 + n) % 2**31) for n in range(5)])
    assert decide(known, header(LARGEST - 1)) is not None
    assert code_of(known, header(LARGEST - 2)) is ErrorCode.out_of_order_sequence_number
    assert code_of(known, header(100)) is ErrorCode.out_of_order_sequence_number


def test_a_marker_ends_the_transaction_and_keeps_the_sequence() -> None:
    known = producers(header(0, attributes=0x10))
    assert known.first_unstable_offset(1) == 0
    known.note_marker(header(-1, attributes=0x30), 1, Marker(True, 4))
    state = known.get(7)
    assert state is not None
    assert known.first_unstable_offset(2) is None
    assert state.coordinator_epoch == 4
    assert decide(known, header(1)) is None


def test_silent_producers_are_forgotten_unless_a_transaction_is_open() -> None:
    known = producers(header(0, timestamp=100))
    known.expire(150, 60)
    assert len(known) == 1
    known.expire(168, 60)
    assert len(known) == 0
    open_one = producers(header(0, attributes=0x10, timestamp=100))
    open_one.expire(10_000, 60)
    assert len(open_one) == 1


def test_a_snapshot_has_kafkas_bytes() -> None:
    known = Producers()
    known.note(header(4, 2, epoch=3, timestamp=0x0102), 16)
    body = bytes.fromhex(
        "000000010000000000000007 0003 00000005 0000000000000011 00000001 0000000000000102 ffffffff ffffffffffffffff"
    )
    assert known.encode() == b"\x00\x01" + crc32c(body).to_bytes(4, "big") + body


def test_a_snapshot_keeps_five_batches_oldest_first() -> None:
    known = producers(*[header(n) for n in range(8)])
    restored = Producers.decode(known.encode())
    assert restored is not None
    assert [decide(restored, header(n)) is not None for n in range(3, 8)] == [True] * 5
    assert decide(restored, header(8)) is None


def test_a_producer_without_batches_survives_a_snapshot() -> None:
    known = Producers()
    known.note_marker(header(-1, epoch=2), 0, Marker(True, 1))
    restored = Producers.decode(known.encode())
    assert restored is not None
    state = restored.get(7)
    assert state is not None
    assert (state.epoch, len(state.batches), state.coordinator_epoch) == (2, 0, 1)


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data[:5], lambda data: b"\x00\x02" + data[2:]])
def test_a_damaged_snapshot_is_refused(damage: object) -> None:
    assert callable(damage)
    assert Producers.decode(damage(producers(header(0)).encode())) is None


def test_a_flipped_bit_in_a_snapshot_is_noticed() -> None:
    data = bytearray(producers(header(0)).encode())
    for position in range(2, len(data)):
        data[position] ^= 1
        assert Producers.decode(bytes(data)) is None
        data[position] ^= 1
