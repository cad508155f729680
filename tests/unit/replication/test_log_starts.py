"""Deleted records stay deleted once that was answered, and thousands of logs that move their start cost one write."""

import errno
import random
import uuid
from collections import deque
from collections.abc import Callable

import pytest

from headrace.cluster.image import PartitionState
from headrace.protocol.batch import check_batch
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.topic_partition import TopicPartition
from headrace.replication.partition import Partition
from headrace.storage import checkpoints
from headrace.storage.checkpoints import CheckpointFile
from headrace.storage.flusher import Flusher
from headrace.storage.log_starts import LogStartWriter
from headrace.storage.manager import LogManager
from headrace.storage.settings import LogSettings
from headrace.testing.clock import SimulatedClock
from headrace.testing.disk import PowerLost, SimulatedDisk
from tests.support.intake import RULES
from tests.support.links import FOLLOWER, Pair, append
from tests.support.storage import run_now
from tests.support.wire import batch_of

TOPIC_ID = uuid.uuid4()
ALONE = PartitionState(replicas=(1,), isr=(1,), leader=1)
SETTINGS = LogSettings(segment_bytes=300)
STARTS = f"/data/{checkpoints.LOG_STARTS}"


class Worker:
    """Does nothing until it is told to."""

    def __init__(self) -> None:
        self.works: deque[tuple[Callable[[], None], Callable[[BaseException | None], None]]] = deque()
        self.done = 0

    def __call__(self, work: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
        self.works.append((work, done))

    def run(self) -> None:
        while self.works:
            work, done = self.works.popleft()
            self.done += 1
            run_now(work, done)


class Broker:
    """Partitions of their own on a simulated disk."""

    def __init__(self, count: int = 1, disk: SimulatedDisk | None = None) -> None:
        self.disk = disk or SimulatedDisk()
        self.worker = Worker()
        flusher = Flusher(self.worker)
        self.logs = LogManager(self.disk, SimulatedClock(), "/data", cluster_id="here", broker_id=1)
        self.logs.open()
        self.starts = LogStartWriter(self.logs, flusher)
        self.partitions = [
            Partition(
                topic="t",
                topic_id=TOPIC_ID.bytes,
                index=index,
                state=ALONE,
                log=self.logs.load("t", index, TOPIC_ID, SETTINGS),
                rules=RULES,
                flusher=flusher,
            )
            for index in range(count)
        ]
        for partition in self.partitions:
            partition.lead(1, ALONE, now=0)

    def fill(self, count: int = 20) -> None:
        for partition in self.partitions:
            for _ in range(count):
                batch = memoryview(bytearray(batch_of(b"x" * 50)))
                partition.append(batch, check_batch(batch), now_ms=0, version=9)

    def sync(self) -> None:
        for partition in self.partitions:
            ticket = partition.log.begin_sync()
            assert ticket is not None
            ticket.run()
            partition.log.finish_sync(ticket)
        self.logs.checkpoint({})

    def delete(self, offset: int) -> list[CodedError | None]:
        answers: list[CodedError | None] = []
        for partition in self.partitions:
            partition.delete_below(offset, answers.append)
        return answers


def test_logs_that_move_their_start_together_share_a_write() -> None:
    broker = Broker(40)
    broker.fill()
    answers = broker.delete(9)
    assert not answers
    broker.worker.run()
    assert answers == [None] * 40
    assert broker.worker.done == 2
    assert broker.disk.content(STARTS).count(b" 9\n") == 40


def test_a_start_moves_for_readers_at_once_and_for_good_when_it_is_stored() -> None:
    broker = Broker()
    broker.fill()
    log = broker.partitions[0].log
    segments = log.segment_count
    answers = broker.delete(9)
    assert (log.log_start_offset, log.stored_start_offset, log.segment_count) == (9, 0, segments)
    with pytest.raises(CodedError, match="9 to 20"):
        log.read(8, 100, 20)
    assert not answers
    broker.worker.run()
    assert log.stored_start_offset == broker.partitions[0].low_watermark == 9
    assert log.segment_count < segments


def test_a_deletion_that_the_disk_has_no_room_for_is_refused_and_stored_when_there_is() -> None:
    broker = Broker()
    broker.fill()
    answers = broker.delete(9)
    broker.disk.fail(errno.ENOSPC, times=5)
    broker.worker.run()
    assert [error and error.code for error in answers] == [ErrorCode.kafka_storage_error]
    log = broker.partitions[0].log
    assert (log.offline, log.stored_start_offset) == (None, 0)
    broker.disk.heal()
    broker.starts.retry()
    broker.worker.run()
    assert log.stored_start_offset == 9
    assert broker.delete(9) == [None]


def test_a_disk_that_cannot_store_a_start_takes_its_log_offline() -> None:
    broker = Broker(2)
    broker.fill()
    answers: list[CodedError | None] = []
    broker.partitions[0].delete_below(9, answers.append)
    broker.disk.fail(errno.EIO, times=5)
    broker.worker.run()
    assert [error and error.code for error in answers] == [ErrorCode.kafka_storage_error]
    assert broker.partitions[0].log.offline is not None
    assert broker.partitions[1].log.offline is None


def test_a_follower_acknowledges_a_deletion_when_its_disk_has_it() -> None:
    pair = Pair()
    pair.elect(1)
    append(pair.leaders[0], b"a", b"b", b"c")
    pair.exchange(3)
    worker = Worker()
    LogStartWriter(pair.logs[FOLLOWER], Flusher(worker))
    answers: list[CodedError | None] = []
    pair.leaders[0].delete_below(2, answers.append)
    pair.exchange(3)
    assert pair.followers[0].log.log_start_offset == 2
    assert not answers
    worker.run()
    pair.exchange(1)
    assert answers == [None]


@pytest.mark.parametrize("seed", range(40))
def test_what_was_answered_as_deleted_stays_so_when_the_power_fails(seed: int) -> None:
    rng = random.Random(seed)
    broker = Broker(2)
    broker.fill()
    broker.sync()
    deleted = [0, 0]
    broker.disk.lose_power(rng.randrange(60))
    try:
        for _ in range(20):
            index = rng.randrange(2)
            log = broker.partitions[index].log
            offset = rng.randint(log.log_start_offset, 20)

            def note(error: CodedError | None, index: int = index, offset: int = offset) -> None:
                assert error is None
                deleted[index] = max(deleted[index], offset)

            broker.partitions[index].delete_below(offset, note)
            step = rng.randrange(4)
            if step == 0:
                broker.worker.run()
            elif step == 1:
                broker.logs.delete_files(10**15)
            elif step == 2:
                broker.logs.checkpoint({})
    except PowerLost:
        pass
    asked = [partition.log.log_start_offset for partition in broker.partitions]
    broker.disk.crash(rng)
    after = Broker(2, broker.disk)
    for partition, answered, start in zip(after.partitions, deleted, asked, strict=True):
        assert partition.log.offline is None
        assert answered <= partition.log.log_start_offset <= start
        assert partition.log.log_end_offset == 20


def test_checkpoints_prepared_earlier_do_not_undo_later_ones() -> None:
    disk = SimulatedDisk()
    disk.mkdir("/data")
    file = CheckpointFile(disk, "/data/points")
    early, late = file.prepare({TopicPartition("t", 0): 9}), file.prepare({TopicPartition("t", 0): 5})
    late()
    early()
    assert checkpoints.decode_offsets(disk.content("/data/points")) == {("t", 0): 5}
