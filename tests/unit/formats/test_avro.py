"""Avro records: what fastavro writes is what the columns say, and what is no record is bad."""

import io
import json
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.formats.avro import AvroColumnDecoder
from headrace.formats.errors import OptionError
from headrace.formats.payload import Decoded, payload_of_rows
from tests.support.spark.schemas import records


def record(**fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields.items()]}


def encoded(schema: Any, values: list[Any]) -> list[bytes]:
    parsed = fastavro.parse_schema(schema)
    rows = []
    for value in values:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, value)
        rows.append(out.getvalue())
    return rows


def decoded(schema: Any, rows: list[bytes | None]) -> Decoded:
    found = AvroColumnDecoder(json.dumps(schema)).decode(payload_of_rows(rows))
    found.values.validate(full=True)
    return found


def one(schema: Any, value: Any) -> Any:
    found = decoded(schema, list(encoded(schema, [value])))
    assert found.errors == {}
    return found.values[0].as_py()


@given(records())
def test_records_of_any_schema_are_read_as_they_were_written(case: tuple[Any, list[Any], list[Any]]) -> None:
    schema, values, expected = case
    found = decoded(schema, list(encoded(schema, values)))
    assert found.errors == {}
    assert found.values.to_pylist() == expected


@given(records(), st.data())
def test_a_record_that_is_cut_anywhere_is_bad_and_its_neighbours_are_not(
    case: tuple[Any, list[Any], list[Any]], data: Any
) -> None:
    schema, values, expected = case
    rows = encoded(schema, values)
    cut = data.draw(st.sampled_from(rows)) if rows else b""
    short = cut[: data.draw(st.integers(0, max(len(cut) - 1, 0)))]
    found = decoded(schema, [*rows, short, *rows])
    if short != cut:
        assert set(found.errors) == {len(rows)}
        assert found.values[len(rows)].as_py() is None
    assert found.values.to_pylist()[: len(rows)] == expected
    assert found.values.to_pylist()[len(rows) + 1 :] == expected


@given(records(), st.lists(st.binary(max_size=30), max_size=4))
def test_any_bytes_are_a_record_or_bad(case: tuple[Any, list[Any], list[Any]], rows: list[bytes]) -> None:
    found = decoded(case[0], list(rows))
    assert all((value is None) == (row in found.errors) for row, value in enumerate(found.values.to_pylist()))


def test_types_are_those_of_sparks_own_reader() -> None:
    fixed = {"type": "fixed", "name": "F", "size": 2}
    schema = record(
        a="int",
        b={"type": "int", "logicalType": "date"},
        c={"type": "long", "logicalType": "timestamp-millis"},
        d={"type": "long", "logicalType": "local-timestamp-micros"},
        e={"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        f=["null", "long"],
        g=["int", "long", "null"],
        h=["float", "double"],
        i=["string", "int"],
        j={"type": "map", "values": {"type": "array", "items": ["null", fixed]}},
        k={"type": "enum", "name": "E", "symbols": ["X"]},
        m="null",
        n=["F"],
        o={"type": "string", "logicalType": "uuid"},
        p={"type": "int", "logicalType": "time-millis"},
    )
    assert AvroColumnDecoder(json.dumps(schema)).spark_type.simple_string() == (
        "struct<a:int,b:date,c:timestamp,d:timestamp_ntz,e:decimal(9,2),f:bigint,g:bigint,h:double,"
        "i:struct<member0:string,member1:int>,j:map<string,array<binary>>,k:string,m:void,n:binary,o:string,p:int>"
    )


def test_a_union_of_two_widths_is_the_wider() -> None:
    schema = record(a=["int", "long"], b=["float", "double"], c=["null", "int", "long"])
    assert one(schema, {"a": 1, "b": 0.5, "c": None}) == {"a": 1, "b": 0.5, "c": None}
    assert one(schema, {"a": 2**40, "b": 0.1, "c": 3}) == {"a": 2**40, "b": pytest.approx(0.1), "c": 3}


def test_a_named_type_may_be_used_again() -> None:
    place = {"type": "record", "name": "shop.Place", "fields": [{"name": "city", "type": "string"}]}
    schema = record(a=place, b=["null", "shop.Place"])
    assert one(schema, {"a": {"city": "Oslo"}, "b": {"city": "Bergen"}}) == {
        "a": {"city": "Oslo"},
        "b": {"city": "Bergen"},
    }


def test_an_array_may_come_in_several_blocks_and_with_their_sizes() -> None:
    schema = record(a={"type": "array", "items": "int"})
    assert decoded(schema, [b"\2\2\4\4\6\0", b"\3\4\2\4\0"]).values.to_pylist() == [{"a": [1, 2, 3]}, {"a": [1, 2]}]


def test_arrays_longer_than_was_thought_find_room() -> None:
    schema = record(a={"type": "array", "items": {"type": "map", "values": "string"}}, b="long")
    values = [{"a": [{f"k{n}": "v" * n} for n in range(count)], "b": count} for count in (0, 300, 1, 700, 2)]
    found = decoded(schema, list(encoded(schema, values)))
    assert [len(value["a"]) for value in found.values.to_pylist()] == [0, 300, 1, 700, 2]
    assert found.values[3]["a"][699].as_py() == [("k699", "v" * 699)]


@pytest.mark.parametrize(
    ("schema", "raw", "said"),
    [
        (record(a="string"), b"\x08ab", "cut short"),
        (record(a="string"), b"\x01", "cut short"),
        (record(a="string"), b"\x02\xff", "not UTF-8"),
        (record(a="int"), b"\x80\x80\x80\x80\x10", "out of range"),
        (record(a="int"), b"\xff" * 11, "cut short"),
        (record(a="boolean"), b"\x02", "out of range"),
        (record(a=["null", "int"]), b"\x04\x02", "no such branch"),
        (record(a="int"), b"\x02\x02", "left over"),
        (record(a="int"), b"", "cut short"),
        (record(a={"type": "enum", "name": "E", "symbols": ["X"]}), b"\x02", "out of range"),
        (record(a={"type": "array", "items": "int"}), b"\xfe\xff\xff\xff\x0f\x02", "cut short"),
        (record(a={"type": "long", "logicalType": "timestamp-millis"}), b"\xfe" + b"\xff" * 8 + b"\1", "out of range"),
        (record(a={"type": "bytes", "logicalType": "decimal", "precision": 2}), b"\x02\x64", "out of range"),
        (record(a={"type": "bytes", "logicalType": "decimal", "precision": 2}), b"\x00", "out of range"),
        (
            record(a={"type": "bytes", "logicalType": "decimal", "precision": 38}),
            b"\x24\1" + b"\0" * 17,
            "out of range",
        ),
    ],
)
def test_what_is_no_record_is_bad_with_the_reason_and_the_place(schema: Any, raw: bytes, said: str) -> None:
    found = decoded(schema, [raw])
    assert said in found.errors[0]
    assert "at byte" in found.errors[0]


def test_decimals_may_have_more_bytes_than_they_need() -> None:
    schema = record(a={"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2})
    rows = [b"\x28" + b"\xff" * 19 + b"\x9c", b"\x28" + b"\0" * 19 + b"\x64"]
    assert [value["a"] for value in decoded(schema, list(rows)).values.to_pylist()] == [
        Decimal("-1.00"),
        Decimal("1.00"),
    ]


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("not json", "not an Avro schema in JSON"),
        ('{"type": "record"}', "not a valid Avro schema"),
        ('"string"', "must be a record at its top level"),
        (json.dumps(record(a="Missing")), "not a valid Avro schema"),
        (json.dumps(record(a=["null", "R"])), "a R inside a R; recursive records cannot become columns"),
        (json.dumps(record(a={"type": "array", "items": "null"})), "nothing bounds its length"),
        (
            json.dumps(record(a={"type": "bytes", "logicalType": "decimal", "precision": 39})),
            "value.a is a decimal(39, 0); Spark has 1 to 38 digits",
        ),
    ],
)
def test_a_schema_that_cannot_become_columns_is_refused(schema: str, said: str) -> None:
    with pytest.raises(OptionError) as caught:
        AvroColumnDecoder(schema).check()
    assert said in str(caught.value)
