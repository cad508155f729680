"""Columns written as values of a schema registry, by Spark."""

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from headrace.client.columnar import read_arrow
from headrace.spark.pipeline.loading import load
from headrace.spark.pipeline.paths import paths_of
from headrace.spark.pipeline.run import RunOptions, run_with
from tests.support.spark.pipelines import Silent, pipeline_settings
from tests.support.spark.queries import started
from tests.support.spark.topics import Topics

SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"]}],
    }
)


def rows(spark: Any, sql: str) -> Any:
    return spark.sql(f"SELECT CAST(id AS STRING) AS key, struct(*) AS value FROM (SELECT {sql})")


def options(topics: Topics, registry: str, chosen: str, topic: str, **more: str) -> dict[str, str]:
    given = {"kafka.bootstrap.servers": topics.bootstrap, "schema.registry.url": registry}
    return {**given, "format": chosen, "topic": topic, **more}


def letters(topic: str, topics: Topics) -> list[tuple[Any, str]]:
    table = read_arrow(topic, bootstrap=topics.bootstrap, headers=True, isolation_level="read_committed")
    reasons = [
        next(one["value"].decode() for one in headers if one["key"] == "headrace.error")
        for headers in table["headers"].to_pylist()
    ]
    return list(zip(map(json.loads, table["value"].to_pylist()), reasons, strict=True))


@pytest.mark.parametrize("chosen", ["avro", "json-schema", "protobuf"])
def test_what_is_written_is_read_again_without_a_word_about_its_schema(
    spark: Any, topics: Topics, registry: str, chosen: str
) -> None:
    topic = topics.create(2)
    sql = "id, concat('n', id) AS name, array(id, id + 1) AS more, struct(id * 0.5D AS half) AS inner FROM range(100)"
    rows(spark, sql).write.format("headrace").mode("append").options(**options(topics, registry, chosen, topic)).save()
    reading = spark.read.format("headrace").option("kafka.bootstrap.servers", topics.bootstrap)
    found = reading.options(subscribe=topic, format=chosen).option("schema.registry.url", registry).load()
    assert found.where("bad IS NOT NULL").count() == 0
    got = found.selectExpr("value.id", "value.name", "value.more[1]", "coalesce(value.inner.half, 0)").collect()
    assert sorted(map(tuple, got)) == [(n, f"n{n}", n + 1, n * 0.5) for n in range(100)]


def test_rows_of_a_stream_that_the_schema_does_not_allow_go_to_a_topic_of_their_own_once(
    spark: Any, topics: Topics, registry: str, tmp_path: Path
) -> None:
    source, topic, dead = topics.create(), topics.create(), topics.create()
    topics.fill(source, [b"%d" % n if n % 5 else b"none" for n in range(1, 21)])
    reading = spark.readStream.format("headrace").option("kafka.bootstrap.servers", topics.bootstrap)
    frame = reading.options(subscribe=source, startingOffsets="earliest").load()
    frame = frame.selectExpr(
        "key", "struct(try_cast(CAST(value AS STRING) AS BIGINT) AS id, CAST(value AS STRING) AS name) AS value"
    )
    given = options(topics, registry, "avro", topic, schema=SCHEMA, deadLetterTopic=dead)
    writing = frame.writeStream.format("headrace").options(**given).trigger(availableNow=True)
    writing = writing.option("checkpointLocation", str(tmp_path / "checkpoint"))
    started(writing.start, lambda query: query.awaitTermination())
    read = AvroDeserializer(SchemaRegistryClient({"url": registry}))
    values = read_arrow(topic, bootstrap=topics.bootstrap, isolation_level="read_committed")["value"].to_pylist()
    found = [read(value, SerializationContext(topic, MessageField.VALUE)) for value in values]
    assert sorted(one["id"] for one in found) == [n for n in range(1, 21) if n % 5]
    assert (
        letters(dead, topics)
        == [({"id": None, "name": "none"}, "value: value.id is null, which the schema does not allow")] * 4
    )


def test_a_schema_that_is_not_compatible_is_refused_when_the_query_starts(
    spark: Any, topics: Topics, registry: str
) -> None:
    topic = topics.create()
    given = options(topics, registry, "avro", topic)
    rows(spark, "1L AS id").write.format("headrace").mode("append").options(**given).save()
    with pytest.raises(Exception, match="is not compatible with those that are there"):
        rows(spark, "'x' AS id").write.format("headrace").mode("append").options(**given).save()


PIPELINE = """
name: enrich
sources:
  orders: {{topic: {source}, startingOffsets: earliest, format: avro, schema.registry.url: "{registry}"}}
steps:
  doubled: {{sql: "SELECT if(id < 3, id * 2, NULL) AS id, name FROM orders"}}
sinks:
  out:
    from: doubled
    topic: {target}
    format: avro
    schema: order.avsc
    deadLetterTopic: {dead}
    schema.registry.url: "{registry}"
"""


def test_a_pipeline_goes_from_one_registered_topic_to_another(
    spark: Any, topics: Topics, registry: str, tmp_path: Path
) -> None:
    source, target, dead = topics.create(), topics.create(), topics.create()
    client = SchemaRegistryClient({"url": registry})
    write = AvroSerializer(client, SCHEMA)
    context = SerializationContext(source, MessageField.VALUE)
    topics.fill(source, [bytes(write({"id": n, "name": f"n{n}"}, context)) for n in range(5)])
    (tmp_path / "order.avsc").write_text(SCHEMA)
    file = tmp_path / "pipeline.yaml"
    text = PIPELINE.format(source=source, target=target, dead=dead, registry=registry)
    file.write_text(textwrap.dedent(text))
    declaration = load(file)
    with pipeline_settings(spark):
        options = RunOptions(bootstrap=topics.bootstrap, once=True)
        run_with(spark, declaration, paths_of(declaration, None), options, Silent())
    read = AvroDeserializer(client)
    values = read_arrow(target, bootstrap=topics.bootstrap, isolation_level="read_committed")["value"].to_pylist()
    found = [read(value, SerializationContext(target, MessageField.VALUE)) for value in values]
    assert sorted((one["id"], one["name"]) for one in found) == [(0, "n0"), (2, "n1"), (4, "n2")]
    assert [value["name"] for value, _ in letters(dead, topics)] == ["n3", "n4"]
