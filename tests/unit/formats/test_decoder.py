"""Whole batches: what Spark gets, and what becomes of records that cannot be decoded."""

import json
import pickle
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from headrace.client.columnar.model import SCHEMA, SCHEMA_WITH_HEADERS
from headrace.formats import OptionError, ValueDecoder, decoder_for
from headrace.formats import types as t
from headrace.formats.options import read_options
from headrace.spark.types import to_spark

BASE = t.StructType(
    [
        t.StructField("key", t.BinaryType()),
        t.StructField("value", t.BinaryType()),
        t.StructField("topic", t.StringType()),
        t.StructField("partition", t.IntegerType()),
        t.StructField("offset", t.LongType()),
        t.StructField("timestamp", t.TimestampType()),
        t.StructField("timestampType", t.IntegerType()),
    ]
)
JSON = {"format": "json", "schema": "id BIGINT, tags ARRAY<STRING>, by MAP<STRING, DECIMAL(5,2)>, at TIMESTAMP"}
AVRO = {
    "format": "avro",
    "schema": json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}),
}
HEADERS = [{"key": "trace", "value": b"1"}, {"key": "trace", "value": None}]


def batch(values: list[bytes | None], keys: list[bytes | None] | None = None, headers: Any = None) -> pa.RecordBatch:
    count = len(values)
    columns: list[Any] = [
        pa.array(keys or [b"k"] * count, pa.binary()),
        pa.array(values, pa.binary()),
        pa.array(["orders"] * count, pa.string()),
        pa.array([3] * count, pa.int32()),
        pa.array(range(100, 100 + count), pa.int64()),
        pa.array([0] * count, pa.timestamp("us", tz="UTC")),
        pa.array([0] * count, pa.int32()),
    ]
    if headers is None:
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    return pa.RecordBatch.from_arrays(
        [*columns, pa.array(headers, SCHEMA_WITH_HEADERS.field("headers").type)], schema=SCHEMA_WITH_HEADERS
    )


def decoder(options: dict[str, str]) -> ValueDecoder:
    found = decoder_for(options)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "options", [JSON, AVRO, {"format": "string"}, {"keyFormat": "string"}, {**JSON, "deadLetterTopic": "dead"}]
)
def test_batches_have_the_schema_that_spark_expects_to_the_letter(options: dict[str, str]) -> None:
    made = decoder(options)
    expected = to_arrow_schema(to_spark(made.spark_schema(BASE)), timezone="UTC")
    assert made.arrow_schema(SCHEMA).equals(expected, check_metadata=True)
    found = made.decode(batch([None]))
    assert found.schema.equals(expected, check_metadata=True)
    assert str(found.schema) == str(expected)
    found.validate(full=True)


def test_a_good_value_is_decoded_and_the_other_columns_are_as_they_were() -> None:
    source = batch([b'{"id": 7, "tags": ["a"], "by": {"x": 1.5}, "at": "2024-01-05T10:00:00Z"}'])
    found = decoder(JSON).decode(source)
    assert found.column("value").to_pylist()[0]["id"] == 7
    assert found.column("bad").to_pylist() == [None]
    for name in ("key", "topic", "partition", "offset", "timestamp", "timestampType"):
        assert found.column(name).equals(source.column(name))


def test_a_bad_value_is_null_and_told_with_its_reason_beside_good_ones() -> None:
    found = decoder(JSON).decode(batch([b'{"id": 1}', b'{"id": "x"}', None, b""]))
    assert [value and value["id"] for value in found.column("value").to_pylist()] == [1, None, None, None]
    assert found.column("bad").to_pylist() == [
        None,
        {"error": 'value: id: "x" is not bigint', "value": b'{"id": "x"}', "key": b"k"},
        None,
        {"error": "value: the value is empty", "value": b"", "key": b"k"},
    ]


def test_keys_may_be_text_and_a_key_that_is_none_is_told_while_its_value_is_kept() -> None:
    found = decoder({"keyFormat": "string"}).decode(batch([b"raw", b"raw", b"\xff"], [b"k", b"\xff", None]))
    assert found.column("key").to_pylist() == ["k", None, None]
    assert found.column("value").to_pylist() == [b"raw", b"raw", b"\xff"]
    assert found.column("bad").to_pylist() == [
        None,
        {"error": "key: not UTF-8", "value": b"raw", "key": b"\xff"},
        None,
    ]


def test_framed_values_are_decoded_behind_their_head() -> None:
    found = decoder({"format": "string", "framing": "confluent"}).decode(batch([b"\0\0\0\0\1text", b"text", None]))
    assert found.column("value").to_pylist() == ["text", None, None]
    assert [bad and bad["value"] for bad in found.column("bad").to_pylist()] == [None, b"text", None]


def test_a_slice_of_a_batch_is_decoded_as_such() -> None:
    whole = batch([b'{"id": 0}', b"x", None, b'{"id": 3}', b'{"id": 4}'])
    found = decoder(JSON).decode(whole.slice(1, 3))
    assert [value and value["id"] for value in found.column("value").to_pylist()] == [None, None, 3]
    assert found.column("offset").to_pylist() == [101, 102, 103]


def test_a_batch_without_rows_is_decoded_to_one() -> None:
    for options in (JSON, AVRO, {"format": "string"}):
        assert decoder(options).decode(batch([])).num_rows == 0


def test_dead_letters_are_written_with_their_origin_before_the_rest_is_given() -> None:
    written: list[pa.RecordBatch] = []
    made = ValueDecoder(read_options({**JSON, "deadLetterTopic": "dead"}), written.append)
    found = made.decode(batch([b'{"id": 1}', b"oops", None], [b"a", b"b", b"c"], [None, HEADERS, None]))
    assert [value and value["id"] for value in found.column("value").to_pylist()] == [1, None]
    assert found.column("offset").to_pylist() == [100, 102]
    assert "bad" not in found.schema.names
    assert "headers" not in found.schema.names
    (letters,) = written
    (letter,) = letters.to_pylist()
    assert (letter["key"], letter["value"]) == (b"b", b"oops")
    assert letter["headers"][:2] == HEADERS
    added = {header["key"]: header["value"] for header in letter["headers"][2:]}
    assert added.pop("headrace.error").startswith(b"value: not JSON")
    assert added == {"headrace.topic": b"orders", "headrace.partition": b"3", "headrace.offset": b"101"}


def test_nothing_is_written_where_nothing_is_bad() -> None:
    written: list[pa.RecordBatch] = []
    made = ValueDecoder(read_options({**JSON, "deadLetterTopic": "dead"}), written.append)
    assert made.decode(batch([b"{}", None])).num_rows == 2
    assert written == []


def test_a_dead_letter_that_cannot_be_written_stops_the_batch() -> None:
    def fail(_: pa.RecordBatch) -> None:
        raise ConnectionError("no broker")

    made = ValueDecoder(read_options({**JSON, "deadLetterTopic": "dead"}), fail)
    with pytest.raises(ConnectionError):
        made.decode(batch([b"oops"]))


def test_headers_are_wanted_for_dead_letters_and_kept_where_they_were_asked_for() -> None:
    assert not decoder(JSON).needs_headers
    options = {**JSON, "deadLetterTopic": "dead", "includeHeaders": "true"}
    assert decoder(options).needs_headers
    kept = ValueDecoder(read_options(options), lambda _: None).decode(batch([b"{}"], None, [HEADERS]))
    assert kept.column("headers").to_pylist() == [HEADERS]


@pytest.mark.parametrize("used_before", [False, True])
def test_a_decoder_survives_the_way_to_an_executor(used_before: bool) -> None:
    made = decoder({**JSON, "keyFormat": "string"})
    if used_before:
        made.decode(batch([b'{"id": 1, "tags": ["a"]}']))
    arrived = pickle.loads(pickle.dumps(made))
    assert arrived.decode(batch([b'{"id": 1}'])).column("value").to_pylist()[0]["id"] == 1


def test_a_schema_that_is_none_is_refused_where_the_query_is_planned() -> None:
    for options in ({"format": "json", "schema": "id"}, {"format": "avro", "schema": "{}"}):
        with pytest.raises(OptionError, match="schema: "):
            decoder_for(options)
