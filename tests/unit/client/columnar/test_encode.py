"""Arrow columns to record batches, against the plain decoder of `protocol.records`."""

from datetime import date
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.columnar.encode import EncodedBatch, encode_rows, seal_for
from headrace.client.columnar.model import HEADERS
from headrace.client.errors import ClientError
from headrace.protocol.batch import check_batch, read_header
from headrace.protocol.compression import CODECS
from headrace.protocol.records import Record, decode_records
from tests.support.columnar.batches import a_decoder, record, records_in, some_records

NOW = 1_700_000_000_123


def _rows(records: list[Record], kind: pa.DataType | None = None) -> pa.RecordBatch:
    kind = kind or pa.binary()
    return pa.RecordBatch.from_arrays(
        [
            pa.array([one.key for one in records], kind),
            pa.array([one.value for one in records], kind),
            pa.array([one.timestamp for one in records], pa.timestamp("ms", tz="UTC")),
            pa.array([[{"key": k, "value": v} for k, v in one.headers] or None for one in records], HEADERS),
        ],
        names=["key", "value", "timestamp", "headers"],
    )


def _decoded(batches: list[EncodedBatch]) -> list[Record]:
    """The records of sealed batches, numbered through; each batch is one that a broker takes."""
    records: list[Record] = []
    for one in batches:
        seal_for(one, -1, -1, -1, transactional=False)
        head = check_batch(memoryview(one.data))
        inside = decode_records(one.data)
        assert [each.offset for each in inside] == list(range(one.count))
        assert head.base_timestamp == inside[0].timestamp
        assert head.max_timestamp == max(each.timestamp for each in inside)
        records += inside
    return [one._replace(offset=n) for n, one in enumerate(records)]


def _column(name: str, values: pa.Array, **options: Any) -> list[Record]:
    columns = {"value": pa.array([b"v"] * len(values)), name: values}
    return _decoded(encode_rows(pa.RecordBatch.from_pydict(columns), now_ms=NOW, **options))


@given(some_records(), st.sampled_from(sorted(CODECS)), st.integers(1, 600))
def test_every_row_comes_out_as_it_went_in(records: list[Record], compression: str, batch_bytes: int) -> None:
    batches = encode_rows(_rows(records), compression=compression, batch_bytes=batch_bytes, now_ms=NOW)
    assert _decoded(batches) == records


@given(some_records(most=20), st.data())
def test_a_slice_gives_the_rows_of_the_slice(records: list[Record], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(records) - 1))
    last = data.draw(st.integers(first, len(records)))
    batches = encode_rows(_rows(records)[first:last], now_ms=NOW)
    assert _decoded(batches) == [one._replace(offset=n) for n, one in enumerate(records[first:last])]


@given(some_records(), st.sampled_from(sorted(CODECS)))
def test_what_is_encoded_the_decoder_reads(records: list[Record], compression: str) -> None:
    (batch,) = encode_rows(_rows(records), compression=compression, now_ms=NOW)
    seal_for(batch, -1, -1, -1, transactional=False)
    rows, following = a_decoder().decode(batch.data, 0, 2**62)
    assert records_in(rows) == records
    assert following == len(records)


@given(some_records(), st.integers(70, 400))
def test_batches_are_as_full_as_they_may_be(records: list[Record], batch_bytes: int) -> None:
    batches = encode_rows(_rows(records), batch_bytes=batch_bytes, now_ms=NOW)
    sizes = [len(one.data) for one in batches]
    assert all(len(one.data) <= batch_bytes or one.count == 1 for one in batches)
    whole = encode_rows(_rows(records), batch_bytes=2**20, now_ms=NOW)
    assert len(whole) == 1
    assert (len(batches) == 1) == (len(whole[0].data) <= batch_bytes or len(records) == 1)
    assert sum(one.count for one in batches) == len(records)
    assert max(sizes) <= max(batch_bytes, *(len(one.value or b"") + 600 for one in records))


def test_a_record_larger_than_a_batch_goes_alone() -> None:
    values = [b"a", b"b" * 5000, b"c", b"d"]
    batches = encode_rows(pa.RecordBatch.from_pydict({"value": values}), batch_bytes=200, now_ms=NOW)
    assert [one.count for one in batches] == [1, 1, 2]
    assert [one.value for one in _decoded(batches)] == values


@pytest.mark.parametrize(
    "kind", [pa.binary(), pa.string(), pa.large_binary(), pa.large_string(), pa.binary_view(), pa.string_view()]
)
def test_keys_and_values_may_be_of_any_type_that_holds_bytes(kind: pa.DataType) -> None:
    texts = ["first", None, "", "fourth, and longer than a view holds"]
    column = pa.array(texts, pa.string()).cast(kind)
    expected = [text if text is None else text.encode() for text in texts]
    for values, wanted in ((column, expected), (column[1:], expected[1:])):
        records = _decoded(encode_rows(pa.RecordBatch.from_pydict({"key": values, "value": values}), now_ms=NOW))
        assert [one.key for one in records] == [one.value for one in records] == wanted


def test_dictionaries_fixed_sizes_and_nulls_hold_bytes_too() -> None:
    assert [one.key for one in _column("key", pa.array(["a", None, "a"]).dictionary_encode())] == [b"a", None, b"a"]
    assert [one.key for one in _column("key", pa.array([b"aa", None], pa.binary(2)))] == [b"aa", None]
    assert [one.key for one in _column("key", pa.nulls(2))] == [None, None]


def test_rows_need_nothing_but_a_value() -> None:
    records = _decoded(encode_rows(pa.RecordBatch.from_pydict({"value": [b"x", None]}), now_ms=NOW))
    assert records == [Record(0, NOW, None, b"x"), Record(1, NOW, None, None)]


@pytest.mark.parametrize(
    ("kind", "ticks"),
    [
        (pa.timestamp("s"), 1_700_000_000),
        (pa.timestamp("ms", tz="UTC"), 1_700_000_000_000),
        (pa.timestamp("us", tz="Asia/Tokyo"), 1_700_000_000_000_999),
        (pa.timestamp("ns"), 1_700_000_000_000_999_999),
    ],
)
def test_times_of_any_unit_become_milliseconds_and_missing_ones_now(kind: pa.DataType, ticks: int) -> None:
    times = pa.array([0, ticks, None, -ticks], pa.int64()).cast(kind)
    found = [one.timestamp for one in _column("timestamp", times[1:])]
    assert found[:2] == [1_700_000_000_000, NOW]
    assert found[2] in (-1_700_000_000_000, -1_700_000_000_001)


def test_dates_and_missing_columns_of_times() -> None:
    assert [one.timestamp for one in _column("timestamp", pa.array([date(1970, 1, 2), None]))] == [86_400_000, NOW]
    assert [one.timestamp for one in _column("timestamp", pa.array([86_400_000], pa.date64()))] == [86_400_000]
    assert [one.timestamp for one in _column("timestamp", pa.nulls(1))] == [NOW]


def test_headers_may_be_large_lists_or_maps() -> None:
    wanted = [(("a", b"1"), ("b", None)), (), (("c", b""),)]
    pairs = [None if not one else [{"key": k, "value": v} for k, v in one] for one in wanted]
    lists = pa.array(pairs, HEADERS)
    large = lists.cast(pa.large_list(HEADERS.value_type))
    maps = pa.array(wanted, pa.map_(pa.string(), pa.binary()))
    for column in (lists, large, maps):
        assert [one.headers for one in _column("headers", column)] == wanted
        assert [one.headers for one in _column("headers", column[1:])] == wanted[1:]


def test_headers_under_a_null_list_are_not_written() -> None:
    children = pa.array([{"key": "a", "value": b"1"}] * 2, HEADERS.value_type)
    offsets = pa.py_buffer(pa.array([0, 1, 2], pa.int32()).buffers()[1])
    bits = pa.py_buffer(b"\x02")
    column = pa.Array.from_buffers(HEADERS, 2, [bits, offsets], children=[children])
    assert [one.headers for one in _column("headers", column)] == [(), (("a", b"1"),)]


def test_headers_may_be_cut_out_of_a_longer_array() -> None:
    pairs = pa.array([{"key": key, "value": key.encode()} for key in "xabc"], HEADERS.value_type)[1:]
    column = pa.ListArray.from_arrays(pa.array([0, 1, 1, 3], pa.int32()), pairs)
    assert [one.headers for one in _column("headers", column)] == [(("a", b"a"),), (), (("b", b"b"), ("c", b"c"))]


def test_a_header_without_a_key_is_refused_with_its_row() -> None:
    for pair in ({"key": None, "value": b"1"}, None):
        headers = pa.array([[], [{"key": "a", "value": b"1"}], [pair]], HEADERS)
        with pytest.raises(ClientError, match="header of row 2 has no key"):
            _column("headers", headers)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"key": [b"k"]}, "need a column 'value'"),
        ({"value": [1]}, "column 'value' must hold binary or strings, not int64"),
        ({"value": [b"v"], "key": [1.5]}, "column 'key' must hold binary or strings, not double"),
        ({"value": [b"v"], "timestamp": [1]}, "column 'timestamp' must hold timestamps or dates, not int64"),
        ({"value": [b"v"], "headers": [["a"]]}, "column 'headers' must hold lists of structs"),
    ],
)
def test_columns_of_the_wrong_type_are_refused_by_name(columns: dict[str, list[Any]], words: str) -> None:
    with pytest.raises(ClientError, match=words):
        encode_rows(pa.RecordBatch.from_pydict(columns), now_ms=NOW)


def test_settings_that_cannot_be_are_refused() -> None:
    rows = pa.RecordBatch.from_pydict({"value": [b"v"]})
    with pytest.raises(ClientError, match="no compression 'zip'; use one of none, gzip, snappy, lz4, zstd"):
        encode_rows(rows, compression="zip", now_ms=NOW)
    with pytest.raises(ClientError, match="between 1 and"):
        encode_rows(rows, batch_bytes=0, now_ms=NOW)
    with pytest.raises(ClientError, match="level of gzip must be between 1 and 9, not 10"):
        encode_rows(rows, compression="gzip", level=10, now_ms=NOW)


@pytest.mark.parametrize(("compression", "level"), [("none", 99), ("snappy", 99), ("gzip", 9), ("lz4", 9), ("zstd", 1)])
def test_levels_are_taken_where_there_are_any(compression: str, level: int) -> None:
    rows = pa.RecordBatch.from_pydict({"value": [b"v" * 1000]})
    records = _decoded(encode_rows(rows, compression=compression, level=level, now_ms=NOW))
    assert [one.value for one in records] == [b"v" * 1000]


def test_a_few_rows_take_little_memory() -> None:
    rows = pa.RecordBatch.from_pydict({"value": [b"v"]})
    before = pa.total_allocated_bytes()
    batches = [encode_rows(rows, now_ms=NOW) for _ in range(100)]
    assert len(batches) == 100
    assert pa.total_allocated_bytes() - before < 100 * 1024


def test_values_that_repeat_in_a_dictionary_still_fill_their_batches() -> None:
    values = pa.array(["x" * 1000] * 1000).dictionary_encode()
    (batch,) = encode_rows(pa.RecordBatch.from_pydict({"value": values}), batch_bytes=2 << 20, now_ms=NOW)
    assert batch.count == 1000


def test_no_rows_make_no_batch() -> None:
    assert encode_rows(pa.RecordBatch.from_pydict({"value": pa.array([], pa.binary())}), now_ms=NOW) == []


def test_a_batch_is_sealed_for_one_producer_and_then_for_another() -> None:
    (batch,) = encode_rows(_rows([record(0)]), compression="lz4", now_ms=NOW)
    seal_for(batch, 7, 1, 42, transactional=True)
    head = check_batch(memoryview(batch.data))
    assert (head.producer_id, head.producer_epoch, head.base_sequence) == (7, 1, 42)
    assert head.is_transactional
    assert head.codec == CODECS["lz4"]
    seal_for(batch, 8, 2, 0, transactional=False)
    head = check_batch(memoryview(batch.data))
    assert (head.producer_id, head.producer_epoch, head.base_sequence) == (8, 2, 0)
    assert not head.is_transactional
    assert read_header(batch.data).leader_epoch == -1
