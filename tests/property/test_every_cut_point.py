"""Power is lost with 4 KiB not yet synced, and the disk keeps any part of them, or something else in their place."""

import copy
import random
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import pytest

from headrace.testing.disk import PowerLost, SimulatedDisk
from tests.support.storage import DIRECTORY, SMALL, Store, append, idempotent, read_all, sync

UNSYNCED = 4096
ONE_SEGMENT = replace(SMALL, segment_bytes=1 << 20)

Fate = Callable[[bytes, int, random.Random], bytes]


def lost(tail: bytes, kept: int, rng: random.Random) -> bytes:
    return tail[:kept]


def zeroed(tail: bytes, kept: int, rng: random.Random) -> bytes:
    return tail[:kept] + bytes(len(tail) - kept)


def garbled(tail: bytes, kept: int, rng: random.Random) -> bytes:
    return tail[:kept] + rng.randbytes(rng.randint(1, 200))


def torn(tail: bytes, kept: int, rng: random.Random) -> bytes:
    """A sector in the middle never arrived, what follows it did."""
    hole = min(64, len(tail) - kept)
    return tail[:kept] + bytes(hole) + tail[kept + hole :]


class Before(NamedTuple):
    """A disk just before the power goes, what its producer sent, and what readers could see."""

    disk: SimulatedDisk
    sent: list[bytes]
    stored: list[bytes]
    synced_batches: int
    path: str


def write_until(store: Store, sent: list[bytes], size: int) -> None:
    start = store.log.size_bytes
    while store.log.size_bytes - start < size:
        batch = idempotent(3, sequence=3 * len(sent), timestamp=1000 + len(sent))
        sent.append(bytes(batch))
        append(store.log, batch)


def before_the_crash() -> Before:
    store = Store()
    sent: list[bytes] = []
    write_until(store, sent, 1500)
    sync(store.log)
    store.checkpoint()
    write_until(store, sent, 300)
    store.log.configure(ONE_SEGMENT)
    write_until(store, sent, 300)
    sync(store.log)
    synced_batches = len(sent)
    write_until(store, sent, UNSYNCED)
    path = max(path for path in store.disk.paths(DIRECTORY) if path.endswith(".log"))
    return Before(store.disk, sent, read_all(store.log), synced_batches, path)


def check_recovery(before: Before, fate: Fate, kept: int, rng: random.Random) -> None:
    disk = copy.deepcopy(before.disk)
    disk.crash(cut=lambda path, tail: fate(tail, kept, rng) if path == before.path else tail, names_kept=1 << 30)
    store = Store(ONE_SEGMENT, disk)
    log = store.log
    assert log.offline is None
    recovered = read_all(log)
    assert len(recovered) >= before.synced_batches
    assert recovered == before.stored[: len(recovered)]
    assert log.log_end_offset == 3 * len(recovered)
    first, last = len(recovered) - 5, len(recovered) + 3
    for number, sent in enumerate(before.sent[first:last], first):
        again = append(log, bytearray(sent))
        assert again == (3 * number, 3 * number + 2, number < len(recovered))
    assert read_all(log) == before.stored[:last]


@pytest.mark.parametrize("fate", [lost, zeroed, garbled, torn])
def test_what_was_synced_survives_every_cut_and_a_retry_appears_once(fate: Fate) -> None:
    before = before_the_crash()
    rng = random.Random(fate.__name__)
    for kept in range(UNSYNCED):
        check_recovery(before, fate, kept, rng)


def test_what_was_synced_survives_a_crash_at_every_operation() -> None:
    """Rolls, checkpoints, truncations, deletions and closing are cut short at each step they consist of."""
    total = _live_until(None, seed=0)
    for operation in range(total):
        for seed in range(5):
            _live_until(operation, seed)


def _live_until(operation: int | None, seed: int) -> int:
    store = Store()
    life = _Life(store)
    start = store.disk.operations
    if operation is not None:
        store.disk.lose_power(operation)
    try:
        life.live()
    except PowerLost:
        pass
    operations = store.disk.operations - start
    log = store.crash(random.Random(seed * 1000 + (operation or 0)))
    assert log.offline is None, log.offline
    life.check(read_all(log), log.log_start_offset)
    append(log, leader_epoch=9)
    sync(log)
    return operations


class _Life:
    """Some minutes of a log, and what must be true of it whenever they end."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.written: list[bytearray] = []
        self.safe = 0
        self.allowed_start = 0

    def live(self) -> None:
        store = self.store
        self._write(6)
        store.checkpoint()
        self._write(6)
        self.safe = 9
        store.log.truncate_to(9)
        del self.written[9:]
        self._write(5)
        self.allowed_start = 7
        store.log.advance_start(7)
        store.manager.delete_files(1 << 50)
        self._write(2)
        store.manager.close({})

    def _write(self, count: int) -> None:
        for _ in range(count):
            batch = idempotent(1, sequence=len(self.written), timestamp=len(self.written))
            self.written.append(batch)
            append(self.store.log, batch)
        sync(self.store.log)
        self.safe = len(self.written)

    def check(self, found: list[bytes], start: int) -> None:
        assert start <= self.allowed_start
        assert start + len(found) >= self.safe
        assert found == self.written[start : start + len(found)]
