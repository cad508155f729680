"""Values with schemas, to and from JSON, beside Confluent's own serializers."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from headrace.client.registry import RegisteredSchema, RegistrySettings, SchemaRegistry
from headrace.registry.serde import AvroCodec, ProtobufCodec, Serde, Undecodable, Unencodable, framed_id, schema_type_of
from headrace.testing import Broker

ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "total", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
        {"name": "size", "type": {"type": "enum", "name": "Size", "symbols": ["S", "L"]}, "default": "S"},
        {"name": "raw", "type": "bytes", "default": ""},
    ],
}
VALUE = {"id": 7, "total": "12.30", "at": "2026-01-31T12:00:00+00:00"}
WHOLE = {"id": 7, "note": None, **VALUE, "tags": [], "size": "S", "raw": ""}
PROTO = """
syntax = "proto3";
package shop;
message Order { int64 id = 1; message Line { string sku = 1; int32 count = 2; } repeated Line lines = 2; }
message Other { string name = 1; }
"""
PLACE = SerializationContext("orders", MessageField.VALUE)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with Broker(registry=True) as broker:
        yield broker.registry_url


@pytest.fixture
def registry(url: str) -> SchemaRegistry:
    return SchemaRegistry(RegistrySettings(urls=(url,)))


def registered(registry: SchemaRegistry, subject: str, text: str, kind: str = "AVRO") -> RegisteredSchema:
    registry.register(subject, RegisteredSchema(text=text, type=kind))
    return registry.version(subject)


def test_what_confluents_serializer_wrote_is_decoded(url: str, registry: SchemaRegistry) -> None:
    client = SchemaRegistryClient({"url": url})
    written = AvroSerializer(client, json.dumps({**ORDER, "fields": ORDER["fields"][:2]}))(
        {"id": 7, "note": "hi"}, PLACE
    )
    found = Serde(registry).decode(written)
    assert found is not None
    assert found.value == {"id": 7, "note": "hi"}
    assert found.schema_id == framed_id(written)


def test_confluents_deserializer_reads_what_was_encoded(url: str, registry: SchemaRegistry) -> None:
    schema = registered(registry, "whole-value", json.dumps(ORDER))
    encoded = Serde(registry).encoder(schema)(VALUE)
    read: Any = AvroDeserializer(SchemaRegistryClient({"url": url}))(encoded, PLACE)
    assert (read["id"], str(read["total"]), read["at"].year, read["note"]) == (7, "12.30", 2026, None)
    found = Serde(registry).decode(encoded)
    assert found is not None
    assert found.value == WHOLE


def test_json_schema_is_read_written_and_held_to(url: str, registry: SchemaRegistry) -> None:
    text = json.dumps({"title": "o", "type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]})
    serializer = JSONSerializer(text, SchemaRegistryClient({"url": url}))
    found = Serde(registry).decode(serializer({"id": 7}, SerializationContext("json", MessageField.VALUE)))
    assert found is not None
    assert found.value == {"id": 7}
    encode = Serde(registry).encoder(registry.version("json-value"))
    with pytest.raises(Unencodable, match="id: 'x' is not of type 'integer'"):
        encode({"id": "x"})
    assert encode({"id": "8"}, coerce=True).endswith(b'{"id":8}')


def test_protobuf_is_read_and_written_by_message(registry: SchemaRegistry) -> None:
    schema = registered(registry, "proto-value", PROTO, "PROTOBUF")
    serde = Serde(registry)
    for message, value in [
        ("", {"id": "7", "lines": [{"sku": "a", "count": 2}]}),
        ("Other", {"name": "x"}),
        ("shop.Order.Line", {"sku": "b", "count": 0}),
    ]:
        found = serde.decode(serde.encoder(schema, message)(value))
        assert found is not None
        assert found.value == value
    with pytest.raises(Undecodable, match=r"no message Nope; there are shop.Order, shop.Order.Line, shop.Other"):
        serde.encoder(schema, "Nope")
    with pytest.raises(Unencodable, match="nope"):
        serde.encoder(schema)({"nope": 1})


def test_references_are_followed(registry: SchemaRegistry, url: str) -> None:
    money = '{"type":"record","name":"Money","fields":[{"name":"c","type":"int"}]}'
    registry.register("money", RegisteredSchema(text=money))
    client = SchemaRegistryClient({"url": url})
    text = '{"type":"record","name":"P","fields":[{"name":"m","type":["null","Money"]}]}'
    client.register_schema("pay-value", Schema(text, "AVRO", [SchemaReference("Money", "money", 1)]))
    serde = Serde(registry)
    found = serde.decode(serde.encoder(registry.version("pay-value"))({"m": {"c": 3}}))
    assert found is not None
    assert found.value == {"m": {"c": 3}}


@pytest.mark.parametrize("data", [None, b"", b"\0\0\0", b"plain text", b"\0\0\0\xff\xffx"])
def test_what_has_no_known_id_before_it_is_left_alone(registry: SchemaRegistry, data: bytes | None) -> None:
    assert Serde(registry).decode(data) is None


def test_bytes_that_are_not_of_the_schema_are_told(registry: SchemaRegistry) -> None:
    schema = registered(registry, "strict-value", json.dumps(ORDER))
    head = b"\0" + schema.id.to_bytes(4, "big")
    for data in (b"", b"\x02", b"\x02" * 100):
        with pytest.raises(Undecodable):
            Serde(registry).decode(head + data)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({**VALUE, "id": "x"}, 'id: "x" is not long'),
        ({**VALUE, "id": 1 << 63}, "is not long"),
        ({**VALUE, "size": "M"}, 'size: "M" is none of S, L'),
        ({**VALUE, "tags": ["a", 3]}, r"tags\[1\]: 3 is not string"),
        ({**VALUE, "total": "cheap"}, 'total: "cheap" is not decimal'),
        ({**VALUE, "at": "noon"}, "at: .* is not timestamp-millis"),
        ({**VALUE, "extra": 1}, "record shop.Order has no field extra"),
        ({"id": 1}, "field total of record shop.Order is missing"),
        ([], "is not an object, as record shop.Order is"),
    ],
)
def test_a_value_that_does_not_fit_is_told_with_its_place(value: Any, expected: str) -> None:
    with pytest.raises(Unencodable, match=expected):
        AvroCodec(json.dumps(ORDER), []).encode(value)


def test_texts_stand_for_numbers_where_they_are_coerced() -> None:
    codec = AvroCodec(json.dumps(ORDER), [])
    row = {"id": "7", "note": "", "total": "12.30", "at": "2026-01-31T12:00", "raw": "\xff"}
    assert codec.decode(codec.encode(row, coerce=True)) == {**WHOLE, "raw": "\xff"}
    with pytest.raises(Unencodable):
        codec.encode({**row, "tags": []})


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (["null", "long", "string"], "5"),
        (["null", "long", "string"], 5),
        (["int", "double"], 1.5),
        (["null", {"type": "map", "values": "int"}], {"a": 1, "b": 2}),
        ({"type": "fixed", "name": "F", "size": 2}, "ab"),
        ("boolean", True),
        (["string", "bytes"], "text"),
    ],
)
def test_unions_and_scalars_go_through(schema: Any, value: Any) -> None:
    codec = AvroCodec(json.dumps(schema), [])
    assert codec.decode(codec.encode(value)) == value


def test_the_branch_of_a_union_may_be_named() -> None:
    codec = AvroCodec('["null", "int", "string"]', [])
    assert codec.decode(codec.encode({"string": "5"})) == "5"


def test_a_protobuf_value_with_indexes_that_are_not_there_is_told() -> None:
    codec = ProtobufCodec(PROTO, [])
    for data in (b"\x02\x20", b"", b"\xff"):
        with pytest.raises(Undecodable):
            codec.decode(data)


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("o.avsc", "", "AVRO"),
        ("o.proto", "", "PROTOBUF"),
        ("o.json", '{"$schema": "x"}', "JSON"),
        ("o.json", '{"type": "record"}', "AVRO"),
        ("-", PROTO, "PROTOBUF"),
        ("-", '{"type": "object", "properties": {}}', "JSON"),
    ],
)
def test_the_type_of_a_schema_is_told_by_its_file(path: str, text: str, expected: str) -> None:
    assert schema_type_of(path, text) == expected
