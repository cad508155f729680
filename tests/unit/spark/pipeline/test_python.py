"""Pipelines declared in Python are held to the same rules."""

from pathlib import Path

from headrace.spark.pipeline.model import Call, Step, ToTopic
from tests.support.spark.declarations import declare, mistakes

GOOD = """
from headrace.spark.pipeline import Pipeline

pipeline = Pipeline("orders", trigger="5 seconds", spark={"spark.sql.shuffle.partitions": 4})
pipeline.source("orders", topic="orders", watermark={"column": "timestamp", "delay": "10 minutes"})
pipeline.dedup("unique", from_="orders", keys=["key"])


@pipeline.step
def large(unique):
    return unique.where("length(value) > 1000")


@pipeline.step(watermark={"column": "t", "delay": "1 minute"})
def timed(spark, large, column="timestamp"):
    return large.withColumnRenamed(column, "t")


pipeline.sql("counted", "SELECT topic, count(*) AS n FROM timed GROUP BY topic")
pipeline.sink("counts", from_="counted", topic="counts", format="json", mode="complete")
"""


def test_calls_declare_what_yaml_does(tmp_path: Path) -> None:
    pipeline = declare(tmp_path, GOOD, "good_pipeline.py")
    assert [table.name for table in pipeline.tables] == ["orders", "unique", "large", "timed", "counted"]
    timed = next(table for table in pipeline.tables if table.name == "timed")
    assert isinstance(timed, Step)
    assert isinstance(timed.work, Call)
    assert (timed.inputs, timed.work.wants_spark) == (("large",), True)
    assert isinstance(pipeline.sinks[0].output, ToTopic)
    assert pipeline.spark == {"spark.sql.shuffle.partitions": "4"}


def test_a_mistake_is_named_with_the_line_of_its_call(tmp_path: Path) -> None:
    text = GOOD.replace('from_="counted"', 'from_="conted"').replace('topic="orders"', 'topc="orders"')
    assert mistakes(tmp_path, text, "bad_pipeline.py") == [
        "4: source 'orders' has no setting 'topc'; did you mean topic?",
        "4: source 'orders' needs a topic, for example `topic: orders`",
        "19: sink 'counts': there is no source or step 'conted'; did you mean counted?",
    ]


def test_a_name_is_declared_once(tmp_path: Path) -> None:
    text = GOOD + 'pipeline.sink("counts", from_="large", topic="x")\n'
    assert mistakes(tmp_path, text, "doubled_pipeline.py") == ["20: sink 'counts' is declared a second time"]


def test_a_file_has_one_pipeline(tmp_path: Path) -> None:
    assert mistakes(tmp_path, "x = 1\n", "no_pipeline.py") == [
        "1: there must be one `Pipeline(...)` in the file, and there is no"
    ]
