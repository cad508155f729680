"""Replicas that are not in sync catch up no faster than they may; those that are in sync never notice."""

import heapq
import itertools
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from headrace.cluster.image import PartitionState, Topic
from headrace.cluster.log_settings import IntakeSettings, intake_settings
from headrace.config import BrokerConfig
from headrace.protocol.batch import check_batch
from headrace.protocol.replicate import decode_positions, encode_progress
from headrace.replication.follower_session import FollowerSession
from headrace.replication.partition import Partition
from headrace.replication.replica_fetch_state import ReplicaFetchState
from headrace.replication.throttle import NO_LIMIT, ReplicationThrottle
from headrace.storage.flusher import Flusher
from headrace.storage.manager import LogManager
from headrace.storage.settings import LogSettings
from headrace.testing.clock import SimulatedClock
from headrace.testing.disk import SimulatedDisk
from tests.support.wire import batch_of

LEADER, FOLLOWER = 1, 2
POLL_SECONDS = 0.5
TRIP_SECONDS = 0.01
MAX_BYTES = 10 << 20
RATE = 100_000
SYNCED = PartitionState(replicas=(LEADER, FOLLOWER), isr=(LEADER, FOLLOWER), leader=LEADER)
BEHIND = replace(SYNCED, isr=(LEADER,))
SLOWED = {f"{side}.replication.throttled.replicas": "*" for side in ("leader", "follower")}


def rules(configs: dict[str, str]) -> IntakeSettings:
    topic = Topic(name="t", id=uuid.UUID(int=1), partitions=(), configs=configs)
    return intake_settings(topic, BrokerConfig.parse({}))


@dataclass
class Limits:
    """The rates in force."""

    leader: int = NO_LIMIT
    follower: int = NO_LIMIT


@dataclass
class Rig:
    """A leader and a follower of some partitions, joined by a link that takes a little time."""

    limits: Limits
    clock: SimulatedClock = field(default_factory=SimulatedClock)
    leaders: dict[int, Partition] = field(default_factory=dict)
    followers: dict[int, Partition] = field(default_factory=dict)
    arrived: list[tuple[float, int, int]] = field(default_factory=list)
    """When, of which partition, how many bytes."""
    proposed: set[int] = field(default_factory=set)
    """The partitions whose follower the leader would have in the ISR."""

    def __post_init__(self) -> None:
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.awaited: dict[tuple[bytes, int], dict[FollowerSession, None]] = {}
        now = self.clock.monotonic
        limits = self.limits
        self.fetch_state = ReplicaFetchState(
            self._later,
            lambda: None,
            lambda: 1,
            lambda: 1,
            (ReplicationThrottle(lambda: limits.follower, now), FOLLOWER),
        )
        self.follower_session = FollowerSession(FOLLOWER, self, now, ReplicationThrottle(lambda: limits.leader, now))
        self._logs = {broker: self._open_logs(broker) for broker in (LEADER, FOLLOWER)}

    def _open_logs(self, broker: int) -> LogManager:
        logs = LogManager(SimulatedDisk(), self.clock, "/data", cluster_id="here", broker_id=broker)
        logs.open()
        return logs

    def partition_by_id(self, topic_id: bytes, index: int) -> Partition:
        return self.leaders[index]

    def propose_isr(self, partition: Partition, isr: frozenset[int]) -> None:
        """Nobody comes into an ISR here, but it is known who would."""
        self.proposed.add(partition.index)

    def add(self, index: int, state: PartitionState, configs: dict[str, str]) -> None:
        made = []
        for broker in (LEADER, FOLLOWER):
            log = self._logs[broker].load("t", index, uuid.UUID(int=1), LogSettings(flush_messages=1 << 40))
            made.append(
                Partition(
                    topic="t",
                    topic_id=uuid.UUID(int=1).bytes,
                    index=index,
                    state=state,
                    log=log,
                    rules=rules(configs),
                    flusher=Flusher(lambda _work, _done: None),
                )
            )
        leader, follower = made
        leader.lead(LEADER, state, self.clock.monotonic())
        follower.follow(state)
        self.leaders[index], self.followers[index] = leader, follower

    def fill(self, index: int, megabytes: float, size: int = 10_000) -> None:
        for _ in range(round(megabytes * 1_000_000 / size)):
            batch = memoryview(bytearray(batch_of(bytes(size))))
            self.leaders[index].append(batch, check_batch(batch), now_ms=1_700_000_000_000, version=9)

    def follow(self) -> None:
        self.fetch_state.begin()
        for index, partition in self.followers.items():
            self.fetch_state.add((uuid.UUID(int=1).bytes, index), partition)
        self._ask()

    def run(self, seconds: float) -> None:
        """Let time pass."""
        end = self.clock.monotonic() + seconds
        while self._timers and self._timers[0][0] <= end:
            at, _, call = heapq.heappop(self._timers)
            self.clock.advance(max(round((at - self.clock.monotonic()) * 1000), 0))
            call()
        self.clock.advance(round((end - self.clock.monotonic()) * 1000))

    def _later(self, seconds: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (self.clock.monotonic() + max(seconds, 0.001), next(self._order), call))

    def _ask(self) -> None:
        asked = decode_positions(memoryview(bytes(self.fetch_state.request(500, MAX_BYTES))))
        self.follower_session.take(asked.positions, asked.broker_epoch)
        wait = 0.0 if self.follower_session.is_ready else POLL_SECONDS
        if wait:
            self._look_for_news(self.clock.monotonic() + wait, asked.max_bytes)
        else:
            self._later(TRIP_SECONDS, lambda: self._answer(asked.max_bytes))

    def _look_for_news(self, until: float, max_bytes: int) -> None:
        """The leader answers when it has something, when its time is over, or when the follower has news."""
        if self.follower_session.is_ready or self.fetch_state.has_news or self.clock.monotonic() >= until:
            self._answer(max_bytes)
        else:
            self._later(0.01, lambda: self._look_for_news(until, max_bytes))

    def _answer(self, max_bytes: int) -> None:
        entries = self.follower_session.collect(max_bytes)
        body = bytearray(encode_progress(progress for progress, _ in entries))
        for progress, part in entries:
            if part is not None:
                body += part.file.pread(part.length, part.position)
                self.arrived.append((self.clock.monotonic(), progress.partition, part.length))
        self.fetch_state.take(memoryview(body))
        self._ask()

    def bytes_of(self, *indexes: int) -> int:
        return sum(size for _, index, size in self.arrived if index in indexes)


@pytest.fixture(params=["leader", "follower"])
def limits(request: pytest.FixtureRequest) -> Limits:
    found: dict[str, Any] = {request.param: RATE}
    return Limits(**found)


@pytest.mark.parametrize("partitions", [1, 12])
def test_what_is_not_in_sync_catches_up_at_the_rate_and_no_faster(limits: Limits, partitions: int) -> None:
    rig = Rig(limits)
    for index in range(partitions):
        rig.add(index, BEHIND, SLOWED)
        rig.fill(index, 6 / partitions)
    rig.follow()
    for second in range(1, 41):
        rig.run(1.0)
        assert rig.bytes_of(*range(partitions)) <= RATE * (second + 2) * 1.1, f"after {second} s"
    assert rig.bytes_of(*range(partitions)) >= RATE * 40 * 0.9


def test_what_is_in_sync_is_never_held_back(limits: Limits) -> None:
    rig = Rig(limits)
    rig.add(0, BEHIND, SLOWED)
    rig.add(1, SYNCED, SLOWED)
    rig.fill(0, 3)
    rig.follow()
    rig.run(2.0)
    rig.fill(1, 2)
    rig.run(1.0)
    assert rig.followers[1].log.log_end_offset == rig.leaders[1].log.log_end_offset
    assert rig.bytes_of(0) <= RATE * 5


def test_a_topic_that_names_no_replicas_is_not_slowed(limits: Limits) -> None:
    rig = Rig(limits)
    rig.add(0, BEHIND, {})
    rig.add(1, BEHIND, dict.fromkeys(SLOWED, "1:7,0:1"))
    for index in (0, 1):
        rig.fill(index, 1)
    rig.follow()
    rig.run(1.0)
    for index in (0, 1):
        assert rig.followers[index].log.log_end_offset == rig.leaders[index].log.log_end_offset


def test_a_limit_that_is_lifted_holds_nobody_back_any_more(limits: Limits) -> None:
    rig = Rig(limits)
    rig.add(0, BEHIND, SLOWED)
    rig.fill(0, 6)
    rig.follow()
    rig.run(5.0)
    assert rig.followers[0].log.log_end_offset < rig.leaders[0].log.log_end_offset
    limits.leader = limits.follower = NO_LIMIT
    rig.run(3.0)
    assert rig.followers[0].log.log_end_offset == rig.leaders[0].log.log_end_offset


def test_one_that_has_everything_keeps_nobody_waiting(limits: Limits) -> None:
    rig = Rig(limits)
    rig.add(0, BEHIND, SLOWED)
    rig.add(1, BEHIND, SLOWED)
    rig.fill(1, 0.5)
    rig.follow()
    rig.run(10.0)
    assert rig.followers[1].log.log_end_offset == rig.leaders[1].log.log_end_offset


def test_those_who_catch_up_come_into_the_isr_however_steadily_records_come(limits: Limits) -> None:
    rig = Rig(limits)
    for index in range(6):
        rig.add(index, BEHIND, SLOWED)
        rig.fill(index, 0.1)
    rig.follow()
    for _ in range(400):
        rig.run(0.05)
        for index in range(6):
            rig.fill(index, 0.0001, size=100)
    assert rig.proposed == set(range(6))


def test_nothing_is_limited_where_no_rate_is_set() -> None:
    rig = Rig(Limits())
    rig.add(0, BEHIND, SLOWED)
    rig.fill(0, 3)
    rig.follow()
    rig.run(1.0)
    assert rig.followers[0].log.log_end_offset == rig.leaders[0].log.log_end_offset
