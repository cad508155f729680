"""Several sinks that share tables: one query, computed once for each batch, written once to each of them."""

import json
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from headrace.spark.pipeline.document import InvalidPipeline
from headrace.spark.pipeline.failures import PipelineFailed
from headrace.spark.pipeline.files import committed_files
from tests.support.spark.pipelines import RunPipeline
from tests.support.spark.records import records, values
from tests.support.spark.topics import Topics

FAILS_ONCE = """
from pathlib import Path

def fail_once(rows, batch):
    calls = Path({calls!r})
    calls.write_text(calls.read_text() + f"{{batch}} " if calls.exists() else f"{{batch}} ")
    if len(calls.read_text().split()) == 1:
        raise ValueError("the first time it fails")
"""

MANY = """
name: many
restart: {{on: any, delay: 10 milliseconds}}
sources:
  orders:
    topic: {orders}
    startingOffsets: earliest
    format: json
    keyFormat: string
    schema: id BIGINT, country STRING
    deadLetterTopic: {letters}
steps:
  german: {{sql: SELECT id FROM orders WHERE country = 'DE'}}
sinks:
  copies: {{from: orders, topic: {copies}, key: country, format: json}}
  files: {{from: german, parquet: out}}
  last: {{from: german, python: steps.py:fail_once}}
"""


def order(number: int) -> bytes:
    return json.dumps({"id": number, "country": "DE" if number % 2 else "FR"}).encode()


def test_a_sink_that_fails_makes_nobody_write_twice(run: RunPipeline, topics: Topics, tmp_path: Path) -> None:
    orders, letters, copies = topics.create(2), topics.create(), topics.create()
    calls = tmp_path / "calls"
    (tmp_path / "steps.py").write_text(FAILS_ONCE.format(calls=str(calls)))
    good = [order(number) for number in range(10)]
    topics.fill(orders, [*good, b"{", None, b'{"id": "x"}'])
    text = MANY.format(orders=orders, letters=letters, copies=copies)
    ended = {sink.sink: sink for sink in run(text)}
    assert calls.read_text().split()[:2] == ["0", "0"], "the batch was run again"
    assert ended["copies"].restarts == 1

    copied = records(topics.bootstrap, copies, read_committed=True)
    assert Counter(row["value"] for row in copied if row["value"] != b"{}") == Counter(
        json.dumps(json.loads(value), separators=(",", ":")).encode() for value in good
    ), "each once, and only the columns of the user"
    files = pq.read_table(committed_files(tmp_path / "out")).column("id").to_pylist()
    assert sorted(files) == [1, 3, 5, 7, 9]

    dead = records(topics.bootstrap, letters, read_committed=True)
    assert sorted(row["value"] for row in dead) == [b"{", b'{"id": "x"}']
    assert sorted(row["key"] for row in dead) == [b"k10", b"k12"]
    headers = [{one["key"]: one["value"] for one in row["headers"]} for row in dead]
    assert {one["headrace.topic"] for one in headers} == {orders.encode()}
    assert all(one["headrace.error"].startswith(b"value: ") for one in headers)
    assert {sink.bad_records for sink in ended.values()} == {2}
    assert (ended["files"].rows_in, ended["files"].rows_out, ended["copies"].rows_out) == (13, 5, 11)

    topics.fill(orders, [order(11), b"["])
    run(text)
    assert len(values(topics.bootstrap, letters, read_committed=True)) == 3
    files = pq.read_table(committed_files(tmp_path / "out")).column("id").to_pylist()
    assert sorted(files) == [1, 3, 5, 7, 9, 11]


TWO_COUNTS = """
name: counts
sources:
  words: {{topic: {topic}, startingOffsets: earliest, format: string}}
steps:
  by_word: {{sql: "SELECT value AS word, count(*) AS times FROM words GROUP BY value"}}
  all: {{sql: SELECT count(*) AS times FROM words}}
sinks:
  by_word: {{topic: {by_word}, mode: update, key: word, format: json}}
  shown: {{from: by_word, console: 5, mode: update}}
  all: {{topic: {all}, mode: update, format: json}}
"""


def test_sums_that_change_are_one_query_too(
    run: RunPipeline, topics: Topics, capsys: pytest.CaptureFixture[str]
) -> None:
    topic, by_word, total = topics.create(), topics.create(), topics.create()
    topics.fill(topic, [b"a", b"b", b"a"])
    ended = run(TWO_COUNTS.format(topic=topic, by_word=by_word, all=total))
    assert [sink.sink for sink in ended] == ["by_word", "shown", "all"]
    found = sorted(value or b"" for value in values(topics.bootstrap, by_word, read_committed=True))
    assert found == [b'{"word":"a","times":2}', b'{"word":"b","times":1}']
    assert values(topics.bootstrap, total, read_committed=True) == [b'{"times":3}']
    assert "|a   |2    |" in capsys.readouterr().err


def test_files_of_an_earlier_query_are_not_taken_for_written(run: RunPipeline, topics: Topics, tmp_path: Path) -> None:
    topic = topics.create()
    topics.fill(topic, [b"1"])
    text = f"""
        name: copy
        sources: {{numbers: {{topic: {topic}, startingOffsets: earliest}}}}
        sinks: {{files: {{from: numbers, parquet: out}}}}
        """
    run(text)
    (tmp_path / ".headrace").rename(tmp_path / "away")
    with pytest.raises(PipelineFailed, match=r"sink 'files': .*/out has batches up to 0 of an earlier query"):
        run(text)


WRONG = """
name: wrong
sources:
  numbers: {{topic: {topic}, format: json, schema: id BIGINT}}
steps:
  first: {{sql: SELECT idd FROM numbers}}
  second: {{sql: SELECT * FROM first}}
  third: {{sql: "SELECT id, offset FROM numbers"}}
  counted: {{sql: "SELECT id, count(*) AS n FROM numbers GROUP BY id"}}
sinks:
  first: {{console: 1}}
  second: {{console: 1}}
  third: {{console: 1}}
  counted: {{console: 1}}
  files: {{from: numbers, parquet: out, partitionBy: iid}}
  raw: {{from: numbers, topic: x}}
  other: {{from: numbers, console: 1, mode: complete}}
"""


def test_all_that_spark_finds_wrong_is_told_at_once(run: RunPipeline, topics: Topics) -> None:
    with pytest.raises(InvalidPipeline) as raised:
        run(WRONG.format(topic=topics.create()))
    found = [problem.partition("pipeline.yaml:")[2] for problem in raised.value.problems]
    assert [problem.partition(": [")[0] for problem in found[:2]] == ["6: 'first'", "8: 'third'"]
    assert "name `offset`" in found[1]
    assert found[1].endswith("`metadata: [offset]`")
    assert not any("\n" in problem for problem in found), found
    assert [problem.partition(":")[0] for problem in found] == ["6", "8", "14", "15", "16", "17"]
