"""House-keeping over many logs: one that is in trouble is not the others' trouble."""

import asyncio
import errno
import uuid
from dataclasses import replace
from typing import Any

import pytest

from headrace.cluster.image import PartitionState, Topic
from headrace.config import BrokerConfig
from headrace.protocol.batch import check_batch
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.replication.partition import Partition
from headrace.replication.replica_manager import Backoff, ReplicaManager
from headrace.storage.condition import Health
from headrace.storage.disk import StorageError
from headrace.storage.flusher import Flusher, RunInThread
from headrace.storage.log import Log
from headrace.storage.manager import LogManager
from headrace.testing.clock import SimulatedClock
from headrace.testing.disk import SimulatedDisk
from tests.support.wire import batch_of

HERE = PartitionState(replicas=(1,), isr=(1,), leader=1)


def in_place(work: Any, done: Any) -> None:
    work()
    done(None)


class Held:
    """A broker's logs on a simulated disk."""

    def __init__(
        self, disk: SimulatedDisk | None = None, run: RunInThread = in_place, *, on_threads: bool = False
    ) -> None:
        self.disk = disk or SimulatedDisk()
        self.clock = SimulatedClock()
        self.logs = LogManager(self.disk, self.clock, "/data", cluster_id="here", broker_id=1)
        self.logs.open()
        self.replicas = ReplicaManager(
            broker_id=1,
            config=BrokerConfig.parse({}),
            clock=self.clock,
            logs=self.logs,
            flusher=Flusher(run),
            run_in_background=asyncio.to_thread if on_threads else None,
        )

    def topic(self, name: str, **configs: str) -> Partition:
        settings = {key.replace("_", "."): value for key, value in configs.items()}
        self.replicas.apply_topic(Topic(name=name, id=uuid.uuid4(), partitions=(HERE,), configs=settings))
        return self.replicas.partition(name, 0)

    def append(self, partition: Partition) -> int:
        now_ms = self.clock.now_ms()
        batch = memoryview(bytearray(batch_of(b"x", timestamp=now_ms)))
        return partition.append(batch, check_batch(batch), now_ms=now_ms, version=9).base_offset


def test_after_a_crash_readers_see_no_less_than_before() -> None:
    held = Held()
    topic = Topic(name="t", id=uuid.uuid4(), partitions=(HERE,))
    held.replicas.apply_topic(topic)
    held.append(held.replicas.partition("t", 0))
    assert held.replicas.partition("t", 0).high_watermark == 1
    held.disk.kill()

    async def start() -> int:
        loop = asyncio.get_running_loop()

        def later(work: Any, done: Any) -> None:
            work()
            loop.call_soon(done, None)

        again = Held(held.disk, later, on_threads=True)
        again.replicas.apply_topic(topic)
        await again.replicas.opened(60)
        return again.replicas.partition("t", 0).high_watermark

    assert asyncio.run(start()) == 1


@pytest.mark.parametrize("is_deleted", [False, True])
def test_who_waits_for_a_record_is_not_told_that_its_topic_is_unknown_when_it_is_moved_away(is_deleted: bool) -> None:
    """Clients take that for a record that was not written."""
    held = Held()
    topic = Topic(name="t", id=uuid.uuid4(), partitions=(replace(HERE, replicas=(1, 2), isr=(1, 2)),))
    held.replicas.apply_topic(topic)
    partition = held.replicas.partition("t", 0)
    offset = held.append(partition)
    told: list[CodedError | None] = []
    partition.commits.wait(offset + 1, told.append)
    if is_deleted:
        held.replicas.remove_topic(topic)
    else:
        elsewhere = PartitionState(replicas=(2,), isr=(2,), leader=2, leader_epoch=1, partition_epoch=1)
        held.replicas.apply_topic(replace(topic, partitions=(elsewhere,)))
    code = ErrorCode.unknown_topic_or_partition if is_deleted else ErrorCode.not_leader_or_follower
    assert [error.code for error in told if error is not None] == [code]


def test_a_log_that_cannot_follow_retention_does_not_keep_the_others_from_it() -> None:
    held = Held()
    first, second = held.topic("first", retention_ms="1000"), held.topic("second", retention_ms="1000")
    held.append(first)
    held.append(second)
    held.clock.advance(10_000)
    held.disk.fail(errno.EMFILE, kind="create", path="/first-0/", times=9)
    asyncio.run(held.replicas.maintenance.retain())
    assert (first.log.log_start_offset, second.log.log_start_offset) == (0, 1)
    held.disk.heal()
    asyncio.run(held.replicas.maintenance.retain())
    assert first.log.log_start_offset == 1


@pytest.mark.parametrize(
    ("chore", "method"),
    [("flush_due", "flush_due"), ("retain", "retain"), ("checkpoint", "save")],
)
def test_a_log_that_fails_in_a_chore_keeps_no_other_log_from_it(
    chore: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held()
    first, second = held.topic("first"), held.topic("second")
    reached: list[Log] = []
    real = getattr(Log, method)

    def perhaps(log: Log, *args: Any) -> Any:
        reached.append(log)
        if log is first.log:
            raise RuntimeError("a fault that nobody has foreseen")
        return real(log, *args)

    monkeypatch.setattr(Log, method, perhaps)
    asyncio.run(getattr(held.replicas.maintenance, chore)())
    assert reached == [first.log, second.log]


def test_a_full_log_goes_on_soon_after_there_is_space() -> None:
    held = Held()
    partition = held.topic("t")
    held.append(partition)
    held.disk.capacity = held.disk.total_bytes("/") - held.disk.free_bytes("/")
    with pytest.raises(CodedError, match="no space left"):
        held.append(partition)
    asyncio.run(held.replicas.look_after_logs())
    assert partition.log.condition.is_full
    held.disk.capacity = 1 << 30
    asyncio.run(held.replicas.look_after_logs())
    assert held.append(partition) == 1


class Followed:
    """What is followed, as the `Following` of a broker in a cluster is told."""

    def __init__(self) -> None:
        self.leaders: dict[Any, int] = {}

    def follow(self, key: Any, partition: Partition, leader: int) -> None:
        self.leaders[key] = leader
        partition.on_settled = lambda: None

    def leave(self, key: Any) -> None:
        self.leaders.pop(key, None)


ELSEWHERE = PartitionState(replicas=(1, 2), isr=(1, 2), leader=2)
TOPIC = Topic(name="t", id=uuid.UUID(int=9), partitions=(ELSEWHERE,))


def without_its_directory() -> tuple[Held, Partition, Followed]:
    """A broker among others that starts and finds the directory of a log gone; broker 2 leads, and it is in the ISR."""
    held = Held()
    held.replicas.apply_topic(TOPIC)
    asyncio.run(held.replicas.maintenance.checkpoint())
    held.disk.kill()
    held.disk.rmtree("/data/t-0")
    held = Held(held.disk)
    followed = held.replicas.following = Followed()
    held.replicas.apply_topic(TOPIC)
    return held, held.replicas.partition("t", 0), followed


def changed(**values: Any) -> Topic:
    state = replace(ELSEWHERE, partition_epoch=1, **values)
    return replace(TOPIC, partitions=(state,))


def test_a_log_that_lost_what_it_held_follows_and_does_not_lead() -> None:
    held, partition, followed = without_its_directory()
    assert partition.log.health is Health.REFETCHING
    assert list(followed.leaders.values()) == [2]
    held.replicas.apply_topic(changed(leader=1, leader_epoch=1))
    assert not partition.is_leader
    assert followed.leaders == {}


def test_a_log_that_lost_what_it_held_is_one_like_others_once_nobody_counts_on_it() -> None:
    held, partition, _ = without_its_directory()
    held.replicas.apply_topic(changed(isr=(2,)))
    assert partition.log.health is Health.ONLINE
    held.disk.kill()
    again = Held(held.disk)
    again.replicas.apply_topic(changed(isr=(2,)))
    assert again.replicas.partition("t", 0).log.health is Health.ONLINE


def test_faults_of_logs_are_reported_until_they_are_gone() -> None:
    held, partition, _ = without_its_directory()
    reports: list[list[tuple[str, int, str]]] = []

    async def report(faulty: Any) -> None:
        reports.append([(entry.topic, entry.partition, entry.fault) for entry in faulty])

    held.replicas.report_faults = report
    asyncio.run(held.replicas.look_after_logs())
    held.replicas.apply_topic(changed(isr=(2,)))
    asyncio.run(held.replicas.look_after_logs())
    partition.log.fail("the disk is broken")
    asyncio.run(held.replicas.look_after_logs())
    assert reports == [[("t", 0, "lost")], [], [("t", 0, "failed")]]


def test_who_leads_with_a_log_that_fails_steps_down_and_a_follower_is_left() -> None:
    held = Held()
    followed = held.replicas.following = Followed()
    held.replicas.apply_topic(replace(TOPIC, partitions=(replace(ELSEWHERE, leader=1), ELSEWHERE)))
    led, other = held.replicas.partition("t", 0), held.replicas.partition("t", 1)
    assert led.is_leader
    assert len(followed.leaders) == 1
    led.log.fail("the disk is broken")
    other.log.fail("the disk is broken")
    asyncio.run(held.replicas.look_after_logs())
    assert not led.is_leader
    assert followed.leaders == {}


def test_a_log_that_broke_off_for_want_of_space_is_opened_anew_when_there_is_some() -> None:
    held = Held()
    held.replicas.following = Followed()
    held.replicas.apply_topic(replace(TOPIC, partitions=(replace(ELSEWHERE, leader=1),)))
    partition = held.replicas.partition("t", 0)
    held.append(partition)
    held.append(partition)
    held.replicas.apply_topic(changed(leader=2, leader_epoch=1))
    held.disk.fail(errno.ENOSPC, kind="truncate", path=".log")
    with pytest.raises(CodedError):
        partition.log.truncate_to(1)
    assert partition.log.health is Health.FAILED
    for _ in range(2):
        asyncio.run(held.replicas.look_after_logs())
    again = held.replicas.partition("t", 0)
    assert again.log.health is Health.ONLINE
    again.log.truncate_to(1)
    assert again.log.log_end_offset == 1


def test_a_truncation_that_finds_no_space_for_the_checkpoint_changes_nothing_until_it_does() -> None:
    held = Held()
    partition = held.topic("t", flush_messages="1")
    held.append(partition)
    held.append(partition)
    asyncio.run(held.replicas.maintenance.checkpoint())
    held.disk.fail(errno.ENOSPC, kind="append", path="recovery-point-offset-checkpoint")
    with pytest.raises(CodedError, match="no space left"):
        partition.log.truncate_to(1)
    assert (partition.log.log_end_offset, partition.log.synced_offset) == (2, 2)
    partition.log.condition.revive()
    partition.log.truncate_to(1)
    assert held.disk.content("/data/recovery-point-offset-checkpoint") == b"0\n1\nt 0 1\n"


def test_trying_again_takes_longer_each_time_until_a_while_has_passed() -> None:
    backoff = Backoff()
    waits = []
    now = 0.0
    for _ in range(8):
        backoff.wait(now)
        later = next(second for second in range(100) if backoff.is_due(now + second))
        waits.append(later)
        now += later
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]
    backoff.wait(now + 200)
    assert backoff.is_due(now + 201)


def test_news_that_keep_coming_do_not_put_off_the_next_try_to_open_a_log() -> None:
    held = Held()
    held.disk.fail(errno.EMFILE, kind="create", path="/t-0/", times=1 << 30)
    held.replicas.following = Followed()
    for second in range(100):
        with pytest.raises(StorageError):
            held.replicas.apply_topic(changed(leader_epoch=second))
        asyncio.run(held.replicas.look_after_logs())
        held.clock.advance(1000)
    held.disk.heal()
    held.clock.advance(5000)
    asyncio.run(held.replicas.look_after_logs())
    assert held.replicas.partition("t", 0).log.health is Health.ONLINE
