"""`headrace cluster upgrade`, and the versions that `headrace cluster describe` shows."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from headrace import __version__
from headrace.cli.cluster.tables import as_values, show
from headrace.cluster.identity import cluster_id
from headrace.cluster.sqlite import SqliteStore
from headrace.ops.overview import BrokerView, ClusterView
from headrace.protocol.levels import SUPPORTED
from tests.support.cli import Headrace, Run
from tests.support.process import free_port

VIEW = ClusterView(
    cluster_id="x",
    controller=1,
    brokers=(
        BrokerView(id=1, version="0.2", levels=(1, 2)),
        BrokerView(id=2, version="0.2", levels=(1, 2)),
        BrokerView(id=3, version="0.1", levels=(1, 1)),
    ),
    partitions=(),
    level=1,
)


def test_a_cluster_of_one_release_has_nothing_to_raise(headrace: Headrace) -> None:
    done = headrace("cluster", "upgrade", "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["state"], answer["before"], answer["after"]) == ("done", SUPPORTED.max, SUPPORTED.max)
    assert b"the newest that all brokers speak" in headrace("cluster", "upgrade", "--dry-run").stdout


def test_a_level_that_nobody_speaks_is_refused(headrace: Headrace) -> None:
    refused = headrace("cluster", "upgrade", "--to", "99")
    assert refused.returncode == 1
    assert b"feature level 99 is not spoken by broker" in refused.stderr


def test_a_cluster_is_described_with_its_versions(headrace: Headrace) -> None:
    answer = json.loads(headrace("cluster", "describe", "--json").stdout)
    assert answer["feature_level"] == SUPPORTED.max
    assert [(b["version"], b["feature_levels"]) for b in answer["brokers"]] == [(__version__, list(SUPPORTED))]


def shown(view: ClusterView, capsys: pytest.CaptureFixture[str]) -> str:
    show(view, {}, None, {}, every_partition=False)
    return capsys.readouterr().out


def test_mixed_versions_are_told_with_who_is_of_which(capsys: pytest.CaptureFixture[str]) -> None:
    assert "version      mixed: 0.1 (broker 3), 0.2 (broker 1,2), feature level 1\n" in shown(VIEW, capsys)
    silent = replace(VIEW, brokers=(*VIEW.brokers[:2], BrokerView(id=3)))
    assert "mixed: unknown (broker 3), 0.2 (broker 1,2)" in shown(silent, capsys)


def test_a_level_that_could_be_raised_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    same = replace(VIEW, brokers=VIEW.brokers[:2])
    assert "version      0.2, feature level 1 (all speak 2: `headrace cluster upgrade`)\n" in shown(same, capsys)
    assert as_values(same, {}, None, {})["feature_level"] == 1


def test_a_broker_that_does_not_speak_the_level_of_its_metadata_does_not_start(run: Run, tmp_path: Path) -> None:
    async def make() -> None:
        store = await SqliteStore.open(tmp_path / "metadata.db")
        await cluster_id(store, Random(1), newest_level=9)
        await store.close()

    asyncio.run(make())
    refused = run("broker", "--data", str(tmp_path), "--listen", f"127.0.0.1:{free_port()}")
    assert refused.exit_code == 1
    assert "feature level is 9, and this broker speaks 1: start a later release" in refused.stderr
