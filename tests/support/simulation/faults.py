"""What goes wrong in a simulated cluster, drawn from a seed, and set right again in the end."""

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, Final

from headrace.cluster.store import StoreError
from headrace.protocol.peer import InternalApi
from headrace.testing.cluster import Died, Machine, SimulatedCluster
from headrace.testing.network import Hold
from headrace.testing.store import NEVER

RESTART_SECONDS: Final = 1.0
DELAYS: Final = (0.0, 0.0, 0.0, 0.02, 0.1, 0.4)
"""Seconds that a link may be slower than others for a whole run."""


class ClusterFaults:
    """What can go wrong with the machines of a simulated cluster, their network and their store, one act at a time.

    An act says what it has done, or None where it does not apply.
    """

    def __init__(self, cluster: SimulatedCluster, seed: int) -> None:
        self.log: list[str] = []
        self._cluster = cluster
        self._network = cluster.network
        self._rng = Random(f"faults {seed}")
        self._held: list[Hold] = []
        self._ready = set(cluster.machines)
        """Those whose start has come to its end."""
        self._names = [machine.name for machine in cluster]

    def _victim(self) -> Machine:
        """More often than not somebody who matters."""
        cluster = self._cluster
        draw = self._rng.random()
        if draw < 0.2:
            return cluster.controller() or cluster[0]
        states = [state for topic in cluster.topics().values() for state in topic.partitions if state.leader >= 0]
        if draw < 0.6 and states:
            return cluster[self._rng.choice(states).leader]
        return self._rng.choice(cluster.machines)

    def _other(self, machine: Machine) -> str | None:
        others = [name for name in self._names if name != machine.name]
        return self._rng.choice(others) if others else None

    def _note(self, what: str) -> None:
        self.log.append(f"{asyncio.get_running_loop().time() - 1000:.3f} {what}")

    def _kill(self, machine: Machine) -> str | None:
        if not machine.is_up:
            return None
        machine.kill()
        return f"kill {machine.name}"

    def _resume(self, machine: Machine) -> str | None:
        if not machine.is_up or not machine.is_paused:
            return None
        machine.resume()
        return f"resume {machine.name}"

    def _cut(self, machine: Machine) -> str | None:
        other = self._other(machine)
        if other is None:
            return None
        self._network.cut(machine.name, other)
        return f"cut {machine.name}-{other}"

    def _cut_one_way(self, machine: Machine) -> str | None:
        other = self._other(machine)
        if other is None:
            return None
        self._network.cut(machine.name, other, both_ways=False)
        return f"cut {machine.name}>{other}"

    def _heal_links(self, machine: Machine) -> str | None:
        other = self._other(machine)
        if other is None:
            return None
        self._network.heal(machine.name, other)
        return f"heal {machine.name}-{other}"

    def _release(self, _machine: Machine) -> str | None:
        if not self._held:
            return None
        self._held.pop(self._rng.randrange(len(self._held))).release()
        return "release what was held"

    def _cut_from_store(self, machine: Machine) -> str | None:
        if not self._is_connected(machine):
            return None
        unnoticed = self._rng.choice([0.0, 0.5, 1.5, NEVER])
        machine.cut_from_store(unnoticed=unnoticed)
        return f"cut {machine.name} from the store, unnoticed for {unnoticed} s"

    def _heal_store(self, machine: Machine) -> str | None:
        if not machine.is_up or not machine.is_cut_from_store:
            return None
        machine.heal_store()
        return f"heal {machine.name}'s way to the store"

    def _expire(self, machine: Machine) -> str | None:
        if not self._is_connected(machine):
            return None
        machine.expire()
        return f"expire {machine.name}"

    def _drop_store_link(self, machine: Machine) -> str | None:
        if not self._is_connected(machine):
            return None
        self._cluster.ensemble.drop(machine.store)
        return f"drop the store's link of {machine.name}"

    def _is_connected(self, machine: Machine) -> bool:
        return machine.is_up and not machine.is_paused and not machine.is_cut_from_store

    def _lose_commit(self, machine: Machine) -> str | None:
        done = self._rng.random() < 0.5
        self._cluster.ensemble.lose_answer(machine.store, done=done)
        return f"lose the next commit's answer of {machine.name}, {done=}"

    def _slow_commits(self, machine: Machine) -> str | None:
        seconds = self._rng.choice([0.0, 0.1, 0.5])
        self._cluster.ensemble.delay_commits(machine.store, seconds)
        return f"delay commits of {machine.name} by {seconds}"

    async def _stop_slowly(self, machine: Machine) -> None:
        try:
            await machine.stop()
            self._note(f"{machine.name} has stopped")
        except Died:
            pass


class Faults(ClusterFaults):
    """Lets one thing after another go wrong.

    Two machines never lose power so close to each other that all copies of a record could be lost with them: that is
    more than replication without syncing promises to survive. Everything else may happen at any time, together.
    """

    def __init__(self, cluster: SimulatedCluster, seed: int, *, power_losses: bool = True) -> None:
        super().__init__(cluster, seed)
        self._power_losses = power_losses
        self._unsafe: Machine | None = None
        """Who has lost power, and may not have fetched again what it lost."""
        self._unsafe_epochs: dict[tuple[str, int], int] = {}
        """The partition epochs at that time: until they have moved, an ISR still counts a copy that may be gone."""
        self._under_way: list[asyncio.Task[None]] = []
        """Starts and stops, which take their time."""

    async def run(self, count: int, pace: float = 2.0) -> None:
        """One after another; about half of them hard on the heels of the one before."""
        for one in self._names:
            for other in self._names:
                self._network.delay(one, other, self._rng.choice(DELAYS))
        for _ in range(count):
            await asyncio.sleep(self._rng.uniform(0, 0.2 if self._rng.random() < 0.5 else 3 * pace))
            self.one()

    def one(self) -> None:
        """Let one thing go wrong, or right again."""
        kinds: list[tuple[int, Callable[[Machine], str | None]]] = [
            (10, self._kill),
            (8 if self._power_losses else 0, self._lose_power),
            (30, self._restart),
            (8, self._pause),
            (16, self._resume),
            (12, self._cut),
            (8, self._cut_one_way),
            (20, self._heal_links),
            (8, self._cut_from_store),
            (16, self._heal_store),
            (6, self._expire),
            (4, self._drop_store_link),
            (6, self._lose_commit),
            (6, self._slow_commits),
            (4, self._slow_link),
            (10, self._hold),
            (10, self._release),
            (4, self._stop),
        ]
        weights = [weight for weight, _ in kinds]
        for _ in range(20):
            act = self._rng.choices([act for _, act in kinds], weights)[0]
            done = act(self._victim())
            if done is not None:
                self._note(done)
                return

    # What goes wrong

    def _lose_power(self, machine: Machine) -> str | None:
        if not machine.is_up or not self._is_safe():
            return None
        self._unsafe = machine
        self._unsafe_epochs = self._partition_epochs()
        machine.lose_power()
        return f"power loss of {machine.name}"

    def _is_safe(self) -> bool:
        """Whether every record has all its copies again."""
        if self._unsafe is not None and self._unsafe.is_up and self._cluster.is_whole():
            now = self._partition_epochs()
            if all(now.get(key, epoch + 1) > epoch for key, epoch in self._unsafe_epochs.items()):
                self._unsafe = None
        return self._unsafe is None and self._cluster.is_whole()

    def _partition_epochs(self) -> dict[tuple[str, int], int]:
        topics = self._cluster.topics().values()
        return {(t.name, index): state.partition_epoch for t in topics for index, state in enumerate(t.partitions)}

    def _pause(self, machine: Machine) -> str | None:
        if not machine.is_up or machine.is_paused:
            return None
        machine.pause()
        return f"pause {machine.name}"

    def _lose_commit(self, machine: Machine) -> str | None:
        return super()._lose_commit(machine) if machine.is_up else None

    def _slow_link(self, machine: Machine) -> str:
        other = self._other(machine)
        assert other is not None
        seconds = self._rng.choice([0.0, 0.05, 0.3, 1.0])
        self._network.delay(machine.name, other, seconds)
        return f"delay {machine.name}>{other} by {seconds}"

    def _slow_commits(self, machine: Machine) -> str | None:
        return super()._slow_commits(machine) if machine.is_up else None

    def _hold(self, machine: Machine) -> str:
        """Requests of one kind, of one broker, wait on their way."""
        api = self._rng.choice([InternalApi.FEED, InternalApi.ALTER_ISR, InternalApi.REPLICATE])
        self._held.append(self._network.hold(api, asker=machine.name))
        return f"hold {api.name} of {machine.name}"

    def _stop(self, machine: Machine) -> str | None:
        if machine not in self._ready or machine.is_paused or machine.is_stopping or not machine.is_up:
            return None
        self._spawn(self._stop_slowly(machine))
        return f"stop {machine.name}"

    # What goes right again

    def _restart(self, machine: Machine) -> str | None:
        if machine.is_up:
            return None
        machine.is_up = True
        self._spawn(self.start(machine))
        return f"start {machine.name}"

    async def start(self, machine: Machine) -> None:
        """As a supervisor does it: again until it comes up, or is killed."""
        self._ready.discard(machine)
        while True:
            try:
                await machine.start()
            except Died:
                return
            except (OSError, StoreError) as error:
                self._note(f"{machine.name} did not start: {error!r}")
                await asyncio.sleep(RESTART_SECONDS)
            else:
                self._ready.add(machine)
                return

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._under_way.append(asyncio.ensure_future(work))

    async def set_right(self) -> None:
        """Everything is whole again, and everyone up."""
        cluster = self._cluster
        self._network.heal()
        for hold in self._held:
            hold.release()
        for one in self._names:
            for other in self._names:
                self._network.delay(one, other, 0.0)
        for machine in cluster:
            if machine.is_up:
                cluster.ensemble.delay_commits(machine.store, 0.0)
            if machine.is_up and machine.is_cut_from_store:
                machine.heal_store()
            if machine.is_up and machine.is_paused:
                machine.resume()
        async with asyncio.timeout(60):
            await asyncio.gather(*self._under_way)
        for machine in cluster:
            if not machine.is_up:
                machine.is_up = True
                await self.start(machine)
        self._note("everything is set right")
