"""Three replicas of one partition, their controller and everything between them, one step at a time.

Nothing here has time or sockets of its own: a test (or a seed) decides which message arrives next, who stops and who
comes back, and what was lost with it. The parts that matter are the real ones: the log, the partition in both roles,
both sides of a replication link, and the controller's decisions.
"""

import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from random import Random

from headrace.cluster import election
from headrace.cluster.election import Rules
from headrace.cluster.image import NO_LEADER, PartitionState
from headrace.protocol.batch import HEADER_SIZE, check_batch, read_header
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.records import decode_records
from headrace.protocol.replicate import decode_positions, encode_progress
from headrace.replication.follower_session import FollowerSession
from headrace.replication.partition import Partition
from headrace.replication.replica_fetch_state import ReplicaFetchState
from headrace.storage.flusher import Flusher
from headrace.storage.log_starts import LogStartWriter
from headrace.storage.manager import LogManager
from headrace.storage.settings import LogSettings
from headrace.testing.clock import SimulatedClock
from headrace.testing.disk import SimulatedDisk

from .intake import RULES
from .storage import run_now
from .wire import batch_of

TOPIC_ID = uuid.UUID(int=7)
KEY = (TOPIC_ID.bytes, 0)
SETTINGS = LogSettings(flush_messages=1 << 40, segment_bytes=2_000)
LAG_SECONDS = 10.0


@dataclass
class Wish:
    """An ISR on its way to the controller."""

    broker: "Replica"
    leader_epoch: int
    partition_epoch: int
    isr: frozenset[int]
    epochs: dict[int, int]


class Replica:
    """One broker, with its disk."""

    def __init__(self, world: "World", broker: int) -> None:
        self.world = world
        self.id = broker
        self.disk = SimulatedDisk()
        self.epoch = 0
        self.is_up = False
        self.lost_records = False
        self.partition: Partition
        self.knows = -1
        """Which of the controller's states it has heard of."""
        self.start()

    def start(self) -> None:
        self.is_up = True
        self.epoch = self.world.next_epoch()
        self.logs = LogManager(self.disk, self.world.clock, "/data", cluster_id="here", broker_id=self.id)
        self.logs.open()
        LogStartWriter(self.logs, Flusher(run_now))
        self.partition = Partition(
            topic="t",
            topic_id=TOPIC_ID.bytes,
            index=0,
            state=replace(self.world.states[0], leader=NO_LEADER, leader_epoch=-1, partition_epoch=-1),
            log=self.logs.load("t", 0, TOPIC_ID, SETTINGS),
            rules=self.world.rules,
            flusher=Flusher(run_now),
            high_watermark=self.logs.high_watermark("t", 0),
        )
        self.knows = -1
        self.leader: int | None = None
        self.follower_sessions: dict[int, FollowerSession] = {}
        self.awaited: dict[tuple[bytes, int], dict[FollowerSession, None]] = {}
        self.fetch_state = self._new_fetch_state()

    def _new_fetch_state(self) -> ReplicaFetchState:
        fetch_state = ReplicaFetchState(
            lambda _seconds, call: self.world.later.append(call), lambda: None, lambda: 1, lambda: self.epoch
        )
        fetch_state.begin()
        return fetch_state

    def partition_by_id(self, topic_id: bytes, index: int) -> Partition:
        assert (topic_id, index) == KEY
        return self.partition

    def propose_isr(self, partition: Partition, isr: frozenset[int]) -> None:
        assert partition.followers is not None
        epochs = partition.followers.epochs_of(isr, self.epoch)
        state = partition.state
        self.world.wishes.append(Wish(self, state.leader_epoch, state.partition_epoch, isr, epochs))

    def hear(self, number: int) -> None:
        """The controller's state of that number arrives."""
        self.knows = number
        state = self.world.states[number]
        partition = self.partition
        if state.partition_epoch <= partition.state.partition_epoch:
            return
        if state.leader == self.id:
            self.fetch_state.remove(KEY)
            self.leader = None
            partition.lead(self.id, state, self.world.clock.monotonic())
            for follower_session in self.awaited.pop(KEY, ()):
                follower_session.led(KEY)
            return
        partition.follow(state)
        if state.leader != self.leader:
            self.leader = None if state.leader == NO_LEADER else state.leader
            self.fetch_state = self._new_fetch_state()
        if self.leader is not None:
            self.fetch_state.add(KEY, partition)

    def values(self) -> dict[int, bytes | None]:
        """What the log holds, by offset."""
        log = self.partition.log
        found: dict[int, bytes | None] = {}
        offset = log.log_start_offset
        while offset < log.log_end_offset:
            part = log.read(offset, 1 << 20, log.log_end_offset)
            assert part is not None
            data = part.file.pread(part.length, part.position)
            while len(data) >= HEADER_SIZE and len(data) >= (size := read_header(data).size):
                for record in decode_records(data[:size]):
                    found[record.offset] = record.value
                    offset = record.offset + 1
                data = data[size:]
        return found


class World:
    """The replicas, the controller, and what is on its way between them."""

    def __init__(self, rng: Random, *, min_isr: int = 2, power_loss: bool = True) -> None:
        self.rng = rng
        self.clock = SimulatedClock()
        self.power_loss = power_loss
        self.election_rules = Rules(min_insync_replicas=min_isr)
        self.rules = replace(RULES, min_insync_replicas=min_isr)
        self._epochs = 0
        self.states = [PartitionState(replicas=(0, 1, 2), isr=(0, 1, 2), leader=0)]
        self.wishes: deque[Wish] = deque()
        self.later: list[Callable[[], None]] = []
        self.requests: list[tuple[int, int, bytes, FollowerSession | None]] = []
        self.answers: list[tuple[int, ReplicaFetchState, bytes]] = []
        self.replicas = [Replica(self, broker) for broker in range(3)]
        self.registered = {replica.id: replica.epoch for replica in self.replicas}
        self.acknowledged: dict[int, bytes] = {}
        self.produced = 0

    def next_epoch(self) -> int:
        self._epochs += 1
        return self._epochs

    @property
    def state(self) -> PartitionState:
        return self.states[-1]

    def _store(self, state: PartitionState | None) -> None:
        if state is not None:
            assert state.leader == NO_LEADER or state.leader in state.isr
            assert set(state.isr) <= set(state.replicas)
            assert state.leader_epoch - self.state.leader_epoch in (0, 1, 2)
            self.states.append(state)

    # What may happen next

    def step(self) -> None:
        kinds: list[tuple[int, Callable[[], None]]] = [
            (60, self.produce),
            (200, self.send_request),
            (200, self.deliver_request),
            (200, self.deliver_answer),
            (60, self.deliver_state),
            (30, self.grant_wish),
            (5, self.let_time_pass),
            (3, self.notice_the_dead),
            (4, self.register),
            (2, self.kill),
            (4, self.restart),
            (3, self.lose_a_message),
        ]
        weights = [weight for weight, _ in kinds]
        states = len(self.states)
        self.rng.choices([step for _, step in kinds], weights)[0]()
        if len(self.states) != states or self.rng.random() < 0.02:
            self.check()

    def produce(self) -> None:
        replica = self.rng.choice(self.replicas)
        partition = replica.partition
        if not replica.is_up or not partition.is_leader or len(partition.state.isr) < self.rules.min_insync_replicas:
            return
        value = f"{self.produced}-by-{replica.id}".encode()
        self.produced += 1
        batch = memoryview(bytearray(batch_of(value)))
        appended = partition.append(batch, check_batch(batch), now_ms=0, version=9)
        offset = appended.base_offset

        def done(error: CodedError | None) -> None:
            if error is None:
                assert self.acknowledged.get(offset, value) == value, f"offset {offset} was given twice"
                self.acknowledged[offset] = value

        if partition.is_acknowledged(offset + 1, -1):
            done(None)
        else:
            partition.wait(offset + 1, -1, done)

    def send_request(self) -> None:
        replica = self.rng.choice(self.replicas)
        if replica.is_up and replica.leader is not None and replica.fetch_state.has_news:
            leader = replica.leader
            self.requests.append((replica.id, leader, bytes(replica.fetch_state.request(0, 300)), None))

    def deliver_request(self) -> None:
        """In the order of sending, as a connection does it; a new fetch_state is a new connection."""
        if not self.requests:
            return
        follower_id, leader_id, body, _ = self.requests.pop(0)
        follower, leader = self.replicas[follower_id], self.replicas[leader_id]
        if not leader.is_up:
            return
        asked = decode_positions(memoryview(body))
        follower_session = leader.follower_sessions.get(follower_id)
        if asked.number == 0 or follower_session is None:
            if asked.number:
                follower.fetch_state.begin()
                return
            if follower_session is not None:
                follower_session.close()
            follower_session = FollowerSession(follower_id, leader, self.clock.monotonic)
            leader.follower_sessions[follower_id] = follower_session
        follower_session.take(asked.positions, asked.broker_epoch)
        self._answer(leader, follower, follower_session, asked.max_bytes)

    def _answer(self, leader: Replica, follower: Replica, follower_session: FollowerSession, max_bytes: int) -> None:
        entries = follower_session.collect(max_bytes)
        if not entries:
            return
        body = bytes(encode_progress(progress for progress, _ in entries))
        for _, part in entries:
            if part is not None:
                body += part.file.pread(part.length, part.position)
        self.answers.append((follower.id, follower.fetch_state, body))

    def deliver_answer(self) -> None:
        for leader in self.replicas:
            for follower_id, follower_session in leader.follower_sessions.items():
                if leader.is_up and follower_session.is_ready and self.rng.random() < 0.5:
                    self._answer(leader, self.replicas[follower_id], follower_session, 300)
        if self.answers:
            follower_id, fetch_state, body = self.answers.pop(0)
            follower = self.replicas[follower_id]
            if follower.is_up and follower.fetch_state is fetch_state:
                fetch_state.take(memoryview(bytearray(body)))

    def deliver_state(self) -> None:
        replica = self.rng.choice(self.replicas)
        if replica.is_up and self.registered.get(replica.id) == replica.epoch and replica.knows < len(self.states) - 1:
            first = max(replica.knows + 1, 0)
            replica.hear(len(self.states) - 1 if replica.knows < 0 else self.rng.randrange(first, len(self.states)))

    def grant_wish(self) -> None:
        if not self.wishes:
            return
        wish = self.wishes.popleft()
        state = self.state
        partition = wish.broker.partition
        try:
            if state.leader != wish.broker.id or self.registered.get(wish.broker.id) != wish.broker.epoch:
                raise CodedError(ErrorCode.fenced_leader_epoch)
            for member in wish.isr - set(state.isr):
                if self.registered.get(member) != wish.epochs[member]:
                    raise CodedError(ErrorCode.ineligible_replica)
            after = election.with_isr(
                state,
                self.election_rules,
                wish.isr,
                leader_epoch=wish.leader_epoch,
                partition_epoch=wish.partition_epoch,
            )
        except CodedError:
            if partition.followers is not None and partition.leader_epoch == wish.leader_epoch:
                partition.followers.refused(self.clock.monotonic())
            return
        self._store(after)

    def let_time_pass(self) -> None:
        self.clock.advance(4_000)
        due = list(self.later)
        self.later.clear()
        for call in due:
            call()
        for replica in self.replicas:
            if replica.is_up and replica.partition.is_leader:
                propose = partial(replica.propose_isr, replica.partition)
                replica.partition.drop_laggards(self.clock.monotonic(), LAG_SECONDS, propose)

    def notice_the_dead(self) -> None:
        """Sessions end: of the dead, and of one that could not reach the store in time."""
        gone = [r for r in self.replicas if self.registered.get(r.id) == r.epoch and not r.is_up]
        if not gone and self.rng.random() < 0.2:
            gone = [self.rng.choice(self.replicas)]
        for replica in gone:
            self.registered.pop(replica.id, None)
        self._store(election.after_change_of_brokers(self.state, self.election_rules, self.registered.keys()))

    def register(self) -> None:
        for replica in self.replicas:
            if replica.is_up and self.registered.get(replica.id) != replica.epoch:
                self._register(replica)

    def _register(self, replica: Replica) -> None:
        if replica.id in self.registered or replica.partition.is_leader:
            self.registered.pop(replica.id, None)
        replica.epoch = self.next_epoch()
        replica.partition.follow(replica.partition.state)
        replica.leader = None
        replica.fetch_state = replica._new_fetch_state()
        state = self.state
        if replica.id in state.isr:
            state = election.after_change_of_brokers(state, self.election_rules, self.registered.keys()) or state
        alive = self.registered.keys() | {replica.id}
        if replica.lost_records:
            state = election.after_loss_of_records(state, self.election_rules, {replica.id}, alive) or state
        state = election.after_change_of_brokers(state, self.election_rules, alive) or state
        if state != self.state:
            self._store(state)
        replica.lost_records = False
        self.registered[replica.id] = replica.epoch
        replica.knows = len(self.states) - 2

    def kill(self) -> None:
        replica = self.rng.choice(self.replicas)
        if replica.is_up:
            replica.is_up = False
            for follower_session in replica.follower_sessions.values():
                follower_session.close()
            lose = self.power_loss and self.rng.random() < 0.3
            if lose and not any(r.lost_records for r in self.replicas):
                replica.disk.crash(self.rng)
                replica.lost_records = True
            else:
                replica.disk.kill()

    def restart(self) -> None:
        for replica in self.replicas:
            if not replica.is_up:
                if self.registered.get(replica.id) == replica.epoch:
                    self.registered.pop(replica.id)
                replica.start()
                return

    def lose_a_message(self) -> None:
        """A connection breaks: what was on its way on it is gone, and both begin anew."""
        replica = self.rng.choice(self.replicas)
        self.requests = [r for r in self.requests if r[0] != replica.id]
        self.answers = [a for a in self.answers if a[0] != replica.id]
        replica.fetch_state.begin()

    # What must hold

    def check(self) -> None:
        """Everything acknowledged is on every member of the stored ISR that has not lost its disk."""
        state = self.state
        for broker in state.isr:
            replica = self.replicas[broker]
            if replica.lost_records or not replica.is_up:
                continue
            values = replica.values()
            for offset, value in self.acknowledged.items():
                assert values.get(offset) == value, (
                    f"broker {broker} of the ISR {state.isr} has {values.get(offset)!r} at {offset}, "
                    f"where {value!r} was acknowledged"
                )
