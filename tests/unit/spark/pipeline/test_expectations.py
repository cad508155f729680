"""Rules as they are declared."""

from pathlib import Path

import pytest

from headrace.spark.pipeline.document import InvalidPipeline
from headrace.spark.pipeline.expectations import Expectation
from headrace.spark.pipeline.loading import load

TEXT = """
name: rules
sources:
  orders:
    topic: orders
    expect:
      {rule}
sinks:
  out: {{from: orders, topic: out}}
"""


def read(directory: Path, rule: str) -> tuple[Expectation, ...]:
    file = directory / "pipeline.yaml"
    file.write_text(TEXT.format(rule=rule))
    return load(file).tables[0].expect


def test_a_predicate_alone_is_a_warning(tmp_path: Path) -> None:
    assert read(tmp_path, "positive: cents > 0") == (Expectation(name="positive", predicate="cents > 0"),)


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("positive: {that: cents > 0, action: dorp}", "'action' must be one of warn, drop, fail, quarantine"),
        ("positive: {that: cents > 0, action: quarantine}", "which needs one of them"),
        ("positive: {that: cents > 0, action: quarantine, topic: bad, table: bad}", "which needs one of them"),
        ("positive: {that: cents > 0, action: drop, table: bad}", "is where rows go"),
        (
            "positive: {that: cents > 0, action: quarantine, table: bad, format: orc}",
            "'format' must be one of parquet",
        ),
        ("positive: {that: cents > 0, format: delta}", "'format' is of a 'table'"),
        ("positive: {that: cents > 0, topic: bad}", "is where rows go"),
        ("positive: {action: drop}", "needs 'that'"),
        ("positive: ''", "needs a predicate"),
        ("positive: {taht: x}", "has no setting 'taht'; did you mean that?"),
        ("'a b': x > 0", "must be letters, digits and '_'"),
    ],
)
def test_mistakes_are_told_with_their_line(tmp_path: Path, rule: str, words: str) -> None:
    with pytest.raises(InvalidPipeline) as told:
        read(tmp_path, rule)
    assert any(words in problem and "pipeline.yaml:7:" in problem for problem in told.value.problems), told.value


def test_rows_may_go_to_a_table_beside_the_file(tmp_path: Path) -> None:
    text = "positive: {that: cents > 0, action: quarantine, table: lake/bad, format: delta}"
    (rule,) = read(tmp_path, text)
    assert rule.table is not None
    assert rule.aside == rule.table.name == f"{tmp_path}/lake/bad"
    assert rule.table.lake.format == "delta"
