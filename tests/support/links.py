"""A leader and a follower of some partitions with a link between them, on which a test decides what arrives when."""

import uuid
from collections.abc import Callable
from dataclasses import replace

from headrace.cluster.image import NO_LEADER, PartitionState
from headrace.protocol.batch import check_batch
from headrace.protocol.replicate import decode_positions, encode_progress
from headrace.replication.follower_session import FollowerSession
from headrace.replication.partition import Partition
from headrace.replication.replica_fetch_state import ReplicaFetchState
from headrace.replication.throttle import ReplicationThrottle
from headrace.storage.flusher import Flusher
from headrace.storage.log_starts import LogStartWriter
from headrace.storage.manager import LogManager
from headrace.storage.settings import LogSettings
from headrace.testing.clock import SimulatedClock
from headrace.testing.disk import SimulatedDisk

from .intake import RULES
from .storage import run_now
from .wire import batch_of, values_in

LEADER, FOLLOWER = 1, 2
TOPIC_ID = uuid.UUID(int=7)
UNBORN = PartitionState(
    replicas=(LEADER, FOLLOWER), isr=(LEADER, FOLLOWER), leader=NO_LEADER, leader_epoch=-1, partition_epoch=-1
)


def append(partition: Partition, *values: bytes) -> None:
    """Append one batch as the leader."""
    batch = memoryview(bytearray(batch_of(*values)))
    partition.append(batch, check_batch(batch), now_ms=0, version=9)


def readable(partition: Partition, offset: int) -> list[bytes | None]:
    """What a consumer gets from an offset on."""
    found = partition.read(
        offset, 1 << 20, committed_only=False, current_leader_epoch=partition.leader_epoch, last_fetched_epoch=-1
    ).records
    return [] if found is None else values_in(found.file.pread(found.length, found.position))


class Pair:
    """Two brokers that hold the same partitions, and the link on which one follows the other."""

    def __init__(self, partitions: int = 1, *, throttle: ReplicationThrottle | None = None) -> None:
        self.clock = SimulatedClock()
        self.disks = {LEADER: SimulatedDisk(), FOLLOWER: SimulatedDisk()}
        self.rules = RULES
        self.logs: dict[int, LogManager] = {}
        self.leaders = self._held_by(LEADER, partitions)
        self.followers = self._held_by(FOLLOWER, partitions)
        self.later: list[Callable[[], None]] = []
        self.proposed: list[frozenset[int]] = []
        self.awaited: dict[tuple[bytes, int], dict[FollowerSession, None]] = {}
        self.connect(throttle)

    def _held_by(self, broker: int, partitions: int) -> list[Partition]:
        logs = LogManager(self.disks[broker], self.clock, "/data", cluster_id="here", broker_id=broker)
        logs.open()
        self.logs[broker] = logs
        LogStartWriter(logs, Flusher(run_now))
        return [
            Partition(
                topic="t",
                topic_id=TOPIC_ID.bytes,
                index=index,
                state=UNBORN,
                log=logs.load("t", index, TOPIC_ID, LogSettings(flush_messages=1 << 40)),
                rules=self.rules,
                flusher=Flusher(run_now),
            )
            for index in range(partitions)
        ]

    def connect(self, throttle: ReplicationThrottle | None = None) -> None:
        """A new link, which knows of no position yet."""
        self.follower_session = FollowerSession(FOLLOWER, self, self.clock.monotonic, throttle)
        self.fetch_state = ReplicaFetchState(
            lambda _, call: self.later.append(call), lambda: None, lambda: 1, lambda: 1
        )
        self.fetch_state.begin()

    def restart_follower(self) -> None:
        """The follower's process begins anew, with what its disk has kept."""
        states = [partition.state for partition in self.followers]
        self.followers = self._held_by(FOLLOWER, len(states))
        self.follower_session.close()
        self.connect()
        for index, state in enumerate(states):
            self.followers[index].follow(state)
            self.fetch_state.add((TOPIC_ID.bytes, index), self.followers[index])

    # As the holder of the leader's partitions

    def partition_by_id(self, topic_id: bytes, index: int) -> Partition:
        return self.leaders[index]

    def propose_isr(self, partition: Partition, isr: frozenset[int]) -> None:
        self.proposed.append(isr)

    # What happens

    def elect(self, epoch: int, isr: tuple[int, ...] = (LEADER, FOLLOWER), *indexes: int) -> None:
        """Broker LEADER leads in a new epoch, and the other follows it."""
        state = replace(UNBORN, isr=isr, leader=LEADER, leader_epoch=epoch, partition_epoch=epoch)
        for index in indexes or range(len(self.leaders)):
            self.leaders[index].lead(LEADER, state, self.clock.monotonic())
            self.followers[index].follow(state)
            self.fetch_state.add((TOPIC_ID.bytes, index), self.followers[index])

    def ask(self, max_bytes: int = 1 << 20) -> None:
        """The follower's request arrives at the leader."""
        asked = decode_positions(memoryview(bytes(self.fetch_state.request(0, max_bytes))))
        self.follower_session.take(asked.positions, asked.broker_epoch)

    def answer(self, max_bytes: int = 1 << 20) -> None:
        """The leader's answer arrives at the follower."""
        entries = self.follower_session.collect(max_bytes)
        body = bytearray(encode_progress(progress for progress, _ in entries))
        for _, part in entries:
            if part is not None:
                body += part.file.pread(part.length, part.position)
        self.fetch_state.take(memoryview(body))

    def exchange(self, times: int = 3) -> None:
        for _ in range(times):
            self.ask()
            self.answer()
