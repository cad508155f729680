"""Services against a broker, with runners that are programs of a few lines in place of Spark."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest

from headrace.client.admin import Admin
from headrace.client.columnar.cluster import Cluster
from headrace.client.errors import ClientError, UnknownTopic
from headrace.config.pipelines import DEFINITIONS
from headrace.spark.service import runner
from headrace.spark.service.client import Deployments, View
from headrace.spark.service.metrics import served
from headrace.spark.service.model import STOPPED, SparkSettings
from headrace.spark.service.service import PipelineService, ServiceOptions
from headrace.spark.service.store import Definitions, TopicWriter
from headrace.testing import Broker

pytestmark = pytest.mark.slow
PATIENCE = 60.0
FAKE = """
import json, signal, sys, time
asked = json.loads(sys.stdin.buffer.readline())
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
def say(**event):
    print(json.dumps(event), flush=True)
print("hello from", asked["name"], file=sys.stderr, flush=True)
say(event="started", spark=asked["master"], checkpoint=asked["checkpoint"], log="/nowhere", sinks=[])
say(event="progress", time=1.0, sink="out", state="running", rows_in=7, rows_out=5, lag=2, bad_records=1)
exec(open(asked["file"]).read())
while True:
    time.sleep(0.05)
"""
"""Says what a runner says, then does what the pipeline's file has."""


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as one:
        yield one


@pytest.fixture(autouse=True)
def fake_runners(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "COMMAND", ("-c", FAKE))


@contextmanager
def service(broker: Broker, data: Path) -> Iterator[PipelineService]:
    stop, said = threading.Event(), list[str]()
    running = PipelineService(ServiceOptions(client={"bootstrap.servers": broker.bootstrap}, data=data), said.append)
    running.prepare()
    thread = threading.Thread(target=running.run, args=(stop,))
    thread.start()
    try:
        yield running
    finally:
        stop.set()
        thread.join(PATIENCE)
        assert not thread.is_alive()


@contextmanager
def deployments(broker: Broker) -> Iterator[Deployments]:
    with Cluster({"bootstrap.servers": broker.bootstrap}) as cluster:
        yield Deployments(cluster)


def deploy(known: Deployments, code: str = "", name: str = "shop") -> None:
    known.deploy(name, "pipeline.py", {"pipeline.py": code.encode()}, SparkSettings(master="local[1]"))


def until(known: Deployments, holds: Callable[[View], bool], name: str = "shop") -> View:
    """The pipeline as it is as soon as this holds."""
    deadline = time.monotonic() + PATIENCE
    while True:
        found = next((view for view in known.views() if view.name == name), None)
        if found is not None and holds(found):
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.1)


def is_told(state: str) -> Callable[[View], bool]:
    return lambda view: view.told == state


def test_a_pipeline_is_deployed_watched_killed_stopped_restarted_and_deleted(broker: Broker, tmp_path: Path) -> None:
    with service(broker, tmp_path) as one, deployments(broker) as known:
        deploy(known)
        running = until(known, lambda view: view.told == "running" and bool(view.status and view.status.sinks))
        assert running.status is not None
        assert running.status.sinks[0]["rows_out"] == 5
        lines = [line.text for line in known.logs("shop", 0, follow=False)]
        assert "hello from shop" in lines
        assert f"runs on local[1], checkpoint {tmp_path}/shop/checkpoint" in lines
        with served("127.0.0.1", 0, one.page) as address, urlopen(f"http://{address}/metrics") as page:
            text = page.read().decode()
        assert 'headrace_pipeline_rows_in_total{pipeline="shop",sink="out"} 7.0' in text
        assert 'headrace_pipeline_state{pipeline="shop",state="running"} 1.0' in text

        os.kill(one.runners["shop"].pid, signal.SIGKILL)
        again = until(known, lambda view: bool(view.told == "running" and view.status and view.status.restarts == 1))
        assert again.status is not None
        assert again.status.problem == "the runner was ended by signal 9"

        known.want("shop", STOPPED)
        until(known, is_told("stopped"))
        assert not one.runners
        known.want("shop", "running")
        until(known, is_told("running"))
        known.delete("shop")
        deadline = time.monotonic() + PATIENCE
        while one.runners or known.views():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        with pytest.raises(ClientError, match="there is no deployed pipeline 'shop'"):
            known.get("shop")


def test_failures_are_told_with_the_last_words_and_a_mistake_is_not_tried_again(broker: Broker, tmp_path: Path) -> None:
    with service(broker, tmp_path), deployments(broker) as known:
        deploy(
            known, 'say(event="failed", error="no such column"); sys.stderr.write("headrace: oh dear\\n"); sys.exit(1)'
        )
        failed = until(known, lambda view: bool(view.status and view.status.failures >= 2))
        assert "oh dear" in failed.problem or "no such column" in failed.problem
        assert failed.told in ("backoff", "starting", "running")
        deploy(known, 'say(event="failed", error="line 3: what?"); sys.exit(2)')
        assert until(known, is_told("failed")).problem == "line 3: what?"
        deploy(known, "sys.exit(0)")
        until(known, is_told("done"))


def test_a_service_that_stops_leaves_its_pipelines_to_the_next_one(broker: Broker, tmp_path: Path) -> None:
    with deployments(broker) as known:
        with service(broker, tmp_path):
            deploy(known)
            until(known, is_told("running"))
        assert until(known, is_told("waiting")).problem.startswith("no service runs")
        with service(broker, tmp_path) as next_one:
            running = until(known, is_told("running"))
            assert running.status is not None
            assert running.status.service == next_one.id
            assert running.status.failures == 0


def test_a_pipeline_is_not_started_away_from_its_checkpoint(broker: Broker, tmp_path: Path) -> None:
    with deployments(broker) as known:
        with service(broker, tmp_path / "one"):
            deploy(known)
            until(known, is_told("running"))
        with service(broker, tmp_path / "two") as other:
            away = until(known, lambda view: "out of reach" in view.problem)
            assert str(tmp_path / "one") in away.problem
            assert not other.runners


def test_records_that_are_no_definitions_stop_nothing_and_are_told(broker: Broker, tmp_path: Path) -> None:
    hostile = {
        b"noise": b"\x00\xff",
        b"list": b"[]",
        b"deep": b"[" * 100_000,
        b"../../etc": json.dumps({"format": 1}).encode(),
        b"newer": json.dumps({"format": 99}).encode(),
        b"out": json.dumps(
            {
                "format": 1,
                "revision": "1",
                "file": "../x",
                "archive": "",
                "settings": {},
                "wanted": "running",
                "time_ms": 0,
                "by": "",
            }
        ).encode(),
        b"bomb": json.dumps(
            {
                "format": 1,
                "revision": "1",
                "file": "x",
                "archive": "AAAA",
                "settings": {},
                "wanted": "running",
                "time_ms": 0,
                "by": "",
            }
        ).encode(),
    }
    with service(broker, tmp_path) as one, deployments(broker) as known:
        with Cluster({"bootstrap.servers": broker.bootstrap}) as cluster:
            writer = TopicWriter(cluster)
            writer.put(DEFINITIONS, hostile.items())
            writer.close()
        deploy(known)
        until(known, is_told("running"))
        told = {view.name: view.problem for view in known.views()}
        assert "upgrade the service" in told["newer"]
        assert "is not the name of a file" in told["out"]
        until(known, lambda view: "the archive cannot be read" in view.problem, "bomb")
        assert list(one.runners) == ["shop"]
        assert sorted(path.name for path in tmp_path.iterdir()) == ["service.id", "shop"]


def test_a_topic_that_is_gone_makes_nobody_forget_what_it_said(broker: Broker) -> None:
    with Cluster({"bootstrap.servers": broker.bootstrap}) as cluster:
        known = Definitions(cluster)
        known.refresh()
        deployments = Deployments(cluster)
        deploy(deployments)
        known.refresh()
        assert list(known.deployments) == ["shop"]
        Admin(broker.bootstrap).delete_topics([DEFINITIONS])
        with pytest.raises(UnknownTopic):
            known.refresh()
        assert list(known.deployments) == ["shop"]
        deploy(deployments, name="other")
        deadline = time.monotonic() + PATIENCE
        while list(known.deployments) != ["other"]:
            assert time.monotonic() < deadline
            time.sleep(0.2)
            known.refresh()
