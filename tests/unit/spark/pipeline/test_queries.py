"""Which sinks are one query, and what becomes of the checkpoints of queries that are no more."""

from pathlib import Path

import pytest

from headrace.spark.pipeline.failures import PipelineFailed
from headrace.spark.pipeline.history import note_queries, require_same_queries
from headrace.spark.pipeline.model import Declaration
from headrace.spark.pipeline.paths import PipelinePaths
from headrace.spark.pipeline.queries import SinkGraph, disagreements, graphs_of
from tests.support.spark.declarations import declare

SHOP = """
name: shop
sources:
  orders: {topic: orders, watermark: {column: timestamp, delay: 1 minute}}
  payments: {topic: payments}
  visits: {topic: visits}
steps:
  paid: {sql: SELECT * FROM orders JOIN payments USING (key)}
sinks:
  archive: {from: paid, parquet: out}
  raw: {from: payments, topic: copies}
  visits: {topic: seen}
  alerts: {from: orders, topic: alerts}
"""


def names(declaration: Declaration, *, files_apart: bool = False) -> list[str]:
    return [graph.name for graph in graphs_of(declaration, files_apart=files_apart)]


def test_sinks_that_share_a_table_are_one_query(tmp_path: Path) -> None:
    pipeline = declare(tmp_path, SHOP)
    assert names(pipeline) == ["alerts+archive+raw", "visits"]
    assert [table.name for table in graphs_of(pipeline)[0].tables(pipeline)] == ["orders", "payments", "paid"]


def test_a_later_sink_can_join_two_queries_to_one(tmp_path: Path) -> None:
    text = SHOP.replace("archive: {from: paid, parquet: out}", "early: {from: orders, console: 1}")
    assert names(declare(tmp_path, text)) == ["alerts+early", "raw", "visits"]
    assert names(declare(tmp_path, text + "  paid: {console: 1}\n")) == ["alerts+early+paid+raw", "visits"]


def test_modes_and_triggers_part_sinks_and_who_shares_a_watermark_is_warned(tmp_path: Path) -> None:
    text = SHOP.replace("topic: alerts}", "topic: alerts, mode: update}")
    pipeline = declare(tmp_path, text.replace("topic: copies}", "topic: copies, trigger: 1 minute}"))
    graphs = graphs_of(pipeline)
    assert [graph.name for graph in graphs] == ["archive", "raw", "visits", "alerts"]
    ((place, message),) = disagreements(pipeline, graphs)
    assert place.line == 12
    assert message == (
        "sinks 'archive' and 'alerts' share 'orders', which has a watermark, but are queries of their own "
        "(modes append and update): late rows may be in one and not in the other"
    )


def test_a_trigger_that_says_the_same_parts_nobody(tmp_path: Path) -> None:
    text = SHOP.replace("name: shop", "name: shop\ntrigger: 5 seconds").replace(
        "topic: copies}", "topic: copies, trigger: 5 seconds}"
    )
    assert names(declare(tmp_path, text)) == ["alerts+archive+raw", "visits"]


def test_behind_spark_connect_files_are_a_query_of_their_own(tmp_path: Path) -> None:
    pipeline = declare(tmp_path, SHOP)
    assert names(pipeline, files_apart=True) == ["archive", "raw", "visits", "alerts"]


def test_many_sinks_have_a_name_that_a_directory_can_have(tmp_path: Path) -> None:
    sinks = "".join(f"  sink_number_{number}: {{from: visits, console: 1}}\n" for number in range(40))
    (first, *_) = graphs_of(declare(tmp_path, SHOP + sinks))[1:]
    assert len(first.name) < 200


def graph_of(directory: Path, text: str = SHOP) -> list[SinkGraph]:
    return graphs_of(declare(directory, text))


@pytest.fixture
def paths(tmp_path: Path) -> PipelinePaths:
    return PipelinePaths("s3a://bucket/state", tmp_path / "state")


def test_a_query_goes_on_from_its_own_checkpoint(tmp_path: Path, paths: PipelinePaths) -> None:
    graphs = graph_of(tmp_path)
    require_same_queries(paths, graphs, [])
    note_queries(paths, graphs)
    for found in ([graph.name for graph in graphs], None):
        require_same_queries(paths, graphs, found)


def test_checkpoints_of_each_sink_are_not_taken_for_one_of_them_all(tmp_path: Path, paths: PipelinePaths) -> None:
    with pytest.raises(PipelineFailed) as raised:
        require_same_queries(paths, graph_of(tmp_path), ["archive", "raw", "visits"])
    message = str(raised.value)
    assert "pipeline.yaml:9: sinks 'alerts', 'archive' and 'raw': the checkpoint is of other queries" in message
    assert "(s3a://bucket/state/archive, s3a://bucket/state/raw)" in message


WITHOUT_ALERTS = SHOP.replace("  alerts: {from: orders, topic: alerts}\n", "")


def test_a_sink_that_joins_or_leaves_a_query_is_told_so(tmp_path: Path, paths: PipelinePaths) -> None:
    with pytest.raises(PipelineFailed, match="of another query"):
        require_same_queries(paths, graph_of(tmp_path, WITHOUT_ALERTS), ["alerts+archive+raw", "visits"])


def test_a_removed_checkpoint_starts_over(tmp_path: Path, paths: PipelinePaths) -> None:
    note_queries(paths, graph_of(tmp_path))
    require_same_queries(paths, graph_of(tmp_path, WITHOUT_ALERTS), ["visits"])


def test_what_was_noted_counts_where_directories_cannot_be_seen(tmp_path: Path, paths: PipelinePaths) -> None:
    require_same_queries(paths, graph_of(tmp_path), None)
    note_queries(paths, graph_of(tmp_path))
    with pytest.raises(PipelineFailed, match=r"s3a://bucket/state/alerts\+archive\+raw"):
        require_same_queries(paths, graph_of(tmp_path, WITHOUT_ALERTS), None)
    elsewhere = PipelinePaths("s3a://bucket/other", paths.local)
    require_same_queries(elsewhere, graph_of(tmp_path, WITHOUT_ALERTS), None)


def test_sinks_of_a_long_name_are_known_by_what_was_noted(tmp_path: Path, paths: PipelinePaths) -> None:
    sinks = "".join(f"  sink_number_{number}: {{from: visits, console: 1}}\n" for number in range(40))
    many = graph_of(tmp_path, SHOP + sinks)
    note_queries(paths, many)
    with pytest.raises(PipelineFailed, match="sink 'visits': the checkpoint is of another query"):
        require_same_queries(paths, graph_of(tmp_path), [graph.name for graph in many])
