"""Values with the ids of their schemas before them, as Confluent's serializers write them."""

import json
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from headrace.client.registry import RegistryUnreachable
from headrace.formats import OptionError, check_options, decoder_for
from headrace.formats import registered as registered_module
from headrace.spark.data_source import HeadraceSource
from tests.support.registry.serving import in_memory, serving
from tests.support.spark import messages as m
from tests.support.spark.messages import Proto, field

from .test_decoder import batch, decoder
from .test_protobuf_resolution import message, writer_class

pytestmark = pytest.mark.slow
VALUE = SerializationContext("orders", MessageField.VALUE)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(in_memory) as url:
        yield url


@pytest.fixture
def client(url: str) -> SchemaRegistryClient:
    found = SchemaRegistryClient({"url": url, "timeout": 60})
    found.set_compatibility(level="NONE")
    return found


def record(*fields: tuple[str, Any], **more: Any) -> str:
    named = [{"name": name, "type": kind} | more.pop(name, {}) for name, kind in fields]
    return json.dumps({"type": "record", "name": "Order", "fields": named, **more})


def avro(client: SchemaRegistryClient, schema: str, value: Any) -> bytes:
    return bytes(AvroSerializer(client, schema)(value, VALUE))


def read(url: str, values: list[bytes | None], **options: str) -> tuple[list[Any], dict[int, str]]:
    made = decoder({"schema.registry.url": url, "subscribe": "orders", **options})
    found = made.decode(batch(values))
    found.validate(full=True)
    errors = {row: bad["error"] for row, bad in enumerate(found.column("bad").to_pylist()) if bad is not None}
    return found.column("value").to_pylist(), errors


def test_each_record_is_read_with_the_schema_it_was_written_with(client: SchemaRegistryClient, url: str) -> None:
    swapped = avro(client, record(("a", "string"), ("b", "string")), {"a": "left", "b": "right"})
    straight = avro(client, record(("b", "string"), ("a", "string")), {"a": "left", "b": "right"})
    longer = avro(client, record(("n", "int"), ("b", "string"), ("a", "string")), {"n": 1, "a": "left", "b": "right"})
    reader = record(("b", "string"), ("a", "string"))
    values, errors = read(url, [swapped, straight, None, longer, swapped], format="avro", schema=reader)
    assert errors == {}
    assert values == [{"b": "right", "a": "left"} if row != 2 else None for row in range(5)]


def test_an_unknown_id_is_a_bad_record_and_its_neighbours_are_not(client: SchemaRegistryClient, url: str) -> None:
    good = avro(client, record(("a", "int")), {"a": 1})
    unknown, other = b"\0\0\0\x27\x0f" + good[5:], b'{"a": 1}'
    values, errors = read(url, [unknown, good, other, good], format="avro", schema=record(("a", "int")))
    assert values == [None, {"a": 1}, None, {"a": 1}]
    assert errors[0] == f"value: the schema id 9999 is not known to the schema registry at {url}"
    assert "does not start with a zero byte" in errors[2]


def test_an_id_of_another_type_is_a_bad_record(client: SchemaRegistryClient, url: str) -> None:
    number = client.register_schema("documents", Schema('{"type": "object"}', "JSON"))
    framed = b"\0" + number.to_bytes(4, "big") + b"\2"
    _, errors = read(url, [framed], format="avro", schema=record(("a", "int")))
    assert errors == {0: f"value: the schema id {number} is of type JSON, not AVRO"}


def test_schemas_that_refer_to_others_are_put_together(client: SchemaRegistryClient, url: str) -> None:
    user = '{"type":"record","name":"User","namespace":"shop","fields":[{"name":"name","type":"string"}]}'
    client.register_schema("user", Schema(user, "AVRO"))
    order = '{"type":"record","name":"Order","namespace":"shop","fields":[{"name":"by","type":"shop.User"}]}'
    schema = Schema(order, "AVRO", [SchemaReference("shop.User", "user", 1)])
    row = bytes(AvroSerializer(client, schema)({"by": {"name": "Ann"}}, SerializationContext("refs", "value")))
    assert read(url, [row], format="avro", subject="refs-value") == ([{"by": {"name": "Ann"}}], {})


def test_a_schema_is_had_from_the_topics_subject(client: SchemaRegistryClient, url: str) -> None:
    context = SerializationContext("bills", MessageField.VALUE)
    old = bytes(AvroSerializer(client, record(("a", "int")))({"a": 1}, context))
    newer = record(("a", "long"), ("b", "string"), b={"default": "none"})
    new = bytes(AvroSerializer(client, newer)({"a": 2, "b": "x"}, context))
    values, errors = read(url, [old, new], format="avro", subscribe="bills")
    assert (values, errors) == ([{"a": 1, "b": "none"}, {"a": 2, "b": "x"}], {})
    values, errors = read(url, [old, new], **{"format": "avro", "subscribe": "bills", "subject.version": "1"})
    assert values == [{"a": 1}, None]
    assert "the writer's long cannot be read as int" in errors[1]


def test_json_is_read_by_the_readers_schema_if_the_id_is_of_a_json_schema(
    client: SchemaRegistryClient, url: str
) -> None:
    context = SerializationContext("people", MessageField.VALUE)
    first = {"title": "P", "type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}
    second = {**first, "properties": {"name": {"type": "string"}, "age": {"type": ["number", "null"]}, "x": {}}}
    rows: list[bytes | None] = [
        bytes(JSONSerializer(json.dumps(schema), client)(value, context))
        for schema, value in ((first, {"name": "Ann", "age": 3}), (second, {"name": "Bob", "age": 1.5, "x": [1]}))
    ]
    unknown = b"\0\0\0\x27\x0f{}"
    values, errors = read(url, [*rows, unknown], format="json-schema", subscribe="people")
    assert values == [{"name": "Ann", "age": 3.0, "x": None}, {"name": "Bob", "age": 1.5, "x": "[1]"}, None]
    assert "is not known to" in errors[2]
    values, errors = read(url, [*rows], format="json", schema="name STRING, age INT")
    assert values == [{"name": "Ann", "age": 3}, None]
    assert errors == {1: "value: age: 1.5 is not int"}


def test_protobuf_is_read_by_the_message_that_the_indexes_name(client: SchemaRegistryClient, url: str) -> None:
    context = SerializationContext("shop", MessageField.VALUE)
    first = message(field("a", 1, Proto.TYPE_SINT32), field("b", 2, Proto.TYPE_STRING))
    second = m.file(
        m.message("Other", field("z", 1, Proto.TYPE_STRING)),
        m.message("Order", field("b", 2, Proto.TYPE_STRING), field("a", 1, Proto.TYPE_SINT64)),
    )
    rows: list[bytes | None] = []
    for file, values in ((first, {"a": -1, "b": "x"}), (second, {"a": -(2**40), "b": "y"})):
        kind = writer_class(file)
        rows.append(bytes(ProtobufSerializer(kind, client)(kind(**values), context)))
    found, errors = read(url, rows, format="protobuf", subscribe="shop", messageName="shop.Order")
    assert (found, errors) == ([{"b": "x", "a": -1}, {"b": "y", "a": -(2**40)}], {})
    none = rows[1][:5] + b"\2\x0a" + rows[1][7:] if rows[1] is not None else b""
    _, errors = read(url, [none], format="protobuf", subscribe="shop", messageName="shop.Order")
    assert "has no message at the indexes [5]" in errors[0]


def test_a_registry_that_does_not_answer_fails_the_task_and_makes_no_record_bad() -> None:
    options = {"schema.registry.url": "http://127.0.0.1:1", "schema.registry.timeout.ms": "1"}
    made = decoder({"format": "avro", "schema": record(("a", "int")), **options})
    with pytest.raises(RegistryUnreachable) as caught:
        made.decode(batch([b"\0\0\0\0\1\2"]))
    assert "the schema registry at http://127.0.0.1:1 does not answer" in str(caught.value)


def test_a_pair_of_schemas_is_compiled_once_in_a_process(
    client: SchemaRegistryClient, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[Any] = []
    real = registered_module.RegisteredCodec._compiled

    def counted(self: Any, head: Any) -> Any:
        compiled.append(head)
        return real(self, head)

    monkeypatch.setattr(registered_module.RegisteredCodec, "_compiled", counted)
    row = avro(client, record(("once", "int")), {"once": 1})
    made = decoder({"schema.registry.url": url, "format": "avro", "schema": record(("once", "int"))})
    for _ in range(3):
        again = pickle.loads(pickle.dumps(made))
        assert again.decode(batch([row, row])).column("value").to_pylist() == [{"once": 1}] * 2
    assert len(compiled) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"subscribe": "nowhere"}, "has no schema for subject=nowhere-value, subject.version=latest"),
        ({"subscribe": "a,b"}, "name the subject"),
        ({"subscribePattern": "a.*"}, "name the subject"),
        ({"subject": "documents2"}, "needs a schema of type AVRO, but version 1 of subject documents2 is of JSON"),
    ],
)
def test_a_subject_that_cannot_be_used_is_refused_when_the_query_is_planned(
    client: SchemaRegistryClient, url: str, options: dict[str, str], said: str
) -> None:
    client.register_schema("documents2", Schema('{"type": "object"}', "JSON"))
    with pytest.raises(OptionError) as caught:
        decoder_for({"format": "avro", "schema.registry.url": url, **options})
    assert said in str(caught.value)


def test_a_query_keeps_the_schema_that_its_columns_were_taken_from(client: SchemaRegistryClient, url: str) -> None:
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "kept", "format": "avro"}
    client.register_schema("kept-value", Schema(record(("a", "int")), "AVRO"))
    source = HeadraceSource({**options, "schema.registry.url": url})
    columns = source.schema()
    client.register_schema("kept-value", Schema(record(("a", "int"), ("b", "string"), b={"default": ""}), "AVRO"))
    source.reader(columns)
    pickle.loads(pickle.dumps(source)).streamReader(columns)
    assert HeadraceSource({**options, "schema.registry.url": url}).schema() != columns


def test_a_schema_that_is_nested_deeply_is_passed_over_or_makes_records_bad(
    client: SchemaRegistryClient, url: str
) -> None:
    deep: Any = "int"
    for _ in range(400):
        deep = {"type": "array", "items": deep}
    number = client.register_schema("deep", Schema(record(("gone", deep), ("a", "int")), "AVRO"))
    row = b"\0" + number.to_bytes(4, "big") + b"\0\2"
    values, errors = read(url, [row], format="avro", schema=record(("a", "int")))
    assert values == [{"a": 1}] or "cannot be used" in errors[0]


def test_options_are_checked_without_a_registry() -> None:
    check_options({"format": "avro", "subscribe": "a", "schema.registry.url": "http://127.0.0.1:1"})
