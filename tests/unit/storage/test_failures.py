"""Full and broken disks: a clean error, unique offsets, and nothing acknowledged is lost."""

import errno
from dataclasses import replace

import pytest

from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.records import encode_batch
from headrace.storage.disk import StorageError
from headrace.testing.disk import SimulatedDisk
from tests.support.storage import SMALL, Store, append, idempotent, read_all, records, sync


def refused(store: Store, batch: bytearray | None = None) -> CodedError:
    with pytest.raises(CodedError) as caught:
        append(store.log, batch)
    assert caught.value.code is ErrorCode.kafka_storage_error
    return caught.value


def is_accepted(store: Store, batch: bytearray | None = None) -> bool:
    try:
        append(store.log, batch)
    except CodedError:
        store.log.condition.revive()
        return False
    return True


@pytest.mark.parametrize("written", [0, 1, 30, 61, 70])
def test_a_full_disk_is_told_and_leaves_no_trace(written: int) -> None:
    store = Store()
    append(store.log)
    store.disk.fail(errno.ENOSPC, kind="append", path=".log", written=written)
    assert "no space left on /data/events-0" in refused(store).message
    assert store.log.condition.is_full
    assert store.log.offline is None
    assert len(read_all(store.log)) == 1
    refused(store)
    store.log.condition.revive()
    assert append(store.log).base_offset == 1
    assert len(read_all(store.log)) == 2


def test_a_full_disk_during_a_roll_changes_nothing() -> None:
    for after in range(6):
        store = Store()
        while store.log.size_bytes < 920:
            append(store.log)
        end = store.log.log_end_offset
        store.disk.fail(errno.ENOSPC, path="/data/events-0", after=after, times=3)
        for _ in range(4):
            end += is_accepted(store)
        assert store.log.offline is None
        assert store.log.log_end_offset == end
        assert len(read_all(store.log)) == end
        store.disk.heal()
        append(store.log)
        assert len(read_all(store.kill())) == end + 1


def test_a_disk_that_fills_up_keeps_what_it_took() -> None:
    store = Store(disk=SimulatedDisk(capacity=6000))
    accepted = 0
    while not store.log.condition.is_full:
        try:
            append(store.log, idempotent(1, sequence=accepted))
            accepted += 1
        except CodedError:
            pass
    assert len(read_all(store.log)) == accepted
    store.disk.capacity += 10_000
    assert len(read_all(store.kill())) == accepted
    assert append(store.log, idempotent(1, sequence=accepted - 1)).duplicate
    assert append(store.log, idempotent(1, sequence=accepted)).base_offset == accepted


def test_a_broken_disk_takes_the_log_offline() -> None:
    store = Store()
    append(store.log)
    store.disk.fail(errno.EIO, kind="append", written=20)
    message = refused(store).message
    assert "00000000000000000000.log" in message
    assert store.log.offline is not None
    store.log.condition.revive()
    refused(store)
    with pytest.raises(CodedError) as caught:
        store.log.read(0, 100, 1)
    assert caught.value.code is ErrorCode.kafka_storage_error
    assert len(read_all(store.kill())) == 1


def test_a_write_that_cannot_be_undone_takes_the_log_offline() -> None:
    store = Store()
    append(store.log)
    store.disk.fail(errno.ENOSPC, kind="append", written=20)
    store.disk.fail(errno.EIO, kind="truncate")
    refused(store)
    assert store.log.offline is not None
    assert len(read_all(store.kill())) == 1


def test_a_failed_sync_is_not_tried_again() -> None:
    store = Store()
    append(store.log)
    store.disk.fail(errno.EIO, kind="datasync")
    ticket = store.log.begin_sync()
    assert ticket is not None
    with pytest.raises(StorageError) as caught:
        ticket.run()
    store.log.fail(caught.value)
    assert store.log.synced_offset == 0
    assert store.log.begin_sync() is None
    refused(store)


def test_running_out_of_descriptors_is_no_damage() -> None:
    store = Store()
    append(store.log)
    store.restart()
    store.disk.fail(errno.EMFILE, kind="open", times=2)
    refused(store)
    assert store.log.offline is None
    assert append(store.log).base_offset == 1


def test_a_closing_that_fails_is_not_a_clean_one() -> None:
    store = Store()
    append(store.log)
    store.disk.fail(errno.EIO, kind="datasync", path=".log")
    store.manager.close({})
    assert store.log.offline is not None
    assert not store.disk.exists("/data/.kafka_cleanshutdown")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_offsets_stay_unique_whatever_operation_fails(number: int) -> None:
    """KAFKA-7866: an index that cannot be written must not give an offset twice."""
    for after in range(60):
        store = Store()
        store.disk.fail(number, path="/data/events-0", after=after)
        accepted = _append_through(store, 30)
        store.disk.heal()
        log = store.kill()
        assert log.offline is None
        assert read_all(log) == accepted[: log.log_end_offset]
        assert log.log_end_offset == len(accepted)


def _append_through(store: Store, count: int) -> list[bytes]:
    accepted: list[bytes] = []
    for _ in range(count):
        batch = idempotent(1, sequence=len(accepted), timestamp=len(accepted))
        if is_accepted(store, batch):
            accepted.append(bytes(batch))
            assert store.log.log_end_offset == len(accepted)
    return accepted


def test_what_was_acknowledged_survives_a_full_disk_and_a_power_loss() -> None:
    for after in range(0, 80, 3):
        store = Store()
        store.disk.fail(errno.ENOSPC, path="/data/events-0", after=after, times=2)
        acknowledged = 0
        for number in range(25):
            try:
                append(store.log, encode_batch(records(1, timestamp=number)))
                sync(store.log)
                acknowledged = store.log.synced_offset
            except CodedError:
                store.log.condition.revive()
            except StorageError as error:
                store.log.fail(error)
                break
        log = store.crash()
        assert log.offline is None
        assert len(read_all(log)) >= acknowledged


def test_retention_frees_a_full_log() -> None:
    store = Store(replace(SMALL, retention_bytes=1500), SimulatedDisk(capacity=8000))
    while is_accepted(store):
        pass
    assert store.log.retain(store.clock.now_ms(), store.log.log_end_offset) > 0
    store.manager.delete_files(store.clock.now_ms() + 60_000)
    store.log.condition.revive()
    append(store.log)


def test_a_log_closed_during_a_failed_sync_is_not_synced_again() -> None:
    store = Store()
    append(store.log)
    store.disk.fail(errno.EIO, kind="datasync", path=".log")
    ticket = store.log.begin_sync()
    assert ticket is not None
    with pytest.raises(StorageError):
        ticket.run()
    store.manager.close({})
    assert store.log.offline is not None
    assert store.log.synced_offset == 0
    assert not store.disk.exists("/data/.kafka_cleanshutdown")


def test_a_closed_log_is_not_revived() -> None:
    store = Store()
    store.log.close()
    assert not store.log.condition.is_full
    store.log.condition.revive()
    refused(store)


def test_retention_goes_as_far_as_a_full_disk_lets_it() -> None:
    store = Store(replace(SMALL, retention_ms=1))
    while store.log.segment_count < 3:
        append(store.log, encode_batch(records(1, timestamp=1)))
    active = store.log.inactive_segments()[-1].next_offset
    store.disk.fail(errno.ENOSPC, kind="create")
    assert store.log.retain(store.clock.now_ms(), store.log.log_end_offset) > 0
    assert store.log.log_start_offset == active
    assert append(store.log).base_offset == store.log.log_end_offset - 1


def test_what_an_append_needs_is_read_before_it_writes() -> None:
    """A producer that is told of an error sends again: its record must not be there already."""
    store = Store()
    append(store.log, idempotent(1, sequence=0))
    store.restart()
    store.disk.fail(errno.EMFILE, kind="read", path="leader-epoch-checkpoint")
    with pytest.raises(CodedError):
        append(store.log, idempotent(1, sequence=1))
    assert store.log.log_end_offset == 1
    assert append(store.log, idempotent(1, sequence=1)).base_offset == 1
