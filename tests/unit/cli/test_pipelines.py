"""`headrace pipeline` as far as it goes without Spark."""

import io
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.cli.pipeline.view import JsonView, LineView, LiveView, line
from headrace.spark.pipeline import run as planning
from headrace.spark.pipeline.building import BuiltGraph
from headrace.spark.pipeline.document import InvalidPipeline
from headrace.spark.pipeline.loading import load
from headrace.spark.pipeline.progress import SinkProgress
from headrace.spark.pipeline.queries import SinkGraph
from headrace.spark.pipeline.session import SparkTarget
from headrace.testing import Broker
from tests.support.cli import Run

BROKEN = """
name: shop
sources:
  orders: {topc: orders}
sinks:
  copy: {from: ordres, parquet: out}
"""


def test_a_new_pipeline_is_a_good_one(run: Run, tmp_path: Path) -> None:
    written = run("pipeline", "new", str(tmp_path / "demo"))
    assert written.exit_code == 0, written.output
    file = tmp_path / "demo" / "pipeline.yaml"
    assert f"run it with: headrace pipeline run {file}" in written.stdout
    assert "name: demo" in file.read_text()
    checked = run("pipeline", "check", str(file))
    assert checked.stdout == f"{file}: ok, 1 source, 2 steps, 1 sink\n"


@pytest.mark.slow
@pytest.mark.parametrize("asked", [("new", "demo"), ("run", "pipeline.yaml"), ("check", "pipeline.yaml")])
def test_without_spark_the_extra_is_named(tmp_path: Path, asked: tuple[str, str]) -> None:
    code = "import sys; sys.modules.update(pyspark=None); from headrace.cli.main import app; app(sys.argv[1:])"
    command = [sys.executable, "-c", code, "pipeline", *asked]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=120)
    assert result.returncode == 1
    assert result.stderr == "headrace: pipelines need the package 'pyspark': pip install \"headrace[spark]\"\n"


def test_a_new_pipeline_overwrites_nothing(run: Run, tmp_path: Path) -> None:
    run("pipeline", "new", str(tmp_path / "demo"))
    again = run("pipeline", "new", str(tmp_path / "demo"))
    assert again.exit_code == 2
    assert "is there already; choose another directory" in again.stderr


def test_every_mistake_is_a_line_with_its_place(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(BROKEN.lstrip())
    result = run("pipeline", "run", str(file))
    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        f"headrace: {file}:3: source 'orders' has no setting 'topc'; did you mean topic?",
        f"headrace: {file}:3: source 'orders' needs a topic, for example `topic: orders`",
        f"headrace: {file}:5: sink 'copy': there is no source or step 'ordres'; did you mean orders?",
    ]


def test_check_answers_in_json(run: Run, tmp_path: Path) -> None:
    run("pipeline", "new", str(tmp_path))
    answer = json.loads(run("pipeline", "check", str(tmp_path / "pipeline.yaml"), "--json").stdout)
    assert (answer["ok"], answer["sources"], answer["steps"]) == (True, ["lines"], ["words", "counted"])


MOVED = SinkProgress(sink="revenue", state="running", batch=3, rows_in=1200, rows_out=30, lag=7, latency_ms=210)


def test_json_has_a_line_for_each_change(capsys: pytest.CaptureFixture[str]) -> None:
    view = JsonView()
    for progress in (MOVED, MOVED):
        view.progress([progress])
    (line,) = capsys.readouterr().out.splitlines()
    document = json.loads(line)
    assert (document["event"], document["sink"], document["rows_in"], document["lag"]) == (
        "progress",
        "revenue",
        1200,
        7,
    )


def test_lines_come_every_few_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    times = iter([0.0, 0.0, 0.0, 1.0, 6.0, 6.0])
    view = LineView(clock=lambda: next(times))
    view.progress([MOVED])
    view.progress([MOVED])
    view.progress([MOVED])
    assert capsys.readouterr().out == ("revenue: running, batch 3, in 1,200 (0/s), out 30, lag 7, took 210 ms\n")


STARTING = SinkProgress(sink="revenue")


def test_a_sink_that_starts_is_shown_before_its_first_batch_and_after_an_outage(
    capsys: pytest.CaptureFixture[str],
) -> None:
    away = replace(STARTING, state="unreachable", problem="no broker answers", since="2026-11-16T01:02:03Z")
    lines, documents = LineView(clock=itertools.count(0, 10).__next__), JsonView()
    for progress in (STARTING, STARTING, away, STARTING):
        lines.progress([progress])
    first, second, third = capsys.readouterr().out.splitlines()
    assert first == third == "revenue: starting, no batch is done yet"
    assert "no broker answers" in second
    for progress in (STARTING, STARTING, away, STARTING):
        documents.progress([progress])
    states = [json.loads(line)["state"] for line in capsys.readouterr().out.splitlines()]
    assert states == ["starting", "unreachable", "starting"]


def test_a_terminal_shows_a_table() -> None:
    from rich.console import Console
    from rich.live import Live

    screen = io.StringIO()
    with Live(console=Console(file=screen, width=120), auto_refresh=False) as live:
        LiveView(live).progress([MOVED])
    shown = screen.getvalue()
    assert "ROWS OUT" in shown
    assert "1,200" in shown


CUT_OFF = SinkProgress(
    sink="revenue",
    state="unreachable",
    batch=3,
    bad_records=2,
    restarts=1,
    last_progress="2026-01-01T10:00:01.000Z",
    problem="no broker answers at b:1",
    since="2026-01-01T10:00:05.000Z",
)


def test_a_line_tells_since_when_no_broker_answers_and_when_there_was_progress() -> None:
    assert line(CUT_OFF) == (
        "revenue: cannot reach the broker since 10:00:05 UTC (no broker answers at b:1), batch 3, in 0 (0/s), out 0, "
        "bad 2, lag -, took -, restarts 1, last progress 10:00:01 UTC"
    )


def test_a_terminal_tells_it_below_the_table() -> None:
    from rich.console import Console
    from rich.live import Live

    screen = io.StringIO()
    with Live(console=Console(file=screen, width=140), auto_refresh=False) as live:
        LiveView(live).progress([CUT_OFF])
    assert "cannot reach the broker since 10:00:05 UTC (no broker answers at b:1)" in screen.getvalue()


def test_a_sink_that_is_silent_for_long_is_shown_with_the_time_of_its_progress(
    capsys: pytest.CaptureFixture[str],
) -> None:
    moved = replace(MOVED, last_progress="1970-01-01T00:00:10.000Z")
    days = iter([12.0, 45.0, 50.0])
    view = LineView(clock=itertools.count(0, 10).__next__, time_of_day=days.__next__)
    for _ in range(3):
        view.progress([moved])
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 2
    assert not shown[0].endswith("UTC")
    assert shown[1].endswith("lag 7, took 210 ms, last progress 00:00:10 UTC")


def test_json_tells_of_an_outage_before_the_first_batch_too(capsys: pytest.CaptureFixture[str]) -> None:
    JsonView().progress([replace(CUT_OFF, batch=None)])
    document = json.loads(capsys.readouterr().out)
    assert (document["state"], document["since"], document["lag"]) == ("unreachable", CUT_OFF.since, None)


APART = """
name: shop
sources:
  orders: {topic: orders, watermark: {column: timestamp, delay: 1 minute}}
sinks:
  raw: {from: orders, console: 1}
  late: {from: orders, console: 1, mode: update}
"""


def test_sinks_that_may_disagree_are_warned_of(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(APART.lstrip())
    checked = run("pipeline", "check", str(file))
    assert checked.exit_code == 0
    assert f"headrace: warning: {file}:6: sinks 'raw' and 'late' share 'orders'" in checked.stderr


def test_check_takes_the_options_of_run(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(APART.lstrip())
    both = run("pipeline", "check", str(file), "--master", "spark://h:1", "--remote", "sc://h:2")
    assert both.exit_code == 2
    assert "--master and --remote exclude each other" in both.stderr
    assert run("pipeline", "check", str(file), "--conf", "nonsense").exit_code == 2
    assert run("pipeline", "check", str(file), "--bootstrap", "nonsense").exit_code == 2


def test_the_help_of_options_tells_what_holds_without_them(run: Run) -> None:
    shown = " ".join(run("pipeline", "run", "--help").stdout.replace("│", " ").split())
    assert "127.0.0.1:9092" in shown
    assert ".headrace/NAME" in shown
    assert "./data" in run("broker", "--help").stdout


def test_planning_tells_what_it_does_and_every_topic_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "pipeline.yaml"
    text = "name: x\nsources:\n  a: {topic: one}\n  b: {topic: two}\nsinks: {a: {console: 1}, b: {console: 1}}\n"
    file.write_text(text)

    @contextmanager
    def no_spark(*_arguments: object) -> Iterator[None]:
        yield

    def builds(*_arguments: object) -> BuiltGraph:
        return BuiltGraph(SinkGraph(()))

    monkeypatch.setattr(planning, "open_session", no_spark)
    monkeypatch.setattr(planning, "build", builds)
    told: list[str] = []
    with Broker() as broker, pytest.raises(InvalidPipeline) as raised:
        planning.plan(load(file), broker.bootstrap, SparkTarget(master="local[1]"), told.append)
    assert raised.value.problems == [
        f"{file}:3: source 'a': topic 'one' does not exist",
        f"{file}:4: source 'b': topic 'two' does not exist",
    ]
    assert told == ["starting Spark (local[1])", "preparing the queries"]


SPAN = """
name: spans
bootstrap: ${BROKERS:-127.0.0.1:1}
sources:
  lines: {topic: spans-in}
sinks:
  out: {from: lines, topic: spans-out, value: value}
  lake: {from: lines, archive: lake}
"""


@pytest.mark.slow
def test_a_backfill_tells_what_it_would_read_and_write(
    run: Run, cluster: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKERS", cluster.bootstrap)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spans.yaml").write_text(SPAN)
    run("topic", "create", "spans-in", "-b", cluster.bootstrap)
    run("produce", "spans-in", "-b", cluster.bootstrap, stdin="a\nb\nc\nd\n")
    deployed = run("pipeline", "deploy", "spans.yaml", "-b", cluster.bootstrap)
    assert deployed.exit_code == 0, deployed.output
    asked = ["--from", "1", "--to", "3", "--dry-run", "--json"]
    told = run("pipeline", "backfill", "spans.yaml", *asked)
    assert told.exit_code == 0, told.output
    plan = json.loads(told.stdout)
    assert plan["offsets"] == 2
    assert plan["spans"] == [{"source": "lines", "topic": "spans-in", "partition": 0, "from": 1, "to": 3}]
    assert [(one["sink"], one.get("missing")) for one in plan["sinks"]] == [("out", None), ("lake", 2)]
    assert not (tmp_path / ".headrace").exists()
    of_name = run("pipeline", "backfill", "spans", "-b", cluster.bootstrap, *asked)
    assert of_name.exit_code == 2
    assert "say where the tables are with --target lake=PATH" in of_name.stderr
    aimed = run("pipeline", "backfill", "spans", "-b", cluster.bootstrap, "--target", "lake=there", *asked)
    assert json.loads(aimed.stdout)["sinks"][1]["target"] == str(tmp_path / "there")
    table = run("pipeline", "backfill", "spans.yaml", "--from", "1", "--dry-run")
    assert [line.split() for line in table.stdout.splitlines()][:2] == [
        ["SOURCE", "TOPIC", "PARTITION", "FROM", "TO", "OFFSETS"],
        ["lines", "spans-in", "0", "1", "4", "3"],
    ]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (["--from", "1", "--from", "2"], "--from is given twice"),
        (["--from", "-5"], "--from '-5' counts from the end"),
        (["--from", "1", "--name", "a/b"], "--name 'a/b' may have letters"),
        (["--from", "1", "--sink", "aut"], "there is no sink 'aut'; did you mean out?"),
        (["--from", "1", "--master", "local[1]", "--remote", "sc://x"], "exclude each other"),
    ],
)
def test_a_backfill_that_cannot_be_is_refused(run: Run, tmp_path: Path, asked: list[str], words: str) -> None:
    (tmp_path / "spans.yaml").write_text(SPAN)
    refused = run("pipeline", "backfill", str(tmp_path / "spans.yaml"), *asked)
    assert refused.exit_code == 2
    assert words in refused.stderr


@pytest.mark.slow
def test_a_server_of_spark_connect_may_be_named_as_a_master(run: Run, tmp_path: Path, cluster: Broker) -> None:
    (tmp_path / "spans.yaml").write_text(SPAN)
    asked = ["--name", "afar", "--master", "sc://host:15002", "-b", cluster.bootstrap]
    deployed = run("pipeline", "deploy", str(tmp_path / "spans.yaml"), *asked)
    assert deployed.exit_code == 0, deployed.output
    told = json.loads(run("pipeline", "status", "afar", "--json", "-b", cluster.bootstrap).stdout)
    assert (told["settings"]["master"], told["settings"]["remote"]) == ("local[*]", "sc://host:15002")
