"""What goes wrong in a simulated cluster, drawn from a seed, and set right again in the end."""

import asyncio
from collections.abc import Callable
from random import Random
from typing import Final

from headrace.cluster.store import StoreError
from headrace.testing.cluster import Died, Machine, SimulatedCluster
from headrace.testing.store import NEVER

RESTART_SECONDS: Final = 1.0


class Faults:
    """Lets one thing after another go wrong.

    Two machines never lose power so close to each other that all copies of a record could be lost with them: that is
    more than replication without syncing promises to survive. Everything else may happen at any time, together.
    """

    def __init__(self, cluster: SimulatedCluster, seed: int, *, power_losses: bool = True) -> None:
        self._cluster = cluster
        self._rng = Random(f"faults {seed}")
        self._power_losses = power_losses
        self._unsafe: Machine | None = None
        """Who has lost power, and may not have fetched again what it lost."""
        self.log: list[str] = []
        self._starting: set[asyncio.Task[None]] = set()
        self._names = [machine.name for machine in cluster]

    async def run(self, count: int, pace: float = 1.5) -> None:
        for _ in range(count):
            await asyncio.sleep(self._rng.uniform(0, 2 * pace))
            self.one()

    def one(self) -> None:
        """Let one thing go wrong, or right again."""
        kinds: list[tuple[int, Callable[[Machine], str | None]]] = [
            (10, self._kill),
            (6 if self._power_losses else 0, self._lose_power),
            (20, self._restart),
            (8, self._pause),
            (12, self._resume),
            (12, self._cut_link),
            (8, self._cut_one_way),
            (10, self._heal_links),
            (8, self._cut_from_store),
            (10, self._heal_store),
            (5, self._expire),
            (4, self._drop_store_link),
            (4, self._lose_commit),
            (4, self._slow_link),
            (3, self._stop),
        ]
        weights = [weight for weight, _ in kinds]
        for _ in range(20):
            act = self._rng.choices([act for _, act in kinds], weights)[0]
            done = act(self._rng.choice(self._cluster.machines))
            if done is not None:
                self._note(done)
                return

    def _note(self, what: str) -> None:
        self.log.append(f"{asyncio.get_running_loop().time() - 1000:.3f} {what}")

    # What goes wrong

    def _kill(self, machine: Machine) -> str | None:
        if not machine.is_up:
            return None
        machine.kill()
        return f"kill {machine.name}"

    def _lose_power(self, machine: Machine) -> str | None:
        if not machine.is_up or not self._is_safe():
            return None
        self._unsafe = machine
        machine.lose_power()
        return f"power loss of {machine.name}"

    def _is_safe(self) -> bool:
        """Whether every record has all its copies again."""
        if self._unsafe is not None and self._unsafe.is_up and self._cluster.is_whole():
            self._unsafe = None
        return self._unsafe is None and self._cluster.is_whole()

    def _pause(self, machine: Machine) -> str | None:
        if not machine.is_up or machine.is_paused:
            return None
        machine.pause()
        return f"pause {machine.name}"

    def _cut_link(self, machine: Machine) -> str:
        other = self._other(machine)
        self._cluster.network.cut(machine.name, other)
        return f"cut {machine.name}-{other}"

    def _cut_one_way(self, machine: Machine) -> str:
        other = self._other(machine)
        self._cluster.network.cut(machine.name, other, both_ways=False)
        return f"cut {machine.name}>{other}"

    def _other(self, machine: Machine) -> str:
        return self._rng.choice([name for name in self._names if name != machine.name])

    def _cut_from_store(self, machine: Machine) -> str | None:
        if not machine.is_up or machine.is_paused or machine.is_cut_from_store:
            return None
        unnoticed = self._rng.choice([0.0, 0.5, 1.5, NEVER])
        machine.cut_from_store(unnoticed=unnoticed)
        return f"cut {machine.name} from the store, unnoticed for {unnoticed} s"

    def _expire(self, machine: Machine) -> str | None:
        if not machine.is_up or machine.is_paused or machine.is_cut_from_store:
            return None
        machine.expire()
        return f"expire {machine.name}"

    def _drop_store_link(self, machine: Machine) -> str | None:
        if not machine.is_up or machine.is_paused or machine.is_cut_from_store:
            return None
        self._cluster.ensemble.drop(machine.store)
        return f"drop the store's link of {machine.name}"

    def _lose_commit(self, machine: Machine) -> str | None:
        if not machine.is_up:
            return None
        done = self._rng.random() < 0.5
        self._cluster.ensemble.lose_answer(machine.store, done=done)
        return f"lose the next commit's answer of {machine.name}, {done=}"

    def _slow_link(self, machine: Machine) -> str:
        other = self._other(machine)
        seconds = self._rng.choice([0.0, 0.05, 0.3, 1.0])
        self._cluster.network.delay(machine.name, other, seconds)
        return f"delay {machine.name}>{other} by {seconds}"

    def _stop(self, machine: Machine) -> str | None:
        if not machine.is_up or machine.is_paused or machine in {self._cluster.controller()}:
            return None
        self._spawn(self._stop_slowly(machine))
        return f"stop {machine.name}"

    async def _stop_slowly(self, machine: Machine) -> None:
        try:
            await machine.stop()
        except Died:
            pass

    # What goes right again

    def _restart(self, machine: Machine) -> str | None:
        if machine.is_up:
            return None
        machine.is_up = True
        self._spawn(self.start(machine))
        return f"start {machine.name}"

    async def start(self, machine: Machine) -> None:
        """As a supervisor does it: again until it comes up, or is killed."""
        while True:
            try:
                await machine.start()
            except Died:
                return
            except (OSError, StoreError) as error:
                self._note(f"{machine.name} did not start: {error!r}")
                await asyncio.sleep(RESTART_SECONDS)
            else:
                return

    def _spawn(self, work: object) -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(work)  # type: ignore[call-overload]
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    def _resume(self, machine: Machine) -> str | None:
        if not machine.is_up or not machine.is_paused:
            return None
        machine.resume()
        return f"resume {machine.name}"

    def _heal_links(self, machine: Machine) -> str | None:
        other = self._other(machine)
        self._cluster.network.heal(machine.name, other)
        return f"heal {machine.name}-{other}"

    def _heal_store(self, machine: Machine) -> str | None:
        if not machine.is_up or not machine.is_cut_from_store:
            return None
        machine.heal_store()
        return f"heal {machine.name}'s way to the store"

    async def set_right(self) -> None:
        """Everything is whole again, and everyone up."""
        cluster = self._cluster
        cluster.network.heal()
        for one in self._names:
            for other in self._names:
                cluster.network.delay(one, other, 0.0)
        for machine in cluster:
            if machine.is_up and machine.is_cut_from_store:
                machine.heal_store()
            if machine.is_up and machine.is_paused:
                machine.resume()
        if self._starting:
            await asyncio.wait(list(self._starting), timeout=60)
        for machine in cluster:
            if not machine.is_up:
                machine.is_up = True
                await self.start(machine)
        self._note("everything is set right")
