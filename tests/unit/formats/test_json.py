"""JSON documents: the loop and the reader of single records agree, and both read as Spark does."""

import base64
import json
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from headrace.formats import types as t
from headrace.formats.errors import OptionError
from headrace.formats.json_codec import JsonColumnDecoder
from headrace.formats.payload import Decoded, payload_of_rows
from tests.support.spark.documents import batches

BAD = object()


def decoded(schema: str, rows: list[bytes | None], zone: str = "UTC") -> Decoded:
    found = JsonColumnDecoder(schema, zone).decode(payload_of_rows(rows))
    found.values.validate(full=True)
    return found


def value(spark_type: str, text: str, zone: str = "UTC") -> Any:
    """What a field of this type is read as, or BAD."""
    found = decoded(f"v {spark_type}", [f'{{"v": {text}}}'.encode()], zone)
    if found.errors:
        assert found.values[0].as_py() is None
        return BAD
    read = found.values[0].as_py()["v"]
    return str(read.replace(tzinfo=None)) if isinstance(read, datetime) else read


@pytest.mark.slow
@pytest.mark.parametrize("zone", ["UTC", "Europe/Paris"])
@settings(max_examples=200)
@given(batches())
def test_the_loop_reads_what_the_reader_of_single_records_reads(
    zone: str, case: tuple[t.StructType, list[bytes | None]]
) -> None:
    spark_type, rows = case
    codec = JsonColumnDecoder(spark_type.json(), zone)
    payload = payload_of_rows(rows)
    whole = codec.decode(payload)
    whole.values.validate(full=True)
    there = np.flatnonzero(payload.present)
    single, errors = codec.read_one_by_one(payload, there)
    assert whole.errors == errors
    assert pa.array(whole.errors.values(), pa.string()).null_count == 0
    assert repr(whole.values.take(there).to_pylist()) == repr(single.to_pylist())


@pytest.mark.parametrize("rest", [b'":[[],[]', b'":[[]]}', b'":[[1],[2]]}', b'":[[[[[[['])
def test_a_document_that_ends_inside_a_name_does_not_go_on_in_the_next_one(rest: bytes) -> None:
    """The names of fields are compared by words, which may lie across the end of a document."""
    rows: list[bytes | None] = [b'{"a', rest]
    found = decoded("a ARRAY<ARRAY<INT>>", rows)
    assert set(found.errors) == {0, 1}
    found = decoded("a ARRAY<ARRAY<INT>>", [*rows, b'{"a":[[1]]}'])
    assert found.values.to_pylist() == [None, None, {"a": [[1]]}]


@pytest.mark.parametrize("key", ['"k"', '"\\u006b"'], ids=["by the loop", "by itself"])
def test_a_map_has_all_entries_of_one_key_as_in_spark(key: str) -> None:
    assert value("MAP<STRING, INT>", f'{{"k": 1, {key}: 2}}') == [("k", 1), ("k", 2)]


def test_of_a_structs_fields_of_one_name_the_last_counts() -> None:
    assert value("STRUCT<a: INT>", '{"a": 1, "a": 2}') == {"a": 2}


INSTANTS = [
    ("2024-01-05T10:11:12Z", "2024-01-05 10:11:12"),
    ("2024-01-05T10:11:12.123456789Z", "2024-01-05 10:11:12.123456"),
    ("2024-01-05 10:11:12", "2024-01-05 10:11:12"),
    ("2024-01-05", "2024-01-05 00:00:00"),
    ("2024-1-5", "2024-01-05 00:00:00"),
    ("2024-01", "2024-01-01 00:00:00"),
    ("2024", "2024-01-01 00:00:00"),
    ("2024-01-05T10", "2024-01-05 10:00:00"),
    ("2024-01-05T10:11", "2024-01-05 10:11:00"),
    ("2024-01-05T10:11Z", BAD),
    ("2024-01-05T10:11:12+02:00", "2024-01-05 08:11:12"),
    ("2024-01-05T10:11:12+0200", "2024-01-05 08:11:12"),
    ("2024-01-05T10:11:12+02", "2024-01-05 08:11:12"),
    ("2024-01-05T10:11:12 Europe/Paris", "2024-01-05 09:11:12"),
    ("2024-01-05T10:11:12[Europe/Paris]", BAD),
    ("2024-01-05T10:11:12GMT", "2024-01-05 10:11:12"),
    ("2024-01-05T10:11:12.", "2024-01-05 10:11:12"),
    ("2024-01-05T10:11:60Z", BAD),
    ("2024-01-05T24:00:00Z", BAD),
    ("2024-13-05", BAD),
    ("2023-02-29", BAD),
    (" 2024-01-05 ", "2024-01-05 00:00:00"),
    ("2024-01-05T", BAD),
    ("0001-01-01", "0001-01-01 00:00:00"),
    ("20240105", BAD),
    ("2024-01-05t10:11:12z", BAD),
    ("2024-01-05T10:11:12GMT+1", "2024-01-05 09:11:12"),
    ("2024-01-05T10:11:12+19:00", BAD),
    ("2024-01-05T10:11:12-8", "2024-01-05 18:11:12"),
    ("2024-01-05T1:2:3Z", "2024-01-05 01:02:03"),
    ("2024-01-05 10:11:12.123 +02:00", "2024-01-05 08:11:12.123000"),
    ("2024-01-05T10:11:12+02:00:30", "2024-01-05 08:10:42"),
    ("2024-01-05T10:11:12UTC+3", "2024-01-05 07:11:12"),
    ("2024-01-05T10:11:12Zx", BAD),
    ("999999-01-01", BAD),
    ("abc", BAD),
    ("", BAD),
]
"""Texts, and what Spark 4.3 reads them as."""


@pytest.mark.parametrize(("text", "expected"), INSTANTS)
def test_a_timestamp_is_read_as_spark_reads_it(text: str, expected: Any) -> None:
    assert value("timestamp", json.dumps(text)) == expected


def test_a_timestamp_may_be_seconds_but_not_parts_of_them() -> None:
    assert value("timestamp", "1704449472") == "2024-01-05 10:11:12"
    assert value("timestamp", "1704449472.5") is BAD
    assert value("timestamp", "99999999999999") is BAD
    assert value("timestamp_ntz", "1704449472") is BAD


def test_a_timestamp_of_no_zone_has_no_zone() -> None:
    assert value("timestamp_ntz", '"2024-01-05T10:11:12.5"') == "2024-01-05 10:11:12.500000"
    assert value("timestamp_ntz", '"2024-01-05T10:11:12Z"') is BAD


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2024-07-01T12:00:00", "2024-07-01 10:00:00"),
        ("2024-03-31T02:30:00", "2024-03-31 01:30:00"),
        ("2024-10-27T02:30:00", "2024-10-27 00:30:00"),
        ("2024-10-27T02:30:00Z", "2024-10-27 02:30:00"),
    ],
)
def test_a_time_without_a_zone_is_of_the_zone_that_was_set_skipped_and_doubled_hours_as_java_reads_them(
    text: str, expected: str
) -> None:
    assert value("timestamp", json.dumps(text), "Europe/Paris") == expected


def test_many_times_of_a_zone_are_read_as_each_of_them_is() -> None:
    texts = ["2024-03-31T01:59:59", "2024-03-31T02:30:00", "2024-03-31T02:30:00Z", "2024-10-27T02:59:59"]
    rows: list[bytes | None] = [json.dumps({"v": text}).encode() for text in texts]
    found = decoded("v timestamp", [*rows, None], "Europe/Paris").values.to_pylist()
    assert [read and str(read["v"].replace(tzinfo=None)) for read in found] == [
        *(value("timestamp", json.dumps(text), "Europe/Paris") for text in texts),
        None,
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"2024-01-05"', date(2024, 1, 5)),
        ('"2024-1-5"', date(2024, 1, 5)),
        ('"2024-01-05T10:11:12Z"', date(2024, 1, 5)),
        ('"2024-01-05 abc"', date(2024, 1, 5)),
        ('"2024-02-29"', date(2024, 2, 29)),
        ('"2024"', date(2024, 1, 1)),
        ('"2023-02-29"', BAD),
        ('"20240105"', BAD),
        ("19000", BAD),
    ],
)
def test_a_date_is_read_as_spark_reads_it(text: str, expected: Any) -> None:
    assert value("date", text) == expected


@pytest.mark.parametrize(
    ("spark_type", "text", "expected"),
    [
        ("int", "1", 1),
        ("int", "-2147483648", -(2**31)),
        ("int", "2147483648", BAD),
        ("int", "1.0", BAD),
        ("int", "1e2", BAD),
        ("int", '"1"', BAD),
        ("int", "true", BAD),
        ("tinyint", "128", BAD),
        ("bigint", "9223372036854775807", 2**63 - 1),
        ("bigint", "-9223372036854775808", -(2**63)),
        ("bigint", "9223372036854775808", BAD),
        ("bigint", "99999999999999999999", BAD),
        ("double", "1", 1.0),
        ("double", "0.30000000000000004", 0.30000000000000004),
        ("double", "1e400", float("inf")),
        ("double", "5e-324", 5e-324),
        ("double", '"-INF"', float("-inf")),
        ("double", "Infinity", float("inf")),
        ("double", '"1.5"', BAD),
        ("float", "16777217", 16777216.0),
        ("float", "1e39", float("inf")),
        ("float", "0.1", float(np.float32("0.1"))),
        ("boolean", "false", False),
        ("boolean", '"true"', BAD),
        ("boolean", "1", BAD),
        ("decimal(5,2)", "1", Decimal("1.00")),
        ("decimal(5,2)", "-0.07", Decimal("-0.07")),
        ("decimal(5,2)", "1.115", Decimal("1.12")),
        ("decimal(5,2)", '"1.5"', Decimal("1.50")),
        ("decimal(5,2)", '"1,0.5"', Decimal("10.50")),
        ("decimal(5,2)", "999.995", BAD),
        ("decimal(5,2)", "1000", BAD),
        ("decimal(5,2)", "1e2", Decimal("100.00")),
        ("decimal(5,2)", "0e99", Decimal("0.00")),
        ("decimal(5,2)", '"1.5d"', BAD),
        ("decimal(38,0)", "9" * 38, Decimal("9" * 38)),
        ("decimal(38,0)", "-" + "9" * 39, BAD),
        ("string", "1.50", "1.50"),
        ("string", "true", "true"),
        ("string", '{"a": 1, "b" : [1, "x\\u00e9"]}', '{"a":1,"b":[1,"xé"]}'),
        ("string", '"\\ud83d\\ude00\\/\\n"', "😀/\n"),
        ("string", '"\\ud800"', BAD),
        ("string", '"\\q"', BAD),
        ("binary", '"aGk="', b"hi"),
        ("binary", '"aGk"', BAD),
        ("array<int>", "[1, null]", [1, None]),
        ("array<int>", '["x"]', BAD),
        ("array<int>", "1", BAD),
        ("map<string,int>", '{"a": 1, "b": null}', [("a", 1), ("b", None)]),
        ("map<string,int>", '{"a": "x"}', BAD),
        ("struct<a:int,b:string>", '{"b": "y", "c": [{}]}', {"a": None, "b": "y"}),
        ("struct<a:int>", '{"a": 1, "a": 2}', {"a": 2}),
        ("struct<a:int>", '{"a": 1, "a": null}', {"a": None}),
        ("struct<a:int>", '{"\\u0061": 1}', {"a": 1}),
        ("struct<a:int>", '{"A": 1}', {"a": None}),
        ("struct<a:int>", "[]", BAD),
    ],
)
def test_a_value_is_read_as_spark_reads_it_or_bad(spark_type: str, text: str, expected: Any) -> None:
    assert value(spark_type, text) == expected
    assert value(spark_type, "null") is None


NO_DOCUMENTS = [
    *(b"", b" ", b"null", b"[]", b'[{"v":1}]', b"1", b'{"v":1', b'{"v":1,}', b'{"v" 1}', b"{'v':1}", b"{v:1}", b"{,}"),
    *(b'{"v":01}', b'{"v":1}x', b'{"v":1}{"v":2}', b"\xef\xbb\xbf{}", b'{"w":"a\nb"}', b'{"v":+1}', b'{"w":"\xff"}'),
    *(b"[" * 100_000, b'{"w":' * 5000 + b"1" + b"}" * 5000, b'{"w":"\xed\xa0\x80"}', b"\xff\xfe{\0}\0"),
]


@pytest.mark.parametrize("raw", NO_DOCUMENTS)
def test_what_is_no_document_is_bad_whatever_is_beside_it(raw: bytes) -> None:
    found = decoded("v int", [b'{"v":1}', raw, b'{"v":2}'])
    assert set(found.errors) == {1}
    assert found.values.to_pylist() == [{"v": 1}, None, {"v": 2}]


def test_spaces_and_line_breaks_may_stand_between_all_parts() -> None:
    text = b' \n{ "v" : 1 ,\r\n "w" :\t[ 1 , 2 ] , "m" : { "k" : "x" } , "e" : [ ] , "o" : { } }\n'
    found = decoded("v int, w array<int>, m map<string,string>, e array<int>, o map<string,int>", [text])
    assert found.errors == {}
    assert found.values.to_pylist() == [{"v": 1, "w": [1, 2], "m": [("k", "x")], "e": [], "o": []}]


def test_a_tombstone_is_null_and_not_bad() -> None:
    found = decoded("v int", [None, b"{}"])
    assert (found.values.to_pylist(), found.errors) == ([None, {"v": None}], {})


def test_fields_come_in_any_order_and_unknown_ones_are_passed_over() -> None:
    text = b'{"x": {"a": [1, {"b": "}]"}], "v": 9}, "b": 2, "y": -1.5e3, "z": "\\"", "a": 1, "t": true, "n": null}'
    assert decoded("a int, b int, v int", [text]).values.to_pylist() == [{"a": 1, "b": 2, "v": None}]


@pytest.mark.parametrize("name", ['q"uote', "back\\slash", "li\nne", '"'])
def test_a_name_with_what_must_be_escaped_is_found_escaped_and_nowhere_else(name: str) -> None:
    spark_type = t.StructType([t.StructField("a", t.IntegerType()), t.StructField(name, t.StringType())])
    rows = [json.dumps({"a": 1, name: "x"}).encode(), f'{{"a": 1, "{name}": "x"}}'.encode(), b'{"a": 1}']
    rows += [row.replace(b" ", b"") for row in rows]
    found = decoded(spark_type.json(), list(rows))
    assert found.values.to_pylist() == [{"a": 1, name: "x"}, None, {"a": 1, name: None}] * 2
    assert set(found.errors) == {1, 4}


def test_names_alike_in_different_structs_are_kept_apart() -> None:
    text = b'{"a": {"id": 1, "b": {"id": 2}}, "l": [{"id": 3}, {"no": 0, "id": 4}], "id": 5}'
    schema = "id int, a struct<b:struct<id:int>,id:int>, l array<struct<id:int>>"
    found = decoded(schema, [text, text]).values.to_pylist()
    assert found == [{"id": 5, "a": {"b": {"id": 2}, "id": 1}, "l": [{"id": 3}, {"id": 4}]}] * 2


def test_lists_longer_than_was_thought_find_room_and_strings_with_escapes_keep_theirs() -> None:
    rows = [
        {"t": [f'"{n}\n' for n in range(size)], "m": {f"k{n}": n for n in range(size)}} for size in (0, 500, 3, 900)
    ]
    found = decoded("t array<string>, m map<string,int>", [json.dumps(row).encode() for row in rows])
    assert found.errors == {}
    assert [{"t": read["t"], "m": dict(read["m"])} for read in found.values.to_pylist()] == rows


def test_the_reason_names_the_place_and_the_value() -> None:
    rows: list[bytes | None] = [b'{"a": {"b": [{"c": "x"}]}}', b'{"a": {"b": 1}}', b'{"a": [1]}', b'{"a"']
    errors = decoded("a struct<b:array<struct<c:int>>>", rows).errors
    assert errors[0] == 'a.b[].c: "x" is not int'
    assert errors[1] == "a.b: 1 is not a list"
    assert errors[2] == "a: a list is not an object"
    assert errors[3].startswith("not JSON: ")


def test_a_reason_can_always_be_shown() -> None:
    assert decoded("a int", [b'{"a": "\\ud800"}']).errors == {0: 'a: "\\ud800" is not int'}


def test_long_values_are_cut_in_reasons() -> None:
    assert len(decoded("a int", [b'{"a": "' + b"x" * 10_000 + b'"}']).errors[0]) < 100


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("a map<int,string>", "value.a is a map, whose keys can only be STRING in JSON"),
        (t.StructType([t.StructField("a", t.NullType())]).json(), "value.a has the type void"),
        (t.StructType([t.StructField("a", t.ArrayType(t.OtherType("variant")))]).json(), "the type variant"),
    ],
)
def test_a_type_that_json_cannot_give_is_refused(schema: str, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        JsonColumnDecoder(schema, "UTC").check()


def test_binary_is_base64() -> None:
    data = bytes(range(256))
    assert value("binary", json.dumps(base64.b64encode(data).decode())) == data
