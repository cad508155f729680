"""Declared pipelines in a session of Spark, between real topics and files."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from headrace.client.columnar import Cluster, TopicPartition
from headrace.spark.pipeline.document import InvalidPipeline
from headrace.spark.pipeline.failures import PipelineFailed
from headrace.spark.pipeline.files import committed_files
from tests.support.spark.pipelines import RunPipeline
from tests.support.spark.records import records
from tests.support.spark.topics import Topics


def numbers(directory: Path) -> list[int]:
    files = committed_files(directory)
    return sorted(pq.read_table(files).column("number").to_pylist()) if files else []


COPY = """
name: copy
sources:
  numbers: {{topic: {topic}, startingOffsets: earliest}}
steps:
  parsed: {{sql: "SELECT CAST(CAST(value AS STRING) AS BIGINT) AS number FROM numbers"}}
sinks:
  files: {{from: parsed, parquet: out}}
"""


def test_a_pipeline_goes_on_where_it_stopped(run: RunPipeline, topics: Topics, tmp_path: Path) -> None:
    topic = topics.create(2)
    topics.fill(topic, (b"%d" % number for number in range(100)))
    (first,) = run(COPY.format(topic=topic))
    assert (first.rows_in, first.rows_out, first.lag) == (100, 100, 0)
    topics.fill(topic, (b"%d" % number for number in range(100, 130)))
    (second,) = run(COPY.format(topic=topic))
    assert (second.rows_in, second.rows_out) == (30, 30)
    assert numbers(tmp_path / "out") == list(range(130))


def test_the_progress_of_a_sink_shows_as_a_group(run: RunPipeline, topics: Topics) -> None:
    topic = topics.create()
    topics.fill(topic, [b"1", b"2", b"3"])
    run(COPY.format(topic=topic))
    with closing(Cluster({"bootstrap.servers": topics.bootstrap})) as cluster:
        where = TopicPartition(topic, 0)
        assert cluster.committed("copy-files", [where]) == {where: 3}


def test_a_failing_sink_stops_the_others_and_tells_its_cause(run: RunPipeline, topics: Topics, spark: Any) -> None:
    topic = topics.create()
    topics.fill(topic, [b"1"])
    text = COPY.format(topic=topic) + "  wrong: {from: broken, console: 1}\n"
    text = text.replace("sinks:", "  broken: {sql: SELECT 1 / (number - number) AS x FROM parsed}\nsinks:")
    with pytest.raises(
        PipelineFailed, match=r"^sinks 'files' and 'wrong' failed: \[DIVIDE_BY_ZERO\] Division by zero\."
    ):
        run(text)
    assert spark.streams.active == []


def test_what_spark_refuses_is_blamed_on_the_step(run: RunPipeline, topics: Topics, tmp_path: Path) -> None:
    text = COPY.format(topic=topics.create()).replace("value", "valeu")
    with pytest.raises(InvalidPipeline, match=r"pipeline.yaml:6: 'parsed': \[UNRESOLVED_COLUMN.*`valeu`"):
        run(text)


def test_a_batch_can_go_to_a_function_and_to_the_terminal(
    run: RunPipeline, topics: Topics, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = topics.create()
    topics.fill(topic, [b"41", b"42"])
    code = "def keep(rows, batch):\n    rows.write.mode('append').parquet('{}')\n"
    (tmp_path / "keeping.py").write_text(code.format(tmp_path / "kept"))
    sinks = "  kept: {from: parsed, python: keeping.py:keep}\n  shown: {from: parsed, console: 1}\n"
    run(COPY.format(topic=topic).replace("  files: {from: parsed, parquet: out}\n", sinks))
    assert sorted(pq.read_table(tmp_path / "kept").column("number").to_pylist()) == [41, 42]
    shown = capsys.readouterr().err
    assert "|number|" in shown
    assert "only showing top 1 row" in shown


def test_a_pipeline_can_be_written_in_python(run: RunPipeline, topics: Topics, tmp_path: Path) -> None:
    topic = topics.create()
    topics.fill(topic, [b"5", b"6", b"7"])
    run(
        f"""
        from headrace.spark.pipeline import Pipeline

        pipeline = Pipeline("written")
        pipeline.source("raw", topic="{topic}", startingOffsets="earliest")


        @pipeline.step
        def parsed(raw):
            return raw.selectExpr("CAST(CAST(value AS STRING) AS BIGINT) AS number")


        pipeline.sql("odd", "SELECT * FROM parsed WHERE number % 2 = 1")
        pipeline.sink("files", from_="odd", parquet="out")
        """,
        "written.py",
    )
    assert numbers(tmp_path / "out") == [5, 7]


def test_deletions_of_a_compacted_topic_are_deletions_in_its_copy(run: RunPipeline, topics: Topics) -> None:
    topic, copies = topics.create(1), [topics.create(1), topics.create(1)]
    topics.fill(topic, [b'{"id": 1}', b"{}", None, b"no JSON"])
    run(f"""
    name: copy
    sources:
      things:
        {{topic: {topic}, startingOffsets: earliest, format: json, schema: id BIGINT, metadata: [key, tombstone]}}
    steps:
      named: {{sql: "SELECT CAST(key AS STRING) AS key, id, tombstone, bad IS NOT NULL AS is_bad FROM things"}}
    sinks:
      whole: {{from: named, topic: {copies[0]}, key: key, format: json, tombstone: tombstone}}
      some: {{from: named, topic: {copies[1]}, key: key, value: "struct(id)", tombstone: "tombstone OR is_bad"}}
    """)
    whole, some = ([(record["key"], record["value"]) for record in records(topics.bootstrap, copy)] for copy in copies)
    assert whole == [
        (b"k0", b'{"key":"k0","id":1,"is_bad":false}'),
        (b"k1", b'{"key":"k1","is_bad":false}'),
        (b"k2", None),
        (b"k3", b'{"key":"k3","is_bad":true}'),
    ]
    assert some == [(b"k0", b'{"id":1}'), (b"k1", b"{}"), (b"k2", None), (b"k3", None)]
