"""Values that are more than bytes, read as columns by Spark."""

import json
from typing import Any

from headrace.client.columnar import read_arrow
from tests.support.spark.queries import started
from tests.support.spark.topics import Topics


def frame(spark: Any, topics: Topics, topic: str, **options: str) -> Any:
    reading = spark.read.format("headrace").option("kafka.bootstrap.servers", topics.bootstrap)
    return reading.option("subscribe", topic).options(**options).load()


def test_json_values_are_columns_and_bad_ones_stand_beside(spark: Any, topics: Topics) -> None:
    topic = topics.create(2)
    topics.fill(topic, [json.dumps({"n": n, "name": f"é{n}"}).encode() for n in range(50)] + [b"{broken", None])
    rows = frame(spark, topics, topic, format="json", schema="n INT, name STRING")
    good = rows.where("bad is null and value is not null").selectExpr("value.n", "value.name").collect()
    assert sorted(map(tuple, good)) == [(n, f"é{n}") for n in range(50)]
    assert [bytes(row.raw) for row in rows.where("bad is not null").selectExpr("bad.value raw").collect()] == [
        b"{broken"
    ]
    assert rows.where("bad is null and value is null").count() == 1


def test_a_stream_goes_on_past_bad_records_and_keeps_them_in_a_topic(spark: Any, topics: Topics, tmp_path: Any) -> None:
    topic, dead = topics.create(), topics.create()
    topics.fill(topic, [b'{"n": 1}', b"no json", b'{"n": 2}'])
    reading = spark.readStream.format("headrace").option("kafka.bootstrap.servers", topics.bootstrap)
    options = {"subscribe": topic, "startingOffsets": "earliest", "format": "json", "schema": "n INT"}
    rows = reading.options(**options, deadLetterTopic=dead).load().selectExpr("value.n")
    writing = rows.writeStream.format("parquet").option("path", str(tmp_path / "out"))
    writing = writing.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    started(writing.start, lambda query: query.awaitTermination())
    assert sorted(row.n for row in spark.read.parquet(str(tmp_path / "out")).collect()) == [1, 2]
    letters = read_arrow(dead, bootstrap=topics.bootstrap, headers=True)
    assert letters["value"].to_pylist() == [b"no json"]
    assert {header["key"] for header in letters["headers"][0].as_py()} >= {"headrace.error", "headrace.offset"}


def test_text_is_text(spark: Any, topics: Topics) -> None:
    topic = topics.create()
    topics.fill(topic, [b"eins", "zwei ü".encode()])
    rows = frame(spark, topics, topic, format="string", keyFormat="string").orderBy("offset").collect()
    assert [(row.key, row.value) for row in rows] == [("k0", "eins"), ("k1", "zwei ü")]
