"""A rolling upgrade from the previous release, under load: nothing is lost and nothing fails; and back again.

Producers with acks=all, a consumer group, and a copier that reads and writes in transactions go on all the time.
"""

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import command
from tests.support.faults.copier import Task, transformed
from tests.support.faults.load import Load, read_all, wait_for_equal_replicas
from tests.support.faults.view import View
from tests.support.previous_release import previous_release
from tests.support.process import ClusterProcesses, Site, wait_for

from .test_transactions_kill import OFFSETS, PARTITIONS, REPLICAS, SETTINGS, SOURCE, TARGET, TRANSACTIONS, Keeper, check

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

ENDLESS = 10**9
HANGS = "gives up: sending offsets hangs"
"""A fault of the client library, whatever the cluster does: see the copier."""


def headrace(cluster: ClusterProcesses, *arguments: str) -> Any:
    """The answer of a command, which is JSON."""
    given = command(*arguments, "--bootstrap", cluster.bootstrap, "--json")
    done = subprocess.run(given, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def versions(cluster: ClusterProcesses) -> dict[int, str | None]:
    """What brokers say of their software; the previous release says nothing."""
    return {broker["id"]: broker["version"] for broker in headrace(cluster, "cluster", "describe")["brokers"]}


class Upgrade:
    """A cluster whose brokers are replaced one by one."""

    def __init__(self, cluster: ClusterProcesses, load: Load, keeper: Keeper) -> None:
        self._cluster = cluster
        self._load = load
        self._keeper = keeper
        self._views = [View(cluster.bootstrap, topic) for topic in (SOURCE, TARGET, OFFSETS, TRANSACTIONS)]

    def replace(self, number: int, prefix: tuple[str, ...]) -> None:
        """Stop a broker in order, start the other release on its directory, wait for the ISR and for more work."""
        broker = self._cluster[number]
        assert broker.stop() == 0
        broker.prefix = prefix
        broker.metrics = None if prefix else "off"
        broker.start()
        for view in self._views:
            view.wait_until_in_sync()
        self.wait_for_work()

    def wait_for_work(self) -> None:
        """Returns when every partition has taken writes, the group has read them, and transactions were committed."""
        self._load.wait_for_answers(time.monotonic())
        self._load.wait_for_reader()
        copied = self._keeper.copied
        wait_for("transactions are committed", lambda: self._keeper.copied > copied)


def test_a_rolling_upgrade_from_the_previous_release_loses_nothing_and_fails_nothing(tmp_path: Path) -> None:
    previous = previous_release(tmp_path / "previous")
    sites = dict.fromkeys((1, 2, 3), Site(prefix=previous, has_metrics=False))
    with ClusterProcesses(tmp_path, 3, settings=SETTINGS, sites=sites) as cluster:
        for topic in (SOURCE, TARGET):
            View(cluster.bootstrap, topic).create(REPLICAS, min_insync_replicas="2")
        task = Task(
            bootstrap=cluster.bootstrap, source=SOURCE, target=TARGET, partitions=PARTITIONS, records=ENDLESS, batch=100
        )
        with Load(cluster.bootstrap, SOURCE, PARTITIONS) as load, Keeper(task) as keeper:
            upgrade = Upgrade(cluster, load, keeper)
            upgrade.wait_for_work()
            assert versions(cluster) == {1: None, 2: None, 3: None}
            upgrade.replace(1, ())
            mixed = versions(cluster)
            assert mixed[1] is not None
            assert (mixed[2], mixed[3]) == (None, None)
            upgrade.replace(2, ())
            upgrade.replace(2, previous)  # back again, while the level is not raised
            upgrade.replace(2, ())
            upgrade.replace(3, ())
            assert None not in versions(cluster).values()
            raised = headrace(cluster, "cluster", "upgrade")
            assert raised["after"] == raised["newest"]
            assert sorted(raised["brokers"]) == ["1", "2", "3"]
            upgrade.wait_for_work()
            load.close()
            source = read_all(cluster.bootstrap, SOURCE, PARTITIONS)
            written = sum(map(len, source.values()))
            wait_for("everything is copied", lambda: keeper.copied >= written)
        assert load.problems() == []
        failures = [line for line in keeper.notes if not line.startswith("again") and line != HANGS]
        assert failures == []
        check(cluster, {p: [transformed(v.encode()) for _, v in sorted(found.items())] for p, found in source.items()})
        for topic in (SOURCE, TARGET):
            wait_for_equal_replicas(cluster, topic, dict.fromkeys(range(PARTITIONS), 3))
