"""What is around a broker: time, disk, network, chance, and hands for work off the loop. All of it is an argument."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random, SystemRandom
from typing import Final, Protocol, TypeVar

from headrace.cluster.store import MetadataStore
from headrace.net.clock import Clock, SystemClock
from headrace.net.network import Network
from headrace.net.tcp import TcpNetwork
from headrace.protocol.levels import SUPPORTED, LevelRange
from headrace.storage.disk import Disk, RealDisk

T = TypeVar("T")
_MOST_THREADS: Final = 32


class Workers(Protocol):
    """Does off the loop what would keep it too long."""

    def sync(self, work: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
        """Runs `work`, after what was given before; then `done` on the loop, with what it raised."""
        ...

    def aside(self, work: Callable[[], T]) -> Awaitable[T]:
        """What `work` returns; syncs do not wait for it."""
        ...

    def background(self, work: Callable[[], T]) -> Awaitable[T]:
        """What `work` returns; several run beside each other, and nothing else waits for them."""
        ...

    def close(self) -> None:
        """Waits for what runs. Safe to call twice."""
        ...


class ThreadWorkers:
    """One thread for syncs, one for compaction, some for the background; made when first needed."""

    def __init__(self) -> None:
        self._syncing = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sync")
        self._aside = ThreadPoolExecutor(max_workers=1, thread_name_prefix="compact")
        self._background = ThreadPoolExecutor(max_workers=_MOST_THREADS, thread_name_prefix="background")

    def sync(self, work: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
        loop = asyncio.get_running_loop()

        def finished(future: "Future[None]") -> None:
            loop.call_soon_threadsafe(done, future.exception())

        self._syncing.submit(work).add_done_callback(finished)

    def aside(self, work: Callable[[], T]) -> Awaitable[T]:
        return asyncio.get_running_loop().run_in_executor(self._aside, work)

    def background(self, work: Callable[[], T]) -> Awaitable[T]:
        return asyncio.get_running_loop().run_in_executor(self._background, work)

    def close(self) -> None:
        self._background.shutdown(cancel_futures=True)
        self._aside.shutdown(cancel_futures=True)
        self._syncing.shutdown()


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _uptime() -> float:
    """Also counts while the machine sleeps, where the system can tell."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Clock, disk, network and randomness of a broker: by default the machine's."""

    clock: Clock = field(default_factory=SystemClock)
    disk: Disk = field(default_factory=RealDisk)
    network: Network = field(default_factory=TcpNetwork)
    rng: Random = field(default_factory=SystemRandom)
    workers: Workers = field(default_factory=ThreadWorkers)
    store: MetadataStore | None = None
    """Where the cluster's state is kept; None for what the settings say."""
    levels: LevelRange = SUPPORTED
    """The feature levels that the broker speaks."""
    boot_id: str = field(default_factory=_boot_id)
    """Another one each time the machine starts: what was written and not synced before may be gone."""
    uptime: Callable[[], float] = _uptime
    """The seconds since the machine started, which nobody sets."""
