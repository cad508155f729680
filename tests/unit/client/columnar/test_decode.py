"""Fetched bytes to Arrow columns, against the plain decoder of `protocol.records`."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.columnar import _plan
from headrace.client.columnar.decode import FetchDecoder
from headrace.client.columnar.model import SCHEMA, SCHEMA_WITH_HEADERS
from headrace.client.errors import ClientError
from headrace.protocol.compression import CODECS
from headrace.protocol.records import Record, encode_batch, encode_marker
from tests.support.columnar.batches import TOPIC, a_decoder, batch, codecs, joined, record, records_in, some_batches

END = 2**62


@given(some_batches(), st.data())
def test_every_record_comes_out_as_it_went_in(batches: list[list[Record]], data: st.DataObject) -> None:
    fetched = joined(batch(records, codec=data.draw(codecs)) for records in batches)
    rows, following = a_decoder().decode(fetched, 0, END)
    assert records_in(rows) == [one for records in batches for one in records]
    assert following == batches[-1][-1].offset + 1


@given(some_batches(), st.data())
def test_only_records_from_start_up_to_end_come_out(batches: list[list[Record]], data: st.DataObject) -> None:
    records = [one for records in batches for one in records]
    start = data.draw(st.integers(0, records[-1].offset + 2))
    end = data.draw(st.integers(start, records[-1].offset + 3))
    codec = data.draw(codecs)
    rows, following = a_decoder().decode(joined(batch(one, codec=codec) for one in batches), start, end)
    assert records_in(rows) == [one for one in records if start <= one.offset < end]
    assert following >= min(end, records[-1].offset + 1)


@given(some_batches(), st.data())
def test_a_batch_cut_short_is_left_for_the_next_fetch(batches: list[list[Record]], data: st.DataObject) -> None:
    encoded = [batch(records, codec=data.draw(codecs)) for records in batches]
    fetched = joined(encoded)
    cut = data.draw(st.integers(0, len(fetched)))
    start = batches[0][0].offset
    rows, following = a_decoder().decode(memoryview(fetched)[:cut], start, END)
    whole = [n for n in range(len(encoded)) if sum(map(len, encoded[: n + 1])) <= cut]
    assert records_in(rows) == [one for n in whole for one in batches[n]]
    assert following == (batches[whole[-1]][-1].offset + 1 if whole else start)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_will_do(kind: type) -> None:
    rows, _ = a_decoder().decode(kind(bytes(batch([record(5)]))), 0, END)
    assert records_in(rows) == [record(5)]


def test_columns_have_the_schema_of_the_connector_and_no_headers_unless_wanted() -> None:
    fetched = batch([record(0, headers=(("a", b"1"),))])
    plain, _ = a_decoder(with_headers=False).decode(fetched, 0, END)
    full, _ = a_decoder().decode(fetched, 0, END)
    assert plain is not None
    assert full is not None
    assert plain.schema == SCHEMA
    assert full.schema == SCHEMA_WITH_HEADERS


def test_columns_without_nulls_have_no_bitmap() -> None:
    rows, _ = a_decoder().decode(batch([record(0, key=b"k"), record(1, key=b"k")]), 0, END)
    assert rows is not None
    assert [rows.column(name).buffers()[0] for name in ("key", "value")] == [None, None]


def test_a_record_without_headers_has_null_headers() -> None:
    rows, _ = a_decoder().decode(batch([record(0), record(1, headers=(("a", None),))]), 0, END)
    assert rows is not None
    assert rows.column("headers").to_pylist() == [None, [{"key": "a", "value": None}]]


def test_a_header_key_that_is_not_utf8_gets_replacement_characters() -> None:
    marked = batch([record(0, headers=(("QQQ", b"1"), ("ä", b"2")))])
    spoiled = bytes(marked).replace(b"QQQ", b"\xffQ\xfe")
    rows, _ = a_decoder(check_crcs=False).decode(spoiled, 0, END)
    assert records_in(rows)[0].headers == (("\ufffdQ\ufffd", b"1"), ("ä", b"2"))


def test_times_are_the_producers_or_the_logs() -> None:
    fetched = joined(
        [
            batch([record(0, timestamp=1000), record(1, timestamp=900)]),
            batch([record(2, timestamp=5), record(3, timestamp=7)], append_time=123_456),
        ]
    )
    rows, _ = a_decoder().decode(fetched, 1, END)
    assert rows is not None
    assert rows.column("timestamp").cast(pa.int64()).to_pylist() == [900_000, 123_456_000, 123_456_000]
    assert rows.column("timestampType").to_pylist() == [0, 1, 1]


def test_a_record_without_a_time_shows_minus_one_millisecond() -> None:
    rows, _ = a_decoder().decode(batch([record(0, timestamp=-1)]), 0, END)
    assert rows is not None
    assert rows.column("timestamp").cast(pa.int64()).to_pylist() == [-1000]


def test_a_time_beyond_microseconds_is_the_last_one_there_is() -> None:
    rows, _ = a_decoder().decode(batch([record(0, timestamp=2**62)]), 0, END)
    assert rows is not None
    assert rows.column("timestamp").cast(pa.int64()).to_pylist() == [(2**63 - 1) // 1000 * 1000]


def test_batches_of_log_append_time_alone_show_type_one() -> None:
    rows, _ = a_decoder().decode(batch([record(0), record(1)], append_time=5), 0, END)
    assert rows is not None
    assert rows.column("timestampType").to_pylist() == [1, 1]


def test_an_empty_batch_is_passed_over() -> None:
    empty = encode_batch([], base_offset=7, last_offset=9)
    assert a_decoder().decode(empty, 7, END) == (None, 10)


def test_nothing_fetched_means_go_on_from_start() -> None:
    assert a_decoder().decode(b"", 42, END) == (None, 42)


def test_a_batch_past_the_end_says_that_all_is_read() -> None:
    fetched = joined([batch([record(0), record(1)]), batch([record(50)])])
    rows, following = a_decoder().decode(fetched, 0, 20)
    assert [one.offset for one in records_in(rows)] == [0, 1]
    assert following == 20


def test_a_large_fetch_is_decoded_in_several_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_plan, "BYTES_AT_ONCE", 100)
    batches = [[record(offset + n, value=b"x" * 30) for n in range(2)] for offset in range(0, 20, 2)]
    fetched = joined(batch(one, codec=CODECS["zstd"] if one[0].offset % 4 else 0) for one in batches)
    decoder, seen, start, calls = a_decoder(), list[Record](), 0, 0
    while start < 20:
        rows, start = decoder.decode(fetched, start, END)
        seen += records_in(rows)
        calls += 1
    assert seen == [one for records in batches for one in records]
    assert calls == 10


def test_a_call_stops_at_the_most_rows_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_plan, "ROWS_AT_ONCE", 3)
    fetched = joined([batch([record(0), record(1)]), batch([record(2)]), batch([record(3)])])
    rows, following = a_decoder().decode(fetched, 0, END)
    assert [one.offset for one in records_in(rows)] == [0, 1, 2]
    assert following == 3


def test_rows_hold_no_more_memory_than_about_their_own() -> None:
    fetched = batch([record(n, value=bytes(1000)) for n in range(1000)])
    decoder = a_decoder()
    decoder.decode(fetched, 0, END)
    before = pa.total_allocated_bytes()
    all_rows, _ = decoder.decode(fetched, 0, END)
    assert pa.total_allocated_bytes() - before < 1.2 * len(fetched)
    before = pa.total_allocated_bytes()
    few_rows, _ = decoder.decode(fetched, 995, END)
    assert pa.total_allocated_bytes() - before < 0.02 * len(fetched)
    assert len(records_in(all_rows)) == 1000
    assert len(records_in(few_rows)) == 5


def test_constant_columns_serve_longer_and_shorter_fetches() -> None:
    decoder = a_decoder()
    for count in (1, 50, 3):
        rows, _ = decoder.decode(batch([record(n) for n in range(count)]), 0, END)
        assert len(records_in(rows)) == count


def _transactional(offset: int, producer: int, *, count: int = 2) -> bytearray:
    records = [record(offset + n) for n in range(count)]
    return batch(records, producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True)


def _marker(offset: int, producer: int, *, committed: bool) -> bytearray:
    marker = encode_marker(
        committed=committed, producer_id=producer, producer_epoch=0, coordinator_epoch=0, timestamp=0
    )
    marker[:8] = offset.to_bytes(8)
    return marker


def test_control_batches_are_never_shown() -> None:
    fetched = joined([_transactional(0, 1), _marker(2, 1, committed=True)])
    rows, following = a_decoder().decode(fetched, 0, END)
    assert [one.offset for one in records_in(rows)] == [0, 1]
    assert following == 3


def test_an_aborted_transaction_is_hidden_up_to_its_marker() -> None:
    fetched = joined(
        [
            _transactional(0, 1),
            _marker(2, 1, committed=True),
            _transactional(3, 1),
            _transactional(5, 2),
            batch([record(7)]),
            _marker(8, 1, committed=False),
            _transactional(9, 1),
            _marker(11, 2, committed=True),
            _marker(12, 1, committed=True),
        ]
    )
    rows, following = a_decoder().decode(fetched, 0, END, [(1, 3)])
    assert [one.offset for one in records_in(rows)] == [0, 1, 5, 6, 7, 9, 10]
    assert following == 13


def test_transactions_aborted_twice_are_hidden_twice() -> None:
    fetched = joined(
        [
            _transactional(0, 1),
            _marker(2, 1, committed=False),
            _transactional(3, 1),
            _marker(5, 1, committed=True),
            _transactional(6, 1),
            _marker(8, 1, committed=False),
        ]
    )
    rows, following = a_decoder().decode(fetched, 0, END, [(1, 6), (1, 0)])
    assert [one.offset for one in records_in(rows)] == [3, 4]
    assert following == 9


def test_a_second_call_with_the_same_bytes_still_knows_what_was_aborted() -> None:
    fetched = joined([_transactional(0, 1), _marker(2, 1, committed=False), _transactional(3, 1)])
    rows, following = a_decoder().decode(fetched, 3, END, [(1, 0)])
    assert [one.offset for one in records_in(rows)] == [3, 4]
    assert following == 5


def test_plain_batches_of_an_aborted_producer_are_shown() -> None:
    plain = batch([record(2)], producer_id=1, producer_epoch=0, base_sequence=2)
    rows, _ = a_decoder().decode(joined([_transactional(0, 1), plain]), 0, END, [(1, 0)])
    assert [one.offset for one in records_in(rows)] == [2]


def test_all_batches_hidden_give_no_rows_but_go_on() -> None:
    assert a_decoder().decode(_transactional(4, 1), 4, END, [(1, 4)]) == (None, 6)


def _refused(decoder: FetchDecoder, fetched: bytes, start: int = 0) -> ClientError:
    with pytest.raises(ClientError) as caught:
        decoder.decode(fetched, start, END)
    assert f"'{TOPIC}' partition 3" in caught.value.message
    return caught.value


def test_a_wrong_crc_is_refused_unless_it_is_not_looked_at() -> None:
    good = bytes(batch([record(10, value=b"AAAA")]))
    bad = good.replace(b"AAAA", b"AAAB")
    error = _refused(a_decoder(), joined([batch([record(9)]), bad]))
    assert error.code == "CORRUPT_MESSAGE"
    assert "offset 10" in error.message
    assert "CRC" in error.message
    rows, _ = a_decoder(check_crcs=False).decode(bad, 0, END)
    assert records_in(rows)[0].value == b"AAAB"


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_of_old_formats_are_refused_by_name(magic: int) -> None:
    message = (0).to_bytes(8) + (14).to_bytes(4) + bytes(4) + bytes([magic]) + bytes(9)
    for fetched in (message, message * 5):
        error = _refused(a_decoder(), fetched)
        assert error.code == "UNSUPPORTED_FOR_MESSAGE_FORMAT"
        assert f"v{magic}" in error.message


@pytest.mark.parametrize(
    ("position", "patch", "words"),
    [
        (0, b"\xff", "offset -"),
        (8, b"\0\0\0\x10", "28 bytes"),
        (16, b"\x07", "magic 7"),
        (22, b"\x05", "codec 5"),
        (23, b"\xff\xff\xff\xff", "delta -1"),
        (57, b"\xff\xff\xff\xff", "-1 records"),
        (57, b"\0\0\xff\xff", "cannot hold"),
        (57, b"\x7f\0\0\0", "too large"),
        (57, b"\0\0\0\x01", "follow the last record"),
        (57, b"\0\0\0\x03", "cut short"),
    ],
)
def test_a_head_that_cannot_be_is_refused(position: int, patch: bytes, words: str) -> None:
    fetched = batch([record(0, value=b"v" * 50), record(1, value=b"v" * 50)])
    fetched[position : position + len(patch)] = patch
    error = _refused(a_decoder(check_crcs=False), bytes(fetched))
    assert error.code == "CORRUPT_MESSAGE"
    assert words in error.message


def test_compressed_bytes_that_are_none_are_refused() -> None:
    fetched = batch([record(0)], codec=CODECS["zstd"])
    fetched[61:] = bytes(len(fetched) - 61)
    assert "decompressed" in _refused(a_decoder(check_crcs=False), bytes(fetched)).message


def test_a_control_batch_that_cannot_be_read_is_refused() -> None:
    broken = batch([record(2), record(3)], producer_id=1, producer_epoch=0, transactional=True, control=True)
    with pytest.raises(ClientError, match="control batch"):
        a_decoder().decode(joined([_transactional(0, 1), broken]), 0, END, [(1, 0)])
