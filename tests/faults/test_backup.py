"""A cluster whose ZooKeeper has lost everything, and that goes on from a backup."""

import json
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.cli import command
from tests.support.faults.load import Load, wait_for_equal_replicas
from tests.support.faults.view import View
from tests.support.process import ClusterProcesses, wait_for

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

PARTITIONS = 3
ASSIGNMENTS = [(1, 2, 3), (2, 3, 1), (3, 1, 2)]


def headrace(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command(*arguments), check=False, capture_output=True, text=True, timeout=60)


def wipe(cluster: ClusterProcesses) -> None:
    """ZooKeeper starts again with nothing in it."""
    (server,) = cluster.zookeeper.servers
    server.stop()
    shutil.rmtree(server.log.parent / "state")
    server.start()


def test_what_was_acknowledged_before_and_after_a_backup_survives_the_loss_of_zookeeper(tmp_path: Path) -> None:
    file = str(tmp_path / "cluster.backup")
    with ClusterProcesses(tmp_path, 3) as cluster:
        to_store = ("--store", cluster.store)
        view = View(cluster.bootstrap, "orders")
        view.create(ASSIGNMENTS, min_insync_replicas="2")
        with Load(cluster.bootstrap, "orders", PARTITIONS) as load:
            load.wait_for_answers(time.monotonic())
            taken = headrace("cluster", "backup", file, *to_store, "--json")
            assert taken.returncode == 0, taken.stderr
            assert json.loads(taken.stdout)["topics"] >= 1
            alive = headrace("cluster", "restore", file, *to_store, "--force")
            assert alive.returncode == 1
            assert "is registered" in alive.stderr
            cluster[1].kill()  # the backup takes it for in sync with what comes now
            load.wait_for_answers(time.monotonic())
            wipe(cluster)
            planned = headrace("cluster", "restore", file, *to_store, "--dry-run")
            assert "topic orders: 3 partitions" in planned.stdout, planned.stderr
            done = headrace("cluster", "restore", file, *to_store)
            assert done.returncode == 0, done.stderr
            cluster[1].start()
            load.wait_for_answers(time.monotonic())
            view.wait_until_in_sync()
            load.wait_for_reader()
            load.close()
        assert load.problems() == []
        wait_for_equal_replicas(cluster, "orders", dict.fromkeys(range(PARTITIONS), 3))
        wait_for("a broker says that the store is old", lambda: any("older than" in cluster.log(n) for n in (1, 2, 3)))
        again = headrace("cluster", "restore", file, *to_store)
        assert again.returncode == 1
