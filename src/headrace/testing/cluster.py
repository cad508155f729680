"""A whole cluster in one process, in virtual time, from a seed: real brokers on simulated machines.

    async def main() -> None:
        cluster = SimulatedCluster(brokers=3, seed=7)
        await cluster.start()
        cluster[0].kill()                       # kill -9; `await cluster[0].start()` begins its next life
        cluster[1].lose_power()                 # and what was not synced
        cluster[2].pause(); cluster[2].resume() # SIGSTOP, past the end of its session or not
        cluster[2].cut_from_store()             # `heal_store` brings it back
        cluster.network.cut("b0", "b1")         # see `SimulatedNetwork`
        await cluster.stop()

    run_virtual(main, seed=7)

Everything is drawn from the seed: the same seed gives the same run.
"""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Final

from headrace.cluster.image import PartitionState, Topic
from headrace.cluster.registration import BROKERS, CONTROLLER, registration_key
from headrace.cluster.topics import TOPICS, decode_topics
from headrace.config import BrokerConfig
from headrace.net.address import Address
from headrace.protocol.levels import SUPPORTED
from headrace.server.broker import Broker

from .disk import SimulatedDisk
from .loop import VirtualClock
from .network import SimulatedNetwork
from .store import NEVER, SimulatedEnsemble, SimulatedStore
from .world import simulated_world

PORT: Final = 9092
SESSION_SECONDS: Final = 2.0
STORE_LATENCY: Final = 0.004
SETTINGS: Final = {
    "zookeeper.connect": "simulated:2181",
    "zookeeper.session.timeout.ms": str(int(SESSION_SECONDS * 1000)),
    "replica.lag.time.max.ms": "2000",
    "log.dirs": "/data",
    "headrace.allow.anonymous.listeners": "true",
    "min.insync.replicas": "2",
    "default.replication.factor": "3",
    "offsets.topic.num.partitions": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.num.partitions": "2",
}
"""Of every broker, unless a test says otherwise: failures are noticed soon, so that runs can be short."""


class Machine:
    """A machine of the cluster and the broker on it, through all its lives."""

    def __init__(self, cluster: "SimulatedCluster", broker_id: int, *, name: str | None = None) -> None:
        self.id = broker_id
        self.name = name or f"b{broker_id}"
        self.host = cluster.network.host(self.name)
        self.disk = SimulatedDisk()
        self.is_up = False
        self.is_stopping = False
        self.is_paused = False
        self.is_cut_from_store = False
        self.settings: dict[str, str] = {}
        """Of this broker alone, from its next start on."""
        self.skew_ms = 0
        """How far its wall clock is off."""
        self.levels = SUPPORTED
        """The feature levels that its software speaks, from its next start on."""
        self.broker: Broker
        self.store: SimulatedStore
        self._clock: VirtualClock | None = None
        self._cluster = cluster
        self._lives = 0
        self._boots = 0

    @property
    def address(self) -> Address:
        return Address(self.name, PORT)

    def reboot(self) -> None:
        """The machine itself is started anew, after its broker has stopped."""
        assert not self.is_up
        self._boots += 1

    async def start(self, *, cut_from_store: bool = False) -> None:
        """Begin a life; returns when the broker serves. Raises what kept it from it, and `Died` if it was killed."""
        cluster = self._cluster
        self._lives += 1
        given = {
            **SETTINGS,
            "listeners": f"PLAINTEXT://{self.name}:{PORT}",
            **cluster.settings,
            **self.settings,
            "node.id": str(self.id),
        }
        self.host.restore_power()
        self.is_up = True
        self.is_stopping = self.is_paused = self.is_cut_from_store = False
        self.store = cluster.ensemble.session()
        if cut_from_store:
            self.cut_from_store()
        world = simulated_world(
            self.host,
            disk=self.disk,
            store=self.store,
            seed=f"{cluster.seed} {self._lives}",
            boot_id=f"{self.name} {self._boots}",
            skew_ms=self.skew_ms,
            levels=self.levels,
        )
        assert isinstance(world.clock, VirtualClock)
        self._clock = world.clock
        self.broker = Broker(BrokerConfig.parse(given, lone=False), world)
        life = self.host.process
        try:
            await _unless_killed(self.host.run(self.broker.start()), lambda: self.host.process is not life)
        except BaseException:
            if self.host.process is life:
                self.kill()
            raise

    async def stop(self) -> None:
        """SIGTERM, and wait until the process has ended; AssertionError if it leaves anything running."""
        life = self.host.process
        self.is_stopping = True
        await _unless_killed(self.host.run(self.broker.stop()), lambda: self.host.process is not life)
        await self.store.close()
        left = [repr(task) for task in life.tasks if not task.done()]
        self.is_up = False
        self.host.kill()
        self.disk.kill()
        assert not left, f"{self.name} has stopped, and these still run: {', '.join(left)}"

    def kill(self) -> None:
        """kill -9: what was written is kept, and the session ends after its timeout."""
        self.is_up = False
        self.host.kill()
        self.disk.kill()
        self._cluster.ensemble.kill(self.store)

    def lose_power(self) -> None:
        """The machine is gone without a word; what was not synced is lost, in a way that is drawn."""
        self.is_up = False
        self._boots += 1
        self.host.lose_power()
        self.disk.crash(self._cluster.rng)
        self._cluster.ensemble.kill(self.store)

    def pause(self) -> None:
        """SIGSTOP. Its session ends after the timeout, and it learns that when it is resumed."""
        self.is_paused = True
        self.host.pause()
        self._cluster.ensemble.cut(self.store, unnoticed=NEVER)

    def resume(self) -> None:
        """SIGCONT: everything that was due in the meantime happens now, before it hears anything new."""
        self.is_paused = False
        self.host.resume()
        if not self.is_cut_from_store:
            self._cluster.ensemble.heal(self.store)

    def cut_from_store(self, *, unnoticed: float = 0.0) -> None:
        """The servers of the store cannot be reached any more; noticed at once, or later."""
        self.is_cut_from_store = True
        self._cluster.ensemble.cut(self.store, unnoticed=unnoticed)

    def heal_store(self) -> None:
        self.is_cut_from_store = False
        if not self.is_paused:
            self._cluster.ensemble.heal(self.store)

    def set_clock(self, skew_ms: int) -> None:
        """Its wall clock jumps: from now on it is that far off."""
        self.skew_ms = skew_ms
        if self._clock is not None:
            self._clock.skew_ms = skew_ms

    def expire(self) -> None:
        """The servers end the session, and say so."""
        self._cluster.ensemble.expire(self.store)


class Died(Exception):
    """The process was killed before its work was done."""


async def _unless_killed(work: "asyncio.Task[None]", is_dead: Callable[[], bool]) -> None:
    while not work.done():
        await asyncio.wait([work], timeout=0.5)
        if is_dead():
            raise Died
    work.result()


class SimulatedCluster:
    """Machines, the network between them, and the store that they share."""

    def __init__(self, brokers: int = 3, *, seed: int = 0, settings: Mapping[str, str] | None = None) -> None:
        self.seed = seed
        self.settings = dict(settings or {})
        self.rng = Random(f"cluster {seed}")
        self.network = SimulatedNetwork(seed)
        self.ensemble = SimulatedEnsemble(session_timeout=SESSION_SECONDS, latency=STORE_LATENCY)
        self.machines = [Machine(self, broker) for broker in range(brokers)]

    def __getitem__(self, broker: int) -> Machine:
        return self.machines[broker]

    def __iter__(self) -> Iterator[Machine]:
        return iter(self.machines)

    @property
    def addresses(self) -> list[Address]:
        return [machine.address for machine in self.machines]

    async def start(self) -> None:
        """Start all brokers; returns when all serve."""
        await asyncio.gather(*(machine.start() for machine in self.machines))

    async def stop(self) -> None:
        """Stop all that are up, one after another."""
        for machine in self.machines:
            if machine.is_up:
                await machine.stop()

    # What the store says

    def topics(self) -> dict[str, Topic]:
        return {topic.name: topic for topic in decode_topics(self.ensemble.tree.list(TOPICS))}

    def state(self, topic: str, partition: int = 0) -> PartitionState:
        return self.topics()[topic].partitions[partition]

    def leader(self, topic: str, partition: int = 0) -> Machine:
        return self.machines[self.state(topic, partition).leader]

    def controller(self) -> Machine | None:
        """Whose claim to be the controller stands."""
        stored = self.ensemble.tree.get(CONTROLLER)
        return None if stored is None else self.machines[json.loads(stored.value)["id"]]

    def registered(self) -> list[int]:
        return [int(name) for name in self.ensemble.tree.names(BROKERS)]

    def epoch_of(self, broker: int) -> int:
        """Of a broker's registration; -1 while it has none."""
        stored = self.ensemble.tree.get(registration_key(broker))
        return -1 if stored is None else stored.created

    async def until(self, holds: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
        """Waits until something holds; AssertionError if that takes longer."""
        deadline = asyncio.get_running_loop().time() + seconds
        while not holds():
            assert asyncio.get_running_loop().time() < deadline, f"within {seconds:g} s it did not come true: {what}"
            await asyncio.sleep(0.02)

    def is_whole(self) -> bool:
        """Whether every partition has a leader and all its replicas in sync, and none is on its way elsewhere."""
        states = [state for topic in self.topics().values() for state in topic.partitions]
        return all(_is_whole(state) for state in states)


def _is_whole(state: PartitionState) -> bool:
    return state.leader >= 0 and set(state.isr) == set(state.replicas) and not state.adding and not state.removing
