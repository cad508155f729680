"""Records of a writer's Avro schema, read with a reader's: as fastavro resolves them, or bad."""

import io
import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from fastavro._read_common import SchemaResolutionError
from hypothesis import given
from hypothesis import strategies as st

from headrace.formats.avro import AvroColumnDecoder
from headrace.formats.avro_columns import model_of
from headrace.formats.payload import Decoded, payload_of_rows
from tests.support.spark.evolution import Evolution
from tests.support.spark.schemas import records

from .test_avro import encoded, record


def read(writer: Any, reader: Any, rows: list[bytes | None]) -> Decoded:
    codec = AvroColumnDecoder(json.dumps(reader), model_of(json.dumps(writer)))
    found = codec.decode(payload_of_rows(rows))
    found.values.validate(full=True)
    return found


def one(writer: Any, reader: Any, value: Any) -> Any:
    found = read(writer, reader, list(encoded(writer, [value])))
    assert found.errors == {}
    return found.values[0].as_py()


def refusal(writer: Any, reader: Any, value: Any) -> str:
    found = read(writer, reader, list(encoded(writer, [value])))
    assert found.values[0].as_py() is None
    return found.errors[0]


def fields(*declared: dict[str, Any], name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(declared), **more}


def resolved_by_fastavro(writer: Any, reader: Any, row: bytes) -> bytes | None:
    """The row as the reader's schema writes it, or None if it cannot be resolved."""
    parsed = fastavro.parse_schema(writer), fastavro.parse_schema(reader)
    try:
        value = fastavro.schemaless_reader(io.BytesIO(row), *parsed)
    except (SchemaResolutionError, UnicodeDecodeError):
        return None
    return encoded(reader, [value])[0]


def has_an_empty_list(value: Any) -> bool:
    """Whether a record may do without an item's type, which fastavro judges all the same."""
    if isinstance(value, dict | list):
        return not value or any(map(has_an_empty_list, value.values() if isinstance(value, dict) else value))
    return False


@st.composite
def evolved(draw: Any) -> tuple[Any, Any, list[Any]]:
    writer, values, _ = draw(records())
    reader = Evolution(draw).of(writer)
    whole = next(branch for branch in reader if branch != "null") if isinstance(reader, list) else reader
    return writer, whole, values


@given(evolved())
def test_records_are_resolved_as_fastavro_resolves_them(case: tuple[Any, Any, list[Any]]) -> None:
    writer, reader, values = case
    rows = encoded(writer, values)
    found = read(writer, reader, list(rows))
    wanted = [resolved_by_fastavro(writer, reader, row) for row in rows]
    for row, value in enumerate(values):
        assert (row in found.errors) == (wanted[row] is None) or has_an_empty_list(value)
    expected = AvroColumnDecoder(json.dumps(reader)).decode(payload_of_rows(wanted))
    assert expected.errors == {}
    resolved = pa.array([row for row, data in enumerate(wanted) if data is not None], pa.int64())
    assert found.values.take(resolved).to_pylist() == expected.values.take(resolved).to_pylist()


@given(evolved(), st.lists(st.binary(max_size=30), max_size=4))
def test_any_bytes_are_a_record_or_bad(case: tuple[Any, Any, list[Any]], rows: list[bytes]) -> None:
    writer, reader, _ = case
    found = read(writer, reader, list(rows))
    assert all((value is None) == (row in found.errors) for row, value in enumerate(found.values.to_pylist()))


def test_fields_in_another_order_keep_their_values() -> None:
    writer, reader = record(a="string", b="string"), record(b="string", a="string")
    assert one(writer, reader, {"a": "left", "b": "right"}) == {"b": "right", "a": "left"}


def test_a_field_that_was_renamed_is_found_by_its_alias() -> None:
    reader = fields({"name": "total", "type": "long", "aliases": ["amount"]})
    assert one(record(amount="int"), reader, {"amount": 3}) == {"total": 3}


def test_a_name_that_was_given_again_after_a_renaming_is_not_the_old_field() -> None:
    reader = fields({"name": "old", "type": "int", "default": 0}, {"name": "new", "type": "int", "aliases": ["old"]})
    assert one(record(old="int"), reader, {"old": 3}) == {"old": 0, "new": 3}
    assert one(record(old="int", new="int"), reader, {"old": 3, "new": 4}) == {"old": 3, "new": 4}


def test_records_of_another_name_are_not_taken_for_the_readers() -> None:
    event = {**record(a="int"), "name": "shop.Cancelled"}
    reader = {**record(a="int"), "name": "shop.Placed"}
    assert "the writer's record is shop.Cancelled, the reader's shop.Placed" in refusal(event, reader, {"a": 1})
    assert one(event, {**reader, "aliases": ["Cancelled"]}, {"a": 1}) == {"a": 1}
    assert one(event, {**reader, "name": "other.Cancelled"}, {"a": 1}) == {"a": 1}


def test_what_the_writer_does_not_have_is_the_readers_default() -> None:
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
    moment = {"type": "long", "logicalType": "timestamp-millis"}
    place = fields({"name": "city", "type": "string", "default": "Oslo"}, {"name": "zip", "type": "int"}, name="P")
    reader = fields(
        {"name": "b", "type": "bytes", "default": "\u00ff\u0000"},
        {"name": "d", "type": decimal, "default": "\u00ff\u009c"},
        {"name": "f", "type": {"type": "fixed", "name": "F", "size": 2}, "default": "ab"},
        {"name": "at", "type": moment, "default": 1500},
        {"name": "x", "type": "double", "default": "NaN"},
        {"name": "p", "type": place, "default": {"zip": 1}},
        {"name": "m", "type": ["string", "int"], "default": "s"},
        {"name": "l", "type": {"type": "array", "items": "P"}, "default": [{"zip": 2}, {"zip": 3, "city": "Ås"}]},
        {"name": "k", "type": {"type": "map", "values": ["null", "long"]}, "default": {"a": None, "b": 2}},
    )
    found = one(record(gone="string"), reader, {"gone": "x"})
    assert found.pop("x") != found.get("x")
    assert found == {
        "b": b"\xff\0",
        "d": Decimal("-1.00"),
        "f": b"ab",
        "at": datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC),
        "p": {"city": "Oslo", "zip": 1},
        "m": {"member0": "s", "member1": None},
        "l": [{"city": "Oslo", "zip": 2}, {"city": "Ås", "zip": 3}],
        "k": [("a", None), ("b", 2)],
    }


def test_defaults_of_many_rows_find_room() -> None:
    reader = fields({"name": "l", "type": {"type": "array", "items": "string"}, "default": ["a"] * 9})
    found = read(record(a="int"), reader, [b"\2"] * 500)
    assert found.errors == {}
    assert found.values.to_pylist() == [{"l": ["a"] * 9}] * 500


def test_a_field_without_a_default_that_the_writer_does_not_have_makes_records_bad() -> None:
    assert "the writer has no field b, and the reader's has no default" in refusal(
        record(a="int"), record(a="int", b="int"), {"a": 1}
    )


@pytest.mark.parametrize(
    ("written", "wanted", "value", "expected"),
    [
        ("int", "long", -3, -3),
        ("int", "float", 2**24 + 1, float(2**24)),
        ("int", "double", 2**31 - 1, float(2**31 - 1)),
        ("long", "float", 2**60 + 1, float(2**60)),
        ("long", "double", -(2**63), float(-(2**63))),
        ("float", "double", 0.1, pytest.approx(0.1, rel=1e-7)),
        ("string", "bytes", "é", "é".encode()),
        ("bytes", "string", "é".encode(), "é"),
        ("int", ["null", "double"], 4, 4.0),
        (["null", "int"], ["string", "long", "null"], 5, {"member0": None, "member1": 5}),
        (["null", "int"], ["string", "long", "null"], None, None),
        ("int", ["long", "int", "string"], 6, {"member0": None, "member1": 6, "member2": None}),
        (["int", "string"], "string", "x", "x"),
    ],
)
def test_values_are_promoted(written: Any, wanted: Any, value: Any, expected: Any) -> None:
    assert one(record(a=written), record(a=wanted), {"a": value}) == {"a": expected}


@pytest.mark.parametrize(
    ("written", "wanted", "value", "said"),
    [
        ("long", "int", 1, "value.a: the writer's long cannot be read as int"),
        ("double", "float", 1.0, "cannot be read as float"),
        ("string", "int", "1", "cannot be read as int"),
        ("bytes", "string", b"\xff", "not UTF-8"),
        (["null", "int"], "int", None, "the writer's null cannot be read as int"),
        ("boolean", ["null", "int"], True, "no branch for boolean"),
        (
            {"type": "enum", "name": "E", "symbols": ["A", "B"]},
            {"type": "enum", "name": "E", "symbols": ["A"]},
            "B",
            "the reader's enum E has no B, and no default",
        ),
        (
            {"type": "int", "logicalType": "time-millis"},
            {"type": "long", "logicalType": "time-micros"},
            datetime(2020, 1, 1).time(),
            "does not mean what",
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
            {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1},
            Decimal("1.00"),
            "another scale",
        ),
        ("string", {"type": "bytes", "logicalType": "decimal", "precision": 9}, "12", "is no decimal"),
    ],
)
def test_what_cannot_be_resolved_is_bad_and_says_why(written: Any, wanted: Any, value: Any, said: str) -> None:
    assert said in refusal(record(a=written), record(a=wanted), {"a": value})


def test_only_records_that_come_to_an_unresolvable_place_are_bad() -> None:
    writer, reader = record(a={"type": "array", "items": "string"}), record(a={"type": "array", "items": "int"})
    found = read(writer, reader, list(encoded(writer, [{"a": []}, {"a": ["x"]}, {"a": []}])))
    assert found.values.to_pylist() == [{"a": []}, None, {"a": []}]
    assert set(found.errors) == {1}


def test_times_in_another_unit_are_the_same_times() -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
    for units in (("millis", "micros"), ("micros", "millis")):
        writer, reader = (record(a={"type": "long", "logicalType": f"timestamp-{unit}"}) for unit in units)
        assert one(writer, reader, {"a": moment}) == {"a": moment}


@pytest.mark.parametrize("name", ["timestamp-millis", "local-timestamp-millis", "timestamp-micros", "date"])
def test_a_logical_type_that_its_type_cannot_have_means_nothing(name: str) -> None:
    kind = {"type": "long" if name == "date" else "int", "logicalType": name}
    later = fields({"name": "a", "type": "int"}, {"name": "b", "type": kind, "default": 7})
    assert one(record(a=kind), record(a=kind), {"a": 5}) == {"a": 5}
    assert one(record(a="int"), later, {"a": 5}) == {"a": 5, "b": 7}
    micros = {"type": "long", "logicalType": "timestamp-micros"}
    if name != "date":
        assert one(record(a=kind), record(a=micros), {"a": 5}) == {"a": datetime(1970, 1, 1, 0, 0, 0, 5, tzinfo=UTC)}


def test_a_column_of_numbers_has_times_as_they_were_written() -> None:
    union = ["int", {"type": "long", "logicalType": "timestamp-millis"}]
    later = fields({"name": "a", "type": ["int", "long"]}, {"name": "b", "type": union[::-1], "default": 7})
    moment = datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC)
    assert one(record(a=union), record(a=union), {"a": moment}) == {"a": 5000}
    assert one(record(a=union), later, {"a": moment}) == {"a": 5000, "b": 7}


def test_a_list_of_what_takes_no_bytes_has_no_bound_and_is_bad() -> None:
    nothing = fields(name="N")
    something = fields({"name": "a", "type": "int", "default": 1}, name="N")
    writer = record(l={"type": "array", "items": nothing}, b="int")
    many = b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01\0\2"
    for reader in (record(l={"type": "array", "items": something}, b="int"), record(b="int")):
        assert "nothing bounds how many" in read(writer, reader, [many]).errors[0]


def test_a_recursive_field_that_the_reader_does_not_have_is_passed_over() -> None:
    tree = fields(
        {"name": "n", "type": "int"},
        {"name": "left", "type": ["null", "Tree"]},
        {"name": "more", "type": {"type": "array", "items": "Tree"}},
        name="Tree",
    )
    leaf: dict[str, Any] = {"n": 1, "left": None, "more": []}
    deep = {"n": 1, "left": {**leaf, "more": [leaf, {**leaf, "left": leaf}]}, "more": [leaf]}
    writer = record(t=tree, b="string")
    assert one(writer, record(b="string"), {"t": deep, "b": "x"}) == {"b": "x"}
    endless = b"\2\2" * 5000
    assert "nested" in read(writer, record(b="string"), [endless]).errors[0]


def test_records_that_are_passed_over_are_compiled_once_however_often_they_are_named() -> None:
    inner: Any = "int"
    for depth in range(30):
        named = inner if isinstance(inner, str) else inner["name"]
        inner = fields({"name": "a", "type": inner}, {"name": "b", "type": named}, name=f"N{depth}")
    writer = record(deep=["null", inner], b="int")
    assert one(writer, record(b="int"), {"deep": None, "b": 7}) == {"b": 7}


def test_the_columns_are_the_readers_whoever_wrote() -> None:
    writer, reader = record(a="int", gone="string"), fields({"name": "a", "type": ["null", "double"]})
    assert read(writer, reader, []).values.type == pa.struct([("a", pa.float64())])
