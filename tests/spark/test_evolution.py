"""Topics whose schema changes while they are read: every row is right, or a bad record, and none is guessed."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.spark.queries import started
from tests.support.spark.stories import Rows, Story, check, stream
from tests.support.spark.topics import Topics
from tests.support.spark.versions import TYPES, VERSIONS, Versions


@pytest.mark.parametrize(
    "versions", [pytest.param(one, id=one.name, marks=pytest.mark.long if one is not TYPES[0] else ()) for one in TYPES]
)
def test_a_schema_may_change_while_a_stream_runs(
    spark: Any, topics: Topics, registry: str, tmp_path: Path, versions: Versions
) -> None:
    story, rows = Story(versions, topics, registry), Rows()
    story.go_on(1)
    frame = stream(spark, topics, story, registry)
    writing = frame.writeStream.foreachBatch(rows.take).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = started(writing.start, lambda query: rows.wait_for(len(story.written), query))
    try:
        for version in range(2, VERSIONS + 1):
            story.go_on(version)
            rows.wait_for(len(story.written), query)
    finally:
        query.stop()
    check(story, rows, dict.fromkeys(range(len(story.written)), 1))


@pytest.mark.long
@pytest.mark.parametrize("versions", [pytest.param(one, id=one.name) for one in TYPES])
def test_a_query_that_is_started_again_reads_on_with_the_newest_schema(
    spark: Any, topics: Topics, registry: str, tmp_path: Path, versions: Versions
) -> None:
    story, rows = Story(versions, topics, registry), Rows()
    reader_of: dict[int, int] = {}
    for version in range(1, VERSIONS + 1):
        story.go_on(version)
        reader_of |= {offset: version for offset in range(len(story.written)) if offset not in reader_of}
        frame = stream(spark, topics, story, registry)
        writing = frame.writeStream.foreachBatch(rows.take).trigger(availableNow=True)
        writing = writing.option("checkpointLocation", str(tmp_path / "checkpoint"))
        started(writing.start, lambda query: query.awaitTermination())
    check(story, rows, reader_of)


@pytest.mark.long
@pytest.mark.parametrize("versions", [pytest.param(one, id=one.name) for one in TYPES])
def test_all_that_was_ever_written_is_read_with_the_newest_schema(
    spark: Any, topics: Topics, registry: str, versions: Versions
) -> None:
    story, rows = Story(versions, topics, registry), Rows()
    for version in range(1, VERSIONS + 1):
        story.go_on(version)
    reading = spark.read.format("headrace").option("kafka.bootstrap.servers", topics.bootstrap)
    reading = reading.options(subscribe=story.topic, format=versions.name).option("schema.registry.url", registry)
    rows.take(reading.load(), 0)
    check(story, rows, dict.fromkeys(range(len(story.written)), VERSIONS))
