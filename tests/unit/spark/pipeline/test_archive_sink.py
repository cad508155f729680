"""Archives as sinks of a declaration, and as commands."""

from pathlib import Path

import pytest

from headrace.client.columnar.model import TopicPartition
from headrace.spark.archive.backfill import chunks
from headrace.spark.archive.declaring import archive_document, archive_name, declared
from headrace.spark.pipeline.document import InvalidPipeline
from headrace.spark.pipeline.loading import load
from headrace.spark.pipeline.model import Declaration, ToArchive
from headrace.spark.pipeline.queries import graphs_of

TEXT = """
name: keep
sources:
  records: {topic: orders}
sinks:
  tables:
    from: records
    archive: lake
    format: delta
    values: {format: json, schema: "id BIGINT"}
  other: {from: records, console: 1}
"""


def read(directory: Path, text: str) -> Declaration:
    file = directory / "pipeline.yaml"
    file.write_text(text)
    return load(file)


def test_an_archive_is_a_query_of_its_own_over_records_with_headers(tmp_path: Path) -> None:
    declaration = read(tmp_path, TEXT)
    output = declaration.sinks[0].output
    assert isinstance(output, ToArchive)
    assert (output.options.lake.path, output.options.lake.format) == (str(tmp_path / "lake"), "delta")
    assert output.values == {"format": "json", "schema": "id BIGINT"}
    assert declaration.sources[0].options["includeHeaders"] == "true"
    assert [graph.name for graph in graphs_of(declaration)] == ["tables", "other"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("format: delta", "format: dleta"), "did you mean delta?"),
        (("format: delta", "partition: week"), "'partition' must be one of none, day, hour, not 'week'"),
        (("format: delta", "fileSize: big"), "'fileSize' must be"),
        (("format: delta", "catalog: {type: rest}"), "'catalog' is for `format: iceberg`"),
        (("format: delta", "mode: update"), "an archive is only added to"),
        (("format: json, schema", "schema"), "'values' needs a format"),
        (('format: json, schema: "id BIGINT"', "format: json"), "format=json needs the option schema"),
        (("{topic: orders}", "{topic: orders, format: string}"), "leave format out of source 'records'"),
        (("from: records\n    archive", "from: step\n    archive"), "there is no source or step 'step'"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, change: tuple[str, str], expected: str) -> None:
    with pytest.raises(InvalidPipeline, match=r"pipeline.yaml:\d+: ") as found:
        read(tmp_path, TEXT.replace(*change))
    assert expected in str(found.value)


def test_a_step_cannot_be_archived(tmp_path: Path) -> None:
    text = TEXT.replace("sinks:", "steps:\n  large: {sql: SELECT * FROM records}\nsinks:").replace(
        "from: records\n    archive", "from: large\n    archive"
    )
    with pytest.raises(InvalidPipeline, match="'from' must be a source, and 'large' is a step"):
        read(tmp_path, text)


def test_a_command_is_a_pipeline_beside_its_tables(tmp_path: Path) -> None:
    path = str(tmp_path / "lake")
    document = archive_document(["a", "b"], path, {"startingOffsets": "earliest"}, {"format": "iceberg"}, "1 minute")
    declaration = declared(document, path)
    assert declaration.directory == tmp_path / "lake"
    assert declaration.name == archive_name(["b", "a"]) != archive_name(["a", "c"])
    with pytest.raises(InvalidPipeline, match=r"^sink 'tables': 'format' must be one of parquet, delta, iceberg"):
        declared(archive_document(["a"], path, {}, {"format": "orc"}, None), path)


def test_a_backfill_is_cut_into_parts_that_have_each_offset_once() -> None:
    one, other = TopicPartition("a", 0), TopicPartition("a", 1)
    missing = {one: [(0, 25), (30, 32)], other: [(5, 8)]}
    parts = list(chunks(missing, 10))
    assert all(sum(end - start for start, end in part.values()) <= 10 for part in parts)
    found = sorted((where, offset) for part in parts for where, span in part.items() for offset in range(*span))
    assert found == sorted(
        (where, offset) for where, spans in missing.items() for span in spans for offset in range(*span)
    )
