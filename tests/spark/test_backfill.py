"""Spans of topics through a pipeline again, beside the pipeline that runs."""

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from headrace.client.admin import Admin
from headrace.client.columnar import read_arrow
from headrace.lake.opening import Lake
from headrace.spark.pipeline.backfill import Asked, Plan, bounded, chosen, kept_plan, planned
from headrace.spark.pipeline.backfilling import run_backfill_with
from headrace.spark.pipeline.loading import load
from headrace.spark.pipeline.paths import paths_of
from headrace.spark.pipeline.progress import SinkProgress
from headrace.spark.pipeline.run import RunOptions
from tests.support.process import BrokerProcess, wait_for
from tests.support.spark.pipelines import PipelineProcess, RunPipeline, Silent, pipeline_settings
from tests.support.spark.topics import Topics

PIPELINE = """
name: shop
sources:
  orders: {topic: ORDERS, startingOffsets: earliest, format: json, schema: n INT}
  raw: {topic: ORDERS, startingOffsets: latest}
sinks:
  out: {from: orders, topic: OUT, format: json}
  lake: {from: raw, archive: lake}
"""


def numbers(topics: Topics, topic: str) -> list[int]:
    table = read_arrow(topic, bootstrap=topics.bootstrap, isolation_level="read_committed")
    return sorted(json.loads(value)["n"] for value in table["value"].to_pylist())


def archived(directory: Path, topic: str) -> list[tuple[int, int]]:
    table = Lake(path=str(directory / "lake"), format="parquet").table(topic)
    snapshot = table.snapshot()
    if snapshot is None:
        return []
    columns = ["_partition", "_offset"]
    found = [row for batch in table.read(snapshot, snapshot.files(), columns) for row in batch.to_pylist()]
    return sorted((row["_partition"], row["_offset"]) for row in found)


def backfilled(spark: Any, topics: Topics, file: Path, asked: Asked) -> tuple[Plan, list[SinkProgress]]:
    declaration = chosen(load(file), asked)
    paths = paths_of(declaration, None)
    plan = kept_plan(paths, planned(declaration, asked, topics.bootstrap))
    options = RunOptions(bootstrap=topics.bootstrap)
    with pipeline_settings(spark):
        return plan, run_backfill_with(spark, bounded(declaration, plan), plan, paths, options, Silent())


def test_a_span_is_written_once_beside_what_the_pipeline_writes(
    run: RunPipeline, spark: Any, topics: Topics, tmp_path: Path
) -> None:
    orders, out, again = topics.create(2), topics.create(), topics.create()
    topics.fill(orders, (json.dumps({"n": n}).encode() for n in range(40)), lambda n: n % 2)
    text = PIPELINE.replace("ORDERS", orders).replace("OUT", out)
    run(text)
    assert numbers(topics, out) == list(range(40))
    assert archived(tmp_path, orders) == []
    asked = Asked(start={"": 5}, stop={"": 15, "raw": 8}, words=("5", "15"), targets={"out": again})
    plan, sinks = backfilled(spark, topics, tmp_path / "pipeline.yaml", asked)
    assert {name: span.offsets for name, span in plan.spans.items()} == {"orders": 20, "raw": 6}
    assert [(sink.sink, sink.rows_out) for sink in sinks] == [("out", 20), ("lake", 6)]
    assert numbers(topics, again) == list(range(10, 30))
    assert archived(tmp_path, orders) == [(one, offset) for one in range(2) for offset in range(5, 8)]
    topics.fill(orders, (json.dumps({"n": n}).encode() for n in range(40, 44)), lambda n: n % 2)
    backfilled(spark, topics, tmp_path / "pipeline.yaml", asked)
    assert numbers(topics, again) == list(range(10, 30))
    run(text)
    assert numbers(topics, out) == list(range(44))
    assert archived(tmp_path, orders) == [
        (one, offset) for one in range(2) for offset in [*range(5, 8), *range(20, 22)]
    ]


KILLED = """
name: killed
sources:
  orders: {topic: orders, format: json, schema: n INT, maxOffsetsPerTrigger: 300}
  raw: {topic: orders}
sinks:
  out: {from: orders, topic: out, format: json, delivery: exactly-once}
  lake: {from: raw, archive: lake}
"""


@pytest.mark.long
@pytest.mark.timeout(1100)
def test_a_backfill_that_is_killed_goes_on_with_the_offsets_that_it_had(tmp_path: Path) -> None:
    chance = random.Random(19)
    with BrokerProcess(tmp_path / "broker", {"transaction.state.log.num.partitions": "4"}) as broker:
        topics = Topics(broker.bootstrap, "killed")
        Admin(broker.bootstrap).create_topics(["orders", "out"], 2)
        topics.fill("orders", (json.dumps({"n": n}).encode() for n in range(2000)), lambda n: n % 2)
        (tmp_path / "pipeline.yaml").write_text(KILLED)
        asked = ["--bootstrap", broker.bootstrap, "--from", "100", "--to", "latest", "--master", "local[2]"]
        for life in range(4):
            with PipelineProcess(tmp_path / "pipeline.yaml", *asked, command="backfill") as process:
                assert process.event("plan")["offsets"] == 2 * 1800
                if life == 3:
                    assert process.ended() == 0, process.errors
                    break
                process.event("started")
                written = chance.randint(1, 300) + count(broker.bootstrap)
                await_rows(broker.bootstrap, written)
                process.kill()
            topics.fill("orders", (json.dumps({"n": n}).encode() for n in range(2000, 2010)), lambda n: n % 2)
        found = Counter(numbers(topics, "out"))
        assert found == Counter(range(200, 2000))
        assert archived(tmp_path, "orders") == [(one, offset) for one in range(2) for offset in range(100, 1000)]
        with PipelineProcess(tmp_path / "pipeline.yaml", *asked, command="backfill") as process:
            assert process.event("plan")["done"]
            assert process.ended() == 0


def await_rows(bootstrap: str, least: int) -> None:
    wait_for("rows are written", lambda: count(bootstrap) >= least, 300)


def count(bootstrap: str) -> int:
    return int(read_arrow("out", bootstrap=bootstrap, isolation_level="read_committed").num_rows)
