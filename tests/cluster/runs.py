"""Whole runs of a simulated cluster: clients at work while things go wrong, and then the reckoning."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.protocol.batch import read_header
from headrace.storage.log import Log
from headrace.testing.cluster import SimulatedCluster
from headrace.testing.loop import run_virtual

from .clients import ClusterClient, Consumer, Producer
from .faults import Faults
from .history import History, problems

TOPIC = "orders"
HEAL_SECONDS = 90.0


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
    faults: int = 12
    power_losses: bool = True
    settings: Mapping[str, str] = field(default_factory=dict)
    configs: Mapping[str, str] = field(default_factory=dict)


class Run:
    """A cluster and its clients."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.history = History()
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
            self.history.complaints.append(f"a client could not end: {task!r}")
        for task in done:
            task.result()

    async def require_health(self) -> None:
        """Everything is in sync, and everyone is served: what is sent now is acknowledged."""
        try:
            await self.cluster.until(self.cluster.is_whole, "every partition is whole", HEAL_SECONDS)
        except AssertionError:
            self.history.complaints.append(f"not whole: {self.cluster.topics()}")
        before = [producer.acknowledged for producer in self.producers]

        def all_go_on() -> bool:
            return all(p.acknowledged > count for p, count in zip(self.producers, before, strict=True))

        try:
            await self.cluster.until(all_go_on, "every producer is served", HEAL_SECONDS)
        except AssertionError:
            stuck = [p.name for p, n in zip(self.producers, before, strict=True) if p.acknowledged == n]
            self.history.complaints.append(f"not served: {stuck}")

    async def reckon(self) -> list[str]:
        """What is wrong with what clients saw, and with what brokers hold."""
        final = {p: await self.client.read_all(TOPIC, p) for p in range(self.plan.partitions)}
        found = problems(self.history, final)
        await asyncio.sleep(2)
        found += different_replicas(self.cluster)
        return found

    async def end(self) -> None:
        self.client.close()
        await self.cluster.stop()


def different_replicas(cluster: SimulatedCluster) -> list[str]:
    """Where replicas do not hold the same bytes below the high watermark."""
    found: list[str] = []
    for topic in cluster.topics().values():
        for index, state in enumerate(topic.partitions):
            held = {r: cluster[r].broker.replicas.partition(topic.name, index) for r in state.replicas}
            start = max(partition.log.log_start_offset for partition in held.values())
            end = min(partition.high_watermark for partition in held.values())
            leader_end = held[state.leader].high_watermark
            if any(partition.log.log_end_offset < leader_end for partition in held.values()):
                found.append(f"{topic.name}-{index}: a replica is short of the high watermark {leader_end}")
            copies = {r: _bytes(partition.log, start, end) for r, partition in held.items()}
            if len(set(copies.values())) > 1:
                found.append(f"{topic.name}-{index}: replicas differ between {start} and {end}")
    return found


def _bytes(log: Log, start: int, end: int) -> bytes:
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
            acknowledged=len(history.acknowledged),
            seen=sum(map(len, history.seen.values())),
        )

    return run_virtual(main, plan.seed, longest=3600)
