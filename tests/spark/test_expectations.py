"""Rules about rows: what is left out, counted, set aside, and what ends a pipeline."""

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.client.columnar.cluster import Cluster
from headrace.client.columnar.model import LATEST, Range, TopicPartition
from headrace.client.columnar.reader import read_ranges
from headrace.lake.opening import FORMATS, Lake
from headrace.spark.archive.rows import LakeRows
from headrace.spark.pipeline.document import Problems
from headrace.spark.pipeline.failures import PipelineFailed
from headrace.spark.pipeline.loading import load
from headrace.spark.pipeline.rehearsal import read_tests, run_tests
from headrace.spark.pipeline.yaml_file import read_yaml
from tests.support.spark.pipelines import RunPipeline
from tests.support.spark.topics import Topics

PIPELINE = """
name: rules
sources:
  orders:
    topic: ORDERS
    startingOffsets: earliest
    format: json
    schema: id INT, cents INT, country STRING
    expect:
      has_country: country IS NOT NULL
      positive: {that: cents > 0, action: drop}
      known: {that: "id < 100", action: quarantine, topic: BAD}
sinks:
  out: {from: orders, topic: OUT, format: json}
"""
ROWS = [
    {"id": 1, "cents": 5, "country": "DE"},
    {"id": 2, "cents": 5},
    {"id": 3, "cents": -5, "country": "DE"},
    {"id": 4},
    {"id": 100, "cents": -1, "country": "FR"},
    {"id": None, "cents": 7, "country": "FR"},
]


def values(topics: Topics, topic: str) -> list[bytes]:
    """What is in a topic of one partition."""
    with Cluster({"bootstrap.servers": topics.bootstrap}) as cluster:
        where = TopicPartition(topic, 0)
        end = cluster.offsets({where: LATEST})[where] or 0
        found = read_ranges(cluster, [Range(*where, 0, end)], read_committed=True)
        return [value for batch in found for value in batch.column("value").to_pylist()]


def test_rows_are_counted_left_out_and_set_aside_once(run: RunPipeline, topics: Topics) -> None:
    orders, bad, out = topics.create(), topics.create(), topics.create()
    topics.fill(orders, [json.dumps(row).encode() for row in ROWS])
    text = PIPELINE.replace("ORDERS", orders).replace("BAD", bad).replace("OUT", out)
    (ended,) = run(text)
    assert dict(ended.expectations) == {"orders.has_country": 2, "orders.positive": 3, "orders.known": 2}
    assert ended.rows_out == 2
    assert [json.loads(value)["id"] for value in values(topics, out)] == [1, 2]
    aside = [json.loads(value) for value in values(topics, bad)]
    kept = {"country": "FR", "bad": None}
    assert aside == [{"id": 100, "cents": -1, **kept}, {"id": None, "cents": 7, **kept}]
    run(text)
    assert len(values(topics, bad)) == 2


@pytest.mark.parametrize(
    "form", [pytest.param(one, marks=pytest.mark.long if one != "parquet" else ()) for one in FORMATS]
)
def test_rows_are_set_aside_to_a_table_once(
    run: RunPipeline, topics: Topics, tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders, out = topics.create(), topics.create()
    topics.fill(orders, [json.dumps(row).encode() for row in ROWS])
    text = PIPELINE.replace("ORDERS", orders).replace("OUT", out)
    text = text.replace("topic: BAD", f"table: lake/aside, format: {form}")
    add = LakeRows.add

    def cut_off(table: LakeRows, rows: Any, writer: str, number: int) -> int:
        add(table, rows, writer, number)
        raise RuntimeError("cut off behind the commit")

    with monkeypatch.context() as patched:
        patched.setattr(LakeRows, "add", cut_off)
        with pytest.raises(PipelineFailed, match="cut off behind the commit"):
            run(text)
    lake = Lake(path=str(tmp_path / "lake"), format=form)
    expected = [("orders", "known", 100), ("orders", "known", None)]
    assert set_aside(lake) == expected
    run(text)
    assert set_aside(lake) == expected
    assert [json.loads(value)["id"] for value in values(topics, out)] == [1, 2]
    topics.fill(orders, [b'{"id": 200, "cents": 1}', b'{"id": 5, "cents": 1}'])
    run(text)
    assert set_aside(lake) == [*expected, ("orders", "known", 200)]


def set_aside(lake: Lake) -> list[tuple[str, str, int | None]]:
    table = lake.table("aside")
    snapshot = table.snapshot()
    assert snapshot is not None
    names = ["_table", "_rule", "_row"]
    found = [row for batch in table.read(snapshot, snapshot.files(), names) for row in batch.to_pylist()]
    rows = [(row["_table"], row["_rule"], json.loads(row["_row"])["id"]) for row in found]
    return sorted(rows, key=lambda row: 150 if row[2] is None else row[2])


def test_a_row_that_must_not_be_ends_the_pipeline_with_its_rule(run: RunPipeline, topics: Topics) -> None:
    orders, out = topics.create(), topics.create()
    topics.fill(orders, [json.dumps(row).encode() for row in ROWS])
    text = PIPELINE.replace("ORDERS", orders).replace("BAD", out).replace("OUT", out)
    text = text.replace("action: drop", "action: fail")
    with pytest.raises(PipelineFailed, match=r"table 'orders': a row fails the rule 'positive' \(cents > 0\)"):
        run(text)


REHEARSED = """
name: rehearsed
sources:
  orders:
    topic: orders
    format: json
    schema: id STRING, country STRING, cents INT, time TIMESTAMP
    watermark: {column: time, delay: 10 minutes}
    expect:
      paid: {that: cents > 0, action: quarantine, topic: bad}
  raw: {topic: raw}
steps:
  unique_orders: {dedup: {from: orders, keys: [id]}}
  sums: {sql: "SELECT country, sum(cents) AS cents FROM unique_orders GROUP BY country"}
  texts: {sql: SELECT CAST(value AS STRING) AS text FROM raw}
sinks:
  sums: {topic: sums, format: json, mode: complete}
  texts: {topic: texts, value: text}
"""
TESTS = """
tests:
  sums:
    given: {orders: [{id: a, country: DE, cents: 5}, {id: a, country: DE, cents: 5}, {id: b, country: DE, cents: 6,
                     time: "2026-01-01T00:00:00Z"}, {id: c, country: FR, cents: -1}]}
    expect: {sums: [{country: DE, cents: 11}], orders.quarantined: [{id: c, cents: -1}]}
  bytes: {given: {raw: [{value: hello}]}, expect: {texts: [{text: hello}]}}
  wrong: {given: {orders: [{id: a, cents: 5}]}, expect: {sums: [{cents: 6}]}}
  no column: {given: {orders: [{idd: a}]}, fails: "no column 'idd'; did you mean id?"}
  no number: {given: {orders: [{id: a, cents: many}]}, fails: FAILFAST}
  does not fail: {given: {orders: [{id: a, cents: 5}]}, fails: anything}
"""


def test_a_pipeline_is_held_to_rows_in_a_file(spark: Any, tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(REHEARSED)
    declaration = load(file)
    tests = read_tests(read_yaml(TESTS, "tests", {}, Problems()), declaration)
    outcomes = {one.name: one.problems for one in run_tests(spark, declaration, tests)}
    assert outcomes == {
        "sums": [],
        "bytes": [],
        "wrong": ['sums: is missing: {"cents":6}', 'sums: is too much: {"cents":5}'],
        "no column": [],
        "no number": [],
        "does not fail": ["it does not fail, and 'anything' was expected"],
    }
