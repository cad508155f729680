"""Brokers and ZooKeeper servers of a cluster are killed again and again under load, and nothing is lost."""

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from random import Random

import pytest

from tests.support.faults.load import Load, wait_for_equal_replicas
from tests.support.faults.view import View
from tests.support.process import BrokerProcess, ClusterProcesses, wait_for

PARTITIONS = 3
KINDS = ("leader", "leader ahead", "controller", "follower", "zookeeper")
"""What is killed. A leader is ahead when its followers stand still for a moment before."""
AHEAD_SECONDS = 0.2

Revive = Callable[[], None]


class Rounds:
    """Kills one process after another, each time waiting until all is well again."""

    def __init__(self, cluster: ClusterProcesses, view: View, rng: Random, kinds: Sequence[str]) -> None:
        self._cluster = cluster
        self._all_kinds = kinds
        self._view = view
        self._rng = rng
        self._kinds: list[str] = []
        self.waits: list[tuple[str, float]] = []
        """What was killed, and how long it was until the slowest partition acknowledged again."""

    def run(self, load: Load, count: int) -> None:
        for _ in range(count):
            kind = self._next_kind()
            began, revive = self._kill(kind)
            self.waits.append((kind, load.wait_for_answers(began)))
            revive()
            self._view.wait_until_in_sync()
            load.wait_for_answers(time.monotonic())
            load.wait_for_reader()

    def report(self) -> str:
        waits = [wait for _, wait in self.waits]
        each = " ".join(f"{kind}={wait:.2f}" for kind, wait in self.waits)
        return f"seconds without an answer: median {statistics.median(waits):.2f} worst {max(waits):.2f}; {each}"

    def _next_kind(self) -> str:
        """Each kind once, in any order, before any comes again."""
        if not self._kinds:
            self._kinds = list(self._all_kinds)
            self._rng.shuffle(self._kinds)
        return self._kinds.pop()

    def _kill(self, kind: str) -> tuple[float, Revive]:
        """The moment of the kill, and how to undo it."""
        if kind == "zookeeper":
            server = self._cluster.zookeeper.leader()
            began = time.monotonic()
            server.kill()
            return began, server.start
        partition = self._rng.randrange(PARTITIONS)
        broker = self._cluster[self._broker(kind, partition)]
        with ExitStack() as undo:
            if kind == "leader ahead":
                self._let_run_ahead(broker, undo)
            began = time.monotonic()
            broker.kill()
        return began, broker.start

    def _let_run_ahead(self, leader: BrokerProcess, undo: ExitStack) -> None:
        """What the leader gets to write now is nowhere else; if it were acknowledged, it would be lost with it."""
        for broker in self._cluster.brokers.values():
            if broker is not leader:
                broker.pause()
                undo.callback(broker.resume)
        time.sleep(AHEAD_SECONDS)

    def _broker(self, kind: str, partition: int) -> int:
        if kind == "controller":
            return self._view.known_controller()
        leader = self._view.known_leader(partition)
        return leader if kind.startswith("leader") else self._rng.choice(sorted(set(self._cluster.brokers) - {leader}))


def run_rounds(directory: Path, seed: int, count: int, kinds: Sequence[str] = KINDS) -> None:
    with ClusterProcesses(directory, 3, servers=3) as cluster:
        view = View(cluster.bootstrap, "orders")
        view.create([(1, 2, 3), (2, 3, 1), (3, 1, 2)], min_insync_replicas="2")
        rounds = Rounds(cluster, view, Random(seed), kinds)
        with Load(cluster.bootstrap, "orders", PARTITIONS) as load:
            load.wait_for_answers(time.monotonic())
            rounds.run(load, count)
        print(rounds.report(), f"acknowledged: {load.history.acknowledged}")  # noqa: T201 - `pytest -s` shows it
        assert load.problems() == []
        wait_for_equal_replicas(cluster, "orders", dict.fromkeys(range(PARTITIONS), 3))


@pytest.mark.slow
def test_nothing_is_lost_when_a_leader_the_controller_a_follower_and_zookeepers_leader_are_killed(
    tmp_path: Path,
) -> None:
    run_rounds(tmp_path, seed=1, count=4, kinds=KINDS[1:])


@pytest.mark.long
@pytest.mark.timeout(1_200)
def test_nothing_is_lost_in_thirty_rounds_of_kills(tmp_path: Path) -> None:
    run_rounds(tmp_path, seed=30, count=30)


@pytest.mark.long
def test_nothing_is_lost_while_zookeeper_has_no_majority_and_writes_go_on_when_it_has(tmp_path: Path) -> None:
    with ClusterProcesses(tmp_path, 3, servers=3) as cluster:
        view = View(cluster.bootstrap, "orders")
        view.create([(1, 2, 3), (2, 3, 1), (3, 1, 2)], min_insync_replicas="2")
        with Load(cluster.bootstrap, "orders", PARTITIONS) as load:
            load.wait_for_answers(time.monotonic())
            majority = cluster.zookeeper.servers[:2]
            for server in majority:
                server.kill()
            for number in cluster.brokers:
                wait_for("a broker steps down", partial(has_stepped_down, cluster, number))
            for server in majority:
                server.launch()
            view.wait_until_in_sync()
            load.wait_for_answers(time.monotonic())
            load.wait_for_reader()
        assert load.problems() == []
        wait_for_equal_replicas(cluster, "orders", dict.fromkeys(range(PARTITIONS), 3))


def has_stepped_down(cluster: ClusterProcesses, number: int) -> bool:
    return "the session in the metadata store is lost" in cluster.log(number)
