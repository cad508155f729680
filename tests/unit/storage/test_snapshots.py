"""The states of many producers are written by a thread after a segment has ended; nothing depends on them before."""

import errno
import uuid

import pytest

from headrace.storage import history
from headrace.storage.producer_state import Producers
from tests.support.storage import SMALL, Store, append, idempotent, sync


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    """A log whose producers are many, in segments of a few batches."""
    monkeypatch.setattr(history, "FEW_PRODUCERS", 3)
    return Store()


def fill(store: Store, first: int, count: int = 30, *, leader_epoch: int = 0) -> None:
    for producer_id in range(first, first + count):
        append(store.log, idempotent(1, producer_id=producer_id, sequence=0), leader_epoch=leader_epoch)


def snapshots(store: Store) -> dict[int, Producers | None]:
    found = [path for path in store.disk.paths("/data/events-0") if path.endswith(".snapshot")]
    return {int(path[-29:-9]): Producers.decode(store.disk.content(path)) for path in found}


def base(store: Store) -> int:
    """Where the last segment begins."""
    return max(int(path[-24:-4]) for path in store.disk.paths("/data/events-0") if path.endswith(".log"))


def test_a_roll_encodes_nothing_and_the_sync_writes_the_states_of_that_offset(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync(store.log)
    encoded: list[int] = []
    encode = Producers.encode

    def counted(known: Producers) -> bytes:
        encoded.append(len(known))
        return encode(known)

    monkeypatch.setattr(Producers, "encode", counted)
    fill(store, 100)
    rolled = base(store)
    assert rolled > 0
    assert max(snapshots(store), default=0) < rolled
    ticket = store.log.begin_sync()
    assert max(encoded, default=0) <= 3
    assert ticket is not None
    ticket.run()
    store.log.finish_sync(ticket)
    written = snapshots(store)[rolled]
    assert written is not None
    assert sorted(written) == list(range(100, 100 + rolled))


@pytest.mark.parametrize("how", ["kill", "crash"])
def test_a_log_that_dies_before_the_snapshot_is_written_knows_its_producers(store: Store, how: str) -> None:
    fill(store, 100)
    sync(store.log)
    fill(store, 200)
    assert max(snapshots(store)) < base(store)
    log = store.kill() if how == "kill" else store.crash()
    assert sorted(log.producers())[:30] == list(range(100, 130))
    assert log.log_end_offset == len(log.producers())
    if how == "kill":
        assert append(log, idempotent(1, producer_id=229, sequence=0)).duplicate


def test_a_stop_writes_what_waits(store: Store) -> None:
    fill(store, 100)
    log = store.restart()
    assert store.log.log_end_offset in snapshots(store)
    assert sorted(log.producers()) == list(range(100, 130))


@pytest.mark.parametrize("is_begun", [False, True])
def test_a_dropped_history_leaves_no_snapshot_behind(store: Store, is_begun: bool) -> None:
    fill(store, 100)
    rolled = base(store)
    ticket = store.log.begin_sync() if is_begun else None
    store.log.truncate_to(rolled - 5)
    fill(store, 500, 5, leader_epoch=1)
    assert store.log.log_end_offset == rolled
    if ticket is not None:
        ticket.run()
        store.log.finish_sync(ticket)
    assert rolled not in snapshots(store)
    assert sorted(store.kill().producers()) == [*range(100, 100 + rolled - 5), *range(500, 505)]


def test_a_snapshot_of_a_deleted_log_is_not_written_into_its_successor(store: Store) -> None:
    fill(store, 100)
    ticket = store.log.begin_sync()
    assert ticket is not None
    store.manager.delete("events", [0])
    store.log = store.manager.load("events", 0, uuid.uuid4(), SMALL)
    ticket.try_run()
    assert not any(snapshots(store).values())


def test_only_the_newest_of_those_that_wait_is_written(store: Store) -> None:
    fill(store, 100, 60)
    assert store.log.segment_count > 3
    sync(store.log)
    assert [offset for offset, known in snapshots(store).items() if known and len(known) > 3] == [base(store)]


def test_what_is_too_old_goes_once_the_snapshot_after_it_is_written(store: Store) -> None:
    fill(store, 100)
    store.log.advance_start(base(store))
    store.log.retain(0, store.log.log_end_offset)
    assert store.log.deleted_end(1 << 60) is None
    sync(store.log)
    assert store.log.deleted_end(1 << 60) == base(store)
    store.manager.delete_files(1 << 60)
    assert sorted(store.kill().producers()) == list(range(100, 130))


def test_a_roll_of_a_synced_log_is_followed_by_a_sync(store: Store) -> None:
    fill(store, 100)
    sync(store.log)
    store.log.end_segment_older_than(1 << 60)
    assert store.log.synced_offset == base(store)
    assert not store.log.flush_due(0)
    assert store.log.flush_due(60_000)


def test_a_full_disk_goes_without_a_snapshot(store: Store) -> None:
    fill(store, 100)
    ticket = store.log.begin_sync()
    assert ticket is not None
    store.disk.fail(errno.ENOSPC, path=".snapshot")
    ticket.run()
    store.log.finish_sync(ticket)
    assert store.log.offline is None
    assert base(store) not in snapshots(store)
