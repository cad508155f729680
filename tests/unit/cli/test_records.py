import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.console import Failure
from headrace.cli.records import Recipe, csv_records, json_records, paced, pieces, records_of, whole_file
from headrace.client.writer import OutgoingRecord

pytestmark = pytest.mark.slow


def ignore(_amount: int) -> None:
    return None


class Drops(io.BytesIO):
    """A stream that gives a byte at a time."""

    def read1(self, _size: int | None = -1, /) -> bytes:
        return super().read1(1)


@given(parts=st.lists(st.binary(max_size=20)), separator=st.sampled_from([b"\n", b"\0", b"||", b"abc"]))
def test_pieces_do_not_depend_on_how_the_bytes_arrive(parts: list[bytes], separator: bytes) -> None:
    data = separator.join(parts)
    expected = data.split(separator)
    if not expected[-1]:
        expected.pop()
    assert list(pieces(io.BytesIO(data), separator, "x", ignore)) == expected
    assert list(pieces(Drops(data), separator, "x", ignore)) == expected


def test_each_line_is_given_before_the_next_is_read() -> None:
    stream = Drops(b"one\ntwo\n")
    assert next(pieces(stream, b"\n", "x", ignore)) == b"one"
    assert stream.tell() == 4


def test_a_record_without_end_is_refused_before_memory_is_full() -> None:
    with pytest.raises(Failure, match="more than 10 bytes"):
        list(pieces(Drops(b"x" * 100), b"\n", "standard input", ignore, limit=10))


def test_an_empty_line_is_an_empty_record_and_a_carriage_return_belongs_to_the_line_end() -> None:
    found = list(records_of(io.BytesIO(b"a\r\n\nb"), Recipe(), b"\n", "x", ignore))
    assert [r.value for r in found] == [b"a", b"", b"b"]


def test_keys_headers_and_tombstones() -> None:
    recipe = Recipe(key_separator=b":", null_value=b"NULL", headers=[("h", b"1"), ("h", b"2")], timestamp=5)
    assert recipe.record(b"k:v:w", 1, "x") == OutgoingRecord(
        key=b"k", value=b"v:w", headers=[("h", b"1"), ("h", b"2")], timestamp=5
    )
    assert recipe.record(b"k:NULL", 1, "x").value is None


def test_a_missing_key_names_the_record() -> None:
    source = records_of(io.BytesIO(b"a:1\nb"), Recipe(key_separator=b":"), b"\n", "'in.txt'", ignore)
    with pytest.raises(Failure, match=r"record 2 of 'in\.txt' has no key separator ':'"):
        list(source)


def test_a_whole_file_is_one_record() -> None:
    seen: list[int] = []
    (record,) = whole_file(io.BytesIO(b"a\nb\n"), Recipe(key=b"k"), "x", seen.append)
    assert (record.key, record.value, seen) == (b"k", b"a\nb\n", [4])


def test_a_rate_spaces_records_evenly() -> None:
    time = 0.0

    def wait(seconds: float) -> None:
        nonlocal time
        time += seconds

    list(paced(iter([OutgoingRecord(value=b"")] * 11), 5.0, lambda: time, wait))
    assert time == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (b'[["a", "1"], ["a", null]]', [("a", b"1"), ("a", None)]),
        (b'{"a": "1", "b": {"base64": "/w=="}, "c": null}', [("a", b"1"), ("b", b"\xff"), ("c", None)]),
        (b'[{"name": "a", "value": "1"}]', [("a", b"1")]),
        (b"[]", None),
        (b"null", None),
    ],
)
def test_headers_of_json_are_pairs_or_an_object(headers: bytes, expected: object) -> None:
    line = b'{"value": "v", "headers": %s}' % headers
    (record,) = json_records(io.BytesIO(line), Recipe(), "x", ignore)
    assert record.headers == expected


def test_a_record_of_json_goes_to_the_partition_it_names() -> None:
    lines = b'{"value": "v", "partition": 1}\n{"value": "v"}\n'
    assert [r.partition for r in json_records(io.BytesIO(lines), Recipe(), "x", ignore, partitions=2)] == [1, -1]
    assert [r.partition for r in json_records(io.BytesIO(lines), Recipe(), "x", ignore)] == [-1, -1]


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        (b'{"value": "\\ud800"}', "surrogates not allowed"),
        (b'{"value": {"a": "\\ud800"}}', "surrogates not allowed"),
        (b'{"value": 1, "headers": {"\\ud800": "x"}}', "surrogates not allowed"),
        (b'{"value": {"base64": "no!"}}', "base64"),
        (b'{"value": 1, "timestamp": 1e30}', r"timestamp 1e\+30 is not a number of milliseconds"),
        (b'{"value": 1, "timestamp": Infinity}', "timestamp Infinity is not a number of milliseconds"),
        (b'{"value": 1, "timestamp": {}}', None),
        (b'{"value": 1, "timestamp": [1]}', r"timestamp \[1\] is not a number of milliseconds"),
        (b'{"value": 1, "headers": 5}', "headers 5 are not"),
        (b'{"value": 1, "headers": [{"a": "1", "b": "2"}]}', "headers .* are not"),
        (b'{"value": 1, "partition": 2}', "partition 2: the topic has 2, from 0 to 1"),
        (b'{"value": 1, "partition": true}', "partition true: the topic has 2"),
        (b'{"value": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "is nested too deeply"),
        (b'{"value": 1, "value_schema_id": "7"}', 'value_schema_id "7" is not the id of a schema'),
    ],
)
def test_what_is_wrong_with_a_record_of_json_is_told_with_its_number(line: bytes, wrong: str | None) -> None:
    recipe = Recipe(encode_by_id=lambda *_: b"\0")
    found = json_records(io.BytesIO(line), recipe, "'in'", ignore, partitions=2)
    if wrong is None:
        assert next(found).timestamp == 0
        return
    with pytest.raises(Failure, match=rf"record 1 of 'in'.*{wrong}"):
        next(found)


def test_a_cell_of_csv_may_be_as_large_as_a_record() -> None:
    text = b"a\n" + b"x" * 200_000 + b"\n"
    (record,) = csv_records(io.BytesIO(text), Recipe(), "x", ignore)
    assert record.value is not None
    assert len(record.value) > 200_000
