"""Topics archived by Spark: what is in the tables is what is in the topics."""

import json
from pathlib import Path
from typing import Any

import duckdb
import pytest

from headrace.lake.opening import FORMATS, Lake
from tests.support.spark.pipelines import RunPipeline
from tests.support.spark.topics import Topics

ARCHIVE = """
name: keep
sources:
  records: {{topics: [{topics}], startingOffsets: earliest}}
sinks:
  lake: {{from: records, archive: lake, format: {format}, values: {{format: json, schema: "{schema}"}}}}
"""


def rows(lake: Lake, topic: str, columns: str = "_partition, _offset, n", bad: bool = False) -> list[tuple[Any, ...]]:
    """By DuckDB, of the files that the table has."""
    table = lake.bad_table(topic) if bad else lake.table(topic)
    snapshot = table.snapshot()
    assert snapshot is not None
    names = [f"{table.place.url}/{one.name}" for one in snapshot.files()]
    found = duckdb.execute(f"SELECT {columns} FROM read_parquet($1, union_by_name = true) ORDER BY 1, 2", [names])
    return found.fetchall()


@pytest.mark.parametrize(
    "format", [pytest.param(one, marks=pytest.mark.long if one != "parquet" else ()) for one in FORMATS]
)
def test_topics_are_in_their_tables_once_and_go_on(
    run: RunPipeline, spark: Any, topics: Topics, tmp_path: Path, format: str
) -> None:
    first, second = topics.create(2), topics.create(1)
    lake = Lake(path=str(tmp_path / "lake"), format=format)
    text = ARCHIVE.format(topics=f"{first}, {second}", format=format, schema="n BIGINT")
    topics.fill(first, (json.dumps({"n": n}).encode() for n in range(100)), lambda n: n % 2)
    topics.fill(second, [b"{}", b"nonsense", None])
    (sink,) = run(text)
    assert sink.rows_in == 103
    assert rows(lake, first) == [(n % 2, n // 2, n) for n in sorted(range(100), key=lambda n: (n % 2, n))]
    assert rows(lake, second) == [(0, 0, None), (0, 2, None)]
    assert rows(lake, second, "_offset, _value", bad=True) == [(1, b"nonsense")]
    topics.fill(first, (json.dumps({"n": n, "s": "x"}).encode() for n in range(100, 130)), lambda n: n % 2)
    run(text.replace("n BIGINT", "n BIGINT, s STRING"))
    assert len(rows(lake, first)) == 130
    assert rows(lake, first, "count(*), count(s)") == [(130, 30)]
    assert rows(lake, first, "1, 2, _key, _headers, _timestamp_type")[0][2:4] == (b"k0", None)
    reading = spark.read.format("headrace").option("kafka.bootstrap.servers", topics.bootstrap)
    reading = reading.options(subscribe=first, archive=lake.path, format="json", schema="n BIGINT")
    topics.fill(first, (json.dumps({"n": n}).encode() for n in range(130, 140)), lambda n: n % 2)
    topics.delete_records(first, 0, 60)
    whole = reading.load().selectExpr("value.n").collect()
    assert sorted(row.n for row in whole) == list(range(140))
