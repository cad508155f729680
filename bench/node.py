"""What a second core brings: Produce to the two brokers of `headrace node --workers 2`, beside the same to one.

Two connections in both, each to the leader of a topic of its own, in requests of 16 KB. Brokers, ZooKeeper and the load
share the machine, so two workers on two cores are less than twice one.
"""

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

import psutil

from headrace.cli.zookeeper import Ensemble
from headrace.net.ports import HeldPort

from . import machine
from .cluster import Asker, seconds_until
from .frames import batch_up_to, produce_frame, produce_reply_size
from .load import Load, Pump, Pumped, repeated
from .model import CPU, BenchError, Figure, Sample, Work
from .produce import RELAXED
from .setting import Server, Setting, wait_ready

_CONNECTIONS: Final = 2
_WINDOW: Final = 128
_TOPICS: Final = tuple(f"bench-{n}" for n in range(8))
"""Enough that each worker leads one."""
_BATCH: Final = batch_up_to(16 * 1024 - 128, 100)
_FIRST_ID: Final = 1
_START_SECONDS: Final = 180.0
_MOST_FRAMES: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node that serves: its supervisor, and its workers by their numbers as brokers."""

    supervisor: Server
    workers: dict[int, Server]

    def cpu_seconds(self) -> float:
        """Processor time of the supervisor and of all workers."""
        family = [self.supervisor.pid, *(each.pid for each in psutil.Process(self.supervisor.pid).children())]
        return sum(machine.cpu_seconds(pid) for pid in family)


@contextmanager
def a_node(setting: Setting, workers: int) -> Iterator[Node]:
    """A fresh node on a ZooKeeper of its own, on all cores; ended afterwards."""
    with ExitStack() as stack:
        directory = stack.enter_context(setting.directory())
        with machine.on_all_cores():
            ensemble = stack.enter_context(Ensemble(directory, 1))
        port = _free_row(workers)
        command = [sys.executable, "-m", "headrace.cli", "node", "--workers", str(workers), "--id", str(_FIRST_ID)]
        command += ["--listen", f"127.0.0.1:{port}", "--data", str(directory / "data"), "--metrics", "off"]
        process = stack.enter_context(setting.spawned([*command, "--store", ensemble.url("/bench")], directory))
        machine.free(process.pid)
        supervisor = wait_ready(process, directory, _START_SECONDS)
        brokers = {_FIRST_ID + n: Server(process=process, port=port + n) for n in range(workers)}
        yield Node(supervisor=supervisor, workers=brokers)


def _free_row(count: int) -> int:
    """The first of some ports next to each other that nobody listens on."""
    while True:
        with HeldPort() as first, ExitStack() as others:
            try:
                for number in range(first.number + 1, first.number + count):
                    others.enter_context(HeldPort(number=number))
            except OSError:
                continue
            return first.number


def produce(setting: Setting, *, workers: int) -> Sample:
    """Requests of all connections a second, and the node's processor time for each."""
    with a_node(setting, workers) as node:
        targets = _targets(node)
        with ExitStack() as stack:
            pumps = [
                Pump(stack.enter_context(node.workers[leader].connect()), _load(topic)) for leader, topic in targets
            ]
            pumped = _run(pumps, setting.seconds, node)
    seconds = max(each.seconds for each in pumped)
    frames = sum(each.frames for each in pumped)
    return {"rate": frames / seconds, CPU: max(each.cpu_seconds for each in pumped) / frames * 1e6}


def _run(pumps: Sequence[Pump], seconds: float, node: Node) -> list[Pumped]:
    with machine.on_all_cores(), ThreadPoolExecutor(len(pumps)) as threads:
        return list(threads.map(lambda pump: pump.run(seconds, node.cpu_seconds), pumps))


def _targets(node: Node) -> list[tuple[int, str]]:
    """For each connection a broker and a topic that it leads; the connections go to the workers in turns."""
    leaders: dict[str, int] = {}

    def are_led() -> bool:
        leaders.update({topic.name: topic.partitions[0].leader_id for topic in asker.metadata().topics})
        return all(leaders.get(topic) in node.workers for topic in _TOPICS)

    with Asker(next(iter(node.workers.values()))) as asker:
        codes = asker.create_topics(_TOPICS, partitions=1, replicas=1, settings=RELAXED)
        if any(codes):
            raise BenchError(f"topics could not be created: error codes {sorted(set(codes))}")
        seconds_until("every topic is led by a worker", are_led, seconds=_START_SECONDS)
    numbers = [sorted(node.workers)[n % len(node.workers)] for n in range(_CONNECTIONS)]
    free = list(_TOPICS)
    targets = []
    for number in numbers:
        topic = next((topic for topic in free if leaders[topic] == number), None)
        if topic is None:
            raise BenchError(f"broker {number} leads none of {len(_TOPICS)} topics")
        free.remove(topic)
        targets.append((number, topic))
    return targets


def _load(topic: str) -> Load:
    frame = produce_frame(topic, _BATCH)
    return Load(
        block=repeated(frame),
        frame_size=len(frame),
        reply_size=produce_reply_size(topic),
        window=_WINDOW,
        most_frames=_MOST_FRAMES,
    )


def works() -> list[Work]:
    return [
        Work(
            name="node-two-workers",
            title="headrace node --workers 2, 16 KB requests, no fsync, two connections",
            against="the same with --workers 1",
            figures=(Figure(key="rate", label="", unit="req/s"),),
            broker=partial(produce, workers=2),
            ceiling=partial(produce, workers=1),
            cpu_unit="µs/req",
            rounds=2,
        )
    ]
