"""The lease of a checkpoint: one holder, whoever wants it and whenever somebody falls silent."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from headrace.client.columnar.cluster import Cluster
from headrace.client.columnar.fenced import Entry, FencedLog
from headrace.client.columnar.model import TopicPartition
from headrace.client.errors import ClientError
from headrace.spark.pipeline.failures import PipelineFailed
from headrace.spark.pipeline.lease import (
    DOUBT_SECONDS,
    HEARTBEAT_SECONDS,
    LEASE_SECONDS,
    TOPIC,
    Lease,
    LeaseState,
    Runner,
    Standing,
    held_lease,
    is_lease_needed,
)
from headrace.spark.pipeline.paths import PipelinePaths
from headrace.spark.pipeline.session import SparkTarget
from headrace.testing import Broker

CHECKPOINT = "s3a://bucket/checkpoint"


@dataclass(slots=True)
class Partition:
    """The records of a topic that runners share, and who is cut off from it."""

    entries: list[Entry] = field(default_factory=list)
    before_append: Callable[[], None] = lambda: None
    """Called once, before the next record is written."""

    def compact(self) -> None:
        last = {entry.key: entry for entry in self.entries}
        self.entries = [one for one in sorted(last.values()) if one.value is not None]


class FakeLog:
    """A `FencedLog` of one runner."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._position = 0
        self.is_ours = False
        self.is_cut_off = False
        self._next = 0

    def take_over(self) -> None:
        self._reach()
        self.is_ours = True

    def append(self, key: bytes, value: bytes | None) -> list[Entry]:
        self._reach()
        hook, self._partition.before_append = self._partition.before_append, lambda: None
        hook()
        entries = self._partition.entries
        entries.append(Entry(entries[-1].offset + 1 if entries else 0, key, value))
        return self.read()

    def read(self) -> list[Entry]:
        self._reach()
        new = [entry for entry in self._partition.entries if entry.offset >= self._position]
        self._position = max((entry.offset + 1 for entry in new), default=self._position)
        return new

    def _reach(self) -> None:
        if self.is_cut_off:
            self.is_ours = False
            raise ClientError("no broker answers", "_TRANSPORT")


class Host:
    """A runner on a host of its own."""

    def __init__(self, world: "World", name: str) -> None:
        self.log = FakeLog(world.partition)
        runner = Runner(id=name, host=name, process=7, since="noon")
        self.lease = Lease(self.log, CHECKPOINT, runner, clock=lambda: world.now, sleep=world.pass_time)

    def standing(self) -> Standing:
        return self.lease.standing


class World:
    """Virtual time, in which the hosts that are alive send their heartbeats."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.partition = Partition()
        self.alive: list[Host] = []

    def host(self, name: str) -> Host:
        return Host(self, name)

    def pass_time(self, seconds: float) -> None:
        due = int(self.now / HEARTBEAT_SECONDS)
        self.now += seconds
        if int(self.now / HEARTBEAT_SECONDS) != due:
            for one in self.alive:
                one.lease.beat()


@pytest.fixture
def world() -> World:
    return World()


def test_a_second_runner_is_refused_with_who_holds_the_checkpoint(world: World) -> None:
    first, second = world.host("a"), world.host("b")
    first.lease.acquire()
    world.alive.append(first)
    with pytest.raises(PipelineFailed, match=rf"runs already \(process 7 on a, since noon\).*{CHECKPOINT}"):
        second.lease.acquire()
    assert world.now - 1000 <= 2 * HEARTBEAT_SECONDS
    assert first.standing() is Standing.HELD


def test_a_runner_that_ended_in_good_order_leaves_the_checkpoint_to_the_next_at_once(world: World) -> None:
    first, second = world.host("a"), world.host("b")
    first.lease.acquire()
    first.lease.release()
    second.lease.acquire()
    assert world.now == 1000
    assert second.standing() is Standing.HELD


def test_a_dead_runner_is_replaced_after_the_length_of_its_lease(world: World) -> None:
    first, second = world.host("a"), world.host("b")
    first.lease.acquire()
    told: list[Runner] = []
    second.lease.acquire(told.append)
    assert LEASE_SECONDS <= world.now - 1000 <= LEASE_SECONDS + 1
    assert [one.host for one in told] == ["a"]


def test_a_runner_that_slept_learns_that_it_was_replaced_and_by_whom(world: World) -> None:
    first, second = world.host("a"), world.host("b")
    first.lease.acquire()
    second.lease.acquire()
    first.lease.beat()
    assert first.standing() is Standing.LOST
    with pytest.raises(PipelineFailed, match=r"another runner has taken over .*process 7 on b"):
        first.lease.require()
    first.lease.release()
    second.lease.beat()
    assert second.standing() is Standing.HELD


def test_a_runner_without_an_answer_is_in_doubt_before_anybody_replaces_it(world: World) -> None:
    first, second = world.host("a"), world.host("b")
    first.lease.acquire()
    world.alive.append(first)
    first.log.is_cut_off = True
    world.pass_time(DOUBT_SECONDS + 0.1)
    assert first.standing() is Standing.DOUBTFUL
    outage = first.lease.outage
    assert outage is not None
    assert outage.message.endswith("no broker answers")
    assert DOUBT_SECONDS + 2 * HEARTBEAT_SECONDS <= LEASE_SECONDS
    second.lease.acquire()
    assert first.standing() is Standing.DOUBTFUL
    first.log.is_cut_off = False
    first.lease.beat()
    assert first.standing() is Standing.LOST


def test_a_runner_that_nobody_replaced_while_brokers_were_away_goes_on(world: World) -> None:
    first = world.host("a")
    first.lease.acquire()
    first.log.is_cut_off = True
    world.pass_time(300)
    first.lease.beat()
    assert first.standing() is Standing.DOUBTFUL
    first.log.is_cut_off = False
    first.lease.beat()
    assert first.standing() is Standing.HELD
    assert first.lease.outage is None


def test_of_two_runners_that_claim_at_once_the_first_in_the_log_wins(world: World) -> None:
    first, second = world.host("a"), world.host("b")
    world.partition.before_append = first.lease.acquire
    with pytest.raises(PipelineFailed, match=r"runs already \(process 7 on a"):
        second.lease.acquire()
    first.lease.beat()
    assert first.standing() is Standing.HELD


@pytest.mark.parametrize("refused_leaves_a_record", [False, True])
def test_compaction_does_not_change_who_holds_the_lease(world: World, refused_leaves_a_record: bool) -> None:
    first, second, third = (world.host(name) for name in "abc")
    first.lease.acquire()
    second.lease.acquire()
    first.lease.beat()
    if refused_leaves_a_record:
        late = Runner(id="d", host="d", process=7, since="noon")
        state = LeaseState(CHECKPOINT)
        world.partition.entries.append(
            Entry(world.partition.entries[-1].offset + 1, state.key_of(late), state.claimed_by(late))
        )
    second.lease.beat()
    world.partition.compact()
    world.alive.append(second)
    with pytest.raises(PipelineFailed, match="process 7 on b"):
        third.lease.acquire()


def test_leases_of_other_checkpoints_do_not_matter(world: World) -> None:
    world.host("a").lease.acquire()
    other = world.host("b")
    Lease(other.log, "s3a://bucket/other/", Runner(id="b", host="b", process=7, since="noon")).acquire()


def test_a_slash_at_the_end_does_not_make_another_checkpoint() -> None:
    runner = Runner(id="a", host="a", process=7, since="noon")
    assert LeaseState(CHECKPOINT + "/").key_of(runner) == LeaseState(CHECKPOINT).key_of(runner)


def test_a_broker_keeps_the_lease_and_gives_it_to_the_next_when_it_is_released() -> None:
    with Broker() as broker, Cluster({"bootstrap.servers": broker.bootstrap}) as cluster:
        with held_lease(cluster, CHECKPOINT, lambda _: None) as first:
            other = Runner(id="b", host="b", process=7, since="noon")
            log = FencedLog(cluster, TopicPartition(TOPIC, 0), "b")
            with pytest.raises(PipelineFailed, match=r"runs already \(process \d+ on "):
                Lease(log, CHECKPOINT, other, sleep=lambda _: first.beat()).acquire()
            first.require()
        with held_lease(cluster, CHECKPOINT + "/", lambda _: pytest.fail("nobody has it")) as second:
            assert second.is_held


@pytest.mark.parametrize(
    ("checkpoint", "spark", "needed"),
    [
        ("/var/state", SparkTarget(), False),
        ("s3a://bucket/state", SparkTarget(), True),
        ("/mnt/shared/state", SparkTarget(master="spark://host:7077"), True),
        ("/state", SparkTarget(remote="sc://host"), True),
    ],
)
def test_a_lease_is_needed_where_other_hosts_reach_the_checkpoint(
    checkpoint: str, spark: SparkTarget, needed: bool
) -> None:
    assert is_lease_needed(PipelinePaths(checkpoint, Path("/tmp")), spark) is needed
