"""Connectors as sources and sinks of pipelines, on Spark."""

import json
from pathlib import Path

import pytest

from headrace.spark.pipeline.document import InvalidPipeline
from headrace.spark.pipeline.files import committed_files
from headrace.spark.pipeline.loading import load
from tests.support.spark.pipelines import RunPipeline

CONNECTOR = """
import json
from pathlib import Path
from headrace.spark.connectors import ConnectorError, Option, SinkConnector, SourceConnector


class Numbers(SourceConnector):
    options = {"upTo": Option("how many there are", default="10")}

    def __init__(self, given):
        super().__init__(given)
        if self.number("upTo") > 1000:
            raise ConnectorError("'upTo' is too much", "upTo")

    def schema(self):
        return "number BIGINT, text STRING"

    def initial(self):
        return {"at": 0}

    def latest(self, start):
        return {"at": min(start["at"] + 4, self.number("upTo"))}

    def read(self, start, end):
        return ((number, f"n{number}") for number in range(start["at"], end["at"]))


class Lines(SinkConnector):
    options = {"path": Option("a file", required=True)}
    paths = ("path",)

    def write(self, rows, batch):
        with open(self.text("path"), "a") as out:
            for row in rows.toLocalIterator():
                print(json.dumps({"batch": batch.number, **row.asDict()}), file=out)
"""
PIPELINE = """
name: connected
sources:
  numbers: {connector: "connector.py:Numbers", upTo: 10}
  people: {connector: files, path: people, format: csv, schema: "name STRING, age INT", header: true}
sinks:
  lines: {from: numbers, connector: "connector.py:Lines", path: lines}
  files: {from: people, connector: spark, format: json, path: OUT}
"""


def test_a_class_and_files_are_sources_and_sinks_of_a_pipeline(run: RunPipeline, tmp_path: Path) -> None:
    (tmp_path / "connector.py").write_text(CONNECTOR)
    (tmp_path / "people").mkdir()
    (tmp_path / "people" / "one.csv").write_text("name,age\nAda,36\n")
    text = PIPELINE.replace("OUT", str(tmp_path / "out"))
    ended = {sink.sink: sink for sink in run(text)}
    assert ended["lines"].rows_in == ended["lines"].rows_out == 10
    lines = [json.loads(line) for line in (tmp_path / "lines").read_text().splitlines()]
    assert [line["number"] for line in lines] == list(range(10))
    assert {line["batch"] for line in lines} == {0, 1, 2}
    (tmp_path / "people" / "two.csv").write_text("name,age\nBob,7\n")
    run(text)
    written = [json.loads(line) for file in (tmp_path / "out").glob("*.json") for line in file.read_text().splitlines()]
    assert sorted(row["name"] for row in written) == ["Ada", "Bob"]
    assert len((tmp_path / "lines").read_text().splitlines()) == 10
    assert committed_files(tmp_path / "out") == []


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (
            "connector: postgers, dsn: x, table: t",
            "there is no connector 'postgers' for a source; did you mean postgres?",
        ),
        ("connector: postgres, table: t", "it needs 'dsn'"),
        ("connector: postgres, dsn: x, table: t, tabel: u", "there is no option 'tabel'; did you mean table?"),
        ("connector: 'connector.py:Nothing'", "has no function 'Nothing'"),
        ("connector: 'connector.py:Lines', path: x", "is not a subclass of SourceConnector"),
        ("connector: 'connector.py:Numbers', upTo: 2000", "'upTo' is too much"),
        ("connector: files, path: x, format: csv", "files in csv need 'schema'"),
        ("connector: spark", "it needs 'format' or 'table'"),
    ],
)
def test_mistakes_are_told_with_their_line_before_spark_starts(tmp_path: Path, entry: str, words: str) -> None:
    (tmp_path / "connector.py").write_text(CONNECTOR)
    file = tmp_path / "pipeline.yaml"
    sinks = "sinks:\n  out: {from: numbers, console: 5}\n"
    file.write_text(f"name: wrong\nsources:\n  numbers: {{{entry}}}\n{sinks}")
    with pytest.raises(InvalidPipeline) as told:
        load(file)
    (problem,) = [one for one in told.value.problems if "source 'numbers'" in one]
    assert problem.startswith(f"{file}:3: source 'numbers': ")
    assert words in problem
