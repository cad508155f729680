"""Columns written with a registry's schemas: Confluent's own deserializers read them, and so does the source."""

import json
import pickle
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from headrace.client.errors import ClientError
from headrace.formats import types as t
from headrace.formats.arrow_types import arrow_type
from headrace.formats.ddl import parse_schema
from headrace.formats.errors import OptionError
from headrace.formats.writing import ValueEncoder, encoder_for, read_encoding
from tests.support.registry.serving import in_memory, serving

from .test_decoder import batch, decoder

pytestmark = pytest.mark.slow
MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)
WIDE = (
    "id BIGINT, n INT, ok BOOLEAN, f FLOAT, d DOUBLE, s STRING, b BINARY, at TIMESTAMP, "
    "tags ARRAY<STRING>, stock MAP<STRING, BIGINT>, place STRUCT<city: STRING, zip: INT>"
)
ROW: dict[str, Any] = {
    "id": 2**40,
    "n": -3,
    "ok": True,
    "f": 0.5,
    "d": 1e100,
    "s": 'é"\n',
    "b": b"\0\xff",
    "at": MOMENT,
    "tags": ["a", "b"],
    "stock": [("x", 1)],
    "place": {"city": "Oslo", "zip": None},
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(in_memory) as url:
        yield url


@pytest.fixture
def client(url: str) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": url, "timeout": 60})


def encoder(url: str, columns: str | t.StructType, **options: str) -> ValueEncoder:
    given = {"schema.registry.url": url, "topic": "out", **options}
    read = read_encoding({name.lower(): value for name, value in given.items()})
    assert read is not None
    value = parse_schema(columns) if isinstance(columns, str) else columns
    return encoder_for(read, value)


def refusal(url: str, columns: str, **options: str) -> str:
    with pytest.raises(OptionError) as caught:
        encoder(url, columns, **options)
    return str(caught.value)


def rows(columns: str, values: list[Any]) -> pa.RecordBatch:
    column = pa.array(values, arrow_type(parse_schema(columns)))
    return pa.RecordBatch.from_arrays([pa.array([b"k"] * len(values), pa.binary()), column], names=["key", "value"])


def written(made: ValueEncoder, columns: str, values: list[Any]) -> list[Any]:
    found = pickle.loads(pickle.dumps(made)).encode(rows(columns, values))
    assert found.letters is None
    return found.rows.column("value").to_pylist()  # type: ignore[no-any-return]


def context(topic: str) -> SerializationContext:
    return SerializationContext(topic, MessageField.VALUE)


@pytest.mark.parametrize("chosen", ["avro", "json-schema", "protobuf"])
def test_what_is_written_is_read_again_by_the_subjects_schema(url: str, chosen: str) -> None:
    topic = f"there-and-back-{chosen}"
    values = written(encoder(url, WIDE, format=chosen, topic=topic), WIDE, [ROW, None])
    assert values[1] is None
    made = decoder({"format": chosen, "schema.registry.url": url, "subscribe": topic})
    found = made.decode(batch(values))
    assert found.column("bad").to_pylist() == [None, None]
    value = found.column("value").to_pylist()[0]
    if chosen == "json-schema":
        value |= (
            {"at": MOMENT, "b": ROW["b"]} if value["b"] == "AP8=" and value["at"].startswith("2026-01-02T03") else {}
        )
    assert value == ROW


def test_confluents_own_deserializers_read_what_is_written(client: SchemaRegistryClient, url: str) -> None:
    columns = "id BIGINT, name STRING, price DECIMAL(9,2), day DATE"
    row = {"id": 7, "name": "Ann", "price": Decimal("1.50"), "day": date(2026, 1, 2)}
    (avro,) = written(encoder(url, columns, format="avro", topic="c1"), columns, [row])
    assert AvroDeserializer(client)(avro, context("c1")) == row
    (document,) = written(encoder(url, columns, format="json-schema", topic="c2"), columns, [row])
    schema = client.get_latest_version("c2-value").schema
    found = JSONDeserializer(schema.schema_str, schema_registry_client=client)(document, context("c2"))
    assert found == {"id": 7, "name": "Ann", "price": 1.5, "day": "2026-01-02"}


def test_a_column_that_is_added_makes_a_compatible_version(client: SchemaRegistryClient, url: str) -> None:
    for chosen in ("avro", "protobuf"):
        topic = f"grows-{chosen}"
        first = written(
            encoder(url, "a INT, b STRING", format=chosen, topic=topic), "a INT, b STRING", [{"a": 1, "b": "x"}]
        )
        columns = "c DOUBLE, b STRING, a INT"
        second = written(encoder(url, columns, format=chosen, topic=topic), columns, [{"a": 2, "b": "y", "c": 0.5}])
        assert client.get_versions(f"{topic}-value") == [1, 2]
        made = decoder({"format": chosen, "schema.registry.url": url, "subscribe": topic})
        values = made.decode(batch([*first, *second])).column("value").to_pylist()
        assert values == [{"c": None, "b": "x", "a": 1}, {"c": 0.5, "b": "y", "a": 2}]


def test_numbers_of_fields_that_are_gone_are_not_given_again(client: SchemaRegistryClient, url: str) -> None:
    client.set_compatibility("gone-value", "NONE")
    for columns in ("a INT, b STRING", "a INT", "a INT, c BINARY", "a INT, b STRING, c BINARY"):
        encoder(url, columns, format="protobuf", topic="gone")
    text = client.get_latest_version("gone-value").schema.schema_str
    assert "a = 1;" in text
    assert "c = 3;" in text
    assert "b = 4;" in text
    assert "reserved 2;" in text


def test_messages_in_maps_have_names_of_their_own_and_keep_their_numbers(
    client: SchemaRegistryClient, url: str
) -> None:
    column = "MAP<STRING, STRUCT<{}: INT>>"
    first = f"b {column.format('x')}, b_value STRUCT<y: INT>"
    (value,) = written(
        encoder(url, first, format="protobuf", topic="maps"), first, [{"b": [("k", {"x": 1})], "b_value": {"y": 2}}]
    )
    columns = f"a {column.format('z')}, b {column.format('w: INT, x')}, b_value STRUCT<y: INT>"
    encoder(url, columns, format="protobuf", topic="maps")
    assert client.get_versions("maps-value") == [1, 2]
    made = decoder({"format": "protobuf", "schema.registry.url": url, "subscribe": "maps"})
    (found,) = made.decode(batch([value])).column("value").to_pylist()
    assert (found["b"], found["b_value"]) == ([("k", {"w": None, "x": 1})], {"y": 2})


def test_an_incompatible_schema_is_refused_when_the_query_starts(client: SchemaRegistryClient, url: str) -> None:
    encoder(url, "a STRING", format="avro", topic="strict")
    said = refusal(url, "a INT", format="avro", topic="strict")
    assert "the schema for subject=strict-value is not compatible with those that are there" in said
    assert f"the schema registry at {url}" in said


def test_a_schema_that_must_be_there_is_looked_up(client: SchemaRegistryClient, url: str) -> None:
    options = {"format": "avro", "topic": "looked-up", "auto.register.schemas": "false"}
    assert "does not have the schema in subject=looked-up-value" in refusal(url, "a INT", **options)
    schema = '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}'
    number = client.register_schema("looked-up-value", Schema(schema, "AVRO"))
    (value,) = written(encoder(url, "a INT", schema=schema, **options), "a INT", [{"a": 1}])
    assert value == b"\0" + number.to_bytes(4, "big") + b"\2"
    latest = encoder(url, "a INT", **{**options, "use.latest.version": "true"})
    assert written(latest, "a INT", [{"a": 1}]) == [value]


SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "state", "type": {"type": "enum", "name": "S", "symbols": ["NEW", "PAID"]}},
            {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 2}},
            {"name": "note", "type": ["null", "string"]},
            {"name": "extra", "type": "int", "default": 5},
        ],
    }
)
COLUMNS = "id BIGINT, state STRING, price DECIMAL(9,2), note STRING"


def order(**changes: Any) -> dict[str, Any]:
    return {"id": 1, "state": "NEW", "price": Decimal("1.00"), "note": None, **changes}


def test_defaults_and_unions_are_written_as_the_schema_has_them(client: SchemaRegistryClient, url: str) -> None:
    place = {"type": "record", "name": "P", "fields": [{"name": "zip", "type": "int", "default": 7}]}
    declared: list[tuple[str, Any, Any]] = [
        ("b", "bytes", "\u00ff"),
        ("x", "double", 0.5),
        ("l", {"type": "array", "items": "string"}, ["a", "é"]),
        ("k", {"type": "map", "values": "long"}, {"z": -1}),
        ("p", place, {}),
        ("u", ["null", "string"], None),
        ("e", {"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B"),
        ("f", {"type": "fixed", "name": "F", "size": 2}, "ab"),
    ]
    fields = [{"name": name, "type": kind, "default": default} for name, kind, default in declared]
    fields += [{"name": "m", "type": ["int", "string"]}, {"name": "o", "type": ["long", "null", "string"]}]
    schema = json.dumps({"type": "record", "name": "R", "fields": fields})
    columns = "m STRUCT<member0: INT, member1: STRING>, o STRING"
    made = encoder(url, columns, format="avro", topic="defaults", schema=schema)
    (value, other) = written(
        made, columns, [{"m": {"member0": None, "member1": "s"}, "o": "t"}, {"m": {"member0": 3}, "o": None}]
    )
    read = AvroDeserializer(client)
    assert read(value, context("defaults")) == {
        "b": b"\xff",
        "x": 0.5,
        "l": ["a", "é"],
        "k": {"z": -1},
        "p": {"zip": 7},
        "u": None,
        "e": "B",
        "f": b"ab",
        "m": "s",
        "o": "t",
    }
    assert (read(other, context("defaults"))["m"], read(other, context("defaults"))["o"]) == (3, None)


def test_rows_that_the_schema_does_not_allow_become_letters(url: str) -> None:
    made = encoder(url, COLUMNS, format="avro", topic="letters", schema=SCHEMA, deadLetterTopic="dead")
    bad = [order(id=None), order(state="LOST"), order(price=Decimal("10.00"))]
    found = made.encode(rows(COLUMNS, [order(), *bad, order(note="x")]))
    assert found.rows.num_rows == 2
    assert found.letters is not None
    reasons = [
        next(one["value"] for one in headers if one["key"] == "headrace.error").decode()
        for headers in found.letters.column("headers").to_pylist()
    ]
    assert reasons == [
        "value: value.id is null, which the schema does not allow",
        "value: value.state is 'LOST', which is no symbol of the schema's enum S",
        "value: value.price is 10.00, which has more than the schema's 3 digits",
    ]
    assert json.loads(found.letters.column("value").to_pylist()[1])["state"] == "LOST"
    assert found.letters.column("key").to_pylist() == [b"k"] * 3


def test_text_that_is_not_utf8_becomes_a_letter_with_the_bytes_that_it_has(url: str) -> None:
    made = encoder(url, "a STRING, b INT", format="avro", topic="garbage", deadLetterTopic="dead")
    raw = pa.array([b"ok", b"a\xff"], pa.binary())
    text = pa.Array.from_buffers(pa.string(), 2, raw.buffers())
    value = pa.StructArray.from_arrays([text, pa.array([1, 2], pa.int32())], ["a", "b"])
    found = made.encode(pa.RecordBatch.from_arrays([value], ["value"]))
    assert found.rows.num_rows == 1
    assert found.letters is not None
    assert found.letters.column("value").to_pylist() == [b'{"a":"a\xff","b":2}']


@pytest.mark.parametrize("chosen", ["avro", "json-schema", "protobuf"])
def test_a_row_with_a_time_that_python_does_not_have_becomes_a_letter(url: str, chosen: str) -> None:
    columns = "at TIMESTAMP, m MAP<STRING, TIMESTAMP>, a STRING"
    moment = {"type": "long", "logicalType": "timestamp-micros"}
    symbol = {"type": "enum", "name": "E", "symbols": ["A"]}
    types = {"at": moment, "m": {"type": "map", "values": moment}, "a": symbol}
    fields = [{"name": name, "type": kind} for name, kind in types.items()]
    schema = {"schema": json.dumps({"type": "record", "name": "R", "fields": fields})} if chosen == "avro" else {}
    made = encoder(url, columns, format=chosen, topic=f"far-{chosen}", deadLetterTopic="dead", **schema)
    value: dict[str, Any] = {"at": 253_402_300_800_000_000, "m": {"k": -(2**62)}, "a": "x"}
    numbers = arrow_type(parse_schema(columns.replace("TIMESTAMP", "BIGINT")))
    column = pa.array([value | {"m": list(value["m"].items())}], numbers).cast(arrow_type(parse_schema(columns)))
    found = made.encode(pa.RecordBatch.from_arrays([column], ["value"]))
    assert found.rows.num_rows == 0
    assert found.letters is not None
    assert [json.loads(letter) for letter in found.letters.column("value").to_pylist()] == [value]


def test_a_letter_is_json_where_a_number_is_none(url: str) -> None:
    made = encoder(url, "d DOUBLE", format="json-schema", topic="nan", deadLetterTopic="dead")
    found = made.encode(rows("d DOUBLE", [{"d": float("nan")}, {"d": float("-inf")}]))
    assert found.letters is not None
    assert found.letters.column("value").to_pylist() == [b'{"d": "nan"}', b'{"d": "-inf"}']


def test_a_row_that_cannot_be_written_fails_where_letters_go_nowhere(url: str) -> None:
    made = encoder(url, COLUMNS, format="avro", topic="letters", schema=SCHEMA)
    with pytest.raises(ClientError) as caught:
        made.encode(rows(COLUMNS, [order(id=None)]))
    assert "value.id is null, which the schema does not allow; set deadLetterTopic" in str(caught.value)


def test_json_is_held_to_a_schema_that_was_not_made_for_it(url: str) -> None:
    schema = '{"type": "object", "properties": {"a": {"type": "integer", "minimum": 1}}, "required": ["a"]}'
    made = encoder(url, "a INT", format="json-schema", topic="held", schema=schema, deadLetterTopic="dead")
    found = made.encode(rows("a INT", [{"a": 1}, {"a": 0}, {"a": None}]))
    assert [value[5:] for value in found.rows.column("value").to_pylist()] == [b'{"a":1}']
    assert found.letters is not None
    assert found.letters.num_rows == 2


def test_protobuf_says_which_message_of_the_schema_it_is(url: str) -> None:
    schema = 'syntax = "proto3"; message A { int32 a = 1; } message B { message C { repeated sint32 c = 1; } }'
    made = encoder(url, "c ARRAY<INT>", format="protobuf", topic="which", schema=schema, messageName="B.C")
    (value,) = written(made, "c ARRAY<INT>", [{"c": [-1]}])
    assert value[5:] == b"\4\2\0\x0a\1\1"


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        ("id BIGINT", {"format": "avro", "schema": SCHEMA}, "the schema needs value.state"),
        (COLUMNS + ", more INT", {"format": "avro", "schema": SCHEMA}, "has no field for value.more; leave it out"),
        (COLUMNS.replace("BIGINT", "DOUBLE"), {"format": "avro", "schema": SCHEMA}, "value.id is double"),
        (COLUMNS.replace("9,2", "9,3"), {"format": "avro", "schema": SCHEMA}, "value.price is decimal(9,3)"),
        ("`a b` INT", {"format": "avro"}, "a name that Avro does not allow"),
        ("a DATE", {"format": "protobuf"}, "which Protobuf does not have"),
        ("a INT", {"format": "avro", "schema": "{"}, "cannot be used"),
        ("a INT", {"format": "avro", "use.latest.version": "true", "subject": "none"}, "has no subject none"),
        ("a INT", {"format": "json-schema", "schema": '{"type": 3}'}, "not a valid JSON Schema"),
        ("a INT", {"format": "protobuf", "schema": 'syntax = "proto3"; message A { string a = 1; }'}, "value.a is int"),
    ],
)
def test_columns_that_do_not_fit_are_refused_when_the_query_starts(
    url: str, columns: str, options: dict[str, str], said: str
) -> None:
    assert said in refusal(url, columns, **{"topic": "unfit", **options})


def test_a_value_that_is_no_struct_is_refused(url: str) -> None:
    read = read_encoding({"format": "avro", "schema.registry.url": url, "topic": "t"})
    assert read is not None
    with pytest.raises(OptionError) as caught:
        encoder_for(read, t.StringType())
    assert "struct(*) AS value" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"format": "xml"}, "format=xml is not known to the sink"),
        ({"format": "avro", "topic": "t"}, "needs the option schema.registry.url"),
        ({"format": "avro", "schema.registry.url": "http://r"}, "name the subject"),
        ({"schema": "x"}, "schema has no use where values are written as they are"),
        ({"format": "avro", "schema.registry.url": "http://r", "topic": "t", "deadlettertopic": "t"}, "name another"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError) as caught:
        read_encoding(options)
    assert said in str(caught.value)
