"""Logs are recovered off the loop: others are served meanwhile, and what is to come of them may change."""

import asyncio
import errno
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from headrace.cluster.image import PartitionState, Topic
from headrace.cluster.log_settings import log_settings
from headrace.config import BrokerConfig
from headrace.protocol.batch import check_batch
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.replication.replica_manager import ReplicaManager
from headrace.storage.disk import StorageError
from headrace.storage.flusher import Flusher
from headrace.storage.manager import LogManager
from headrace.storage.recovery import RecoveryProgress
from headrace.testing.clock import SimulatedClock
from headrace.testing.disk import SimulatedDisk
from tests.support.wire import batch_of

HERE = PartitionState(replicas=(1,), isr=(1,), leader=1)
GONE = PartitionState(replicas=(2,), isr=(2,), leader=2, partition_epoch=5)
LOGS = 4


def topic_of(name: str = "t", count: int = LOGS, **configs: str) -> Topic:
    settings = {key.replace("_", "."): value for key, value in configs.items()}
    return Topic(name=name, id=uuid.uuid4(), partitions=(HERE,) * count, configs=settings)


class Hands:
    """Threads that do nothing before they are told to."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[[], Any], asyncio.Future[Any]]] = []

    def run(self, work: Callable[[], Any]) -> "asyncio.Future[Any]":
        future = asyncio.get_running_loop().create_future()
        self.waiting.append((work, future))
        return future

    async def do(self, count: int = 1) -> None:
        for _ in range(count):
            work, future = self.waiting.pop(0)
            try:
                future.set_result(work())
            except Exception as error:
                future.set_exception(error)
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    async def do_all(self) -> None:
        while self.waiting:
            await self.do()


class Broker:
    """The logs of a broker, through its deaths."""

    def __init__(self, disk: SimulatedDisk | None = None, **configs: str) -> None:
        self.disk = disk or SimulatedDisk()
        self.clock = SimulatedClock()
        self.hands = Hands()
        self.logs = LogManager(self.disk, self.clock, "/data", cluster_id="here", broker_id=1)
        self.logs.open()
        self.replicas = ReplicaManager(
            broker_id=1,
            config=BrokerConfig.parse({key.replace("_", "."): value for key, value in configs.items()}),
            clock=self.clock,
            logs=self.logs,
            flusher=Flusher(_in_place),
            run_in_background=self.hands.run,
        )

    def produce(self, name: str = "t", count: int = 1, partitions: int = LOGS) -> None:
        for number in range(partitions * count):
            self.clock.advance(1)
            partition = self.replicas.partition(name, number % partitions)
            batch = memoryview(bytearray(batch_of(b"x", timestamp=self.clock.now_ms())))
            partition.append(batch, check_batch(batch), now_ms=self.clock.now_ms(), version=9)

    def kill(self, **configs: str) -> "Broker":
        self.disk.kill()
        return Broker(self.disk, **configs)

    def state_of(self, index: int, name: str = "t") -> ErrorCode | int:
        """How many records a partition has, or what a client is told."""
        try:
            return self.replicas.partition(name, index).high_watermark
        except CodedError as error:
            return error.code


def _in_place(work: Any, done: Any) -> None:
    work()
    done(None)


def in_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(test())

    run.__name__ = test.__name__
    return run


def killed_with_records(topic: Topic, **configs: str) -> Broker:
    broker = Broker()
    broker.replicas.apply_topic(topic)
    broker.produce(partitions=len(topic.partitions))
    return broker.kill(**configs)


@in_loop
async def test_partitions_are_served_as_their_logs_are_recovered() -> None:
    topic = topic_of()
    broker = killed_with_records(topic)
    broker.replicas.apply_topic(topic)
    later = ErrorCode.not_leader_or_follower
    assert [broker.state_of(index) for index in range(LOGS)] == [later] * LOGS
    await broker.hands.do()
    assert [broker.state_of(index) for index in range(LOGS)] == [1, later, later, later]
    broker.replicas.apply_topic(topic_of("new", 1))
    assert broker.state_of(0, "new") == 0
    await broker.hands.do_all()
    assert [broker.state_of(index) for index in range(LOGS)] == [1] * LOGS


@in_loop
async def test_as_many_logs_are_recovered_at_once_as_there_are_threads() -> None:
    topic = topic_of()
    broker = killed_with_records(topic, num_recovery_threads_per_data_dir="3")
    broker.replicas.apply_topic(topic)
    assert len(broker.hands.waiting) == 3
    await broker.hands.do()
    assert len(broker.hands.waiting) == 3
    await broker.hands.do_all()


@in_loop
async def test_a_clean_stop_needs_no_recovery() -> None:
    topic = topic_of()
    broker = Broker()
    broker.replicas.apply_topic(topic)
    broker.produce()
    broker.replicas.close()
    again = Broker(broker.disk)
    again.replicas.apply_topic(topic)
    assert [again.state_of(index) for index in range(LOGS)] == [1] * LOGS
    assert not again.hands.waiting


@in_loop
async def test_a_stop_during_recovery_is_no_clean_one_and_loses_nothing() -> None:
    topic = topic_of()
    broker = killed_with_records(topic)
    broker.replicas.apply_topic(topic)
    await broker.hands.do(2)
    broker.replicas.close()
    again = Broker(broker.disk)
    assert not again.logs.was_closed
    again.replicas.apply_topic(topic)
    await again.hands.do_all()
    assert [again.state_of(index) for index in range(LOGS)] == [1] * LOGS


@in_loop
async def test_a_log_whose_recovery_is_given_up_is_as_it_was() -> None:
    topic = topic_of()
    broker = killed_with_records(topic)
    broker.replicas.apply_topic(topic)
    work, _ = broker.hands.waiting[0]
    broker.replicas.stop_opening()
    with pytest.raises(Exception, match="/data/t-0"):
        work()
    again = broker.kill()
    again.replicas.apply_topic(topic)
    await again.hands.do_all()
    assert again.state_of(0) == 1


@in_loop
async def test_a_topic_that_is_deleted_during_recovery_stays_deleted() -> None:
    topic = topic_of()
    broker = killed_with_records(topic)
    broker.replicas.apply_topic(topic)
    broker.replicas.remove_topic(topic)
    await broker.hands.do_all()
    assert broker.state_of(0) is ErrorCode.unknown_topic_or_partition
    assert broker.logs.strays() == []


@in_loop
async def test_the_id_of_a_deleted_topic_means_nothing_any_more_though_its_files_could_not_be_deleted() -> None:
    topic, later = topic_of(), topic_of()
    broker = Broker()
    broker.replicas.apply_topic(topic)
    await broker.hands.do_all()
    broker.disk.fail(errno.ENOSPC, path="/data", times=1 << 30)
    with pytest.raises(StorageError):
        broker.replicas.remove_topic(topic)
    broker.disk.heal()
    broker.replicas.apply_topic(later)
    await broker.hands.do_all()
    broker.replicas.partition_by_id(later.id.bytes, 0)
    with pytest.raises(CodedError) as refused:
        broker.replicas.partition_by_id(topic.id.bytes, 0)
    assert refused.value.code is ErrorCode.unknown_topic_id


@in_loop
async def test_a_topic_that_is_made_again_during_recovery_of_the_old_one_begins_empty() -> None:
    topic = topic_of()
    broker = killed_with_records(topic)
    broker.replicas.apply_topic(topic)
    broker.replicas.remove_topic(topic)
    broker.replicas.apply_topic(topic_of())
    assert broker.state_of(0) is ErrorCode.not_leader_or_follower
    await broker.hands.do_all()
    assert [broker.state_of(index) for index in range(LOGS)] == [0] * LOGS


@in_loop
async def test_a_partition_that_moves_away_during_recovery_is_not_served() -> None:
    topic = topic_of()
    broker = killed_with_records(topic)
    broker.replicas.apply_topic(topic)
    broker.replicas.apply_topic(replace(topic, partitions=(GONE, HERE, HERE, HERE)))
    await broker.hands.do_all()
    assert broker.state_of(0) is ErrorCode.unknown_topic_or_partition
    assert broker.state_of(1) == 1


@in_loop
async def test_a_log_that_could_not_be_opened_for_want_of_descriptors_is_opened_later() -> None:
    topic = topic_of()
    broker = killed_with_records(topic)
    broker.replicas.apply_topic(topic)
    broker.disk.fail(errno.EMFILE, kind="descriptor", path="/data/t-0", times=1)
    await broker.hands.do_all()
    assert broker.state_of(1) == 1
    assert isinstance(broker.state_of(0), ErrorCode)
    broker.clock.advance(2000)
    await broker.replicas.look_after_logs()
    await broker.hands.do_all()
    assert broker.state_of(0) == 1


@in_loop
async def test_a_log_that_is_opened_after_its_broker_stepped_down_is_not_led() -> None:
    topic = topic_of()
    broker = killed_with_records(topic)
    broker.replicas.apply_topic(topic)
    broker.replicas.step_down()
    await broker.hands.do(2)
    assert not broker.replicas.partition("t", 0).is_leader
    broker.replicas.apply_topic(replace(topic, partitions=(replace(HERE, partition_epoch=1, leader_epoch=1),) * LOGS))
    await broker.hands.do_all()
    assert all(broker.replicas.partition("t", index).is_leader for index in range(LOGS))


@in_loop
async def test_a_log_that_is_opened_after_the_store_was_set_back_waits_for_its_state() -> None:
    topic = topic_of()
    broker = killed_with_records(topic)
    broker.replicas.apply_topic(topic)
    broker.replicas.forget_states()
    await broker.hands.do_all()
    assert not broker.replicas.partition("t", 0).is_leader
    broker.replicas.apply_topic(topic)
    assert broker.replicas.partition("t", 0).is_leader


@in_loop
async def test_a_want_of_descriptors_is_no_fault_of_a_log() -> None:
    topic = topic_of()
    broker = killed_with_records(topic)
    reported: list[Any] = []

    async def report(faults: Any) -> None:
        reported.extend(faults)

    broker.replicas.report_faults = report
    broker.replicas.apply_topic(topic)
    broker.disk.fail(errno.EMFILE, kind="descriptor", path="/data/t-0", times=1)
    await broker.hands.do_all()
    await broker.replicas.look_after_logs()
    assert reported == []


@in_loop
async def test_a_leader_short_of_descriptors_leads_later() -> None:
    broker = Broker()
    broker.disk.fail(errno.EMFILE, kind="descriptor", path="leader-epoch")
    topic = topic_of(count=1)
    broker.replicas.apply_topic(topic)
    broker.produce(partitions=1)
    broker.replicas.close()
    again = Broker(broker.disk)
    again.disk.fail(errno.EMFILE, kind="descriptor", path="leader-epoch")
    with pytest.raises((CodedError, StorageError)):
        again.replicas.apply_topic(topic)
    again.clock.advance(2000)
    await again.replicas.look_after_logs()
    assert again.state_of(0) == 1


@in_loop
async def test_what_a_durable_topic_held_is_synced_before_it_is_served() -> None:
    topic = topic_of(count=1, flush_messages="1")
    broker = killed_with_records(topic)
    broker.replicas.apply_topic(topic)
    await broker.hands.do_all()
    assert broker.state_of(0) == 1
    broker.disk.crash()
    again = Broker(broker.disk)
    again.replicas.apply_topic(topic)
    await again.hands.do_all()
    assert again.state_of(0) == 1


@in_loop
async def test_recovery_says_when_it_begins_how_it_goes_on_and_what_it_took() -> None:
    topic = topic_of()
    broker = killed_with_records(topic)
    with capture_logs() as logged:
        broker.replicas.apply_topic(topic)
        for _ in range(3):
            broker.clock.advance(4000)
            broker.replicas.report_recovery()
        await broker.hands.do_all()
    events = [entry["event"] for entry in logged]
    assert events == ["log recovery started", "log recovery running", "log recovery finished"]
    assert logged[-1]["partitions"] == LOGS
    assert logged[-1]["checked_bytes"] > 0


@in_loop
async def test_a_checkpoint_syncs_so_that_little_is_left_to_recover() -> None:
    topic = topic_of(count=1, flush_messages="1000000")
    broker = Broker()
    broker.replicas.apply_topic(topic)
    broker.produce(count=300, partitions=1)
    checkpoint = asyncio.ensure_future(broker.replicas.maintenance.checkpoint())
    await asyncio.sleep(0)
    broker.produce(count=3, partitions=1)
    await broker.hands.do_all()
    await checkpoint
    assert broker.replicas.partition("t", 0).log.synced_offset == 300
    again = broker.kill()
    closed = again.logs.find("t", 0, topic.id, log_settings(topic, BrokerConfig.parse({})))
    progress = RecoveryProgress()
    assert closed.open(progress).log_end_offset == 303
    assert progress.bytes < 10_000


@in_loop
async def test_what_recovery_has_cut_is_logged_as_a_warning() -> None:
    topic = topic_of(count=1)
    broker = killed_with_records(topic)
    broker.disk.open(f"/data/t-0/{0:020d}.log").append(b"torn")
    with capture_logs() as logged:
        broker.replicas.apply_topic(topic)
        await broker.hands.do_all()
    (warning,) = [entry for entry in logged if entry["log_level"] == "warning"]
    assert warning["log"] == "t-0"
    assert "was cut by 4 bytes" in warning["finding"]
