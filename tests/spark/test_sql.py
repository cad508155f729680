"""The same query text on DuckDB and on Spark: the same topics, the same columns, equal answers."""

import io
import json
import math
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest

import headrace.sql
from headrace.client.columnar import write_arrow
from headrace.client.registry import RegisteredSchema, RegistrySettings, SchemaRegistry
from headrace.spark import register_topics
from headrace.spark.errors import QueryError
from headrace.testing import Broker

pytest.importorskip("duckdb")

ORDERS = [
    '{"id": 1, "who": {"name": "Zoë", "tags": ["a"]}, "total": 1.5, "big": 1701411834604692317316873037, "m": "x"}',
    '{"id": 2, "who": {"name": "日本", "tags": []}, "total": NaN, "big": 2, "m": 3}',
    '{"id": 3, "who": null, "total": -0.0, "big": null, "m": {"a": [1]}, "_offset": "own"}',
    '{"id": 9223372036854775807, "who": {"name": null}, "total": 1e300, "m": null, "extra\\n": true}',
    '{"id": null}',
    "{}",
    None,
    "not json",
    *(
        json.dumps({"id": n, "total": n / 3, "who": {"name": f"n{n % 3}", "tags": ["t"] * (n % 4)}})
        for n in range(20, 60)
    ),
]
AVRO = {
    "type": "record",
    "name": "Event",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 3}},
        {"name": "seen", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["NEW", "OLD"]}},
        {"name": "parts", "type": {"type": "array", "items": "double"}},
        {"name": "labels", "type": {"type": "map", "values": "int"}},
        {"name": "raw", "type": "bytes"},
    ],
}
DECLARED = "id BIGINT, price DECIMAL(20,4), seen TIMESTAMP, day DATE, ok BOOLEAN, small SMALLINT, ratio FLOAT"

QUERIES = [
    # JSON, typed by inference
    "SELECT * FROM g_orders",
    "SELECT count(*) AS n, count(id) AS i, count(_error) AS e, count(*) FILTER (WHERE _tombstone) AS t FROM g_orders",
    "SELECT who.name AS name, count(*) AS n, sum(id) AS ids FROM g_orders WHERE id < 100 GROUP BY who.name",
    "SELECT id, big, big + 1 AS more FROM g_orders WHERE big IS NOT NULL",
    "SELECT id, total FROM g_orders WHERE total > 10 OR total IS NULL",
    "SELECT max(total) AS most, min(total) AS least FROM g_orders",
    "SELECT _partition, min(_offset) AS first, max(__offset) AS last FROM g_orders GROUP BY _partition",
    "SELECT id, m, _key, _topic FROM g_orders WHERE __offset < 3",
    "SELECT a.id, b.id AS other FROM g_orders a JOIN g_orders b ON a._partition = b._partition AND a.id - 2 = b.id",
    "SELECT upper(who.name) AS name FROM g_orders WHERE who.name IN ('Zoë', '日本', 'n1') AND _partition = 0",
    "SELECT id, row_number() OVER (PARTITION BY who.name ORDER BY id) AS n FROM g_orders WHERE id BETWEEN 20 AND 60",
    "WITH t AS (SELECT id % 5 AS k FROM g_orders WHERE id >= 20 AND id < 100) SELECT k, count(*) n FROM t GROUP BY k",
    "SELECT DISTINCT who.name AS name FROM g_orders",
    "SELECT id FROM g_orders WHERE __offset BETWEEN 2 AND 4 UNION ALL SELECT id FROM g_orders WHERE _partition = 1",
    "SELECT CASE WHEN total IS NULL THEN 'none' WHEN total < 10 THEN 'few' ELSE 'many' END AS c, count(*) AS n "
    "FROM g_orders GROUP BY 1",
    "SELECT count(*) AS n FROM g_orders WHERE _timestamp >= TIMESTAMP '2024-01-01 00:00:10+00:00'",
    "SELECT _timestamp, __offset FROM g_orders WHERE _timestamp > TIMESTAMP '2024-01-01 00:00:30+00:00'",
    # Avro, typed by the registry
    "SELECT * FROM g_events",
    "SELECT kind, sum(amount) AS amount, count(note) AS n, max(seen) AS s, min(day) AS d FROM g_events GROUP BY kind",
    "SELECT id, labels['a'] AS a, parts FROM g_events WHERE amount > 0.5",
    "SELECT id, seen FROM g_events WHERE day = DATE '1970-01-03'",
    # JSON, with a declared schema
    "SELECT * FROM g_typed",
    "SELECT sum(price) AS price, max(seen) AS seen, count(*) FILTER (WHERE ok) AS ok FROM g_typed WHERE _error IS NULL",
    "SELECT id, price * 2 AS twice FROM g_typed WHERE price > 1.00",
    # text, and bytes
    "SELECT * FROM g_words",
    "SELECT length(value) AS n, count(*) AS c FROM g_words GROUP BY 1",
    "SELECT value, _headers FROM g_words WHERE value LIKE '%ö%'",
    "SELECT * FROM g_bytes",
    "SELECT w.value, b._offset FROM g_words w JOIN g_bytes b ON w._offset = b._offset",
    "SELECT count(*) AS n FROM g_empty",
]


@pytest.fixture(scope="module")
def tables(spark: Any, broker: Broker, registry: str) -> Iterator[dict[str, Any]]:
    """The topics, as views of the session; what a query of the other engine takes."""
    for topic, partitions in (
        ("g_orders", 2),
        ("g_events", 1),
        ("g_typed", 1),
        ("g_words", 1),
        ("g_bytes", 1),
        ("g_empty", 1),
    ):
        broker.create_topic(topic, partitions)
    _fill_orders(broker)
    _fill_events(broker, registry)
    _fill_others(broker)
    given: dict[str, Any] = {"registry": registry, "read": {"g_typed": {"schema": DECLARED}}}
    topics = ["g_orders", "g_events", "g_typed", "g_words", "g_bytes", "g_empty"]
    register_topics(spark, broker.bootstrap, topics=topics, temporary=True, **given)
    yield {"bootstrap": broker.bootstrap, **given}
    for topic in topics:
        spark.catalog.dropTempView(topic)


def _write(broker: Broker, topic: str, values: list[Any], **columns: Any) -> None:
    rows = pa.table({"key": [f"k{n % 5}" for n in range(len(values))], "value": values, **columns})
    write_arrow(rows, topic, bootstrap=broker.bootstrap)


def _fill_orders(broker: Broker) -> None:
    count = len(ORDERS)
    times = pa.array([1_704_067_200_000 + n * 1000 for n in range(count)], pa.timestamp("ms", "UTC"))
    _write(broker, "g_orders", ORDERS, timestamp=times, partition=pa.array([n % 2 for n in range(count)], pa.int32()))


def _fill_events(broker: Broker, registry: str) -> None:
    known = SchemaRegistry(RegistrySettings(urls=(registry,)))
    schema_id = known.register("g_events-value", RegisteredSchema(text=json.dumps(AVRO)))
    values = []
    for n in range(12):
        encoded = io.BytesIO(b"\x00" + schema_id.to_bytes(4, "big"))
        encoded.seek(0, io.SEEK_END)
        event = {
            "id": n,
            "amount": Decimal(n * 250) / 1000,
            "seen": datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=n, microseconds=n),
            "day": date(1970, 1, 1) + timedelta(days=n),
            "note": None if n % 3 else "ö" * n,
            "kind": ("NEW", "OLD")[n % 2],
            "parts": [0.1, math.pi][: n % 3],
            "labels": {"a": n} if n % 2 else {},
            "raw": b"\xff" * n,
        }
        fastavro.schemaless_writer(encoded, fastavro.parse_schema(AVRO), event)
        values.append(encoded.getvalue())
    _write(broker, "g_events", [*values, None, b"\x00\x00\x00\x00\x63nothing"])


def _fill_others(broker: Broker) -> None:
    typed = [
        '{"id": 1, "price": 1.2345, "seen": "2024-02-29T12:00:00.123456Z", "day": "2024-02-29", "ok": true}',
        '{"id": 2, "price": "99999999999.9999", "seen": "1969-12-31T23:59:59+01:00", "ok": false, "ratio": 0.25}',
        '{"id": 3, "small": 70000}',
        '{"price": null}',
    ]
    _write(broker, "g_typed", typed)
    headers = pa.array(
        [[{"key": "h", "value": b"\x01"}], [], None],
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    )
    _write(broker, "g_words", ["wörld", "", "plain"], headers=headers)
    _write(broker, "g_bytes", [b"\xff\x00", None, b""])


def rows(table: pa.Table) -> list[str]:
    """The rows of an answer in an order of their own, with what tells them apart written out."""
    return sorted(repr(tuple(_plain(value) for value in row.values())) for row in table.to_pylist())


def _plain(value: Any) -> Any:
    match value:
        case float():
            return "NaN" if math.isnan(value) else repr(value)
        case Decimal():
            return int(value) if value == value.to_integral_value() else format(value.normalize(), "f")
        case dict():
            return {name: _plain(one) for name, one in value.items()}
        case list():
            return [_plain(one) for one in value]
        case tuple():
            return tuple(_plain(one) for one in value)
    return value


def check(spark: Any, tables: dict[str, Any], queries: list[str]) -> None:
    differing = {}
    for query in queries:
        ours, theirs = headrace.sql.query(query, **tables), spark.sql(query).toArrow()
        if rows(ours) != rows(theirs) or ours.schema.names != theirs.schema.names:
            differing[query] = (rows(ours), rows(theirs))
    assert differing == {}


@pytest.mark.filterwarnings("ignore:.*could not be decoded")
def test_each_sort_of_topic_has_equal_answers_on_both_engines(spark: Any, tables: dict[str, Any]) -> None:
    check(spark, tables, [query for query in QUERIES if query.startswith("SELECT * FROM")])


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*could not be decoded")
def test_queries_have_equal_answers_on_both_engines(spark: Any, tables: dict[str, Any]) -> None:
    check(spark, tables, [query for query in QUERIES if not query.startswith("SELECT * FROM")])


def test_a_topic_is_a_table_of_the_catalog_for_batches_and_streams(
    spark: Any, broker: Broker, tmp_path: Path, tables: dict[str, Any]
) -> None:
    topic = "g-catalog.topic"
    broker.create_topic(topic)
    _write(broker, topic, [json.dumps({"n": n}) for n in range(20)])
    try:
        found = register_topics(spark, broker.bootstrap, topics=[topic], database="g_tables")
        assert found == {topic: "`g_tables`.`g_catalog_topic`"}
        assert spark.sql("SELECT sum(n) FROM g_tables.g_catalog_topic WHERE _offset >= 10").collect()[0][0] == 145
        _write(broker, topic, ['{"n": 100, "added": "x"}'])
        assert spark.table("g_tables.g_catalog_topic").count() == 21
        register_topics(spark, broker.bootstrap, topics=[topic], database="g_tables")
        assert "added" in spark.table("g_tables.g_catalog_topic").columns
        stream = spark.readStream.table("g_tables.g_catalog_topic").select("n")
        query = (
            stream.writeStream.format("memory")
            .queryName("g_streamed")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(60)
        assert spark.sql("SELECT count(*), sum(n) FROM g_streamed").collect()[0][:] == (21, 290)
        with pytest.raises(QueryError, match="password"):
            register_topics(spark, broker.bootstrap, topics=[topic], database="g_tables", sasl_password="x")
    finally:
        spark.sql("DROP DATABASE IF EXISTS g_tables CASCADE")
