"""Whole columns as bytes: each row is what other libraries make of it, and rows that do not fit are told one by one."""

import base64
import io
import json
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from google.protobuf import message_factory
from hypothesis import given
from hypothesis import strategies as st

from headrace.formats import types as t
from headrace.formats.arrow_types import arrow_type
from headrace.formats.ddl import parse_schema
from headrace.formats.errors import OptionError
from headrace.formats.options import FormatOptions
from headrace.formats.protobuf_plan import reader_type
from headrace.formats.writing import avro, protobuf
from headrace.formats.writing.json import json_write
from headrace.formats.writing.pieces import Column, Write, join
from headrace.registry.schemas.protobuf import descriptors

EPOCH = datetime(1970, 1, 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.text('"\\\n\x01a', max_size=4)
Typed = tuple[t.DataType, Any]


def encoded(write: Write, kind: t.DataType, values: list[Any]) -> tuple[list[bytes], dict[int, str]]:
    """What is written of values, and why some are not; a slice, as the rows of a batch may be one."""
    column = pa.array([None, *values], arrow_type(kind)).slice(1)
    faults: dict[int, str] = {}
    made = join(write(Column(column, np.arange(len(values)), faults)), len(values))
    made.validate(full=True)
    return made.to_pylist(), faults


def decimals(precision: int, scale: int) -> Typed:
    digits = st.integers(-(10**precision) + 1, 10**precision - 1)
    some = st.tuples(digits, st.integers(0, 120)).map(lambda it: Decimal(it[0] >> it[1] if it[0] > 0 else it[0]))
    return t.DecimalType(precision, scale), some.map(lambda it: it.scaleb(-scale, Context(prec=80)))


def integers(bits: int) -> Any:
    most = 2 ** (bits - 1)
    return st.integers(-most, most - 1) | st.sampled_from([0, 1, -1, most - 1, -most, -64, 64, -65])


whole_seconds = st.integers(-60_000_000_000, 250_000_000_000).map(lambda it: EPOCH + timedelta(seconds=it))
SCALARS: list[Typed] = [
    (t.BooleanType(), st.booleans()),
    (t.ByteType(), integers(8)),
    (t.ShortType(), integers(16)),
    (t.IntegerType(), integers(32)),
    (t.LongType(), integers(64)),
    (t.FloatType(), st.floats(width=32, allow_nan=False, allow_infinity=False)),
    (t.DoubleType(), st.floats(allow_nan=False, allow_infinity=False) | st.integers(0, 10**17).map(float)),
    (t.StringType(), texts),
    (t.BinaryType(), st.binary(max_size=6) | st.binary(min_size=70, max_size=70)),
    (t.DateType(), st.dates()),
    (t.TimestampType(), (st.datetimes() | whole_seconds).map(lambda it: it.replace(tzinfo=UTC))),
    (t.TimestampNTZType(), st.datetimes() | whole_seconds),
]


def nested(inner: Any) -> Any:
    """Columns of other columns, null among their values where the type allows it."""
    lists = st.tuples(inner, st.booleans()).map(
        lambda it: (t.ArrayType(it[0][0], it[1]), st.lists(nullable(it[0][1], it[1]), max_size=3))
    )
    maps = st.tuples(inner, st.booleans()).map(
        lambda it: (
            t.MapType(t.StringType(), it[0][0], it[1]),
            st.dictionaries(texts, nullable(it[0][1], it[1]), max_size=3),
        )
    )
    return lists | maps | structs(inner)


def structs(inner: Any) -> Any:
    return st.lists(st.tuples(inner, st.booleans()), min_size=1, max_size=4).map(
        lambda fields: (
            t.StructType([t.StructField(f"f{place}", one[0], null) for place, (one, null) in enumerate(fields)]),
            st.fixed_dictionaries({f"f{place}": nullable(one[1], null) for place, (one, null) in enumerate(fields)}),
        )
    )


def nullable(values: Any, is_nullable: bool) -> Any:
    return st.none() | values if is_nullable else values


any_decimals = st.integers(1, 38).flatmap(lambda it: st.integers(0, it).map(lambda scale: decimals(it, scale)))
columns = structs(st.recursive(st.sampled_from(SCALARS) | any_decimals, nested, max_leaves=5))
tables = columns.flatmap(lambda it: st.tuples(st.just(it[0]), st.lists(it[1], max_size=4)))


@given(tables)
def test_avro_is_what_fastavro_writes(table: tuple[t.StructType, list[Any]]) -> None:
    kind, values = table
    schema = avro.made_schema(kind, "t")
    parsed = fastavro.parse_schema(json.loads(schema))
    expected = []
    for value in values:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, value)
        expected.append(out.getvalue())
    assert encoded(avro.avro_write(schema, kind), kind, values) == (expected, {})


def plain(value: Any, kind: t.DataType) -> Any:
    """What JSON has of a value."""
    if value is None:
        return None
    if isinstance(kind, t.StructType):
        return {one.name: plain(value[one.name], one.data_type) for one in kind.fields if value[one.name] is not None}
    if isinstance(kind, t.ArrayType):
        return [plain(one, kind.element_type) for one in value]
    if isinstance(kind, t.MapType):
        return {key: plain(one, kind.value_type) for key, one in value.items()}
    match value:
        case bytes():
            return base64.b64encode(value).decode()
        case date():
            return value.isoformat().replace("+00:00", "Z")
    return value


def number(value: Decimal) -> int | float:
    return float(value) if value.as_tuple().exponent else int(value)


@given(tables)
def test_json_is_the_same_document(table: tuple[t.StructType, list[Any]]) -> None:
    kind, values = table
    found, faults = encoded(json_write("", kind, is_checked=False), kind, values)
    assert not faults
    for data, value in zip(found, values, strict=True):
        expected = json.loads(json.dumps(plain(value, kind), default=number))
        document = json.loads(data)
        assert repr(document) == repr(expected)  # which tells -0.0 from 0


def test_decimals_in_json_have_all_their_digits() -> None:
    kind = parse_schema("n DECIMAL(38,10)")
    values = [Decimal("0.0000000001"), Decimal("0E-10"), Decimal("-1234567890123456789012345678.5")]
    found, _ = encoded(json_write("", kind, is_checked=False), kind, [{"n": one} for one in values])
    assert found == [
        b'{"n":0.0000000001}',
        b'{"n":0.0000000000}',
        b'{"n":-1234567890123456789012345678.5000000000}',
    ]


PROTO = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
enum Color { RED = 0; BLUE = 7; LOW = -1; }
message Inner { int32 a = 1; optional string b = 2; }
message All {
  int32 i32 = 19; int64 i64 = 2; uint32 u32 = 3; uint64 u64 = 4; sint32 s32 = 5; sint64 s64 = 6;
  fixed32 f32 = 7; fixed64 f64 = 8; sfixed32 sf32 = 9; sfixed64 sf64 = 10; float f = 11; double d = 12; bool b = 13;
  string s = 14; bytes by = 15; Color c = 16; google.protobuf.Timestamp at = 17; Inner inner = 18;
  optional int32 o = 1000; optional string os = 21; optional Color oc = 22;
  repeated int64 r = 23; repeated sint32 loose = 24 [packed = false]; repeated string rs = 25; repeated Inner ri = 26;
  repeated double rd = 27; repeated Color rc = 28; map<string, Inner> m = 29; map<int32, sint64> n = 30;
  oneof choice { int32 x = 31; string y = 32; }
}
"""
PROTO_COLUMNS = (
    "y STRING, x INT, i32 INT, i64 BIGINT, u32 BIGINT, u64 BIGINT, s32 SMALLINT, s64 BIGINT, f32 BIGINT, f64 BIGINT, "
    "sf32 INT, sf64 INT, f FLOAT, d DOUBLE, b BOOLEAN, s STRING, by BINARY, c STRING, at TIMESTAMP, "
    "inner STRUCT<a: INT, b: STRING>, o INT, os STRING, oc STRING, r ARRAY<INT>, loose ARRAY<INT>, rs ARRAY<STRING>, "
    "ri ARRAY<STRUCT<a: INT, b: STRING>>, rd ARRAY<DOUBLE>, rc ARRAY<STRING>, "
    "m MAP<STRING, STRUCT<a: INT, b: STRING>>, n MAP<INT, BIGINT>"
)
inners = st.fixed_dictionaries({"a": st.none() | integers(32), "b": st.none() | texts})
symbols = st.sampled_from(["RED", "BLUE", "LOW"])
doubles = st.floats(allow_nan=False) | st.sampled_from([0.0, -0.0])
proto_values = {
    "y": texts,
    "x": integers(32),
    "i32": integers(32),
    "i64": integers(64),
    "u32": st.integers(0, 2**32 - 1),
    "u64": st.integers(0, 2**63 - 1),
    "s32": integers(16),
    "s64": integers(64),
    "f32": st.integers(0, 2**32 - 1),
    "f64": st.integers(0, 2**63 - 1),
    "sf32": integers(32),
    "sf64": integers(32),
    "f": st.floats(width=32, allow_nan=False),
    "d": doubles,
    "b": st.booleans(),
    "s": texts,
    "by": st.binary(max_size=4),
    "c": symbols,
    "at": st.datetimes(timezones=st.just(UTC)) | st.just(EPOCH.replace(tzinfo=UTC)),
    "inner": inners,
    "o": integers(32),
    "os": texts,
    "oc": symbols,
    "r": st.lists(integers(32), max_size=3),
    "loose": st.lists(integers(32), max_size=3),
    "rs": st.lists(texts, max_size=3),
    "ri": st.lists(inners, max_size=3),
    "rd": st.lists(doubles, max_size=3),
    "rc": st.lists(symbols, max_size=3),
    "m": st.dictionaries(texts, inners, max_size=1),
    "n": st.dictionaries(integers(32), integers(64), max_size=1),
}
proto_rows = st.fixed_dictionaries({name: st.none() | some for name, some in proto_values.items()})


def proto_write(schema: str, name: str, kind: t.StructType) -> tuple[Write, Any]:
    """What encodes a column as a message of a schema, and the library's class of that message."""
    files = descriptors(schema, ()).SerializeToString()
    found = reader_type(FormatOptions(format="protobuf", descriptors=files, message_name=name))
    return protobuf.protobuf_write(files, name, kind), message_factory.GetMessageClass(found)


def given_only(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: given_only(one) for key, one in value.items() if one is not None}
    return [given_only(one) for one in value] if isinstance(value, list) else value


@given(st.lists(proto_rows, max_size=3))
def test_protobuf_is_what_the_library_writes(values: list[Any]) -> None:
    kind = parse_schema(PROTO_COLUMNS)
    write, message = proto_write(PROTO, "All", kind)
    in_order = [given_only({name: value[name] for name in kind.names}) for value in values]
    expected = [message(**value).SerializeToString(deterministic=True) for value in in_order]
    assert encoded(write, kind, values) == (expected, {})


def test_protobuf_of_older_syntax_has_groups_lists_that_are_not_packed_and_fields_that_must_be_there() -> None:
    schema = """
    syntax = "proto2";
    message Old {
      required int32 a = 1; repeated int32 r = 2; repeated int32 p = 3 [packed = true]; optional bool b = 5;
      optional group G = 4 { optional int32 x = 1; }
    }
    """
    kind = parse_schema("a INT, r ARRAY<INT>, p ARRAY<INT>, b BOOLEAN, g STRUCT<x: INT>")
    write, message = proto_write(schema, "Old", kind)
    row = {"a": 0, "r": [1, 2], "p": [1, 300], "b": False, "g": {"x": 5}}
    found, faults = encoded(write, kind, [row, row | {"a": None}])
    assert found[0] == message(**row).SerializeToString()
    assert faults == {1: "the schema needs value.a"}


def test_a_row_is_refused_for_what_is_deep_in_it_and_no_other_is() -> None:
    kind = parse_schema("a INT, l ARRAY<STRUCT<x: INT>>")
    inner = {"type": "record", "name": "I", "fields": [{"name": "x", "type": "int"}]}
    fields = [{"name": "a", "type": "int"}, {"name": "l", "type": {"type": "array", "items": inner}}]
    write = avro.avro_write(json.dumps({"type": "record", "name": "R", "fields": fields}), kind)
    good = {"a": 1, "l": [{"x": 1}, {"x": 2}]}
    values = [good, {"a": 1, "l": [{"x": 1}, {"x": None}]}, good, {"a": None, "l": [None]}, {"a": 1, "l": []}]
    found, faults = encoded(write, kind, values)
    assert faults == {
        1: "value.l[].x is null, which the schema does not allow",
        3: "value.a is null, which the schema does not allow",
    }
    assert (found[0], found[2], found[4]) == (b"\2\4\2\4\0", b"\2\4\2\4\0", b"\2\0")


@pytest.mark.parametrize(("size", "bad"), [(1, [128, -128, 1000]), (2, [100_000]), (16, [10**19]), (20, [-(10**19)])])
def test_decimals_that_a_fixed_size_or_precision_has_no_room_for_are_refused(size: int, bad: list[int]) -> None:
    kind = parse_schema("n DECIMAL(38,0)")
    fixed = {"type": "fixed", "name": "F", "size": size, "logicalType": "decimal", "precision": 19}
    schema = {"type": "record", "name": "R", "fields": [{"name": "n", "type": fixed}]}
    values = [0, -1, 127, -127, *bad]
    found, faults = encoded(avro.avro_write(json.dumps(schema), kind), kind, [{"n": Decimal(one)} for one in values])
    assert found[:4] == [one.to_bytes(size, "big", signed=True) for one in values[:4]]
    assert list(faults) == [*range(4, len(values))]


def test_numbers_that_json_or_protobuf_has_not_are_refused() -> None:
    kind = parse_schema("d DOUBLE")
    _, faults = encoded(json_write("", kind, is_checked=False), kind, [{"d": 1.0}, {"d": float("nan")}])
    assert faults == {1: "value.d is nan, which JSON does not have"}
    kind = parse_schema("u BIGINT, c STRING, r ARRAY<INT>")
    schema = 'syntax = "proto3"; enum C { A = 0; } message M { uint32 u = 1; C c = 2; repeated int32 r = 3; }'
    write, _ = proto_write(schema, "M", kind)
    rows = [{"u": 2**32}, {"u": -1}, {"c": "B"}, {"r": [None]}, {"u": 1, "c": "A", "r": [1]}]
    found, faults = encoded(write, kind, rows)
    assert list(faults) == [0, 1, 2, 3]
    assert found[4] == b"\x08\1\x1a\1\1"


def test_keys_of_a_map_are_written_in_json_as_values_are() -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    keys = {
        "BOOLEAN": True,
        "DECIMAL(9,8)": Decimal("0.00000001"),
        "BINARY": b"\xff",
        "BIGINT": -1,
        "TIMESTAMP": moment,
    }
    columns = ", ".join(f"c{number} MAP<{kind}, INT>" for number, kind in enumerate(keys))
    kind = parse_schema(columns)
    row = {f"c{number}": [(key, 1)] for number, key in enumerate(keys.values())}
    (found,), _ = encoded(json_write("", kind, is_checked=False), kind, [row])
    assert [next(iter(one)) for one in json.loads(found).values()] == [
        "true",
        "0.00000001",
        "/w==",
        "-1",
        "2026-01-02T03:04:05Z",
    ]
    with pytest.raises(OptionError, match="cast them"):
        json_write("", parse_schema("m MAP<STRUCT<a: INT>, INT>"), is_checked=False)


def test_days_without_a_year_of_four_digits_and_text_that_is_not_utf8_are_refused() -> None:
    raw = pa.array([b"ok", b"\xff"], pa.binary())
    text = pa.Array.from_buffers(pa.string(), 2, raw.buffers())
    days = pa.array([0, 2_932_897], pa.int32()).cast(pa.date32())
    moments = pa.array([0, 253_402_300_800_000_000]).cast(pa.timestamp("us", "UTC"))
    for kind, values in (("STRING", text), ("DATE", days), ("TIMESTAMP", moments)):
        faults: dict[int, str] = {}
        column = pa.StructArray.from_arrays([values], ["a"])
        json_write("", parse_schema(f"a {kind}"), is_checked=False)(Column(column, np.arange(2), faults))
        assert list(faults) == [1]
