"""Values in programs and in topics."""

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from confluent_kafka import Message as Record
from pydantic import BaseModel

from headrace.client import Format, Message, Undecodable, Unencodable
from headrace.client.formats import Plain, format_of
from headrace.client.messages import header_pairs


@dataclass
class AsDataclass:
    id: int
    name: str = ""


class AsStruct(msgspec.Struct):
    id: int
    name: str = ""


class Other(msgspec.Struct):
    id: int


class AsModel(BaseModel):
    id: int
    name: str = ""


@pytest.mark.parametrize(
    ("kind", "value", "data"),
    [
        (bytes, b"\x00\xff", b"\x00\xff"),
        (str, "für", "für".encode()),
        (AsDataclass, AsDataclass(1, "a"), b'{"id":1,"name":"a"}'),
        (AsStruct, AsStruct(1, "a"), b'{"id":1,"name":"a"}'),
        (AsModel, AsModel(id=1, name="a"), b'{"id":1,"name":"a"}'),
        (list[AsModel], [AsModel(id=1, name="a")], b'[{"id":1,"name":"a"}]'),
        (dict[str, int], {"a": 1}, b'{"a":1}'),
        (Any, {"a": [None, 1.5]}, b'{"a":[null,1.5]}'),
    ],
)
def test_a_value_comes_back_as_it_went(kind: Any, value: Any, data: bytes) -> None:
    form: Format[Any] = format_of(kind)
    assert form.encode(value, "t") == data
    assert form.decode(data, "t") == value


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (str, b"\xff"),
        (AsStruct, b"{"),
        (AsStruct, b'{"id":"x"}'),
        (AsModel, b'{"id":"x"}'),
        (AsDataclass, b"[]"),
        (list[AsModel], b'[{"id":"x"}]'),
    ],
)
def test_bytes_of_another_type_are_undecodable_with_the_place_of_the_message(kind: Any, data: bytes) -> None:
    with pytest.raises(Undecodable, match="orders-2@7"):
        _ = Message(Record(topic="orders", partition=2, offset=7, value=data), format_of(kind)).value


@pytest.mark.parametrize(
    ("kind", "value"),
    [(bytes, "text"), (str, b"bytes"), (str, "\ud800"), (Plain(), "\ud800"), (AsStruct, object()), (Any, {1j: 2})],
)
def test_a_value_of_another_type_is_unencodable(kind: Any, value: Any) -> None:
    with pytest.raises(Unencodable):
        format_of(kind).encode(value, "t")


def test_a_producer_without_a_format_sends_bytes_and_text_as_they_are_and_all_else_as_json() -> None:
    assert [Plain().encode(value, "t") for value in (b"b", "t", 1, AsModel(id=1))] == [
        b"b",
        b"t",
        b"1",
        b'{"id":1,"name":""}',
    ]


def test_a_type_that_json_cannot_be_held_to_is_refused_at_once() -> None:
    either: Any = AsStruct | Other
    with pytest.raises(TypeError, match="JSON"):
        format_of(either)


def test_a_message_without_a_value_says_that_it_marks_a_deletion() -> None:
    message = Message(Record(topic="t", partition=0, offset=1, key=b"k"), format_of(str))
    assert message.data is None
    with pytest.raises(Undecodable, match="deleted"):
        _ = message.value


def test_headers_are_given_as_a_mapping_or_pairs_and_the_last_of_a_name_counts() -> None:
    pairs = header_pairs([("a", "1"), ("a", b"2"), ("b", None)])
    message = Message(Record(topic="t", partition=0, offset=1, headers=pairs), format_of(str))
    assert (message.header("a"), message.header("b"), message.header("c")) == ("2", None, None)
    assert header_pairs({"a": "ä"}) == [("a", "ä".encode())]
