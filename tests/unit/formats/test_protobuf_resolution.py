"""Messages of a writer's version of a type, read with the reader's: fields by number, nothing lost on the way."""

from typing import Any

import pytest
from google.protobuf import descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from headrace.formats.options import FormatOptions
from headrace.formats.payload import Decoded, payload_of_rows
from headrace.formats.protobuf import ProtobufColumnDecoder
from headrace.formats.protobuf_writer import message_type
from headrace.registry.errors import InvalidSchemaError
from tests.support.spark import messages as m
from tests.support.spark.messages import Proto, field


def message(*fields: Any, nested: tuple[Any, ...] = (), enums: tuple[Any, ...] = (), **more: Any) -> Any:
    return m.file(m.message("Order", *fields, nested=nested), enums=enums, **more)


def writer_class(file: Any) -> Any:
    pool = descriptor_pool.DescriptorPool()
    for name in ("timestamp", "duration"):
        module = __import__(f"google.protobuf.{name}_pb2", fromlist=["DESCRIPTOR"])
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


def read(writer: Any, reader: Any, rows: list[bytes | None], **flags: Any) -> Decoded:
    options = FormatOptions(format="protobuf", descriptors=m.descriptor_set(reader), message_name="shop.Order", **flags)
    found = ProtobufColumnDecoder(options, writer_class(writer).DESCRIPTOR).decode(payload_of_rows(rows))
    found.values.validate(full=True)
    return found


def one(writer: Any, reader: Any, values: dict[str, Any], **flags: bool) -> Any:
    found = read(writer, reader, [writer_class(writer)(**values).SerializeToString()], **flags)
    assert found.errors == {}
    return found.values[0].as_py()


def refusal(writer: Any, reader: Any, values: dict[str, Any]) -> str:
    found = read(writer, reader, [writer_class(writer)(**values).SerializeToString()])
    assert found.values[0].as_py() is None
    return found.errors[0]


def pair(writers: Any, readers: Any, **flags: Any) -> tuple[Any, Any]:
    return message(field("a", 1, writers, **flags)), message(field("a", 1, readers, **flags))


def test_fields_are_matched_by_number_whatever_their_names_and_order() -> None:
    writer = message(field("id", 1, Proto.TYPE_INT32), field("name", 2, Proto.TYPE_STRING))
    reader = message(field("title", 2, Proto.TYPE_STRING), field("id", 1, Proto.TYPE_INT32))
    assert one(writer, reader, {"id": 5, "name": "x"}) == {"title": "x", "id": 5}


def test_what_the_reader_does_not_have_is_passed_over_and_what_the_writer_does_not_have_is_null() -> None:
    writer = message(field("gone", 1, Proto.TYPE_STRING), field("kept", 2, Proto.TYPE_INT64))
    reader = message(field("kept", 2, Proto.TYPE_INT64), field("new", 3, Proto.TYPE_STRING))
    assert one(writer, reader, {"gone": "x", "kept": 9}) == {"kept": 9, "new": None}


@pytest.mark.parametrize(
    ("writers", "readers", "value", "expected"),
    [
        (Proto.TYPE_INT32, Proto.TYPE_INT64, -7, -7),
        (Proto.TYPE_SINT32, Proto.TYPE_INT64, -7, -7),
        (Proto.TYPE_UINT32, Proto.TYPE_INT64, 2**32 - 1, 2**32 - 1),
        (Proto.TYPE_UINT32, Proto.TYPE_UINT64, 2**32 - 1, 2**32 - 1),
        (Proto.TYPE_FIXED32, Proto.TYPE_INT64, 2**32 - 1, 2**32 - 1),
        (Proto.TYPE_FIXED32, Proto.TYPE_UINT32, 2**32 - 1, -1),
        (Proto.TYPE_SFIXED32, Proto.TYPE_SINT64, -(2**31), -(2**31)),
        (Proto.TYPE_SINT64, Proto.TYPE_SFIXED64, -(2**63), -(2**63)),
        (Proto.TYPE_BOOL, Proto.TYPE_INT32, True, 1),
        (Proto.TYPE_STRING, Proto.TYPE_BYTES, "é", "é".encode()),
        (Proto.TYPE_BYTES, Proto.TYPE_STRING, "é".encode(), "é"),
    ],
)
def test_values_that_always_fit_are_read_as_they_were_written(
    writers: Any, readers: Any, value: Any, expected: Any
) -> None:
    assert one(*pair(writers, readers), {"a": value}) == {"a": expected}
    repeated = one(*pair(writers, readers, repeated=True), {"a": [value, value]})
    assert repeated == {"a": [expected, expected]}


def test_numbers_without_a_sign_may_be_widened_by_option() -> None:
    writer, reader = pair(Proto.TYPE_UINT32, Proto.TYPE_UINT64)
    assert one(writer, reader, {"a": 2**32 - 1}, upcast_unsigned=True) == {"a": 2**32 - 1}


@pytest.mark.parametrize(
    ("writers", "readers", "value"),
    [
        (Proto.TYPE_INT64, Proto.TYPE_INT32, 1),
        (Proto.TYPE_INT32, Proto.TYPE_UINT32, 1),
        (Proto.TYPE_UINT64, Proto.TYPE_INT64, 1),
        (Proto.TYPE_INT32, Proto.TYPE_BOOL, 1),
        (Proto.TYPE_FLOAT, Proto.TYPE_DOUBLE, 1.0),
        (Proto.TYPE_DOUBLE, Proto.TYPE_FLOAT, 1.0),
        (Proto.TYPE_INT32, Proto.TYPE_STRING, 1),
        (Proto.TYPE_FIXED64, Proto.TYPE_DOUBLE, 1),
    ],
)
def test_values_that_may_not_fit_make_their_messages_bad(writers: Any, readers: Any, value: Any) -> None:
    writer, reader = pair(writers, readers)
    assert "Order.a: the writer's" in refusal(writer, reader, {"a": value})
    assert one(writer, reader, {}) == {"a": None}


def test_a_field_that_has_become_a_list_is_a_list_of_one_and_not_the_other_way_round() -> None:
    single, many = (message(field("a", 1, Proto.TYPE_STRING, repeated=several)) for several in (False, True))
    assert one(single, many, {"a": "x"}) == {"a": ["x"]}
    assert "repeated string cannot be read as string" in refusal(many, single, {"a": ["x", "y"]})
    number, numbers = (message(field("a", 1, Proto.TYPE_INT32, repeated=several)) for several in (False, True))
    assert "cannot be read as repeated" in refusal(number, numbers, {"a": 1})


def test_messages_inside_are_matched_in_the_same_way() -> None:
    def files(*inner: Any) -> Any:
        line = m.message("Line", *inner)
        fields = (
            field("one", 1, Proto.TYPE_MESSAGE, of=".shop.Order.Line"),
            field("all", 2, Proto.TYPE_MESSAGE, of=".shop.Order.Line", repeated=True),
            field("by", 3, Proto.TYPE_MESSAGE, of=".shop.Order.ByEntry", repeated=True),
        )
        key, value = field("key", 1, Proto.TYPE_STRING), field("value", 2, Proto.TYPE_MESSAGE, of=".shop.Order.Line")
        return message(*fields, nested=(line, m.entry("ByEntry", key, value)))

    writer = files(field("n", 1, Proto.TYPE_INT32), field("x", 2, Proto.TYPE_INT64))
    reader = files(field("y", 2, Proto.TYPE_INT32), field("count", 1, Proto.TYPE_INT64))
    good = {"one": {"n": 1}, "all": [{"n": 2}], "by": {"k": {"n": 3}}}
    assert one(writer, reader, good) == {
        "one": {"y": None, "count": 1},
        "all": [{"y": None, "count": 2}],
        "by": [("k", {"y": None, "count": 3})],
    }
    for bad in ({"one": {"x": 1}}, {"all": [{}, {"x": 1}]}, {"by": {"k": {"x": 1}}}):
        assert ".y: the writer's int64 cannot be read as int32" in refusal(writer, reader, bad)


def test_a_number_that_the_writers_schema_does_not_have_is_not_guessed_at() -> None:
    writer, newer = message(field("a", 1, Proto.TYPE_INT32)), pair(Proto.TYPE_INT32, Proto.TYPE_INT32)[0]
    newer = message(field("a", 1, Proto.TYPE_INT32), field("b", 2, Proto.TYPE_SINT32))
    row = writer_class(newer)(a=1, b=-4).SerializeToString()
    assert "the writer's message has no field 2" in read(writer, newer, [row]).errors[0]
    assert read(writer, message(field("a", 1, Proto.TYPE_INT32)), [row]).values.to_pylist() == [{"a": 1}]


def test_an_enum_is_read_by_number_and_named_by_the_reader() -> None:
    def files(**values: int) -> Any:
        return message(field("s", 1, Proto.TYPE_ENUM, of=".shop.State"), enums=(m.enum("State", **values),))

    writer, reader = files(NEW=0, PAID=1, SENT=2), files(NEW=0, SETTLED=1)
    assert one(writer, reader, {"s": 1}) == {"s": "SETTLED"}
    assert one(writer, reader, {"s": 2}) == {"s": "UNKNOWN_ENUM_VALUE_State_2"}


_KINDS: dict[Any, st.SearchStrategy[Any]] = {
    Proto.TYPE_INT32: st.integers(-(2**31), 2**31 - 1),
    Proto.TYPE_SINT32: st.integers(-(2**31), 2**31 - 1),
    Proto.TYPE_SFIXED32: st.integers(-(2**31), 2**31 - 1),
    Proto.TYPE_UINT32: st.integers(0, 2**32 - 1),
    Proto.TYPE_FIXED32: st.integers(0, 2**32 - 1),
    Proto.TYPE_INT64: st.integers(-(2**63), 2**63 - 1),
    Proto.TYPE_SINT64: st.integers(-(2**63), 2**63 - 1),
    Proto.TYPE_SFIXED64: st.integers(-(2**63), 2**63 - 1),
    Proto.TYPE_UINT64: st.integers(0, 2**64 - 1),
    Proto.TYPE_FIXED64: st.integers(0, 2**64 - 1),
    Proto.TYPE_BOOL: st.booleans(),
    Proto.TYPE_FLOAT: st.floats(width=32, allow_nan=False),
    Proto.TYPE_DOUBLE: st.floats(allow_nan=False),
    Proto.TYPE_STRING: st.text(st.characters(exclude_categories=["Cs"]), max_size=4),
    Proto.TYPE_BYTES: st.binary(max_size=4),
}


@st.composite
def versions(draw: Any) -> tuple[Any, Any, dict[str, Any]]:
    """A writer's and a reader's version of a message, with fields of random types, and values."""
    writers, readers, values = [], [], {}
    for number in range(1, draw(st.integers(2, 5))):
        kind, repeated = draw(st.sampled_from(list(_KINDS))), draw(st.booleans())
        writers.append(field(f"w{number}", number, kind, repeated=repeated))
        one = _KINDS[kind]
        if draw(st.booleans()):
            values[f"w{number}"] = draw(st.lists(one, max_size=3) if repeated else one)
        if draw(st.integers(0, 4)):
            other = draw(st.sampled_from([kind, *_KINDS]))
            readers.append(field(f"r{number}", number, other, repeated=repeated ^ (draw(st.integers(0, 9)) == 0)))
    readers.append(field("new", 9, Proto.TYPE_STRING))
    return message(*writers), message(*draw(st.permutations(readers))), values


def same(found: Any, written: Any, kind: int) -> bool:
    """Whether a value is what was written; Spark shows numbers without a sign with one, and text may be bytes."""
    if not written and (found is None or found == []):
        return True
    if isinstance(written, list):
        found = found if isinstance(found, list) else [found]
        return len(found) == len(written) and all(same(*pair, kind) for pair in zip(found, written, strict=True))
    if isinstance(found, list):
        return len(found) == 1 and same(found[0], written, kind)
    if found is None:
        return False
    if isinstance(written, int) and kind in (
        Proto.TYPE_UINT32,
        Proto.TYPE_FIXED32,
        Proto.TYPE_UINT64,
        Proto.TYPE_FIXED64,
    ):
        width = 32 if kind in (Proto.TYPE_UINT32, Proto.TYPE_FIXED32) else 64
        return bool((int(found) - int(written)) % 2**width == 0)
    as_bytes = [value.encode() if isinstance(value, str) else value for value in (found, written)]
    return bool(as_bytes[0] == as_bytes[1])


@given(versions())
def test_a_message_is_bad_or_all_of_its_values_are_those_that_were_written(
    case: tuple[Any, Any, dict[str, Any]],
) -> None:
    writer, reader, values = case
    found = read(writer, reader, [writer_class(writer)(**values).SerializeToString()])
    row = found.values[0].as_py()
    assert (row is None) == (0 in found.errors)
    for one in reader.message_type[0].field if row is not None else ():
        written = values.get(f"w{one.number}", [] if one.label == one.LABEL_REPEATED else None)
        assert same(row[one.name], written, one.type), (one.name, row[one.name], written)


def test_messages_of_one_version_are_never_bad() -> None:
    fields = [field(f"f{kind}", kind, kind) for kind in _KINDS]
    assert one(message(*fields), message(*fields), {f"f{Proto.TYPE_INT32}": 1})[f"f{Proto.TYPE_INT32}"] == 1


TEXT = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message First { int32 a = 1; message Inner { string b = 1; message Innermost { bool c = 1; } } }
message Second { google.protobuf.Timestamp at = 1; }
"""


def test_the_message_of_a_schema_is_found_by_its_indexes() -> None:
    assert message_type(TEXT, [], [0]).full_name == "shop.First"
    assert message_type(TEXT, [], [1]).full_name == "shop.Second"
    assert message_type(TEXT, [], [0, 0, 0]).full_name == "shop.First.Inner.Innermost"
    for none in ([2], [1, 0], [-1]):
        with pytest.raises(InvalidSchemaError):
            message_type(TEXT, [], none)
