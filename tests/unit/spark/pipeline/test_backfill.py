"""What a backfill reads and writes, and how it is told from others and from the pipeline that runs."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.client.columnar.model import TopicPartition
from headrace.spark.pipeline.backfill import (
    ADDED,
    ONCE,
    Asked,
    BadBackfill,
    Plan,
    SourceSpan,
    archives,
    backfill_name,
    bounded,
    chosen,
    decode_plan,
    kept_plan,
    known_plan,
    note_done,
    outlet_notes,
    require_own_tables,
    with_queries,
)
from headrace.spark.pipeline.backfilling import run_backfill
from headrace.spark.pipeline.loading import load
from headrace.spark.pipeline.model import Declaration, ToArchive, ToFiles, ToTopic
from headrace.spark.pipeline.paths import PipelinePaths
from headrace.spark.pipeline.run import RunOptions
from headrace.spark.pipeline.session import SparkTarget
from tests.support.spark.pipelines import Silent

PIPELINE = """
name: shop
checkpoint: s3a://bucket/shop
sources:
  orders:
    topic: orders
    startingTimestamp: 5
    group: mine
    maxOffsetsPerTrigger: 7
    deadLetterTopic: letters
    format: json
    schema: id INT
    expect: {known: {that: id > 0, action: quarantine, topic: aside}}
  raw: {topic: raw}
  changes: {connector: files, path: in, format: json, schema: id INT}
sinks:
  out: {from: orders, topic: out, format: json}
  files: {from: orders, parquet: out}
  lake: {from: raw, archive: lake}
  rows: {from: orders, python: "code.py:take"}
  changes: {topic: changes, format: json}
"""
EVERYTHING = Asked(start={"": "earliest"}, stop={"": "latest"}, words=("=earliest", "=latest"))
WHERE = TopicPartition("orders", 0)


@pytest.fixture
def declaration(tmp_path: Path) -> Declaration:
    (tmp_path / "code.py").write_text("def take(rows, number): ...\n")
    (tmp_path / "pipeline.yaml").write_text(PIPELINE)
    return load(tmp_path / "pipeline.yaml")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (replace(EVERYTHING, sinks=("outt",)), "there is no sink 'outt'; did you mean out?"),
        (replace(EVERYTHING, targets={"on": "x"}), "there is no sink 'on'"),
        (replace(EVERYTHING, sinks=("files",)), "give another directory with --target files=DIR"),
        (replace(EVERYTHING, sinks=("files",), targets={"files": "OUT"}), "belong to the running query"),
        (replace(EVERYTHING, sinks=("changes",)), "source 'changes' is a connector's, which has no offsets"),
        (replace(EVERYTHING, sinks=("rows",), targets={"rows": "x"}), "sink 'rows' is a function, which has no other"),
        (replace(EVERYTHING, sinks=("out",), start={"raw": 1}), "no sink of this backfill reads a source 'raw'"),
    ],
)
def test_what_cannot_be_backfilled_is_told_with_what_to_ask_for(
    declaration: Declaration, asked: Asked, words: str
) -> None:
    targets = {name: str(declaration.directory / "out") if to == "OUT" else to for name, to in asked.targets.items()}
    with pytest.raises(BadBackfill, match=words):
        chosen(declaration, replace(asked, targets=targets))


def test_a_function_gets_batches_anew_only_if_it_is_named(declaration: Declaration) -> None:
    sinks = tuple(sink for sink in declaration.sinks if sink.name in ("out", "rows"))
    with pytest.raises(BadBackfill, match=r"batches whose numbers begin at 0 again.*say --sink rows"):
        chosen(replace(declaration, sinks=sinks), EVERYTHING)
    assert [sink.name for sink in chosen(declaration, replace(EVERYTHING, sinks=("rows",))).sinks] == ["rows"]


def test_targets_take_the_place_of_what_sinks_write(declaration: Declaration) -> None:
    targets = {"out": "again", "files": "elsewhere", "lake": "s3://bucket/lake"}
    made = chosen(declaration, replace(EVERYTHING, sinks=("out", "files", "lake"), targets=targets))
    topic, files, lake = (sink.output for sink in made.sinks)
    assert isinstance(topic, ToTopic)
    assert topic.options["topic"] == "again"
    assert isinstance(files, ToFiles)
    assert files.path == str(Path("elsewhere").resolve())
    assert isinstance(lake, ToArchive)
    assert lake.options.lake.path == "s3://bucket/lake"


def test_a_backfill_has_a_name_and_a_checkpoint_of_its_own(declaration: Declaration) -> None:
    one = chosen(declaration, replace(EVERYTHING, sinks=("out",)))
    assert one.name == backfill_name("shop", replace(EVERYTHING, sinks=("out",)))
    assert one.checkpoint == f"s3a://bucket/shop-{one.name}"
    others = [replace(EVERYTHING, sinks=("lake",)), replace(EVERYTHING, sinks=("out",), words=("=1", "=latest"))]
    assert len({one.name, *(chosen(declaration, asked).name for asked in others)}) == 3
    assert chosen(declaration, replace(others[0], name="june")).name == "shop-backfill-june"


def test_sources_begin_and_end_where_the_plan_says(declaration: Declaration) -> None:
    made = chosen(declaration, replace(EVERYTHING, sinks=("out",)))
    plan = Plan(spans={"orders": SourceSpan(ranges={WHERE: (3, 9)})})
    (source,) = bounded(made, plan).sources
    kept = {name: source.options[name] for name in ("assign", "startingOffsets", "stopAtOffsets")}
    assert {name: json.loads(text) for name, text in kept.items()} == {
        "assign": {"orders": [0]},
        "startingOffsets": {"orders": {"0": 3}},
        "stopAtOffsets": {"orders": {"0": 9}},
    }
    assert source.options["maxOffsetsPerTrigger"] == "7"
    assert not {"subscribe", "startingTimestamp", "group"} & source.options.keys()


def test_archives_are_no_queries(declaration: Declaration) -> None:
    made = chosen(declaration, replace(EVERYTHING, sinks=("out", "lake")))
    queries = with_queries(made)
    assert queries is not None
    assert [sink.name for sink in queries.sinks] == ["out"]
    assert [source.name for source in queries.sources] == ["orders"]
    assert [sink.name for sink, _ in archives(made)] == ["lake"]
    assert with_queries(chosen(declaration, replace(EVERYTHING, sinks=("lake",)))) is None


def test_what_is_written_is_told_with_what_becomes_of_rows_that_are_there(declaration: Declaration) -> None:
    made = chosen(declaration, replace(EVERYTHING, sinks=("out", "lake")))
    raw = {TopicPartition("raw", 0): (2, 9)}
    plan = Plan(spans={"orders": SourceSpan(ranges={WHERE: (3, 9)}), "raw": SourceSpan(ranges=raw)})
    notes = [(one.name, one.target.rpartition("/")[2], one.duplicates, one.missing) for one in outlet_notes(made, plan)]
    assert notes == [
        ("out", "out", ADDED, None),
        ("lake", "lake", ONCE, 7),
        ("dead letters of orders", "letters", ADDED, None),
        ("quarantine of orders", "aside", ADDED, None),
    ]


def test_a_relative_table_of_a_deployed_pipeline_is_refused(declaration: Declaration) -> None:
    asked = replace(EVERYTHING, sinks=("lake",))
    with pytest.raises(BadBackfill, match=r"relative to where its service runs.*--target lake=PATH"):
        require_own_tables(chosen(declaration, asked), asked, declaration.directory)
    aimed = replace(asked, targets={"lake": str(declaration.directory / "there")})
    require_own_tables(chosen(declaration, aimed), aimed, declaration.directory)


def test_offsets_stay_those_that_a_backfill_began_with(tmp_path: Path) -> None:
    paths = PipelinePaths(str(tmp_path / "state"), tmp_path / "state")
    first = Plan(spans={"orders": SourceSpan(ranges={WHERE: (3, 9)})})
    assert known_plan(paths) is None
    assert kept_plan(paths, first) == first
    (paths.local / "spark.log").touch()
    later = Plan(spans={"orders": SourceSpan(ranges={WHERE: (3, 99)})})
    assert kept_plan(paths, later) == first == known_plan(paths)
    note_done(paths, first)
    assert known_plan(paths) == replace(first, is_done=True) == decode_plan(replace(first, is_done=True).encode())


def test_the_progress_of_a_running_pipeline_is_not_taken_for_that_of_a_backfill(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(BadBackfill, match="has progress of something else"):
        kept_plan(PipelinePaths(str(tmp_path), tmp_path), Plan(spans={}))
    assert [one.name for one in tmp_path.iterdir()] == ["out"]


def test_tables_that_a_server_does_not_share_are_refused_behind_spark_connect(declaration: Declaration) -> None:
    made = chosen(declaration, replace(EVERYTHING, sinks=("lake",)))
    plan = Plan(spans={"raw": SourceSpan(ranges={TopicPartition("raw", 0): (2, 9)})})
    options = RunOptions(bootstrap="127.0.0.1:1", spark=SparkTarget(remote="sc://127.0.0.1:1"))
    with pytest.raises(BadBackfill, match="which the server of Spark Connect does not share with this machine"):
        run_backfill(made, plan, options, Silent())
