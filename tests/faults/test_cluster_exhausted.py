"""A cluster whose brokers run out of something: space, descriptors, life itself, the newest state of their store."""

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from confluent_kafka import KafkaException

from tests.support.faults.load import Load, wait_for_equal_replicas
from tests.support.faults.view import View
from tests.support.process import ClusterProcesses, Site, wait_for

from .test_full_disk import fill

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

PARTITIONS = 3
ASSIGNMENTS = [(1, 2, 3), (2, 3, 1), (3, 1, 2)]
DISK = "96m"
DESCRIPTORS = 256


@contextmanager
def small_disk(path: Path) -> Iterator[None]:
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(path)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("only root can mount a small disk")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


def finish(cluster: ClusterProcesses, view: View, load: Load) -> None:
    """Wait until all is well again, and hold what clients were told against what is there."""
    view.wait_until_in_sync()
    load.wait_for_answers(time.monotonic())
    load.wait_for_reader()
    load.close()
    assert load.problems() == []
    wait_for_equal_replicas(cluster, view.topic, dict.fromkeys(range(PARTITIONS), 3))


def test_a_leader_on_a_full_disk_hands_over_and_comes_back_with_the_space(tmp_path: Path) -> None:
    with small_disk(tmp_path / "data-1"), ClusterProcesses(tmp_path, 3) as cluster:
        view = View(cluster.bootstrap, "orders")
        view.create(ASSIGNMENTS, min_insync_replicas="2")
        with Load(cluster.bootstrap, "orders", PARTITIONS, size=1_000) as load:
            load.wait_for_answers(time.monotonic())
            ballast = cluster.data_of(1) / "ballast"
            fill(ballast)
            wait_for(
                "others lead what the full broker led", lambda: all(view.leader(p) != 1 for p in range(PARTITIONS))
            )
            load.wait_for_answers(time.monotonic())
            ballast.unlink()
            finish(cluster, view, load)


def test_a_broker_that_starts_again_on_a_full_disk_serves_what_it_has_and_goes_on_with_the_space(
    tmp_path: Path,
) -> None:
    with small_disk(tmp_path / "data-1"), ClusterProcesses(tmp_path, 3) as cluster:
        view = View(cluster.bootstrap, "orders")
        view.create(ASSIGNMENTS, min_insync_replicas="2")
        with Load(cluster.bootstrap, "orders", PARTITIONS, size=1_000) as load:
            load.wait_for_answers(time.monotonic())
            ballast = cluster.data_of(1) / "ballast"
            fill(ballast)
            cluster[1].kill()
            load.wait_for_answers(time.monotonic())
            cluster[1].start()
            load.wait_for_answers(time.monotonic())
            ballast.unlink()
            finish(cluster, view, load)


def test_connections_that_take_every_descriptor_cost_no_record_and_no_log(tmp_path: Path) -> None:
    limit = ("prlimit", f"--nofile={DESCRIPTORS}:{DESCRIPTORS}")
    sites = dict.fromkeys((1, 2, 3), Site(prefix=limit))
    with ClusterProcesses(tmp_path, 3, sites=sites) as cluster, ExitStack() as held:
        view = View(cluster.bootstrap, "orders")
        view.create(ASSIGNMENTS, min_insync_replicas="2")
        with Load(cluster.bootstrap, "orders", PARTITIONS) as load:
            load.wait_for_answers(time.monotonic())
            idle = held.enter_context(ExitStack())
            for broker in cluster.brokers.values():
                for _ in range(2 * DESCRIPTORS):
                    connection = idle.enter_context(socket.socket())
                    connection.settimeout(5)
                    connection.connect(("127.0.0.1", broker.port))
            load.wait_for_answers(time.monotonic())
            idle.close()
            finish(cluster, view, load)
        assert not any("is offline" in cluster.log(number) for number in cluster.brokers)


def test_all_brokers_killed_at_once_come_back_with_everything(tmp_path: Path) -> None:
    with ClusterProcesses(tmp_path, 3) as cluster:
        view = View(cluster.bootstrap, "orders")
        view.create(ASSIGNMENTS, min_insync_replicas="2")
        with Load(cluster.bootstrap, "orders", PARTITIONS) as load:
            for _ in range(3):
                load.wait_for_answers(time.monotonic())
                for broker in cluster.brokers.values():
                    broker.kill()
                cluster.start(cluster.brokers)
            finish(cluster, view, load)


def held_logs(cluster: ClusterProcesses, topic: str) -> dict[int, set[bytes]]:
    """By broker: the first log file of each of a topic's directories, by whatever name it goes now."""
    return {
        number: {path.read_bytes() for path in cluster.data_of(number).glob(f"{topic}-*/00000000000000000000.log")}
        for number in cluster.brokers
    }


def set_back(cluster: ClusterProcesses, to: Path) -> None:
    """Have ZooKeeper start again with an older copy of its state."""
    (server,) = cluster.zookeeper.servers
    server.stop()
    state = server.log.parent / "state"
    shutil.rmtree(state)
    shutil.copytree(to, state)
    server.start()


def copy_of_state(cluster: ClusterProcesses, to: Path) -> Path:
    """ZooKeeper's state as a backup has it; the server stands still meanwhile."""
    (server,) = cluster.zookeeper.servers
    server.stop()
    shutil.copytree(server.log.parent / "state", to)
    server.start()
    return to


def problems_of(load: Load) -> list[str]:
    """What is wrong with a topic whose leaders may still be changing: what clients remember of them is older."""
    found: list[list[str]] = []

    def is_read() -> bool:
        with suppress(KafkaException):
            found.append(load.problems())
        return bool(found)

    wait_for("the topic can be read", is_read)
    return found[0]


@pytest.mark.parametrize("bounced", [False, True], ids=["running", "restarted"])
def test_a_zookeeper_that_was_set_back_costs_no_log(tmp_path: Path, bounced: bool) -> None:
    settings = {"zookeeper.session.timeout.ms": "4000"}
    with ClusterProcesses(tmp_path, 3, settings=settings) as cluster:
        old = View(cluster.bootstrap, "old")
        old.create(ASSIGNMENTS, min_insync_replicas="2")
        backup = copy_of_state(cluster, tmp_path / "backup")
        old.wait_until_in_sync()
        view = View(cluster.bootstrap, "orders")
        view.create(ASSIGNMENTS, min_insync_replicas="2")
        with Load(cluster.bootstrap, "orders", PARTITIONS) as load, Load(cluster.bootstrap, "old", PARTITIONS) as kept:
            for one in (load, kept):
                one.wait_for_answers(time.monotonic())
                one.wait_for_reader()
                one.close()
        newest = copy_of_state(cluster, tmp_path / "newest")
        wait_for_equal_replicas(cluster, "orders", dict.fromkeys(range(PARTITIONS), 3))
        before = held_logs(cluster, "orders")
        set_back(cluster, backup)
        if bounced:
            for broker in cluster.brokers.values():
                broker.stop()
            cluster.start(cluster.brokers)
        old.wait_until_in_sync()
        assert problems_of(kept) == []
        assert all(before[number] <= held_logs(cluster, "orders")[number] for number in cluster.brokers)
        wait_for("a broker says so", lambda: all("set aside" in cluster.log(number) for number in cluster.brokers))
        for broker in cluster.brokers.values():
            broker.stop()
        set_back(cluster, newest)
        cluster.start(cluster.brokers)
        view.wait_until_in_sync()
        assert load.problems() == [], "with the newer state back, so is everything"
