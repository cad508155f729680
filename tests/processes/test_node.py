"""`headrace node` and `headrace cluster restart` as processes: three machines of a cluster, played on one."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from headrace.cli.zookeeper import ZooKeeperServer
from headrace.ops.operations import Operations
from tests.support.cli import command
from tests.support.faults.load import Load
from tests.support.node import NodeProcess, all_ready
from tests.support.process import wait_for

pytestmark = pytest.mark.slow

SETTINGS = {
    "zookeeper.session.timeout.ms": "4000",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.num.partitions": "4",
    "num.partitions": "6",
}


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[NodeProcess]]:
    """Three machines, the first of two cores."""
    with ExitStack() as held:
        zookeeper = held.enter_context(ZooKeeperServer(tmp_path / "zk"))
        store = f"zookeeper://{zookeeper.address}/cluster"
        found = [
            held.enter_context(
                NodeProcess(tmp_path / rack, store, first_id=first, workers=workers, rack=rack, settings=SETTINGS)
            )
            for rack, first, workers in (("a", 101, 2), ("b", 201, 1), ("c", 301, 1))
        ]
        all_ready(found)
        yield found


def test_replicas_never_share_a_machine_a_killed_worker_comes_back_and_a_rolling_restart_fails_no_write(
    nodes: list[NodeProcess],
) -> None:
    first = nodes[0]
    bootstrap = ",".join(node.bootstrap for node in nodes)
    subprocess.run(command("topic", "create", "orders", "-b", bootstrap), check=True, stdout=subprocess.DEVNULL)
    with Operations(bootstrap) as operations:
        view = operations.view()
        assert view.racks == {101: "a", 102: "a", 201: "b", 301: "c"}
        spread = [{view.racks[r] for r in p.replicas} for p in view.partitions if p.topic == "orders"]
        assert spread == [{"a", "b", "c"}] * 6
        assert all(view.held_by(broker) for broker in view.racks)

    before = first.workers()
    os.kill(before[102]["pid"], signal.SIGKILL)
    wait_for("the worker is back", lambda: (now := first.workers()[102])["starts"] == 2 and now["ready"])
    assert first.workers()[101] == before[101]
    assert f"headrace: broker 102 (pid {before[102]['pid']}) was ended by SIGKILL; it is started again" in first.log()

    with Load(bootstrap, "orders", 6, producers=1) as load:
        load.wait_for_answers(time.monotonic())
        arguments = [word for node in nodes for word in ("--node", str(node.data))]
        restarted = subprocess.run(
            command("cluster", "restart", *arguments, "-b", bootstrap), check=True, capture_output=True, text=True
        )
        load.wait_for_answers(time.monotonic())
        load.wait_for_reader()
    assert load.problems() == []
    assert restarted.stdout.endswith("4 brokers restarted; all replicas are in sync\n"), restarted.stdout
    assert {broker: worker["starts"] for node in nodes for broker, worker in node.workers().items()} == {
        101: 2,
        102: 3,
        201: 2,
        301: 2,
    }

    children = [child for node in nodes for child in node.children()]
    assert [node.stop() for node in nodes] == [0, 0, 0]
    assert not psutil.wait_procs(children, timeout=60)[1]
    assert not any(node.socket.exists() for node in nodes)
