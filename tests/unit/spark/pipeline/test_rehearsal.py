"""Tests of pipelines as they are declared."""

from pathlib import Path

import pytest

from headrace.spark.pipeline.document import InvalidPipeline, Problems
from headrace.spark.pipeline.loading import load
from headrace.spark.pipeline.rehearsal import PipelineTest, place_of_tests, read_tests
from headrace.spark.pipeline.yaml_file import read_yaml

PIPELINE = """
name: shop
sources:
  orders: {topic: orders, format: json, schema: "id INT, cents INT"}
sinks:
  orders: {topic: copy}
"""


def read(directory: Path, text: str) -> list[PipelineTest]:
    file = directory / "pipeline.yaml"
    file.write_text(PIPELINE)
    place = place_of_tests(file)
    assert place.name == "pipeline.test.yaml"
    return read_tests(read_yaml(text, place.name, {}, Problems()), load(file))


def test_rows_are_read_by_table(tmp_path: Path) -> None:
    (found,) = read(tmp_path, "tests:\n  one: {given: {orders: [{id: 1}]}, expect: {orders: [{id: 1, cents: null}]}}")
    assert found.given == {"orders": [{"id": 1}]}
    assert found.expect == {"orders": [{"id": 1, "cents": None}]}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tests: {}", "there are no tests"),
        ("test: {}", "has no setting 'test'; did you mean tests?"),
        (
            "tests:\n  one: {given: {ordres: []}, expect: {orders: []}}",
            "no source or step 'ordres'; did you mean orders?",
        ),
        ("tests:\n  one: {given: {orders: 5}, expect: {orders: []}}", "'orders' must be a list of rows"),
        ("tests:\n  one: {given: {orders: []}}", "needs 'expect', or 'fails'"),
        ("tests:\n  one: {expect: {orders: []}, fails: x}", "needs 'expect', or 'fails'"),
    ],
)
def test_mistakes_are_told_with_their_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InvalidPipeline) as told:
        read(tmp_path, text)
    assert any(words in problem and problem.startswith("pipeline.test.yaml:") for problem in told.value.problems)
