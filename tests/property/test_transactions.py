"""Transactions against everything that can happen between any two of their steps: kills, losses of power, timeouts.

Producers of both protocols write to partitions of a broker on a simulated disk. Requests run a few turns of the loop at
a time, and what they write reaches stable storage when a step says so; at any point the broker can die. In the end
every transaction must have ended, once, in the same way on all its partitions, and as its producer was told.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from headrace.coordinator.runtime.batches import Pair, read_batches
from headrace.coordinator.transactions import markers, service
from headrace.coordinator.transactions.decisions import ProducerIdAndEpoch
from headrace.coordinator.transactions.service import NEWER, OLDER
from headrace.coordinator.transactions.states import RESTING
from headrace.protocol.batch import BatchHeader, read_header
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.records import Record, decode_marker, encode_batch
from headrace.protocol.topic_partition import TopicPartition
from headrace.replication.partition import Partition
from headrace.replication.transactions import Verification
from tests.support.coordinator.world import World

TOPIC = "t"
PARTITIONS = 3
TIMEOUT_MS = 60_000
AGAIN = (
    ErrorCode.concurrent_transactions,
    ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.not_coordinator,
)


@dataclass(eq=False)
class Attempt:
    """A transaction as its producer sees it."""

    number: int
    written: set[int] = field(default_factory=set)
    """Partitions that have acknowledged its record."""
    told: bool | None = None
    """Whether it was committed or aborted, where its producer was told so."""


@dataclass(eq=False)
class Client:
    """A producer with a transactional id."""

    name: str
    version: int
    producer: ProducerIdAndEpoch | None = None
    open: Attempt | None = None
    wants: bool | None = None
    """How it is ending its transaction; it asks until it is told."""
    sequences: dict[int, int] = field(default_factory=dict)
    running: "asyncio.Task[None] | None" = None

    @property
    def is_idle(self) -> bool:
        return self.running is None or self.running.done()


class TransactionMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World({"transaction.state.log.num.partitions": "1"})
        self.world.topic(TOPIC, PARTITIONS)
        self.world.run(self.world.transactions.find("x"))
        self.world.settle()
        self.world.holds_syncs = True
        self.numbers = itertools.count(1)
        self._number_producers()
        self.clients = [Client("older", OLDER), Client("newer", NEWER)]
        self.attempts: list[Attempt] = []

    def _number_producers(self) -> None:
        """The store works in a thread of its own, which no replay could repeat."""

        async def allocate() -> int:
            return next(self.numbers)

        self.world.controller.allocate_producer_id = allocate  # type: ignore[method-assign]

    # What producers do

    def _start(self, client: Client, work: Callable[[Client], Awaitable[None]]) -> None:
        async def guarded() -> None:
            with contextlib.suppress(CodedError):
                await work(client)

        client.running = self.world.loop.create_task(guarded())

    @rule(which=st.integers(0, 1), partitions=st.sets(st.integers(0, PARTITIONS - 1), min_size=1))
    def step(self, which: int, partitions: set[int]) -> None:
        """A producer goes on with what it is doing."""
        client = self.clients[which]
        if not client.is_idle:
            return
        if client.producer is None:
            self._start(client, self._init)
        elif client.wants is not None:
            self._start(client, self._end)
        else:
            self._start(client, lambda client: self._write(client, sorted(partitions)))

    @rule(which=st.integers(0, 1), commit=st.booleans())
    def decide(self, which: int, commit: bool) -> None:
        client = self.clients[which]
        if client.is_idle and client.open is not None and client.open.written and client.wants is None:
            client.wants = commit
            self._start(client, self._end)

    @rule(which=st.integers(0, 1))
    def forget(self, which: int) -> None:
        """The producer's process dies; another one takes its id."""
        client = self.clients[which]
        if client.running is not None:
            client.running.cancel()
        client.producer = client.open = client.wants = None

    async def _init(self, client: Client) -> None:
        decision = await self.world.transactions.init_producer(client.name, TIMEOUT_MS, None)
        if decision.code is ErrorCode.none:
            client.producer = decision.producer
            client.sequences.clear()
        else:
            assert decision.code in AGAIN

    async def _write(self, client: Client, indexes: list[int]) -> None:
        for index in indexes:
            if client.producer is None or not await self._write_one(client, client.producer, index):
                return

    async def _write_one(self, client: Client, producer: ProducerIdAndEpoch, index: int) -> bool:
        coordinator, where = self.world.transactions, TopicPartition(TOPIC, index)
        if client.version == OLDER:
            added = await coordinator.add_partitions(client.name, producer, [where])
            if not self._goes_on(client, added[where]):
                return False
        partition = self.world.replicas.partition(TOPIC, index)
        verification = partition.verifications.begin(*producer)
        verifier = self.world.replicas.verifier
        assert verifier is not None
        ids = {TOPIC: UUID(bytes=partition.topic_id)}
        codes = await verifier.verify(client.name, *producer, [where], ids, add=client.version == NEWER)
        if not self._goes_on(client, codes[where]):
            return False
        if client.open is None:
            client.open = Attempt(len(self.attempts))
            self.attempts.append(client.open)
        end = self._append(client, producer, partition, verification)
        attempt = client.open
        if end is None:
            return False
        await _synced(partition, end)
        attempt.written.add(index)
        return True

    def _append(
        self, client: Client, producer: ProducerIdAndEpoch, partition: Partition, verification: Verification
    ) -> int | None:
        assert client.open is not None
        sequence = client.sequences.get(partition.index, 0)
        batch = memoryview(
            encode_batch(
                [Record(0, 0, None, str(client.open.number).encode())],
                producer_id=producer.id,
                producer_epoch=producer.epoch,
                base_sequence=sequence,
                transactional=True,
            )
        )
        try:
            appended = partition.append_transactional(
                batch, read_header(batch), verification, now_ms=0, version=13, from_zero=False
            )
        except CodedError:
            client.producer = client.open = client.wants = None
            return None
        client.sequences[partition.index] = sequence + 1
        return int(appended.last_offset) + 1

    async def _end(self, client: Client) -> None:
        assert client.producer is not None
        assert client.wants is not None
        decision = await self.world.transactions.end(
            client.name, client.producer, committed=client.wants, version=client.version
        )
        if not self._goes_on(client, decision.code) or client.open is None:
            return
        client.open.told = client.wants
        client.open = client.wants = None
        if client.version == NEWER:
            client.producer = decision.producer
            client.sequences.clear()

    def _goes_on(self, client: Client, code: ErrorCode) -> bool:
        if code is ErrorCode.none:
            return True
        if code not in AGAIN:
            assert code in (
                ErrorCode.producer_fenced,
                ErrorCode.invalid_txn_state,
                ErrorCode.transaction_abortable,
                ErrorCode.invalid_producer_id_mapping,
            )
            client.producer = client.open = client.wants = None
        return False

    # What happens to the broker

    @rule(turns=st.integers(1, 12))
    def run(self, turns: int) -> None:
        async def some() -> None:
            for _ in range(turns):
                await asyncio.sleep(0)

        self.world.run(some())

    @rule()
    def sync(self) -> None:
        self.world.loop.call_soon(self.world.sync)
        self.run(1)

    @rule(power=st.booleans())
    def die(self, power: bool) -> None:
        self.world.crash() if power else self.world.kill()
        self._number_producers()

    @rule()
    def time_out(self) -> None:
        self.world.clock.advance(TIMEOUT_MS + 1)
        self.world.loop.create_task(_quietly(self.world.transactions.abort_overdue))

    @rule()
    def expire(self) -> None:
        self.world.run(_quietly(lambda: self.world.transactions.expire(self.world.clock.now_ms())))

    # What must hold in the end

    def teardown(self) -> None:
        world = self.world
        try:
            world.holds_syncs = False
            self.sync()
            self._finish()
            for shard in world.transactions.runtime.active():
                assert all(entry.transaction.state in RESTING for entry in shard.entries.values())
            outcomes = [_outcomes(world.replicas.partition(TOPIC, index)) for index in range(PARTITIONS)]
            for attempt in self.attempts:
                ends = [found[attempt.number] for found in outcomes if attempt.number in found]
                assert len(set(ends)) <= 1, f"transaction {attempt.number} ended in two ways"
                if attempt.told is not None:
                    assert attempt.written <= {i for i, found in enumerate(outcomes) if attempt.number in found}
                    assert set(ends) <= {attempt.told}, f"transaction {attempt.number} did not end as was told"
        finally:
            world.close()

    def _finish(self) -> None:
        world = self.world
        for _ in range(3):
            world.settle()
            world.clock.advance(TIMEOUT_MS + 1)
            world.run(world.transactions.abort_overdue())
        world.settle()
        for client in self.clients:
            if client.running is not None:
                client.running.cancel()
        world.settle()


def _outcomes(partition: Partition) -> dict[int, bool]:
    """Of each transaction that wrote to a partition, whether a reader of committed records sees it."""
    log = partition.log
    assert partition.last_stable_offset == partition.high_watermark == log.log_end_offset, "a transaction hangs"
    open_: dict[int, list[int]] = {}
    outcomes: dict[int, bool] = {}
    for header, pairs, batch in _batches(partition):
        if header.is_control:
            marker = decode_marker(batch)
            assert marker is not None
            for number in open_.pop(header.producer_id, []):
                outcomes[number] = marker.committed
        else:
            numbers = [int(value or b"") for _, value in pairs]
            assert not set(numbers) & set(outcomes), "a record came after the end of its transaction"
            open_.setdefault(header.producer_id, []).extend(numbers)
    assert not open_
    return outcomes


def _batches(partition: Partition) -> Iterator[tuple[BatchHeader, list[Pair], bytes]]:
    log = partition.log
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        found = log.read(offset, 1 << 30, log.log_end_offset)
        assert found is not None
        data = found.file.pread(found.length, found.position)
        position = 0
        for header, pairs in read_batches(data):
            yield header, pairs, data[position : position + header.size]
            position += header.size
            offset = header.last_offset + 1


async def _synced(partition: Partition, end: int) -> None:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    partition.commits.wait(end, lambda _: None if done.done() else done.set_result(None))
    if partition.high_watermark >= end:
        return
    await done


async def _quietly(work: Callable[[], Awaitable[int]]) -> None:
    with contextlib.suppress(CodedError):
        await work()


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(markers, "PAUSE_SECONDS", 0.0)


TestTransactions = TransactionMachine.TestCase
TestTransactions.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
