"""A process without descriptors: what needs one is refused and works later; no log goes offline, nothing is lost."""

import errno
import uuid
from collections.abc import Callable
from dataclasses import replace

import pytest

from headrace.protocol.errors import CodedError, ErrorCode
from headrace.storage.compaction import plan, rewrite, swap
from headrace.storage.disk import StorageError
from headrace.storage.flusher import Flusher
from headrace.storage.log import Log
from headrace.storage.manager import LogManager
from headrace.testing.clock import SimulatedClock
from headrace.testing.disk import SimulatedDisk
from tests.support.storage import SMALL, Store, append, idempotent, read_all, sync

MANY = 30


def fill(store: Store, segments: int = 4) -> int:
    """Write until there are so many segments; how many records there are."""
    while store.log.segment_count < segments:
        append(store.log, idempotent(1, sequence=store.log.log_end_offset))
    return store.log.log_end_offset


def short_of_descriptors(store: Store, after: int) -> None:
    """Let one opening fail, after some that do not."""
    store.disk.fail(errno.EMFILE, kind="descriptor", after=after)


def until_never_refused(work: Callable[[Store], None], check: Callable[[Store], None]) -> int:
    """Do the work again and again, each time with the next opening refused, until none is; how often one was."""
    for after in range(200):
        store = Store()
        fill(store)
        short_of_descriptors(store, after)
        try:
            work(store)
        except CodedError:
            assert store.log.offline is None
            work(store)
        assert store.log.offline is None
        was_met = not store.disk.has_faults
        store.disk.heal()
        check(store)
        if not was_met:
            return after
    raise AssertionError("it never ends")


def holds_all(count: int) -> Callable[[Store], None]:
    def check(store: Store) -> None:
        assert len(read_all(store.log)) == count
        end = store.log.log_end_offset
        assert append(store.log, idempotent(1, sequence=end)).base_offset == end
        assert len(read_all(store.kill())) == count + 1

    return check


def test_an_append_without_descriptors_is_refused_and_works_later() -> None:
    store = Store()
    end = fill(store)
    sync(store.log)
    for _ in range(3):
        store.checkpoint()
    assert store.disk.open_files == 0
    store.disk.descriptors = 0
    with pytest.raises(CodedError) as caught:
        append(store.log, idempotent(1, sequence=end))
    assert caught.value.code is ErrorCode.kafka_storage_error
    assert store.log.offline is None
    assert store.log.log_end_offset == end
    store.disk.descriptors = None
    assert append(store.log, idempotent(1, sequence=end)).base_offset == end


def test_a_checkpoint_without_descriptors_takes_no_log_offline() -> None:
    store = Store()
    end = fill(store)
    store.disk.descriptors = store.disk.open_files
    store.log.save()
    assert store.log.offline is None
    store.disk.descriptors = None
    holds_all(end)(store)


def test_a_roll_short_of_descriptors_loses_nothing() -> None:
    def work(store: Store) -> None:
        while store.log.segment_count < 6:
            append(store.log, idempotent(1, sequence=store.log.log_end_offset))

    def check(store: Store) -> None:
        holds_all(store.log.log_end_offset)(store)

    assert until_never_refused(work, check) > 2


def test_a_truncation_short_of_descriptors_can_be_repeated() -> None:
    assert until_never_refused(lambda store: store.log.truncate_to(3), holds_all(3)) > 3


def test_a_truncation_at_a_segment_s_base_short_of_descriptors_can_be_repeated() -> None:
    base = fill(Store()) - 1
    assert until_never_refused(lambda store: store.log.truncate_to(base), holds_all(base)) > 3


@pytest.mark.parametrize("offset", [0, 1000])
def test_a_restart_elsewhere_short_of_descriptors_can_be_repeated(offset: int) -> None:
    def work(store: Store) -> None:
        store.log.restart_at(offset)

    def check(store: Store) -> None:
        assert (store.log.log_start_offset, store.log.log_end_offset) == (offset, offset)
        assert append(store.log).base_offset == offset
        log = store.kill()
        assert (log.log_start_offset, log.log_end_offset) == (offset, offset + 1)

    assert until_never_refused(work, check) > 3


def test_a_sync_that_could_open_nothing_is_made_up_for_before_anything_counts_as_synced() -> None:
    for after in range(100):
        store = Store(replace(SMALL, flush_messages=1))
        end = fill(store)
        short_of_descriptors(store, after)
        flusher = Flusher(_run_now)
        flusher.request(store.log, lambda: None)
        assert store.log.offline is None
        if not store.disk.has_faults:
            assert store.log.synced_offset < end
            assert store.log.flush_due(store.clock.now_ms())
            flusher.request(store.log, lambda: None)
        assert store.log.synced_offset == end
        was_met = not store.disk.has_faults
        store.disk.heal()
        store.checkpoint()
        assert len(read_all(store.crash())) == end
        if not was_met:
            assert after > 2
            return
    raise AssertionError("it never ends")


def _run_now(work: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
    work()
    done(None)


def test_a_sync_that_failed_is_never_tried_again() -> None:
    store = Store()
    fill(store)
    store.disk.fail(errno.EIO, kind="datasync")
    flusher = Flusher(_run_now)
    flusher.request(store.log, lambda: None)
    assert store.log.offline is not None


def test_a_start_short_of_descriptors_is_refused_and_finds_everything_later() -> None:
    for after in range(200):
        store = Store()
        end = fill(store)
        store.disk.kill()
        short_of_descriptors(store, after)
        try:
            store.start()
        except StorageError:
            store.disk.kill()
            store.start()
        assert store.log.offline is None
        was_met = not store.disk.has_faults
        store.disk.heal()
        holds_all(end)(store)
        if not was_met:
            assert after > 10
            return
    raise AssertionError("it never ends")


def test_compaction_short_of_descriptors_is_put_off() -> None:
    for after in range(200):
        store = Store(replace(SMALL, cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.0))
        end = fill(store)
        short_of_descriptors(store, after)
        try:
            _compact(store)
        except (CodedError, StorageError):
            assert store.log.offline is None
            _compact(store)
        assert store.log.offline is None
        assert store.log.log_end_offset == end
        was_met = not store.disk.has_faults
        store.disk.heal()
        kept = len(read_all(store.log))
        assert len(read_all(store.kill())) == kept
        if not was_met:
            return
    raise AssertionError("it never ends")


def _compact(store: Store) -> None:
    work = plan(store.disk, store.log, now_ms=10**13, last_stable_offset=store.log.log_end_offset)
    if work is not None:
        assert swap(rewrite(work), store.log)


def _manager(disk: SimulatedDisk, most_open_files: int) -> LogManager:
    manager = LogManager(
        disk, SimulatedClock(), "/data", cluster_id="here", broker_id=1, most_open_files=most_open_files
    )
    manager.open()
    return manager


def _logs(manager: LogManager) -> list[Log]:
    return [manager.load("events", number, uuid.UUID(int=1), SMALL) for number in range(MANY)]


def test_a_new_log_holds_no_descriptor() -> None:
    disk = SimulatedDisk()
    logs = _logs(_manager(disk, MANY))
    assert len(logs) == MANY
    assert disk.open_files == 0


def test_a_recovered_log_holds_no_descriptor_and_one_is_enough_to_recover_it() -> None:
    store = Store()
    end = fill(store, segments=12)
    store.disk.kill()
    store.disk.descriptors = 2
    store.start()
    assert store.disk.open_files == 0
    store.disk.descriptors = None
    assert len(read_all(store.log)) == end


def test_an_idle_log_holds_no_descriptor_once_it_is_synced() -> None:
    store = Store()
    append(store.log)
    for _ in range(3):
        store.checkpoint()
    assert store.disk.open_files == 1
    sync(store.log)
    for _ in range(2):
        store.checkpoint()
    assert store.disk.open_files == 0
    assert append(store.log).base_offset == 1
    assert len(read_all(store.log)) == 2


def test_a_log_in_use_keeps_its_file_open() -> None:
    store = Store()
    for _ in range(4):
        append(store.log)
        sync(store.log)
        store.checkpoint()
        assert store.disk.open_files == 1


def test_many_logs_share_a_few_descriptors() -> None:
    disk = SimulatedDisk()
    manager = _manager(disk, 4)
    logs = _logs(manager)
    for number in range(3 * MANY):
        log = logs[number % MANY]
        append(log)
        sync(log)
        assert disk.open_files <= 4
    assert [len(read_all(log)) for log in logs] == [3] * MANY
    assert disk.open_files <= 4


def test_a_file_with_unsynced_records_stays_open_until_they_are_synced() -> None:
    disk = SimulatedDisk()
    manager = _manager(disk, 4)
    logs = _logs(manager)
    for log in logs:
        append(log)
    assert disk.open_files == MANY
    assert manager.files.is_short
    for log in logs:
        sync(log)
    manager.files.trim()
    assert disk.open_files == 4
    assert not manager.files.is_short
    disk.crash()
    assert [len(read_all(log)) for log in _logs(_manager(disk, 4))] == [1] * MANY


def test_idle_segments_give_their_descriptors_to_those_who_need_one() -> None:
    disk = SimulatedDisk()
    manager = _manager(disk, MANY)
    logs = _logs(manager)
    for log in logs:
        append(log)
        sync(log)
    manager.files.give_back()
    assert disk.open_files == 0
    disk.descriptors = 4
    assert [len(read_all(log)) for log in logs] == [1] * MANY


def test_whoever_reads_from_a_file_that_was_let_go_can_finish() -> None:
    store = Store()
    fill(store)
    sync(store.log)
    found = store.log.read(0, 10_000, store.log.log_end_offset)
    assert found is not None
    for _ in range(3):
        store.checkpoint()
    assert store.disk.open_files == 1
    assert len(found.file.pread(found.length, found.position)) == found.length
    del found
    assert store.disk.open_files == 0


def test_a_topic_that_is_deleted_without_descriptors_can_be_made_again() -> None:
    disk = SimulatedDisk()
    manager = _manager(disk, 4)
    log = manager.load("events", 0, uuid.UUID(int=1), SMALL)
    append(log)
    sync(log)
    manager.checkpoint({})
    disk.descriptors = 0
    with pytest.raises(StorageError):
        manager.delete("events", [0])
    disk.descriptors = None
    again = manager.load("events", 0, uuid.UUID(int=2), SMALL)
    assert again.offline is None
    assert append(again).base_offset == 0
