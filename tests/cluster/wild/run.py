"""One wild run: clients at work while things go wrong, everything set right, liveness, and the check of the history."""

import asyncio
import gc
import logging
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from headrace.cluster import feed
from headrace.cluster.image import Topic
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.replication.partition import Partition
from headrace.testing.cluster import SimulatedCluster
from headrace.testing.loop import START, Stuck, run_virtual
from tests.support.checker.history import Event, History
from tests.support.checker.violations import violations
from tests.support.simulation.clients import Failed
from tests.support.simulation.runs import replica_bytes

from .bugs import Bugs
from .clients import Client, Reader, Scene, shown
from .faults import Faults
from .groups import Member
from .healing import Healing, hosted
from .ledger import INTERNAL, Ledger
from .mix import Mix
from .operator import COMPACTED, LETTERS, RETAINED, STEADY, TARGET, Operator
from .producers import Producer
from .renumbering import RenumberingStream
from .shares import ShareMember, drain, read_letters
from .transacting import Copier, TransactionalProducer

LATE_NEWS: Final = frozenset({"hold", "lagging feed", "cut", "cut one way", "slow link", "store commits"})
"""Faults that keep news of elections from brokers that are well otherwise."""
LONGEST_SECONDS: Final = 1_200.0
"""Of virtual time."""
MOST_SECONDS: Final = 60.0
"""Of this machine's."""


@dataclass(slots=True, kw_only=True)
class Outcome:
    """How a run went."""

    mix: Mix
    violations: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    acknowledged: int = 0
    shown: int = 0
    losses: int = 0
    isr_changes: int = 0
    seconds: float = 0.0
    virtual_seconds: float = 0.0
    events: list[Event] = field(default_factory=list)


class WildRun:
    """A cluster, its clients, and what they did."""

    def __init__(self, mix: Mix, bugs: Bugs) -> None:
        loop = asyncio.get_running_loop()
        self.mix = mix
        self.history = History(lambda: round(loop.time() - START, 4))
        self.cluster = SimulatedCluster(mix.brokers, seed=mix.seed, settings=_settings(mix))
        for machine in self.cluster:
            machine.settings["broker.rack"] = f"r{machine.id % 2}"
        self.history.note("terms", "info", stale_seconds=15.0 if LATE_NEWS & mix.faults.keys() else 0.5)
        self.ledger = Ledger(self.cluster, self.history, is_durable=_is_durable)
        self.faults = Faults(self.cluster, mix, self.ledger, bugs)
        self.scene = Scene(cluster=self.cluster, history=self.history, mix=mix)
        self.operator = Operator(self.scene)
        self._work: list[asyncio.Task[None]] = []
        self._stuck = ""

    async def go(self) -> None:
        """From the first start to the last stop."""
        await self.cluster.start()
        await self.operator.make_topics()
        self._employ()
        await self.faults.run()
        self.scene.is_calm = True
        await self.faults.set_right()
        healing = Healing(self.scene, self.ledger, self.faults)
        await healing.heal()
        healing.require_quiet()
        self.scene.is_over = True
        await self._dismiss()
        await healing.serve_probes()
        await healing.settle()
        await self._drain()
        await self._read_all()
        self._compare_replicas()
        await self._stop()

    # Clients

    def _employ(self) -> None:
        mix, scene = self.mix, self.scene
        clients: list[Any] = [self.operator]
        for name, acks, idempotent, count in (
            ("idempotent", -1, True, 2),
            ("plain", -1, False, 1),
            ("acks=1", 1, False, 1),
            ("acks=0", 0, False, 1),
        ):
            if mix.does(name):
                names = [f"{name.replace('=', '')}-{letter}" for letter in "ab"[:count]]
                clients += [Producer(scene, each, acks=acks, idempotent=idempotent) for each in names]
        if mix.does("idempotent") and mix.does("renumbering"):
            clients.append(Producer(scene, "renumbering", acks=-1, idempotent=True, stream=RenumberingStream))
        if mix.does("transactions"):
            clients += [TransactionalProducer(scene, f"txn{n}", TARGET, newer=n % 2 == 0) for n in range(2)]
        if mix.does("copier"):
            clients.append(Copier(scene, "copier", STEADY, TARGET, newer=mix.seed % 2 == 0))
        if mix.does("group"):
            clients += [Member(scene, f"member{n}", "members", STEADY) for n in range(2)]
        if mix.does("share"):
            clients += [ShareMember(scene, f"sharer{n}") for n in range(3)]
        clients += self._readers()
        self._work += [asyncio.ensure_future(client.run()) for client in clients]

    def _readers(self) -> list[Reader]:
        scene, nearby = self.scene, self.mix.does("nearby")
        topics = [*scene.topics, *([TARGET] if self.mix.does("transactions") or self.mix.does("copier") else [])]
        found = []
        for topic in topics:
            for partition in range(self.mix.partitions):
                rng = scene.rng(f"reader {topic} {partition}")
                committed_only = rng.random() < 0.5
                rack = rng.choice(("r0", "r1")) if nearby else ""
                name = f"reader-{topic}-{partition}"
                found.append(Reader(scene, name, topic, partition, committed_only=committed_only, rack=rack))
        return found

    async def _dismiss(self) -> None:
        done, late = await asyncio.wait(self._work, timeout=90)
        for task in late:
            task.cancel()
            self.history.complain(f"not served: a client could not end: {task.get_coro()!r}")
        for task in done:
            if task.exception() is not None:
                self.history.complain(f"broken client: {task.exception()!r}")
        for complaint in self.faults.complaints:
            self.history.complain(complaint)

    # The end

    async def _drain(self) -> None:
        """Have the share group be done with everything, and see what became of it."""
        if not self.mix.does("share") or any(map(self.ledger.has_lost, INTERNAL)):
            return
        await drain(self.scene, _SHARE_LOCK_SECONDS)
        try:
            async with asyncio.timeout(30):
                while True:
                    try:
                        await read_letters(self.scene)
                        return
                    except (OSError, Failed):
                        await asyncio.sleep(0.2)
        except TimeoutError:
            self.history.complain("not served: dead letters cannot be read")

    async def _read_all(self) -> None:
        client = Client(self.scene, "last-reader")
        for topic in list(self.cluster.topics().values()):
            for index in range(len(topic.partitions)) if topic.name not in (*INTERNAL, LETTERS) else ():
                try:
                    async with asyncio.timeout(30):
                        await self._read(client, topic, index)
                except TimeoutError:
                    self.history.complain(f"not served: {topic.name}-{index} cannot be read to its end: {self._stuck}")
        client.close()

    async def _read(self, client: Client, topic: Topic, index: int) -> None:
        name = topic.name
        records: dict[int, tuple[int, str, str | None]] = {}
        committed: set[int] = set()
        control: set[int] = set()
        while True:
            try:
                start = await client.list_offset(name, index)
                end = await client.list_offset(name, index, -1)
                leader = await client.leader_of(name, index, topic.id)
                for committed_only in (False, True):
                    offset = start
                    while offset < end:
                        found = await client.fetch_from(leader, topic.id, index, offset, committed_only=committed_only)
                        if found.error_code != ErrorCode.none:
                            raise Failed(ErrorCode(found.error_code))
                        fetched = shown(found, offset, committed_only=committed_only)
                        if committed_only:
                            committed |= {record[0] for record in fetched.records}
                        else:
                            records |= {record[0]: record for record in fetched.records}
                            control |= fetched.control
                        offset = fetched.next
                        if committed_only and found.last_stable_offset <= offset:
                            break  # what hangs is told elsewhere
                        self._stuck = f"at {offset} of {end}, {committed_only=}"
                break
            except (OSError, Failed, CodedError) as error:
                self._stuck = repr(error)
                records.clear()
                committed.clear()
                client.mistrust(name)
                await client.pause()
        self.history.final(
            topic.id.hex,
            index,
            records.values(),
            log_start=start,
            next_offset=end,
            committed=committed,
            control=control,
            compacted=name == COMPACTED,
            retained=name == RETAINED,
        )

    def _compare_replicas(self) -> None:
        for topic in self.cluster.topics().values():
            if topic.name in INTERNAL or topic.name == COMPACTED:
                continue
            for index, state in enumerate(topic.partitions):
                held = {r: hosted(self.cluster, r, topic, index) for r in state.isr}
                there = {r: partition for r, partition in held.items() if partition is not None}
                if len(there) < len(state.isr):
                    self.history.complain(f"absent: {topic.name}-{index} is not on all of {state.isr}")
                    continue
                self._compare(topic, index, there)

    def _compare(self, topic: Topic, index: int, held: dict[int, Partition]) -> None:
        start = max((partition.log.log_start_offset for partition in held.values()), default=0)
        end = min((partition.high_watermark for partition in held.values()), default=0)
        try:
            copies = {replica: replica_bytes(partition.log, start, end) for replica, partition in held.items()}
        except (CodedError, OSError, AssertionError) as error:
            self.history.complain(f"unreadable: {topic.name}-{index}: {error!r}")
            return
        if len(set(copies.values())) > 1:
            self.history.complain(f"different replicas: {topic.name}-{index} between {start} and {end}")

    async def _stop(self) -> None:
        for machine in self.cluster:
            machine.kill()


def _settings(mix: Mix) -> dict[str, str]:
    replicas = str(min(mix.brokers, 3))
    least = str(min(mix.brokers, 2))
    return {
        "min.insync.replicas": least,
        "default.replication.factor": replicas,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": least,
        **({"replica.selector.class": SELECTOR} if mix.does("nearby") else {}),
        **(_share_settings(replicas, least) if mix.does("share") else {}),
        **mix.settings,
    }


def _share_settings(replicas: str, least: str) -> dict[str, str]:
    lock_ms = str(round(_SHARE_LOCK_SECONDS * 1000))
    return {
        "share.coordinator.state.topic.num.partitions": "2",
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": least,
        "share.coordinator.state.topic.segment.bytes": "2000",
        "share.coordinator.state.topic.prune.interval.ms": "2000",
        "share.coordinator.snapshot.update.records.per.snapshot": "5",
        "group.share.min.record.lock.duration.ms": "1000",
        "group.share.record.lock.duration.ms": lock_ms,
        "group.share.min.heartbeat.interval.ms": "500",
        "group.share.heartbeat.interval.ms": "1000",
        "group.share.min.session.timeout.ms": "3000",
        "group.share.session.timeout.ms": "5000",
    }


_SHARE_LOCK_SECONDS: Final = 2.0
SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


def _is_durable(topic: Topic) -> bool:
    return topic.configs.get("flush.messages") == "1"


def run(mix: Mix, *, verbose: bool = False) -> Outcome:
    """Runs it, and says what is wrong."""
    outcome = Outcome(mix=mix)
    wild: list[WildRun] = []
    bugs = Bugs()

    async def main() -> None:
        wild.append(WildRun(mix, bugs))
        await wild[0].go()
        outcome.virtual_seconds = asyncio.get_running_loop().time() - START

    began = time.process_time()
    problems: list[str] = []
    fallible = bugs.in_place() if "task failure" in mix.faults else nullcontext()
    with _quiet(verbose), _feed_pages(mix.feed_page), _collected_afterwards(), fallible:
        try:
            _limit_seconds(MOST_SECONDS)
            run_virtual(main, mix.seed, longest=LONGEST_SECONDS)
        except (AssertionError, TimeoutError, Stuck) as error:
            problems.append(f"the run did not end: {error!r}"[:2000])
        except Exception as error:
            problems.append(f"the run broke: {error!r}"[:2000])
        finally:
            _limit_seconds(0)
    for each in wild:
        outcome.events = each.history.events
        outcome.faults, outcome.counts = each.faults.log, each.faults.counts
        outcome.acknowledged, outcome.shown = each.history.acknowledged, each.history.shown
        outcome.losses, outcome.isr_changes = len(each.ledger.lost), each.ledger.isr_changes
        problems += violations(each.history.events)
    outcome.violations = problems
    outcome.seconds = time.process_time() - began
    return outcome


def _limit_seconds(seconds: float) -> None:
    """Ends what runs on and on at one moment of virtual time."""

    def give_up(*_: object) -> None:
        raise TimeoutError(f"{seconds:g} seconds of this machine's own time have passed")

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGPROF, give_up)
        signal.setitimer(signal.ITIMER_PROF, seconds)


@contextmanager
def _quiet(verbose: bool) -> Iterator[None]:
    before = structlog.get_config()
    level = logging.DEBUG if verbose else logging.CRITICAL
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(level))
    try:
        yield
    finally:
        structlog.configure(**before)


@contextmanager
def _feed_pages(count: int) -> Iterator[None]:
    before = feed.MOST_SENT
    feed.MOST_SENT = count  # type: ignore[misc]
    try:
        yield
    finally:
        feed.MOST_SENT = before  # type: ignore[misc]


@contextmanager
def _collected_afterwards() -> Iterator[None]:
    """Collects garbage once a run is over: what that closes must not depend on the runs before; and it costs time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.collect(0)
