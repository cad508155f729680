"""Slots: what tells the transactional ids of a run's attempts apart. Each is one attempt's alone while it writes.

Whoever begins under a transactional id aborts what is open under it, so an attempt must never begin under one that
another attempt has, may just have, or is about to have: twins of a task cannot be told apart by their numbers. A name
of its own for each attempt would do, but coordinators remember names for a week. So names are used again, by whoever
holds the lock of the name's file on the host where it was made up: a process that is paused keeps its lock, one that
dies loses it, and nobody on another host ever has the same name.
"""

import fcntl
import os
import socket
import tempfile
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")

AreFree = Callable[[Collection[str]], list[str]]
"""Which of these names have no open transaction."""


class TaskSlots:
    """The slots of a run on this host."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @contextmanager
    def lease(self, ending: str, are_free: AreFree) -> Iterator[str]:
        """A slot and the ending, under which nothing is open, and which nobody else has until the block ends."""
        name, fd = self._taken(ending, are_free)
        try:
            yield name
        finally:
            if fd is not None:
                os.close(fd)

    def _taken(self, ending: str, are_free: AreFree) -> tuple[str, int | None]:
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            return self._used_before(ending, are_free) or self._new(ending)
        except OSError:
            return uuid.uuid4().hex + ending, None  # a name that is not used again needs no file

    def _used_before(self, ending: str, are_free: AreFree) -> tuple[str, int] | None:
        known = {slot + ending: slot for slot in os.listdir(self._directory)}
        for name in are_free(known) if known else ():
            fd = self._locked(known[name], os.O_RDWR)
            if fd is None:
                continue
            if are_free([name]):  # asked again: only who has the lock begins, so from now on it stays so
                return name, fd
            os.close(fd)
        return None

    def _new(self, ending: str) -> tuple[str, int]:
        while True:
            slot = uuid.uuid4().hex
            fd = self._locked(slot, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            if fd is not None:
                return slot + ending, fd

    def _locked(self, slot: str, flags: int) -> int | None:
        try:
            fd = os.open(self._directory / slot, flags, 0o600)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            if isinstance(error, BlockingIOError):
                return None
            raise
        return fd


def slots_of(query: str, run: str) -> TaskSlots:
    """The slots of a run, in a directory that Spark removes with the application."""
    return TaskSlots(_root() / "headrace-sink" / f"{query}-{run}-{_host()}")


def _root() -> Path:
    from pyspark.core.files import SparkFiles

    if SparkFiles._is_running_on_worker and SparkFiles._root_directory is not None:
        return Path(SparkFiles._root_directory).absolute()
    return Path(tempfile.gettempdir()) / f"headrace-{os.getuid()}"


def _host() -> str:
    """What tells kernels apart: locks on a file that several hosts share may hold on each of them alone."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return socket.gethostname()
