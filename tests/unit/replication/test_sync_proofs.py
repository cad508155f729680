"""The file of synced logs names a log only while nothing is acknowledged that is not on stable storage."""

import asyncio
import errno
import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from headrace.cluster.image import PartitionState, Topic
from headrace.storage.checkpoints import SYNCED_LOGS, encode_topic_id
from headrace.storage.disk import StorageError
from headrace.testing.disk import SimulatedDisk
from tests.support.storage import run_now

from .test_replica_manager import HERE, Held

FILE = f"/data/{SYNCED_LOGS}"
TOPIC = Topic(name="t", id=uuid.UUID(int=7), partitions=(HERE,), configs={"flush.messages": "1"})
NAMED = f"0\n1\nt 0 {encode_topic_id(TOPIC.id)}\n".encode()
NOTHING = b"0\n0\n"
UNSYNCED = replace(TOPIC, configs={"flush.messages": "1000"})


class Broker(Held):
    """A broker whose worker does what it is given when it is let."""

    def __init__(self, disk: SimulatedDisk | None = None) -> None:
        self.waiting: list[Callable[[], None]] = []
        self.is_held = False
        super().__init__(disk, self._run)

    def _run(self, work: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
        act = partial(run_now, work, done)
        self.waiting.append(act) if self.is_held else act()

    def work(self) -> None:
        self.is_held = False
        while self.waiting:
            self.waiting.pop(0)()

    def prove(self) -> None:
        asyncio.run(self.replicas.prove_synced())

    @property
    def file(self) -> bytes | None:
        return self.disk.content(FILE) if self.disk.exists(FILE) else None

    @property
    def is_durable(self) -> bool:
        return self.replicas.partition("t", 0).is_durable


def test_a_new_log_of_a_durable_topic_is_named_at_once() -> None:
    broker = Broker()
    broker.replicas.apply_topic(TOPIC)
    broker.prove()
    assert broker.file == NAMED
    assert broker.logs.proven_synced() == {(TOPIC.id, 0)}


def test_a_log_that_is_not_synced_before_it_acknowledges_is_never_named() -> None:
    broker = Broker()
    broker.replicas.apply_topic(UNSYNCED)
    broker.append(broker.replicas.partition("t", 0))
    broker.prove()
    assert broker.file is None


def test_a_log_that_begins_to_be_synced_is_named_once_all_of_it_is() -> None:
    broker = Broker()
    broker.replicas.apply_topic(UNSYNCED)
    partition = broker.replicas.partition("t", 0)
    broker.append(partition)
    broker.is_held = True
    broker.replicas.apply_topic(TOPIC)
    broker.prove()
    assert not broker.disk.exists(FILE)
    broker.work()
    broker.prove()
    assert (partition.log.synced_offset, broker.file) == (1, NAMED)


@pytest.mark.parametrize("leader", [1, 2])
def test_a_setting_to_sync_syncs_what_is_there_on_leaders_and_followers(leader: int) -> None:
    broker = Broker()
    broker.replicas.apply_topic(UNSYNCED)
    partition = broker.replicas.partition("t", 0)
    broker.append(partition)
    state = PartitionState(replicas=(1, 2), isr=(1, 2), leader=leader, leader_epoch=1, partition_epoch=1)
    broker.replicas.apply_topic(replace(UNSYNCED, partitions=(state,)))
    assert partition.log.synced_offset == 0
    broker.replicas.apply_topic(replace(TOPIC, partitions=(state,)))
    assert (partition.is_leader, partition.log.synced_offset, partition.is_settled) == (leader == 1, 1, True)


def test_a_weaker_setting_takes_effect_once_the_file_does_not_name_the_log_any_more() -> None:
    broker = Broker()
    broker.replicas.apply_topic(TOPIC)
    broker.prove()
    broker.replicas.apply_topic(UNSYNCED)
    assert (broker.is_durable, broker.file) == (True, NAMED)
    broker.prove()
    assert (broker.is_durable, broker.file) == (False, NOTHING)


def weakened_with_a_failing_disk() -> Broker:
    """A broker that had a synced log, was told to sync it no more, and could not write that down."""
    broker = Broker()
    broker.replicas.apply_topic(TOPIC)
    broker.prove()
    broker.replicas.apply_topic(UNSYNCED)
    broker.disk.fail(errno.EIO, kind="append", path=SYNCED_LOGS, times=9)
    with pytest.raises(StorageError):
        broker.prove()
    return broker


def test_a_weaker_setting_waits_while_the_file_cannot_be_written() -> None:
    broker = weakened_with_a_failing_disk()
    assert (broker.is_durable, broker.file) == (True, NAMED)
    broker.disk.heal()
    broker.prove()
    assert (broker.is_durable, broker.file) == (False, NOTHING)


def test_a_setting_that_returns_while_the_file_cannot_be_written_is_named_in_the_end() -> None:
    broker = weakened_with_a_failing_disk()
    broker.disk.heal()
    broker.replicas.apply_topic(TOPIC)
    broker.prove()
    broker.prove()
    assert (broker.is_durable, broker.file) == (True, NAMED)


def test_after_a_start_a_setting_that_became_weaker_meanwhile_waits_for_the_file_too() -> None:
    before = Broker()
    before.replicas.apply_topic(TOPIC)
    before.append(before.replicas.partition("t", 0))
    before.prove()
    before.disk.kill()
    broker = Broker(before.disk)
    assert broker.logs.proven_synced() == {(TOPIC.id, 0)}
    broker.replicas.apply_topic(UNSYNCED)
    assert (broker.is_durable, broker.file) == (True, NAMED)
    broker.prove()
    assert (broker.is_durable, broker.file) == (False, NOTHING)


def test_a_topic_made_anew_under_the_same_name_is_not_taken_for_the_old_one() -> None:
    broker = Broker()
    broker.replicas.apply_topic(TOPIC)
    broker.prove()
    broker.replicas.remove_topic(TOPIC)
    broker.replicas.apply_topic(replace(UNSYNCED, id=uuid.UUID(int=8)))
    assert not broker.is_durable
    broker.prove()
    assert (broker.is_durable, broker.file) == (False, NOTHING)


def test_topics_that_were_deleted_while_the_broker_was_down_are_forgotten() -> None:
    before = Broker()
    before.replicas.apply_topic(TOPIC)
    before.prove()
    before.disk.kill()
    broker = Broker(before.disk)
    broker.prove()
    assert broker.file == NAMED, "nothing is known before the start is over"
    broker.replicas.set_strays_aside()
    broker.prove()
    assert broker.file == NOTHING


@pytest.mark.parametrize("loss", ["directory", "content", "file"])
def test_what_was_lost_otherwise_is_not_proven(loss: str) -> None:
    before = Broker()
    before.replicas.apply_topic(TOPIC)
    before.prove()
    if loss == "directory":
        before.disk.rmtree("/data/t-0")
    elif loss == "content":
        before.disk.write_atomically("/data/t-0/refetching", b"")
    else:
        before.disk.write_atomically(FILE, NAMED[:-3])
    before.disk.kill()
    assert not Broker(before.disk).logs.proven_synced()
