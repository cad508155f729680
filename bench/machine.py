"""The machine's shape, and which core runs what.

The server has one core and the load generator another, for ceilings and broker alike, so that neither takes the
other's time. With a single core nothing is pinned.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import psutil

CORES: Final = sorted(os.sched_getaffinity(0))
IS_PINNED: Final = len(CORES) > 1
SERVER_CORE: Final = CORES[0]
CLIENT_CORE: Final = CORES[-1]


def shape() -> str:
    """Cores and memory."""
    memory = psutil.virtual_memory().total / 2**30
    return f"{len(CORES)} cores, {memory:.0f} GiB of memory"


def placement() -> str:
    """Where server and load generator run."""
    placed = "server and load generator share the only core"
    if IS_PINNED:
        placed = "server pinned to one core, load generator to another"
    if os.sched_getscheduler(0) in (os.SCHED_RR, os.SCHED_FIFO):
        placed += ", both before all other work of the machine"
    return placed


def pin_client() -> None:
    """Keep this process on the load generator's core."""
    if IS_PINNED:
        os.sched_setaffinity(0, {CLIENT_CORE})


@contextmanager
def on_all_cores() -> Iterator[None]:
    """Processes started inside run on any core: a work that is many processes shares the machine with the server."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, CORES)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def free(pid: int) -> None:
    """Let a process run on any core."""
    for thread in psutil.Process(pid).threads():
        os.sched_setaffinity(thread.id, CORES)


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """Processes started inside run on that core."""
    if not IS_PINNED:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def busy_percent(seconds: float) -> float:
    """How busy the machine is while this process sleeps: what others take away from the figures."""
    return float(psutil.cpu_percent(seconds))


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has used."""
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def tree_cpu_seconds(pid: int) -> dict[tuple[int, float], float]:
    """Processor time of a process and of those it started, of each that lives; by id and time of start."""
    root = psutil.Process(pid)
    found = {}
    for process in (root, *root.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            found[process.pid, process.create_time()] = times.user + times.system
    return found


def resident_mb(pid: int) -> float:
    return psutil.Process(pid).memory_info().rss / 1e6


def proportional_mb(pid: int) -> float:
    """Memory of a process, with what it shares counted in shares."""
    return int(psutil.Process(pid).memory_full_info().pss) / 1e6


def is_on_memory(path: Path) -> bool:
    """Whether a path lies on a file system that has no disk, where syncing means nothing."""
    mounts = sorted(psutil.disk_partitions(all=True), key=lambda mount: len(mount.mountpoint), reverse=True)
    real = path.resolve()
    for mount in mounts:
        if real.is_relative_to(mount.mountpoint):
            return mount.fstype in ("tmpfs", "ramfs")
    return False
