"""What is wrong with one compacted log is not a matter of the others."""

import asyncio
import errno
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from headrace.protocol.batch import check_batch
from headrace.protocol.records import Record, encode_batch
from headrace.replication.cleaner import Cleaner
from headrace.replication.partition import Partition
from headrace.replication.replica_manager import ReplicaManager
from headrace.storage.compaction import Rewritten
from headrace.storage.log import Log
from headrace.storage.manager import LogManager
from headrace.storage.settings import LogSettings
from headrace.testing.clock import SimulatedClock
from headrace.testing.disk import SimulatedDisk

SETTINGS = LogSettings(segment_bytes=1000, cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.0)


class Hosted:
    def __init__(self, log: Log) -> None:
        self.log = log

    @property
    def last_stable_offset(self) -> int:
        return self.log.log_end_offset


class World:
    """Three compacted logs, with a cleaner."""

    def __init__(self, settings: LogSettings = SETTINGS) -> None:
        self.disk, self.clock = SimulatedDisk(), SimulatedClock()
        self.manager = manager = LogManager(self.disk, self.clock, "/data", cluster_id="c", broker_id=1)
        manager.open()
        self.logs = [manager.load("c", index, uuid.uuid4(), settings) for index in range(3)]
        self.cleaner = Cleaner(cast(ReplicaManager, self), self.disk, self.clock, self.aside)

    def hosted(self) -> Iterator[Partition]:
        return iter([cast(Partition, Hosted(log)) for log in self.logs])

    async def aside(self, work: Callable[[], Rewritten]) -> Rewritten:
        return work()

    def fill(self, log: Log, count: int = 20) -> None:
        for number in range(count):
            key = b"k%d" % (number % 2)
            batch = memoryview(encode_batch([Record(0, self.clock.now_ms(), key, b"v" * 300)]))
            log.append(batch, check_batch(batch), 0)

    def clean(self) -> list[Any]:
        """A pass of the cleaner; what it logged."""
        self.clock.advance(1000)
        with capture_logs() as logged:
            asyncio.run(self.cleaner.clean())
        return logged


@pytest.fixture
def world() -> World:
    world = World()
    for log in world.logs:
        world.fill(log)
    return world


def test_a_damaged_batch_takes_only_its_own_log_out_of_cleaning(world: World) -> None:
    before = [log.size_bytes for log in world.logs]
    world.disk.damage(f"/data/c-0/{0:020d}.log", 200, b"\xff\xff")
    world.clean()
    assert world.logs[0].size_bytes == before[0]
    assert all(log.size_bytes < before[0] for log in world.logs[1:])
    assert [log.offline for log in world.logs] == [None] * 3
    assert list(world.cleaner.uncleanable) == ["c-0"]


def test_damage_is_told_once_and_looked_at_again_when_the_log_has_changed(world: World) -> None:
    world.disk.damage(f"/data/c-0/{0:020d}.log", 200, b"\xff\xff")
    assert len(world.clean()) == 1
    operations = world.disk.operations
    assert world.clean() == []
    assert world.disk.operations == operations
    world.logs[0].advance_start(10)
    world.manager.checkpoint({})
    assert world.clean() == []
    assert world.cleaner.uncleanable == {}
    assert world.logs[0].first_dirty_offset > 10


def test_a_full_disk_is_tried_again(world: World) -> None:
    world.disk.fail(errno.ENOSPC, kind="append", times=1000)
    assert len(world.clean()) == 3
    assert world.clean() == []
    world.disk.heal()
    world.clean()
    assert world.cleaner.uncleanable == {}


def test_records_are_compacted_within_the_longest_lag_though_nobody_writes_any_more() -> None:
    world = World(replace(SETTINGS, segment_bytes=1 << 20, min_cleanable_dirty_ratio=0.9, max_compaction_lag_ms=60_000))
    world.fill(world.logs[0])
    log = world.logs[0]
    before = log.size_bytes
    world.clock.advance(50_000)
    world.clean()
    assert (log.segment_count, log.size_bytes) == (1, before)
    world.clock.advance(10_000)
    world.clean()
    assert log.segment_count == 2
    assert log.first_dirty_offset == 20
    assert log.size_bytes < before / 5


def test_a_log_that_the_longest_lag_does_not_concern_keeps_its_segment() -> None:
    world = World(replace(SETTINGS, segment_bytes=1 << 20))
    world.fill(world.logs[0])
    world.clock.advance(10**12)
    world.clean()
    assert [log.segment_count for log in world.logs] == [1, 1, 1]
