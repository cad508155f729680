"""The world of a broker in virtual time."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final, TypeVar

from headrace.cluster.store import MetadataStore
from headrace.protocol.levels import SUPPORTED, LevelRange
from headrace.server.world import World
from headrace.storage.disk import Disk

from .loop import VirtualClock
from .network import SimulatedHost

FASTEST_SYNC: Final = 0.000_5
SLOWEST_SYNC: Final = 0.005

T = TypeVar("T")


class SimulatedWorkers:
    """Does the work on the loop, at once, after a time that is drawn. Implements `headrace.server.world.Workers`."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def sync(self, work: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
        asyncio.get_running_loop().call_later(self._seconds(), self._run, work, done)

    def aside(self, work: Callable[[], T]) -> Awaitable[T]:
        return self._later(work)

    def background(self, work: Callable[[], T]) -> Awaitable[T]:
        return self._later(work)

    def close(self) -> None:
        """Nothing runs on."""

    async def _later(self, work: Callable[[], T]) -> T:
        await asyncio.sleep(self._seconds())
        return work()

    def _run(self, work: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
        try:
            work()
        except Exception as error:
            done(error)
        else:
            done(None)

    def _seconds(self) -> float:
        return self._rng.uniform(FASTEST_SYNC, SLOWEST_SYNC)


def simulated_world(
    host: SimulatedHost,
    *,
    disk: Disk,
    store: MetadataStore | None,
    seed: int | str = 0,
    skew_ms: int = 0,
    boot_id: str = "simulated",
    levels: LevelRange = SUPPORTED,
) -> World:
    """The world of a broker on a simulated host; `store` is what its cluster has in common."""
    rng = Random(f"{host.name} {seed}")
    clock = VirtualClock(asyncio.get_running_loop(), skew_ms)
    return World(
        clock=clock,
        disk=disk,
        network=host,
        rng=rng,
        workers=SimulatedWorkers(rng),
        store=store,
        boot_id=boot_id,
        uptime=clock.monotonic,
        levels=levels,
    )
