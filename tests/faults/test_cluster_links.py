"""Links between brokers, and to ZooKeeper, are cut in silence: one way or both.

Clients still reach every broker, so that whoever is cut off is asked to acknowledge what it must not. The tests share
one cluster and leave it healed.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from headrace.protocol.errors import ErrorCode
from tests.support.faults.load import Load, wait_for_equal_replicas
from tests.support.faults.network import Lab, reason_not_to
from tests.support.faults.view import View
from tests.support.process import ClusterProcesses, wait_for
from tests.support.wire import Closed, Wire, batch_of, produce_request, request

pytestmark = [pytest.mark.skipif(bool(reason_not_to()), reason=reason_not_to())]

BROKERS = (1, 2, 3)
LAG_MS = 3_000
PRODUCE, VERSION = 0, 9
METADATA = (3, 7)


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster whose brokers are nodes of a lab."""

    lab: Lab
    processes: ClusterProcesses

    def others(self, broker: int) -> list[int]:
        return [number for number in BROKERS if number != broker]

    def view_without(self, broker: int, topic: str) -> View:
        """What those say who are not that one."""
        return View(",".join(self.processes[number].bootstrap for number in self.others(broker)), topic)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = {"replica.lag.time.max.ms": str(LAG_MS)}
    with Lab(BROKERS) as lab:
        sites = {number: lab.site(number) for number in BROKERS}
        directory = tmp_path_factory.mktemp("links")
        with ClusterProcesses(directory, settings=settings, sites=sites, reach=lab.reach_store) as processes:
            yield Cluster(lab, processes)


class Stubborn:
    """A client that asks one broker to acknowledge, to all, what it cannot have replicated."""

    def __init__(self, bootstrap: str, topic: str, load: Load) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._load = load
        self._count = 0

    def is_refused(self) -> bool:
        """Whether the broker says no, says nothing, or hangs up."""
        value = b"stubborn %d" % self._count
        self._count += 1
        self._load.history.send("stubborn", self._topic, 0, [value.decode()])
        asked = produce_request(self._topic, batch_of(value), version=VERSION, seconds=10.0)
        try:
            with Wire(self._bootstrap) as wire:
                (topic,) = wire.ask(PRODUCE, VERSION, asked).responses
        except (Closed, TimeoutError):
            return True
        return ErrorCode(int(topic.partition_responses[0].error_code)) is not ErrorCode.none


def judge(cluster: Cluster, view: View, load: Load) -> None:
    """All is well again: all in sync, writes go on, nothing was lost or shown that is not there, logs are equal."""
    view.wait_until_in_sync()
    load.wait_for_answers(time.monotonic())
    load.wait_for_reader()
    load.close()
    assert load.problems() == []
    wait_for_equal_replicas(cluster.processes, view.topic, {0: 3})


def isr_by(bootstrap: str, topic: str) -> set[int]:
    """Who is in sync in partition 0, as one broker has it."""
    with Wire(bootstrap) as wire:
        every = wire.ask(*METADATA, request(*METADATA, topics=None, allow_auto_topic_creation=False))
    (found,) = [each for each in every.topics if each.name == topic]
    return set(found.partitions[0].isr_nodes)


@pytest.fixture
def healed(cluster: Cluster) -> Iterator[None]:
    yield
    cluster.lab.heal()


def begun(cluster: Cluster, topic: str, held: ExitStack) -> tuple[View, Load]:
    view = View(cluster.processes.bootstrap, topic)
    view.create([BROKERS], min_insync_replicas="2")
    load = held.enter_context(Load(cluster.processes.bootstrap, topic, 1))
    load.wait_for_answers(time.monotonic())
    return view, load


@pytest.mark.slow
@pytest.mark.usefixtures("healed")
def test_a_leader_that_is_cut_off_acknowledges_nothing_while_the_others_go_on(cluster: Cluster) -> None:
    with ExitStack() as held:
        view, load = begun(cluster, "alone", held)
        leader = view.known_leader()
        stubborn = Stubborn(cluster.processes[leader].bootstrap, "alone", load)
        cluster.lab.part([leader], [*cluster.others(leader), Lab.STORE])
        cut = time.monotonic()
        assert stubborn.is_refused()
        cluster.view_without(leader, "alone").wait_for_other_leader(leader)
        print(f"leader cut off: next answer after {load.wait_for_answers(cut):.2f} s")  # noqa: T201
        assert stubborn.is_refused()
        cluster.lab.heal()
        judge(cluster, view, load)


@pytest.mark.long
@pytest.mark.usefixtures("healed")
def test_a_controller_that_is_cut_off_is_replaced_and_changes_nothing(cluster: Cluster) -> None:
    with ExitStack() as held:
        view, load = begun(cluster, "ruled", held)
        controller = view.known_controller()
        cluster.lab.part([controller], [*cluster.others(controller), Lab.STORE])
        others = cluster.view_without(controller, "made")
        wait_for("another controller", lambda: others.controller() not in (controller, -1))
        others.create([tuple(cluster.others(controller))])
        load.wait_for_answers(time.monotonic())
        cluster.lab.heal()
        wait_for("one controller", lambda: view.controller() == others.controller())
        judge(cluster, view, load)


@pytest.mark.long
@pytest.mark.usefixtures("healed")
def test_a_follower_that_hears_nothing_leaves_the_isr_and_comes_back(cluster: Cluster) -> None:
    with ExitStack() as held:
        view, load = begun(cluster, "deaf", held)
        leader = view.known_leader()
        # The controller must hear of the leader's wish to go on without the follower: it cannot be the deaf one.
        follower = next(number for number in cluster.others(leader) if number != view.known_controller())
        cluster.lab.cut(leader, follower)
        # Asked of the leader itself: a client may ask the follower, which hears nothing of it if the leader rules, too.
        wait_for("an ISR without it", lambda: follower not in isr_by(cluster.processes[leader].bootstrap, "deaf"))
        load.wait_for_answers(time.monotonic())
        cluster.lab.heal()
        judge(cluster, view, load)


@pytest.mark.long
@pytest.mark.usefixtures("healed")
def test_a_leader_whom_no_follower_hears_acknowledges_nothing(cluster: Cluster) -> None:
    with ExitStack() as held:
        view, load = begun(cluster, "mute", held)
        leader = view.known_leader()
        for follower in cluster.others(leader):
            cluster.lab.cut(leader, follower)
        stubborn = Stubborn(cluster.processes[leader].bootstrap, "mute", load)
        assert stubborn.is_refused()
        assert stubborn.is_refused()
        cluster.lab.heal()
        judge(cluster, view, load)


@pytest.mark.long
@pytest.mark.usefixtures("healed")
def test_a_leader_whom_zookeeper_does_not_hear_is_replaced(cluster: Cluster) -> None:
    with ExitStack() as held:
        view, load = begun(cluster, "unheard", held)
        leader = view.known_leader()
        cluster.lab.cut(leader, Lab.STORE)
        cluster.view_without(leader, "unheard").wait_for_other_leader(leader)
        load.wait_for_answers(time.monotonic())
        cluster.lab.heal()
        judge(cluster, view, load)
