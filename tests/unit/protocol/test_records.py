"""Records inside a batch, against a second opinion: kafka-python and aiokafka read and write the same bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record import MemoryRecords

from headrace.protocol.batch import check_batch, read_header, stamp_append_time
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.records import Marker, Record, decode_marker, decode_records, encode_batch, encode_marker

RECORDS = [
    Record(0, 1_700_000_000_000, b"key", b"value", (("trace", b"1"), ("empty", None))),
    Record(1, 1_700_000_000_005, None, b"no key"),
    Record(2, 1_699_999_999_000, b"tombstone", None),
    Record(3, 1_700_000_000_000, b"", b"", (("", b""),)),
]


@pytest.mark.parametrize("codec", range(5))
def test_what_is_encoded_is_decoded(codec: int) -> None:
    batch = encode_batch(RECORDS, codec=codec)
    header = check_batch(memoryview(batch))
    assert (header.base_timestamp, header.max_timestamp) == (1_700_000_000_000, 1_700_000_000_005)
    assert decode_records(batch) == RECORDS


@pytest.mark.parametrize("codec", [0, 1])
def test_another_implementation_reads_our_batches(codec: int) -> None:
    batch = bytes(encode_batch(RECORDS, codec=codec, producer_id=5, producer_epoch=1, base_sequence=9))
    theirs = MemoryRecords(batch).next_batch()
    assert theirs.validate_crc()
    assert (theirs.producer_id, theirs.base_sequence) == (5, 9)
    found = [(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in theirs]
    assert found == [tuple(record) for record in RECORDS]


@given(
    st.lists(
        st.builds(
            Record,
            st.just(0),
            st.integers(0, 2**50),
            st.none() | st.binary(max_size=40),
            st.none() | st.binary(max_size=40),
            st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3).map(tuple),
        ),
        min_size=1,
        max_size=20,
    ),
    st.integers(0, 4),
    st.integers(0, 2**60),
)
def test_any_records_survive_the_round_trip(records: list[Record], codec: int, base_offset: int) -> None:
    numbered = [record._replace(offset=base_offset + number) for number, record in enumerate(records)]
    assert decode_records(encode_batch(records, codec=codec, base_offset=base_offset)) == numbered


def test_sparse_offsets_are_kept_on_demand() -> None:
    records = [Record(10, 5, b"a", b"1"), Record(17, 6, b"b", b"2")]
    batch = encode_batch(records, base_offset=None, last_offset=20)
    header = read_header(batch)
    assert (header.base_offset, header.last_offset, header.record_count) == (10, 20, 2)
    assert decode_records(batch) == records


def test_append_time_is_the_time_of_every_record() -> None:
    batch = encode_batch(RECORDS)
    stamp_append_time(memoryview(batch), 1_800_000_000_000)
    assert {record.timestamp for record in decode_records(batch)} == {1_800_000_000_000}


def test_a_marker_says_how_the_transaction_ended() -> None:
    for committed in (True, False):
        batch = encode_marker(committed=committed, producer_id=7, producer_epoch=2, coordinator_epoch=9, timestamp=1000)
        header = read_header(batch)
        assert header.is_control
        assert header.is_transactional
        assert decode_marker(batch) == Marker(committed, 9)


def test_every_cut_or_flipped_body_is_a_coded_error_or_other_records() -> None:
    batch = encode_batch(RECORDS)
    for position in range(61, len(batch)):
        damaged = bytearray(batch)
        damaged[position] ^= 0xFF
        _decode_or_refuse(damaged)
        shortened = batch[:position]
        shortened[8:12] = (len(shortened) - 12).to_bytes(4, "big")
        with pytest.raises(CodedError) as caught:
            decode_records(shortened)
        assert caught.value.code is ErrorCode.corrupt_message


def _decode_or_refuse(batch: bytearray) -> None:
    try:
        decode_records(batch)
    except CodedError:
        return


def test_a_claim_of_more_records_than_bytes_is_refused() -> None:
    batch = encode_batch(RECORDS)
    batch[57:61] = (2**31 - 1).to_bytes(4, "big")
    with pytest.raises(CodedError):
        decode_records(batch)


def test_a_header_name_that_is_not_utf_8_is_shown_as_far_as_it_can_be_and_kept_as_it_is() -> None:
    batch = encode_batch([Record(0, 1, None, None, (("a\udcffb", b"v"),))])
    assert decode_records(batch)[0].headers == (("a\ufffdb", b"v"),)
    assert encode_batch(decode_records(batch, exact=True)) == batch
