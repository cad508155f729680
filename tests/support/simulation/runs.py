"""Whole runs of a simulated cluster: clients at work while things go wrong, and then the reckoning."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from headrace.protocol.api import ApiKey
from headrace.protocol.batch import read_header
from headrace.protocol.errors import ErrorCode
from headrace.storage.log import Log
from headrace.testing.cluster import SimulatedCluster
from headrace.testing.loop import run_virtual
from tests.support.checker.history import History, Operation
from tests.support.checker.violations import violations

from .clients import ClusterClient, Consumer, Failed, Producer
from .faults import Faults

TOPIC = "orders"
HEAL_SECONDS = 90.0
WRITE_TIMEOUT_MS = 10_000
FIRST_SYNC_SECONDS = 2.0
"""After which brokers have synced the first records of a log by themselves, which tells the disk whose it is."""


@dataclass(slots=True, kw_only=True)
class Report:
    """How a run went."""

    problems: list[str]
    faults: list[str]
    acknowledged: int
    seen: int


@dataclass(slots=True, kw_only=True)
class Plan:
    """What a run consists of."""

    seed: int
    brokers: int = 3
    partitions: int = 2
    faults: int = 30
    power_losses: bool = True
    settings: Mapping[str, str] = field(default_factory=dict)
    configs: Mapping[str, str] = field(default_factory=dict)


class Run:
    """A cluster and its clients."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.history = History(asyncio.get_running_loop().time)
        self.cluster = SimulatedCluster(plan.brokers, seed=plan.seed, settings=plan.settings)
        self.client = ClusterClient(self.cluster, "admin")
        self.producers: list[Producer] = []
        self.consumers: list[Consumer] = []
        self._work: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """All brokers, and a topic."""
        await self.cluster.start()
        await self.client.create_topic(TOPIC, partitions=self.plan.partitions, configs=dict(self.plan.configs))

    def employ(self) -> None:
        """For each partition: producers of both kinds, and a consumer."""
        for partition in range(self.plan.partitions):
            for idempotent in (True, False):
                name = f"{'i' if idempotent else 'p'}{partition}"
                self.producers.append(
                    Producer(self.cluster, name, TOPIC, partition, self.history, idempotent=idempotent)
                )
            self.consumers.append(Consumer(self.cluster, f"r{partition}", TOPIC, partition, self.history))
        self._work += [asyncio.ensure_future(producer.run()) for producer in self.producers]
        self._work += [asyncio.ensure_future(consumer.run()) for consumer in self.consumers]

    async def dismiss(self) -> None:
        """Let everyone end what they have begun."""
        for producer in self.producers:
            producer.is_stopping = True
        for consumer in self.consumers:
            consumer.is_stopping = True
        done, late = await asyncio.wait(self._work, timeout=60) if self._work else (set(), set())
        for task in late:
            task.cancel()
            self.history.complain(f"a client could not end: {task!r}")
        for task in done:
            task.result()

    async def require_health(self) -> None:
        """Everything is in sync, and everyone is served: what is sent now is acknowledged."""
        try:
            await self.cluster.until(self.cluster.is_whole, "every partition is whole", HEAL_SECONDS)
        except AssertionError:
            self.history.complain(f"not whole: {self.cluster.topics()}")
        before = [producer.acknowledged for producer in self.producers]

        def all_go_on() -> bool:
            return all(p.acknowledged > count for p, count in zip(self.producers, before, strict=True))

        try:
            await self.cluster.until(all_go_on, "every producer is served", HEAL_SECONDS)
        except AssertionError:
            stuck = [p.name for p, n in zip(self.producers, before, strict=True) if p.acknowledged == n]
            self.history.complain(f"not served: {stuck}")

    def longest_silence(self) -> float:
        """How long a producer had to wait for an acknowledgement, at the most."""
        return max(producer.longest_silence for producer in self.producers)

    async def reckon(self) -> list[str]:
        """What is wrong with what clients saw, and with what brokers hold that are up."""
        for partition in range(self.plan.partitions):
            records = await self.client.read_all(TOPIC, partition)
            held = [(offset, value.decode(), None) for offset, value in records.items()]
            self.history.final(TOPIC, partition, held, log_start=min(records, default=0))
        found = violations(self.history.events)
        await asyncio.sleep(2)
        found += different_replicas(self.cluster)
        return found

    async def start_with(self, assignment: Sequence[int], configs: Mapping[str, str], *values: str) -> None:
        """All brokers, a topic of one partition on these, and acknowledged values in it."""
        await self.cluster.start()
        await self.client.create_topic(TOPIC, assignments=[list(assignment)], configs=dict(configs))
        for value in values:
            await self.write_until_acknowledged(value)

    # One thing at a time

    async def write(self, value: str, *, partition: int = 0, acks: int = -1, to: int | None = None) -> ErrorCode:
        """What a broker answers, the leader unless one is named; NETWORK_EXCEPTION for nothing."""
        operation = self.history.send("writer", TOPIC, partition, [value], acks=acks)
        code, offset = await self._write(partition, value, acks, to)
        _end(operation, code, offset)
        return code

    async def write_until_acknowledged(self, value: str, partition: int = 0, seconds: float = 60.0) -> None:
        """As clients do that try again."""
        operation = self.history.send("writer", TOPIC, partition, [value])
        async with asyncio.timeout(seconds):
            while True:
                code, offset = await self._write(partition, value, -1, None)
                if code is ErrorCode.none:
                    operation.ok(offset=offset)
                    return
                await self.client.pause()

    async def _write(self, partition: int, value: str, acks: int, to: int | None) -> tuple[ErrorCode, int]:
        client = self.client
        try:
            leader = await client.leader(TOPIC, partition) if to is None else self.cluster[to].address
            code, offset = await client.produce(
                leader, TOPIC, partition, value.encode(), acks=acks, timeout_ms=WRITE_TIMEOUT_MS
            )
        except (OSError, Failed):
            code, offset = ErrorCode.network_exception, -1
        if code is not ErrorCode.none:
            client.forget(TOPIC, partition)
        return code, offset

    async def elect(self, topic: str, replicas: Sequence[int]) -> None:
        """Let the first of these, which are the replicas that there are, lead."""
        assert await self.client.reassign(topic, 0, replicas) is ErrorCode.none
        values = {
            "election_type": 0,
            "topic_partitions": [{"topic": topic, "partitions": [0]}],
            "timeout": 5_000,
        }
        async with asyncio.timeout(60):
            while self.cluster.state(topic).leader != replicas[0]:
                with suppress(OSError):  # the answer may take longer than anyone waits
                    await self.client.ask_anyone(ApiKey.ELECT_LEADERS, 2, values)
                await self.client.pause()

    async def flush(self, broker: int) -> None:
        """Let a broker bring a log to stable storage."""
        machine = self.cluster[broker]

        async def flush() -> None:
            machine.broker.replicas.partition(TOPIC, 0).flush()

        await machine.host.run(flush())

    async def delete_records(self, topic: str, partition: int, offset: int) -> None:
        asked = {"partition_index": partition, "offset": offset}
        values = {"topics": [{"name": topic, "partitions": [asked]}], "timeout": 5_000}
        operation = self.history.invoke("delete_records", topic=topic, partition=partition, before=offset)
        answer = await self.client.ask(await self.client.leader(topic, partition), ApiKey.DELETE_RECORDS, 2, values)
        found = answer.topics[0].partitions[0]
        assert found.error_code == ErrorCode.none
        operation.ok(low_watermark=found.low_watermark)

    async def end_whole(self) -> None:
        """Once every partition is whole: nothing acknowledged is lost, and replicas are the same."""
        await self.cluster.until(self.cluster.is_whole, "every partition is whole")
        found = await self.reckon()
        assert not found, "\n".join(found)
        await self.end()

    async def end(self) -> None:
        self.client.close()
        await self.cluster.stop()


def _end(operation: Operation, code: ErrorCode, offset: int) -> None:
    if code is ErrorCode.none:
        operation.ok(offset=offset)
    elif code is ErrorCode.not_enough_replicas:
        operation.fail()
    else:
        operation.info()


def different_replicas(cluster: SimulatedCluster) -> list[str]:
    """Where replicas that are up do not hold the same bytes below the high watermark."""
    found: list[str] = []
    for topic in cluster.topics().values():
        for index, state in enumerate(topic.partitions):
            up = [replica for replica in state.replicas if cluster[replica].is_up]
            held = {r: cluster[r].broker.replicas.partition(topic.name, index) for r in up}
            start = max(partition.log.log_start_offset for partition in held.values())
            end = min(partition.high_watermark for partition in held.values())
            leader_end = held[state.leader].high_watermark
            if any(partition.log.log_end_offset < leader_end for partition in held.values()):
                found.append(f"{topic.name}-{index}: a replica is short of the high watermark {leader_end}")
            copies = {r: replica_bytes(partition.log, start, end) for r, partition in held.items()}
            if len(set(copies.values())) > 1:
                found.append(f"{topic.name}-{index}: replicas differ between {start} and {end}")
    return found


def replica_bytes(log: Log, start: int, end: int) -> bytes:
    """Everything between two offsets, as it stands in the log."""
    data = b""
    offset = start
    while offset < end:
        part = log.read(offset, 1 << 24, end)
        assert part is not None
        chunk = part.file.pread(part.length, part.position)
        data += chunk
        last = 0
        while last < len(chunk):
            header = read_header(chunk, last)
            offset = header.last_offset + 1
            last += header.size
    return data


def with_faults(plan: Plan) -> Report:
    """Clients at work while faults are drawn from the seed; then everything is set right, and compared."""

    async def main() -> Report:
        run = Run(plan)
        faults = Faults(run.cluster, plan.seed, power_losses=plan.power_losses)
        await run.start()
        run.employ()
        await faults.run(plan.faults)
        await faults.set_right()
        await run.require_health()
        await run.dismiss()
        found = await run.reckon()
        await run.end()
        history = run.history
        return Report(
            problems=found,
            faults=faults.log,
            acknowledged=history.acknowledged,
            seen=history.shown,
        )

    return run_virtual(main, plan.seed, longest=3600)
