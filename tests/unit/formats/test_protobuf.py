"""Protobuf messages: what the library writes is what the columns say, and what it refuses is bad."""

from decimal import Decimal
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from headrace.formats.errors import OptionError
from headrace.formats.options import FormatOptions
from headrace.formats.payload import Decoded, payload_of_rows
from headrace.formats.protobuf import ProtobufColumnDecoder
from tests.support.spark import messages as m

OPTIONS = FormatOptions(format="protobuf", descriptors=m.descriptor_set(m.ORDER), message_name="shop.Order")
CODEC = ProtobufColumnDecoder(OPTIONS)
Order = CODEC.message

_ints = st.integers(-(2**31), 2**31 - 1)
_longs = st.integers(-(2**63), 2**63 - 1)
_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_places = st.fixed_dictionaries({}, optional={"city": _texts, "zip": _ints})
_lines = st.fixed_dictionaries(
    {}, optional={"item": _texts, "count": _ints, "codes": st.lists(_longs, max_size=3), "from": _places}
)
_floats = st.floats(width=32, allow_nan=False)
_times = st.fixed_dictionaries({"seconds": st.integers(-(10**9), 10**10), "nanos": st.integers(0, 999_999_999)})
_orders = st.fixed_dictionaries(
    {},
    optional={
        "id": _longs,
        "small": _ints,
        "unsigned": st.integers(0, 2**32 - 1),
        "huge": st.integers(0, 2**64 - 1),
        "price": st.floats(allow_nan=False),
        "weight": _floats,
        "paid": st.booleans(),
        "name": _texts,
        "raw": st.binary(max_size=8),
        "state": st.sampled_from([0, 1, 5, 7, -3]),
        "where": _places,
        "lines": st.lists(_lines, max_size=3),
        "tags": st.lists(_texts, max_size=3),
        "numbers": st.lists(_ints, max_size=5),
        "rates": st.lists(st.floats(allow_nan=False), max_size=3),
        "stock": st.dictionaries(_texts, _ints, max_size=3),
        "places": st.dictionaries(_ints, _places, max_size=2),
        "at": _times,
        "took": _times,
        "fixed": _longs,
        "fixed32": st.integers(0, 2**32 - 1),
        "states": st.lists(st.sampled_from([0, 1, 5, 9]), max_size=3),
        "note": _texts,
        "sevens": _longs,
    },
)
_choices = st.sampled_from([{}, {"card": "4242"}, {"account": 0}, {"shop": {"city": "Oslo"}}])


def decoded(rows: list[bytes | None], codec: ProtobufColumnDecoder = CODEC) -> Decoded:
    found = codec.decode(payload_of_rows(rows))
    found.values.validate(full=True)
    return found


def shown(order: Any) -> Any:
    return ordered(m.shown(order))


def ordered(value: Any) -> Any:
    """Entries of maps are written in no certain order; of two with one key the last counts."""
    return {**value, **{name: dict(value[name]) for name in ("stock", "places")}}


@given(st.lists(st.tuples(_orders, _choices), max_size=4))
def test_messages_are_read_as_the_library_wrote_them(drawn: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    orders = [Order(**values, **choice) for values, choice in drawn]
    found = decoded([order.SerializeToString() for order in orders])
    assert found.errors == {}
    assert [ordered(value) for value in found.values.to_pylist()] == [shown(order) for order in orders]


@given(_orders, st.data())
def test_damaged_messages_are_bad_exactly_where_the_library_refuses_them(values: dict[str, Any], data: Any) -> None:
    raw = bytearray(Order(**values).SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        if raw:
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    judged(bytes(raw[: data.draw(st.integers(0, len(raw)))]))


@given(st.binary(max_size=40))
def test_any_bytes_are_judged_as_the_library_judges_them(raw: bytes) -> None:
    judged(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b"\x80\x80\x80\x81\x80\x00\x01",
        b"\x88\x80\x80\x80\x80\x00\x01",
        b"\x42" + b"\x80" * 9 + b"\x00",
        b"\x92\x01" + b"\x80" * 9 + b"\x00",
        b"\x5a" + b"\x80" * 5 + b"\x00",
        b"\xfa\x07" + b"\x80" * 9 + b"\x00",
    ],
    ids=["tag", "known tag", "string", "time", "message", "unknown field"],
)
def test_tags_and_sizes_of_more_bytes_than_encoders_write_are_left_to_the_library(raw: bytes) -> None:
    judged(raw)


def judged(raw: bytes) -> None:
    found = decoded([b"", raw])
    try:
        order = Order.FromString(raw)
    except DecodeError:
        assert set(found.errors) == {1}
        assert found.values[1].as_py() is None
    else:
        if not found.errors:
            assert ordered(found.values[1].as_py()) == shown(order)
        else:
            assert "out of range" in found.errors[1]


@given(_orders, _orders, _choices, _choices)
def test_messages_run_together_are_merged_as_the_library_merges_them(
    one: dict[str, Any], other: dict[str, Any], choice: dict[str, Any], second: dict[str, Any]
) -> None:
    raw = Order(**one, **choice).SerializeToString() + Order(**other, **second).SerializeToString()
    judged(raw)


def codec(file: Any, name: str, **options: Any) -> ProtobufColumnDecoder:
    return ProtobufColumnDecoder(
        FormatOptions(format="protobuf", descriptors=m.descriptor_set(file), message_name=name, **options)
    )


def test_types_are_those_of_sparks_own_reader() -> None:
    assert CODEC.spark_type.simple_string() == (
        "struct<id:bigint,small:int,unsigned:int,huge:bigint,price:double,weight:float,paid:boolean,name:string,"
        "raw:binary,state:string,where:struct<city:string,zip:int>,"
        "lines:array<struct<item:string,count:int,codes:array<bigint>,from:struct<city:string,zip:int>>>,"
        "tags:array<string>,numbers:array<int>,rates:array<double>,stock:map<string,int>,"
        "places:map<int,struct<city:string,zip:int>>,at:timestamp,took:interval day to second,card:string,account:int,"
        "shop:struct<city:string,zip:int>,fixed:bigint,fixed32:int,states:array<string>,note:string,sevens:bigint>"
    )


def test_what_the_wire_does_not_have_is_null_and_lists_are_empty() -> None:
    value = decoded([b""]).values[0].as_py()
    assert {name for name, found in value.items() if found == []} == {
        "lines", "tags", "numbers", "rates", "stock", "places", "states",
    }  # fmt: skip
    assert all(found is None or found == [] for found in value.values())


def test_zeros_of_plain_fields_may_be_shown_instead_of_null() -> None:
    made = codec(m.ORDER, "shop.Order", emit_defaults=True)
    value = decoded([b""], made).values[0].as_py()
    assert (value["id"], value["name"], value["raw"], value["paid"], value["state"]) == (0, "", b"", False, "NEW")
    assert (value["where"], value["note"], value["card"], value["at"]) == (None, None, None, None)


def test_enums_may_be_numbers_and_unsigned_ones_wider() -> None:
    made = codec(m.ORDER, "shop.Order", enums_as_ints=True, upcast_unsigned=True)
    value = decoded([Order(state=7, unsigned=2**32 - 1, huge=2**64 - 1).SerializeToString()], made).values[0].as_py()
    assert (value["state"], value["unsigned"], value["huge"]) == (7, 2**32 - 1, Decimal(2**64 - 1))


PROTO2 = m.file(
    m.message(
        "Old",
        m.field("id", 1, m.Proto.TYPE_INT32, label=m.Proto.LABEL_REQUIRED),
        m.field("name", 2, m.Proto.TYPE_STRING, default_value="none"),
        m.field("rate", 3, m.Proto.TYPE_DOUBLE, default_value="1.5"),
        m.field("state", 4, m.Proto.TYPE_ENUM, of=".shop.Old.State", default_value="OFF"),
        m.field("inner", 5, m.Proto.TYPE_MESSAGE, of=".shop.Old"),
        enums=(m.enum("State", ON=1, OFF=2),),
    ),
    syntax="proto2",
)


def old(*extra: Any) -> Any:
    whole = PROTO2.message_type[0]
    return m.file(m.message("Old", *whole.field[:4], *extra, enums=tuple(whole.enum_type)), syntax="proto2")


def test_declared_defaults_are_shown_and_unknown_enums_of_proto2_are_not() -> None:
    found = decoded([b"\x08\x07", b"\x08\x07\x12\x00\x20\x09"], codec(old(), "Old")).values.to_pylist()
    assert found == [
        {"id": 7, "name": "none", "rate": 1.5, "state": "OFF"},
        {"id": 7, "name": "", "rate": 1.5, "state": "OFF"},
    ]


def test_a_message_without_what_it_requires_is_bad() -> None:
    found = decoded([b"", b"\x12\x01x", None], codec(old(), "Old"))
    assert found.errors == {0: "required fields are missing: id", 1: "required fields are missing: id"}


def test_a_field_of_a_message_without_fields_is_left_out() -> None:
    file = m.file(
        m.message("A", m.field("id", 1, m.Proto.TYPE_INT32), m.field("none", 2, m.Proto.TYPE_MESSAGE, of=".shop.B")),
        m.message("B", m.field("c", 1, m.Proto.TYPE_MESSAGE, of=".shop.C")),
        m.message("C"),
    )
    assert codec(file, "A").spark_type.simple_string() == "struct<id:int>"
    assert decoded([b"\x08\x01\x12\x02\x0a\x00"], codec(file, "A")).values.to_pylist() == [{"id": 1}]
    with pytest.raises(OptionError, match=r"shop\.B has no fields"):
        codec(file, "B").check()


def test_a_message_inside_itself_is_refused() -> None:
    with pytest.raises(OptionError, match=r"Old\.inner is a shop\.Old inside a shop\.Old; recursive messages"):
        codec(PROTO2, "Old").check()


def test_a_group_is_refused() -> None:
    file = old(m.field("g", 9, m.Proto.TYPE_GROUP, of=".shop.Old.G"))
    file.message_type[0].nested_type.add(name="G").field.append(m.field("x", 1, m.Proto.TYPE_INT32))
    with pytest.raises(OptionError, match=r"Old\.g is a group"):
        codec(file, "Old").check()


@pytest.mark.parametrize(
    ("descriptors", "name", "said"),
    [
        (b"\xff\xff", "Order", "not a set of file descriptors"),
        (m.descriptor_set(m.ORDER), "Ordre", "messageName=Ordre is not in the descriptor file, which has shop.Line"),
        (m.descriptor_set(m.ORDER), "shop.State", "is not in the descriptor file"),
        (
            m.descriptor_set(m.file(m.message("A"), package="x"), m.file(m.message("A"), package="y")),
            "A",
            "may be any of x.A, y.A",
        ),
    ],
)
def test_a_message_type_that_cannot_be_found_is_told(descriptors: bytes, name: str, said: str) -> None:
    options = FormatOptions(format="protobuf", descriptors=descriptors, message_name=name)
    with pytest.raises(OptionError) as caught:
        ProtobufColumnDecoder(options).check()
    assert said in str(caught.value)


def test_a_missing_import_is_named() -> None:
    file = m.file(m.message("A", m.field("id", 1, m.Proto.TYPE_INT32)))
    file.dependency.append("other.proto")
    with pytest.raises(OptionError, match=r"imports other.proto, which is missing; make it with --include_imports"):
        codec(file, "A").check()
