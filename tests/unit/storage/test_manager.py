"""A data directory: whose it is, what it holds, what is written down about it."""

import errno
import uuid
from contextlib import suppress
from random import Random

import pytest

from headrace.protocol.topic_partition import TopicPartition
from headrace.storage.condition import Health
from headrace.storage.disk import DirectoryLocked, StorageError
from headrace.storage.log import Log
from headrace.storage.manager import LogManager, WrongDirectory
from headrace.storage.settings import DAY_MS, LogSettings
from headrace.testing.clock import SimulatedClock
from headrace.testing.disk import PowerLost, SimulatedDisk
from tests.support.storage import TOPIC_ID, Store, append, idempotent, read_all, sync


def manager(disk: SimulatedDisk, *, broker_id: int = 1, cluster_id: str | None = "here") -> LogManager:
    return LogManager(disk, SimulatedClock(), "/data", cluster_id=cluster_id, broker_id=broker_id)


def opened(disk: SimulatedDisk) -> LogManager:
    one = manager(disk)
    one.open()
    return one


def test_a_directory_is_used_by_one_broker_at_a_time() -> None:
    disk = SimulatedDisk()
    opened(disk)
    with pytest.raises(DirectoryLocked, match="/data is in use by another broker"):
        manager(disk).open()


def test_a_directory_belongs_to_its_broker_and_cluster() -> None:
    disk = SimulatedDisk()
    opened(disk).close({})
    assert disk.content("/data/meta.properties") == b"version=1\nnode.id=1\ncluster.id=here\n"
    with pytest.raises(WrongDirectory, match="belongs to broker 1, this is broker 2"):
        manager(disk, broker_id=2).open()
    with pytest.raises(WrongDirectory, match="belongs to cluster here, this broker to cluster there"):
        manager(disk, cluster_id="there").open()
    nobody = manager(disk, cluster_id=None)
    nobody.open()
    assert nobody.cluster_id == "here"


def test_kafkas_own_meta_properties_are_understood() -> None:
    disk = SimulatedDisk()
    disk.mkdir("/data")
    disk.write("/data/meta.properties", b"#Mon Jan 01\nbroker.id=1\nversion=0\ncluster.id=here\n")
    opened(disk)


def test_a_partition_says_which_topic_it_is_of() -> None:
    store = Store()
    expected = b"version: 0\ntopic_id: a6e4EJ2tEdGAtADAT9QwyA\n"
    assert store.disk.content("/data/events-0/partition.metadata") == expected


def test_checkpoints_are_kafkas() -> None:
    store = Store()
    for _ in range(5):
        append(store.log)
    sync(store.log)
    append(store.log)
    store.log.advance_start(2)
    store.manager.checkpoint({TopicPartition("events", 0): 4})
    assert store.disk.content("/data/recovery-point-offset-checkpoint") == b"0\n1\nevents 0 5\n"
    assert store.disk.content("/data/replication-offset-checkpoint") == b"0\n1\nevents 0 4\n"
    assert store.disk.content("/data/log-start-offset-checkpoint") == b"0\n1\nevents 0 2\n"
    store.kill()
    assert store.manager.high_watermark("events", 0) == 4
    assert store.manager.high_watermark("events", 1) == 0


def test_checkpoints_keep_partitions_that_are_not_loaded() -> None:
    store = Store()
    append(store.log)
    store.manager.close({TopicPartition("events", 0): 1})
    other = opened(store.disk)
    other.checkpoint({})
    other.close({})
    assert store.disk.content("/data/recovery-point-offset-checkpoint") == b"0\n1\nevents 0 1\n"
    assert store.start().log_end_offset == 1


def test_a_clean_shutdown_is_marked_until_the_next_start() -> None:
    store = Store()
    append(store.log)
    store.manager.close({})
    assert store.disk.exists("/data/.kafka_cleanshutdown")
    store.start()
    assert not store.disk.exists("/data/.kafka_cleanshutdown")
    store.crash()
    assert not store.disk.exists("/data/.kafka_cleanshutdown")


def test_a_start_that_opens_no_log_leaves_the_mark_of_a_clean_shutdown() -> None:
    store = Store()
    append(store.log)
    store.manager.close({})
    for _ in range(3):
        failed = opened(store.disk)
        assert failed.was_closed
        failed.release()
        store.disk.crash()
    store.start()
    assert store.manager.was_closed
    assert not store.disk.exists("/data/.kafka_cleanshutdown")


def test_loading_twice_gives_the_same_log() -> None:
    store = Store()
    assert store.manager.load("events", 0, TOPIC_ID, LogSettings()) is store.log
    assert store.manager.get("events", 0) is store.log
    assert list(store.manager.logs()) == [store.log]
    assert store.manager.get("events", 1) is None


def test_a_broker_remembers_a_bounded_number_of_producers() -> None:
    disk = SimulatedDisk()
    logs = opened(disk)
    old, new = (logs.load("events", index, TOPIC_ID, LogSettings()) for index in range(2))
    for producer_id in range(300):
        append(old, idempotent(1, sequence=0, timestamp=1, producer_id=producer_id))
        append(new, idempotent(1, sequence=0, timestamp=DAY_MS, producer_id=producer_id))
    for log in (old, new):
        log.save()
    assert logs.bound_producers(600) == 0
    assert logs.bound_producers(400) >= 200
    assert 60 <= len(old.producers()) <= 100
    assert len(new.producers()) == 300


def test_a_deleted_partition_is_set_aside_then_removed() -> None:
    store = Store()
    append(store.log)
    store.manager.delete("events", [0])
    names = store.disk.listdir("/data")
    aside = [name for name in names if name.endswith("-delete")]
    assert aside == [f"events-0.{TOPIC_ID.hex}-delete"]
    assert "events-0" not in names
    store.manager.delete_files(store.clock.now_ms())
    assert store.disk.exists(f"/data/{aside[0]}")
    store.manager.delete_files(store.clock.now_ms() + 60_000)
    assert not store.disk.exists(f"/data/{aside[0]}")


def test_a_log_that_is_set_aside_keeps_every_record_under_another_name() -> None:
    store = Store()
    append(store.log)
    assert store.manager.set_aside("events", [0, 7]) == [f"events-0.{TOPIC_ID.hex}-stray"]
    store.manager.delete_files(store.clock.now_ms() + 10**9)
    store.disk.crash()
    assert store.disk.content(f"/data/events-0.{TOPIC_ID.hex}-stray/{0:020}.log")
    assert store.manager.get("events", 0) is None


def test_a_start_deletes_logs_of_topics_that_were_deleted_and_keeps_others_that_nobody_knows() -> None:
    store = Store()
    store.manager.load("gone", 0, uuid.UUID(int=5), LogSettings())
    store.manager.close({})
    again = opened(store.disk)
    again.was_deleted = lambda topic_id: topic_id == uuid.UUID(int=5)
    assert [name.partition(".")[0] for name in again.set_strays_aside()] == ["events-0"]
    again.delete_files(store.clock.now_ms())
    assert [name.partition(".")[0] for name in store.disk.listdir("/data") if "-0" in name] == ["events-0"]


def test_a_topic_that_was_made_anew_takes_the_place_of_its_deleted_logs() -> None:
    store = Store()
    append(store.log)
    store.manager.close({})
    again = opened(store.disk)
    again.was_deleted = lambda topic_id: topic_id == TOPIC_ID
    assert again.load("events", 0, uuid.UUID(int=6), LogSettings()).log_end_offset == 0
    again.delete_files(store.clock.now_ms())
    assert [name for name in store.disk.listdir("/data") if "-stray" in name or "-delete" in name] == []


def test_a_deletion_cut_short_is_finished_by_the_next_start() -> None:
    store = Store()
    append(store.log)
    sync(store.log)
    store.manager.delete("events", [0])
    store.disk.crash()
    again = opened(store.disk)
    again.delete_files(0)
    assert [name for name in store.disk.listdir("/data") if "events" in name] == []


def test_a_topic_of_the_same_name_starts_empty() -> None:
    store = Store()
    for _ in range(5):
        append(store.log)
    store.manager.close({TopicPartition("events", 0): 5})
    again = opened(store.disk)
    log = again.load("events", 0, uuid.UUID(int=77), LogSettings())
    assert (log.log_start_offset, log.log_end_offset) == (0, 0)
    assert again.high_watermark("events", 0) == 0
    again.delete_files(store.clock.now_ms())
    aside = [name for name in store.disk.listdir("/data") if name.startswith("events-0.")]
    assert aside == [f"events-0.{0:032x}-stray"], "nobody has deleted the other topic"


@pytest.mark.parametrize("seed", range(8))
def test_checkpoints_of_a_deleted_topic_do_not_bind_a_new_one(seed: int) -> None:
    """The old recovery point would vouch for batches of the new log that nobody has synced."""
    store = Store()
    for _ in range(9):
        append(store.log)
    store.checkpoint()
    sync(store.log)
    store.checkpoint()
    store.manager.delete("events", [0])
    log = store.manager.load("events", 0, uuid.UUID(int=5), store.settings)
    append(log)
    sync(log)
    append(log)
    store.disk.crash(cut=lambda _, lost: lost[: 10 * seed])
    again = opened(store.disk)
    log = again.load("events", 0, uuid.UUID(int=5), store.settings)
    assert log.offline is None
    assert log.log_end_offset == 1


def test_a_deletion_on_a_full_disk_does_not_bind_a_new_topic_after_a_restart() -> None:
    store = Store()
    append(store.log)
    sync(store.log)
    store.checkpoint()
    store.disk.fail(errno.ENOSPC, path="checkpoint", times=99)
    with pytest.raises(StorageError):
        store.manager.delete("events", [0])
    with pytest.raises(StorageError):
        store.manager.load("events", 0, uuid.UUID(int=5), store.settings)
    store.disk.kill()
    store.disk.heal()
    again = opened(store.disk)
    log = again.load("events", 0, uuid.UUID(int=5), store.settings, replicated=True)
    assert (log.health, log.log_end_offset) == (Health.ONLINE, 0)


@pytest.mark.parametrize("topic", ["events", "t" * 249])
def test_a_lost_directory_is_missed_also_right_after_another_topic_of_its_name_was_deleted(topic: str) -> None:
    disk = SimulatedDisk()
    first = opened(disk)
    append(first.load(topic, 0, TOPIC_ID, LogSettings()))
    first.delete(topic, [0])
    append(first.load(topic, 0, uuid.UUID(int=5), LogSettings()))
    first.checkpoint({})
    disk.kill()
    disk.rmtree(f"/data/{topic}-0")
    again = opened(disk)
    assert again.load(topic, 0, uuid.UUID(int=5), LogSettings(), replicated=True).health is Health.REFETCHING
    again.delete_files(0)
    assert [name for name in disk.listdir("/data") if name.endswith("-delete")] == []


def test_a_lost_directory_is_missed_whatever_topics_with_names_like_its_own_were_deleted() -> None:
    """The name of a deleted directory has no room for all of a long one."""
    disk = SimulatedDisk()
    first = opened(disk)
    append(first.load("t" * 248 + "a", 0, TOPIC_ID, LogSettings()))
    append(first.load("t" * 248 + "b", 0, uuid.UUID(int=5), LogSettings()))
    first.checkpoint({})
    first.delete("t" * 248 + "a", [0])
    disk.kill()
    disk.rmtree(f"/data/{'t' * 248}b-0")
    again = opened(disk)
    log = again.load("t" * 248 + "b", 0, uuid.UUID(int=5), LogSettings(), replicated=True)
    assert log.health is Health.REFETCHING


def test_strays_are_directories_that_nobody_loaded() -> None:
    store = Store()
    store.manager.load("other", 3, uuid.UUID(int=9), LogSettings())
    store.manager.close({})
    again = opened(store.disk)
    again.load("events", 0, TOPIC_ID, LogSettings())
    assert again.strays() == ["other-3"]


def test_strays_are_set_aside_and_never_deleted() -> None:
    store = Store()
    append(store.log)
    store.manager.close({TopicPartition("events", 0): 1})
    store.disk.mkdir("/data/backup-2024")
    store.disk.write("/data/backup-2024/notes", b"mine")
    for _ in range(2):
        again = opened(store.disk)
        again.set_strays_aside()
        again.delete_files(store.clock.now_ms() + 10**9)
        again.close({})
    assert f"/data/events-0.{0:032x}-stray/{0:020}.log" in store.disk.paths()
    assert store.disk.content("/data/recovery-point-offset-checkpoint") == b"0\n0\n"
    assert store.disk.content("/data/backup-2024/notes") == b"mine"


def test_a_log_that_was_set_aside_is_back_when_its_topic_is() -> None:
    store = Store()
    for _ in range(3):
        append(store.log)
    store.manager.close({TopicPartition("events", 0): 3})
    without = opened(store.disk)
    assert without.set_strays_aside()
    other = without.load("events", 0, uuid.UUID(int=5), store.settings)
    assert other.log_end_offset == 0, "another topic of the name has nothing of it"
    without.close({})
    again = opened(store.disk)
    log = again.load("events", 0, TOPIC_ID, store.settings)
    assert (log.offline, log.log_end_offset) == (None, 3)
    assert "is its topic's again" in log.findings[-1]
    assert len([name for name in store.disk.listdir("/data") if name.endswith("-stray")]) == 1, "the other topic's"


def test_a_log_that_was_set_aside_long_ago_does_not_stand_in_for_one_that_is_lost() -> None:
    store = Store()
    append(store.log)
    store.manager.close({TopicPartition("events", 0): 1})
    without = opened(store.disk)
    (stray,) = without.set_strays_aside()
    without.close({})
    copy = {path: store.disk.content(path) for path in store.disk.paths() if path.startswith(f"/data/{stray}/")}
    log = store.start()
    append(log)
    store.manager.close({TopicPartition("events", 0): 2})
    store.disk.rmtree("/data/events-0")
    store.disk.mkdir(f"/data/{stray}")
    for path, content in copy.items():
        store.disk.write(path, content)
    assert "held offsets up to 2" in (store.start().offline or "")


def test_a_log_whose_directory_is_lost_does_not_start_again_at_0() -> None:
    store = Store()
    append(store.log)
    store.manager.close({TopicPartition("events", 0): 1})
    store.disk.rmtree("/data/events-0")
    for _ in range(2):
        assert "held offsets up to 1" in (store.start().offline or "")
        store.manager.set_strays_aside()
        store.manager.close({})
    store.start()
    store.manager.delete("events", [0])
    log = store.manager.load("events", 0, uuid.UUID(int=5), store.settings)
    assert (log.offline, log.log_end_offset) == (None, 0)


def test_a_new_log_waits_until_checkpoints_have_forgotten_the_old_one() -> None:
    """With the disk full they cannot be written, and would vouch for offsets that the new log does not have."""
    store = Store()
    append(store.log)
    sync(store.log)
    store.checkpoint()
    store.disk.fail(errno.ENOSPC, path="checkpoint", times=2)
    with pytest.raises(StorageError):
        store.manager.delete("events", [0])
    with pytest.raises(StorageError):
        store.manager.load("events", 0, uuid.UUID(int=5), store.settings)
    store.manager.load("events", 0, uuid.UUID(int=5), store.settings)
    store.disk.kill()
    assert opened(store.disk).load("events", 0, uuid.UUID(int=5), store.settings).offline is None


def test_many_partitions_are_deleted_with_few_syncs() -> None:
    store = Store()
    for index in range(1, 100):
        store.manager.load("events", index, TOPIC_ID, store.settings)
    store.checkpoint()
    before = store.disk.operations
    store.manager.delete("events", range(100))
    assert store.disk.operations - before < 200
    assert [name for name in store.disk.listdir("/data") if name.startswith("events-") and "." not in name] == []


def test_a_lost_partition_metadata_is_written_again() -> None:
    store = Store()
    append(store.log)
    store.manager.close({})
    store.disk.unlink("/data/events-0/partition.metadata")
    assert len(read_all(store.start())) == 1
    assert store.disk.exists("/data/events-0/partition.metadata")


@pytest.mark.parametrize("replicated", [False, True])
def test_a_log_that_lost_power_before_its_first_sync_is_not_taken_for_another_topic(replicated: bool) -> None:
    """Its records reached the disk, the file that says whose they are did not; meanwhile the topic was made anew."""
    store = Store()
    append(store.log)
    store.disk.kill()
    store.disk.unlink("/data/events-0/partition.metadata")
    again = opened(store.disk)
    log = again.load("events", 0, uuid.UUID(int=8), LogSettings(), replicated=replicated)
    assert (log.health, log.log_end_offset) == (Health.REFETCHING if replicated else Health.ONLINE, 0)
    assert any(path.endswith("-stray/00000000000000000000.log") for path in store.disk.paths("/data"))


def test_the_first_records_of_a_log_are_synced_soon_whatever_the_settings() -> None:
    store = Store()
    assert not store.log.flush_due(0), "there is nothing to lose yet"
    append(store.log)
    assert store.log.flush_due(0)
    sync(store.log)
    append(store.log)
    assert not store.log.flush_due(0)


def test_a_log_that_was_synced_says_whose_it_is_after_a_power_loss() -> None:
    store = Store()
    append(store.log)
    sync(store.log)
    store.disk.crash()
    assert store.disk.exists("/data/events-0/partition.metadata")


def lost(store: Store) -> None:
    """The log's directory goes while the broker is stopped."""
    append(store.log)
    store.manager.close({TopicPartition("events", 0): 1})
    store.disk.rmtree("/data/events-0")


def refetching(disk: SimulatedDisk) -> tuple[LogManager, Log]:
    again = opened(disk)
    return again, again.load("events", 0, TOPIC_ID, LogSettings(), replicated=True)


def test_a_replicated_log_whose_directory_is_lost_begins_anew_and_says_so_at_every_start() -> None:
    store = Store()
    lost(store)
    for _ in range(3):
        again, log = refetching(store.disk)
        assert (log.health, log.log_end_offset) == (Health.REFETCHING, 0)
        again.checkpoint({})
        store.disk.kill()
    again, log = refetching(store.disk)
    append(log)
    log.condition.refetched()
    store.disk.crash()
    assert refetching(store.disk)[1].health is Health.ONLINE


def test_a_directory_that_is_put_in_place_of_an_empty_one_is_read_whole() -> None:
    """Once it does not say any more which topic it is of, as those do that had been set aside."""
    store = Store()
    append(store.log)
    store.manager.set_aside("events", [0])
    (stray,) = {path.split("/")[2] for path in store.disk.paths("/data") if "-stray/" in path}
    other = uuid.UUID(int=77)
    store.manager.load("events", 0, other, LogSettings())
    store.manager.close({})
    store.disk.rmtree("/data/events-0")
    store.disk.rename(f"/data/{stray}", "/data/events-0")
    store.disk.unlink("/data/events-0/partition.metadata")
    log = opened(store.disk).load("events", 0, other, LogSettings())
    assert (log.health, log.log_end_offset) == (Health.ONLINE, 1)


def test_a_replicated_log_whose_directory_was_emptied_begins_anew_and_says_so() -> None:
    store = Store()
    append(store.log)
    store.manager.close({TopicPartition("events", 0): 1})
    for path in store.disk.paths("/data/events-0"):
        store.disk.unlink(path)
    for _ in range(2):
        _, log = refetching(store.disk)
        assert (log.health, log.log_end_offset) == (Health.REFETCHING, 0)
        store.disk.kill()


def test_wherever_power_is_lost_the_loss_of_a_directory_is_not_forgotten() -> None:
    for step in range(60):
        store = Store()
        lost(store)
        store.disk.sync_directory("/data")
        store.disk.lose_power(step)
        with suppress(PowerLost):
            refetching(store.disk)
        store.disk.crash(Random(step))
        again, log = refetching(store.disk)
        assert log.health is Health.REFETCHING, step
        again.release()


def test_a_new_log_is_not_taken_for_a_lost_one() -> None:
    store = Store()
    store.manager.checkpoint({})
    store.disk.kill()
    again, log = refetching(store.disk)
    assert log.health is Health.ONLINE
    assert again.load("new", 0, TOPIC_ID, LogSettings(), replicated=True).health is Health.ONLINE
    again.checkpoint({})
    store.disk.crash()
    again = opened(store.disk)
    assert again.load("new", 0, TOPIC_ID, LogSettings(), replicated=True).health is Health.ONLINE


def test_without_checkpoints_a_log_that_is_not_there_may_have_been_lost() -> None:
    store = Store()
    lost(store)
    store.disk.unlink("/data/recovery-point-offset-checkpoint")
    again, log = refetching(store.disk)
    assert log.health is Health.REFETCHING
    again.set_strays_aside()
    assert again.load("new", 0, TOPIC_ID, LogSettings(), replicated=True).health is Health.ONLINE


def test_a_new_log_is_named_on_disk_at_once_so_that_a_lost_one_is_missed() -> None:
    store = Store()
    store.manager.close({})
    store.start()
    manager = store.manager
    manager.load("other", 0, uuid.UUID(int=9), store.settings, replicated=True)
    assert not manager.has_moved_starts
    store.disk.crash()
    store.disk.rmtree("/data/other-0")
    again = opened(store.disk)
    assert again.load("other", 0, uuid.UUID(int=9), store.settings, replicated=True).health is Health.REFETCHING


def test_a_log_that_cannot_be_synced_does_not_keep_the_others_from_being_closed() -> None:
    disk = SimulatedDisk()
    one = opened(disk)
    logs = [one.load("events", partition, TOPIC_ID, LogSettings()) for partition in range(4)]
    for log in logs:
        append(log)
    disk.fail(errno.EIO, kind="datasync", path="events-1/")
    one.close({})
    assert [log.offline is not None for log in logs] == [False, True, False, False]
    assert [log.synced_offset for log in logs] == [1, 0, 1, 1]
    disk.crash(Random(1))
    again = opened(disk)
    assert not again.was_closed
    ends = [again.load("events", partition, TOPIC_ID, LogSettings()).log_end_offset for partition in (0, 2, 3)]
    assert ends == [1, 1, 1]
