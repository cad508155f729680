"""What a start finds after a death: trusts what was synced, cuts what was not, reports what is damaged."""

import errno
from collections.abc import Iterator
from dataclasses import replace
from struct import pack_into

import pytest
from crc32c import crc32c

from headrace.kernels import native
from headrace.protocol.batch import CRC_START, stamp
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.records import encode_marker
from headrace.storage import plain
from headrace.testing.disk import SimulatedDisk
from tests.support.storage import SMALL, TOPIC_ID, Store, append, idempotent, read_all, sync

FIRST = "00000000000000000000"


@pytest.fixture(autouse=True, params=[False, True], ids=["python", "compiled"])
def compiled(request: pytest.FixtureRequest, walk: native.Function) -> Iterator[None]:
    """Whether plain batches are passed over by compiled code or looked at one by one: nobody sees the difference."""
    plain.use_compiled(walk if request.param else None)
    yield
    plain.use_compiled(None)


def store_with(count: int, *, synced: bool = True) -> Store:
    """A log of one segment with this many batches of one record."""
    store = Store(replace(SMALL, segment_bytes=1 << 20))
    for number in range(count):
        append(store.log, idempotent(1, sequence=number, timestamp=number), leader_epoch=number // 10)
    if synced:
        sync(store.log)
    return store


def reads_of(disk: SimulatedDisk, part: str) -> int:
    """How many reads of files like this happen while a fault waits for one that never comes."""
    return sum(part in path for path in disk.paths())


def test_after_a_clean_shutdown_no_segment_or_index_is_read() -> None:
    store = store_with(50)
    store.manager.close({})
    for suffix in (".log", ".index", ".timeindex", ".snapshot", "leader-epoch-checkpoint"):
        for kind in ("open", "read", "pread"):
            store.disk.fail(errno.EIO, kind=kind, path=suffix)
    store.start()
    assert store.log.offline is None
    assert store.log.log_end_offset == store.log.synced_offset == 50
    store.disk.heal()
    assert len(read_all(store.log)) == 50


def test_after_a_kill_only_what_lies_behind_the_recovery_point_is_read() -> None:
    store = store_with(200)
    store.checkpoint()
    path = store.path(f"{FIRST}.log")
    append(store.log, idempotent(1, sequence=200))
    store.disk.damage(path, 3000, b"\xff" * 100)
    store.kill()
    assert store.log.offline is None
    assert store.log.log_end_offset == 201


@pytest.mark.parametrize(
    "tail", [b"\x00", b"\x00" * 5000, b"garbage", b"\xff" * 70, b"\x00" * 16 + b"\x02" + b"\x00" * 60]
)
def test_whatever_follows_the_last_good_batch_is_cut(tail: bytes) -> None:
    store = store_with(20)
    size = store.log.size_bytes
    store.disk.open(store.path(f"{FIRST}.log")).append(tail)
    store.kill()
    assert (store.log.log_end_offset, store.log.size_bytes) == (20, size)
    assert len(store.log.findings) == 1
    assert f"cut by {len(tail)} bytes" in store.log.findings[0]
    assert append(store.log, idempotent(1, sequence=20)).base_offset == 20


def test_a_repeated_old_batch_at_the_tail_is_cut() -> None:
    store = store_with(20)
    store.disk.open(store.path(f"{FIRST}.log")).append(read_all(store.log)[3])
    assert store.kill().log_end_offset == 20


def test_a_flipped_bit_behind_the_recovery_point_ends_the_log_there() -> None:
    store = store_with(20)
    size = store.log.size_bytes // 20
    store.disk.damage(store.path(f"{FIRST}.log"), 15 * size + size - 1, b"\xee")
    assert store.kill().log_end_offset == 15


@pytest.mark.parametrize("number", [0, 12, 19])
@pytest.mark.parametrize(("byte", "value"), [(2, b"\x01"), (7, b"\x5f")])
def test_a_batch_whose_offset_is_damaged_ends_the_log_before_it(number: int, byte: int, value: bytes) -> None:
    """No checksum covers it, and a log that took it would reach further than any other."""
    store = store_with(20)
    batches = read_all(store.log)
    store.disk.damage(store.path(f"{FIRST}.log"), sum(map(len, batches[:number])) + byte, value)
    store.kill()
    assert store.log.log_end_offset == number
    assert read_all(store.log) == batches[:number]


@pytest.mark.parametrize("number", [0, 4])
def test_a_batch_of_a_compacted_log_whose_offset_is_far_away_ends_the_log_before_it(number: int) -> None:
    store = Store(replace(SMALL, segment_bytes=1 << 20, cleanup_policy=frozenset({"compact"})))
    for number in range(5):
        append(store.log, idempotent(1, sequence=number))
    batches = read_all(store.log)
    store.disk.damage(store.path(f"{FIRST}.log"), sum(map(len, batches[:number])) + 1, b"\x01")
    store.kill()
    assert read_all(store.log) == batches[:number]


def test_damage_below_the_recovery_point_is_reported_and_nothing_deleted() -> None:
    store = store_with(20)
    store.checkpoint()
    path = store.path(f"{FIRST}.log")
    before = store.disk.content(path)
    store.disk.open(path).truncate(len(before) - 1)
    store.kill()
    assert store.log.offline is not None
    assert f"{FIRST}.log" in store.log.offline
    assert len(store.disk.content(path)) == len(before) - 1
    with pytest.raises(CodedError) as caught:
        append(store.log)
    assert caught.value.code is ErrorCode.kafka_storage_error


def test_a_log_that_lost_synced_batches_is_offline() -> None:
    store = store_with(20)
    store.checkpoint()
    path = store.path(f"{FIRST}.log")
    size = len(store.disk.content(path)) // 20
    store.disk.open(path).truncate(18 * size)
    store.kill()
    assert store.log.offline is not None
    assert "ends at offset 18, but held offsets up to 20" in store.log.offline


def test_an_offline_log_keeps_its_recovery_point() -> None:
    store = store_with(20)
    store.checkpoint()
    path = store.path(f"{FIRST}.log")
    whole = store.disk.content(path)
    store.disk.open(path).truncate(100)
    store.kill()
    store.manager.close({})
    store.disk.patch(path, 0, whole)
    assert store.start().log_end_offset == 20
    assert store.log.offline is None


def test_damage_met_by_a_reader_takes_the_log_offline() -> None:
    store = store_with(200)
    store.restart()
    store.disk.damage(store.path(f"{FIRST}.log"), 0, b"\xff" * 2000)
    with pytest.raises(CodedError) as caught:
        store.log.read(2, 10, 200)
    assert caught.value.code is ErrorCode.kafka_storage_error
    assert store.log.offline is not None
    assert "position" in store.log.offline


def test_an_offset_that_no_index_could_name_takes_the_log_offline() -> None:
    """Damage of a batch that the index names has the index made anew, and what it meets then cannot be in it."""
    store = Store()
    for _ in range(40):
        append(store.log)
    store.restart()
    segment = store.log._chain.segments[0]
    offset, position = segment.index.offsets[0], segment.index.positions[0]
    store.disk.damage(segment.path, position + 2, b"\x10")
    store.restart()
    with pytest.raises(CodedError, match="cannot be right"):
        store.log.read(offset, 100, store.log.log_end_offset)
    assert store.log.offline is not None


def test_a_marker_that_cannot_be_read_leaves_the_log_offline() -> None:
    store = store_with(3)
    marker = encode_marker(committed=True, producer_id=7, producer_epoch=0, coordinator_epoch=0, timestamp=1000)
    marker[-7:] = b"\xff" * 7
    pack_into(">I", marker, CRC_START - 4, crc32c(bytes(marker[CRC_START:])))
    stamp(memoryview(marker), 3, 0)
    store.disk.open(store.path(f"{FIRST}.log")).append(bytes(marker))
    store.kill()
    assert store.log.offline is not None
    assert "nothing was deleted" in store.log.offline


def test_verify_finds_a_flipped_bit() -> None:
    store = store_with(20)
    assert store.log.verify() == []
    store.disk.damage(store.path(f"{FIRST}.log"), 500, b"\xee")
    faults = store.log.verify()
    assert len(faults) == 1
    assert "CRC" in faults[0]
    assert store.log.offline is not None


def many_segments() -> Store:
    store = Store()
    while store.log.segment_count < 5:
        append(store.log)
    sync(store.log)
    return store


def log_paths(store: Store) -> list[str]:
    return [path for path in store.disk.paths("/data/events-0") if path.endswith(".log")]


def test_a_missing_segment_below_the_recovery_point_is_reported() -> None:
    store = many_segments()
    store.checkpoint()
    store.disk.unlink(log_paths(store)[2])
    store.kill()
    assert store.log.offline is not None
    assert "a segment is missing between" in store.log.offline


def test_a_missing_segment_behind_the_recovery_point_ends_the_log() -> None:
    store = many_segments()
    third = log_paths(store)[2]
    store.disk.unlink(third)
    store.kill()
    assert store.log.offline is None
    assert store.log.log_end_offset == int(third[-24:-4])
    assert len(log_paths(store)) == 2


def test_garbage_behind_a_segment_that_ended_takes_nothing_from_those_after_it() -> None:
    store = many_segments()
    end, count = store.log.log_end_offset, len(log_paths(store))
    store.disk.open(log_paths(store)[1]).append(b"garbage" * 100)
    store.kill()
    assert (store.log.offline, store.log.log_end_offset, len(log_paths(store))) == (None, end, count)
    assert len(store.log.findings) == 1
    assert "cut by 700 bytes" in store.log.findings[0]


def test_a_segment_that_lost_its_last_batch_takes_those_after_it_along() -> None:
    store = many_segments()
    second, third = log_paths(store)[1:3]
    store.disk.damage(second, len(store.disk.content(second)) - 1, b"\xee")
    store.kill()
    assert store.log.log_end_offset < int(third[-24:-4])
    assert len(log_paths(store)) == 2


def test_an_empty_directory_that_held_records_is_reported() -> None:
    store = store_with(5)
    store.checkpoint()
    store.disk.unlink(log_paths(store)[0])
    store.kill()
    assert store.log.offline is not None
    assert "has no segments" in store.log.offline


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", ["missing", "short", "odd", "backwards", "wrong"])
@pytest.mark.parametrize("how", ["restart", "kill"])
def test_indexes_are_made_anew_when_they_cannot_be_trusted(suffix: str, damage: str, how: str) -> None:
    store = many_segments()
    end = store.log.log_end_offset
    store.manager.close({})
    for path in [path for path in store.disk.paths("/data/events-0") if path.endswith(suffix)]:
        content = store.disk.content(path)
        if damage == "missing":
            store.disk.unlink(path)
        elif damage == "short":
            store.disk.patch(path, 0, b"")
        elif damage == "odd":
            store.disk.patch(path, len(content), b"\x00")
        elif damage == "backwards":
            store.disk.patch(path, len(content), bytes(24))
        else:
            store.disk.patch(path, 0, bytes(byte ^ (index % 4 == 3) for index, byte in enumerate(content)))
    if how == "kill":
        store.disk.unlink("/data/.kafka_cleanshutdown")
    store.start()
    assert store.log.offline is None
    assert len(read_all(store.log)) == end
    for offset in range(end):
        assert store.log.read(offset, 1, end) is not None


@pytest.mark.parametrize("damage", [b"", b"\x00\x01garbage"])
def test_producers_are_replayed_when_snapshots_are_damaged(damage: bytes) -> None:
    store = Store()
    for sequence in range(60):
        append(store.log, idempotent(1, sequence=sequence))
    sync(store.log)
    store.manager.close({})
    for path in store.disk.paths("/data/events-0"):
        if path.endswith(".snapshot"):
            store.disk.patch(path, 0, damage)
    store.start()
    assert append(store.log, idempotent(1, sequence=59)).duplicate
    assert append(store.log, idempotent(1, sequence=60)).base_offset == 60


@pytest.mark.parametrize("how", ["restart", "kill"])
def test_epochs_are_made_anew_when_their_file_is_gone(how: str) -> None:
    store = store_with(35)
    store.manager.close({})
    if how == "kill":
        store.disk.unlink("/data/.kafka_cleanshutdown")
    store.disk.unlink(store.path("leader-epoch-checkpoint"))
    store.start()
    assert [store.log.end_offset_for_epoch(epoch) for epoch in range(4)] == [(0, 10), (1, 20), (2, 30), (3, 35)]


def test_epochs_agree_with_a_log_that_was_cut() -> None:
    store = store_with(25)
    append(store.log, idempotent(1, sequence=25), leader_epoch=7)
    store.crash()
    assert store.log.latest_epoch() == 2
    assert store.log.end_offset_for_epoch(2) == (2, 25)


def test_a_log_that_lost_everything_up_to_its_start_goes_on_there() -> None:
    store = store_with(5)
    for number in range(5, 10):
        append(store.log, idempotent(1, sequence=number))
    store.log.advance_start(8)
    store.crash()
    assert store.log.offline is None
    assert (store.log.log_start_offset, store.log.log_end_offset) == (8, 8)
    assert append(store.log).base_offset == 8


def test_leftovers_of_deletion_and_of_unfinished_cleaning_are_removed() -> None:
    store = store_with(5)
    for name in (f"{FIRST}.log.deleted", f"{FIRST}.log.cleaned", "x.tmp", "00000000000000000099.index"):
        store.disk.write(store.path(name), b"left over")
    store.kill()
    assert store.log.log_end_offset == 5
    assert not [path for path in store.disk.paths() if path.endswith((".deleted", ".cleaned", ".tmp", "99.index"))]


def test_a_disk_that_cannot_be_read_leaves_the_log_offline() -> None:
    store = store_with(5)
    store.disk.kill()
    store.disk.fail(errno.EIO, kind="pread", path=".log")
    store.start()
    assert store.log.offline is not None
    assert "Input/output error" in store.log.offline


def test_an_empty_log_gets_no_index_files_by_a_kill_and_takes_records_after_it() -> None:
    store = store_with(0)
    store.kill()
    assert reads_of(store.disk, "index") == 0
    append(store.log)
    store.kill()
    assert store.log.log_end_offset == 1


def test_a_long_segment_has_index_files_however_few_entries_its_topic_asks_for() -> None:
    store = Store(replace(SMALL, segment_bytes=1 << 20, index_interval_bytes=1 << 30))
    while store.log.size_bytes < 100_000:
        append(store.log, idempotent(50, sequence=store.log.log_end_offset))
    store.restart()
    assert store.disk.exists(store.path(f"{FIRST}.timeindex"))


@pytest.mark.parametrize("how", ["restart", "kill"])
def test_a_log_too_short_for_an_index_entry_needs_no_index_files(how: str) -> None:
    store = store_with(1)
    getattr(store, how)()
    assert reads_of(store.disk, ".index") + reads_of(store.disk, ".timeindex") == 0
    assert store.log.log_end_offset == 1
    for number in range(1, 5):
        append(store.log, idempotent(1, sequence=number, timestamp=number))
    store.restart()
    assert reads_of(store.disk, ".index") + reads_of(store.disk, ".timeindex") == 2
    getattr(store, how)()
    assert store.log._chain.active.latest == (4, 4)
    assert len(read_all(store.log)) == 5


def test_after_a_kill_the_names_of_logs_are_synced_once_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_with(1)
    for partition in range(1, 10):
        append(store.manager.load("events", partition, TOPIC_ID, SMALL))
    synced: list[str] = []
    sync_directory = store.disk.sync_directory

    def counted(path: str) -> None:
        synced.append(path)
        sync_directory(path)

    monkeypatch.setattr(store.disk, "sync_directory", counted)
    store.kill()
    for partition in range(1, 10):
        sync(store.manager.load("events", partition, TOPIC_ID, SMALL))
    assert synced.count("/data") == 1
    store.crash(names_kept=0)
    ends = [store.manager.load("events", partition, TOPIC_ID, SMALL).log_end_offset for partition in range(1, 10)]
    assert ends == [1] * 9


def test_the_name_of_a_log_that_is_made_after_a_kill_is_synced_with_it() -> None:
    store = store_with(1)
    store.kill()
    log = store.manager.load("others", 0, TOPIC_ID, SMALL)
    append(log)
    sync(log)
    store.crash(names_kept=0)
    assert store.manager.load("others", 0, TOPIC_ID, SMALL).log_end_offset == 1
