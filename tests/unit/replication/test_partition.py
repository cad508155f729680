"""A partition between its producers, its readers and the disk, one step at a time."""

import errno
import uuid
from collections.abc import Callable

import pytest

from headrace.cluster.image import PartitionState
from headrace.protocol.batch import check_batch
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.replication.partition import Partition
from headrace.storage.flusher import Flusher
from headrace.storage.manager import LogManager
from headrace.storage.settings import LogSettings
from headrace.testing.clock import SimulatedClock
from headrace.testing.disk import SimulatedDisk
from tests.support.intake import RULES
from tests.support.wire import batch_of

ALONE = PartitionState(replicas=(1,), isr=(1,), leader=1)
DURABLE = LogSettings(flush_messages=1)
FAST = LogSettings(flush_messages=1 << 40)


class Worker:
    """The thread that syncs, which here works when it is told to."""

    def __init__(self) -> None:
        self._work: Callable[[], None] | None = None
        self._done: Callable[[BaseException | None], None]

    def __call__(self, work: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
        assert self._work is None, "one round at a time"
        self._work, self._done = work, done

    def step(self) -> None:
        """Run what was given, and tell."""
        assert self._work is not None, "nothing to sync"
        work, self._work = self._work, None
        work()
        self._done(None)

    def finish(self) -> None:
        while self._work is not None:
            self.step()


class Bench:
    """Partitions on a simulated disk."""

    def __init__(self) -> None:
        self.disk = SimulatedDisk()
        self.worker = Worker()
        self.flusher = Flusher(self.worker)
        self.manager = LogManager(self.disk, SimulatedClock(), "/data", cluster_id="here", broker_id=1)
        self.manager.open()

    def partition(self, topic: str = "t", settings: LogSettings = DURABLE) -> Partition:
        topic_id = uuid.uuid4()
        log = self.manager.load(topic, 0, topic_id, settings)
        partition = Partition(
            topic=topic, topic_id=topic_id.bytes, index=0, state=ALONE, log=log, rules=RULES, flusher=self.flusher
        )
        partition.lead(1, ALONE, now=0)
        return partition

    def produce(self, partition: Partition, size: int = 1) -> list[CodedError | None]:
        """Append a batch; what the producer is told is added to the list, when it is."""
        batch = memoryview(bytearray(batch_of(b"x" * size)))
        told: list[CodedError | None] = []
        appended = partition.append(batch, check_batch(batch), now_ms=0, version=9)
        if appended.last_offset < partition.high_watermark:
            told.append(None)
        else:
            partition.commits.wait(appended.last_offset + 1, told.append)
        return told


@pytest.fixture
def bench() -> Bench:
    return Bench()


def code_of(told: list[CodedError | None]) -> ErrorCode | None:
    (error,) = told
    return None if error is None else error.code


def test_a_record_counts_once_it_is_synced(bench: Bench) -> None:
    partition = bench.partition()
    told = bench.produce(partition)
    assert (told, partition.high_watermark) == ([], 0)
    bench.worker.step()
    assert (told, partition.high_watermark) == ([None], 1)


def test_a_failed_sync_fails_its_own_log_and_no_other(bench: Bench) -> None:
    broken, sound = bench.partition("broken"), bench.partition("sound")
    first = bench.produce(broken)
    during = bench.produce(broken)
    other = bench.produce(sound)
    bench.disk.fail(kind="datasync", path="/broken-0/")
    bench.worker.finish()
    assert code_of(first) is code_of(during) is ErrorCode.kafka_storage_error
    assert code_of(other) is None
    later = bench.produce(sound)
    bench.worker.finish()
    assert code_of(later) is None


def test_who_waits_for_the_disk_is_answered_when_the_topic_stops_syncing(bench: Bench) -> None:
    partition = bench.partition()
    told = bench.produce(partition)
    partition.log.configure(FAST)
    bench.worker.finish()
    assert told == [None]


def test_a_reader_of_an_epoch_that_never_was_is_out_of_range(bench: Bench) -> None:
    partition = bench.partition()
    bench.produce(partition)
    bench.worker.finish()
    with pytest.raises(CodedError) as caught:
        partition.read(1, 100, committed_only=False, current_leader_epoch=-1, last_fetched_epoch=3)
    assert caught.value.code is ErrorCode.offset_out_of_range


def test_a_disk_too_full_for_the_epochs_does_not_take_the_log_offline(bench: Bench) -> None:
    partition = bench.partition()
    told = bench.produce(partition)
    bench.disk.fail(errno.ENOSPC, kind="append", path="leader-epoch-checkpoint")
    bench.worker.finish()
    assert partition.log.offline is None
    assert told == [None]
    assert not bench.disk.exists("/data/t-0/leader-epoch-checkpoint"), "it would hide the epoch from the next start"
