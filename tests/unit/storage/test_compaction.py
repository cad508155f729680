"""Compaction keeps the latest record of every key, every offset, and its head in a crash."""

import random
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace

import pytest

from headrace.protocol.batch import read_header
from headrace.protocol.records import Record, decode_records, encode_batch, encode_marker
from headrace.storage import compaction
from headrace.storage.log import Origin
from headrace.storage.scan import BLOCK as SCAN_BLOCK
from headrace.storage.scan import CorruptBatch
from headrace.testing.disk import PowerLost
from tests.support.storage import SMALL, Store, append, read_all, sync
from tests.support.unreadable import unreadable

COMPACT = replace(SMALL, cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.0, segment_bytes=600)
DAY = 86_400_000


def write(store: Store, *items: tuple[str, str | None], codec: int = 0, **fields: int | bool) -> None:
    now = store.clock.now_ms()
    records = [Record(0, now, key.encode(), None if value is None else value.encode()) for key, value in items]
    append(store.log, encode_batch(records, codec=codec, **fields))  # type: ignore[arg-type]


def end_segment(store: Store) -> None:
    """Write until what came before is in a finished segment."""
    count = store.log.segment_count
    while store.log.segment_count == count:
        write(store, ("filler", "x" * 100))
    sync(store.log)


def stable(store: Store) -> int:
    return store.log.last_stable_offset(store.log.log_end_offset)


def clean(store: Store, most_keys: int = 1000) -> bool:
    plan = compaction.plan(store.disk, store.log, now_ms=store.clock.now_ms(), last_stable_offset=stable(store))
    if plan is None:
        return False
    return compaction.swap(compaction.rewrite(plan, most_keys), store.log)


def contents(store: Store) -> dict[int, tuple[str, str | None]]:
    """Keys and values by offset, without the filler."""
    batches = [batch for batch in read_all(store.log) if not read_header(batch).is_control]
    found = [record for batch in batches for record in decode_records(batch)]
    return {
        record.offset: (record.key.decode(), record.value.decode() if record.value is not None else None)
        for record in found
        if record.key is not None and record.key != b"filler"
    }


def store_of(*batches: Sequence[tuple[str, str | None]], codec: int = 0) -> Store:
    store = Store(COMPACT)
    for batch in batches:
        write(store, *batch, codec=codec)
    end_segment(store)
    return store


@pytest.mark.parametrize("codec", range(5))
def test_the_latest_record_of_each_key_stays_at_its_offset(codec: int) -> None:
    store = store_of([("a", "1"), ("b", "1")], [("a", "2"), ("c", "1")], [("b", "2")], codec=codec)
    assert clean(store)
    assert contents(store) == {2: ("a", "2"), 3: ("c", "1"), 4: ("b", "2")}


def test_a_batch_that_loses_records_keeps_its_first_and_last_offset() -> None:
    store = store_of([("a", "1"), ("b", "1"), ("a", "2"), ("c", "1")], [("c", "2")])
    clean(store)
    header = read_header(read_all(store.log)[0])
    assert (header.base_offset, header.last_offset, header.record_count) == (0, 3, 2)


def test_every_offset_can_still_be_asked_for() -> None:
    store = store_of(*[[("a", str(number))] for number in range(40)])
    end = store.log.log_end_offset
    clean(store)
    for offset in range(end):
        piece = store.log.read(offset, 1, end)
        assert piece is not None
        assert read_header(piece.file.pread(piece.length, piece.position)).last_offset >= offset


def test_the_active_segment_and_what_is_not_committed_stay() -> None:
    store = store_of([("a", "1")], [("a", "2")])
    write(store, ("a", "3"))
    before = contents(store)
    plan = compaction.plan(store.disk, store.log, now_ms=store.clock.now_ms(), last_stable_offset=1)
    assert plan is None
    clean(store)
    assert 1 in before
    assert contents(store)[1] == ("a", "2")


def test_a_tombstone_removes_its_key_and_goes_itself_after_a_while() -> None:
    store = store_of([("a", "1"), ("b", "1")], [("a", None)])
    clean(store)
    assert contents(store) == {1: ("b", "1"), 2: ("a", None)}
    store.clock.advance(DAY + 1)
    end_segment(store)
    clean(store)
    assert contents(store) == {1: ("b", "1")}


def test_a_tombstone_keeps_its_timestamp_while_it_waits() -> None:
    store = store_of([("a", None)])
    written = store.clock.now_ms()
    store.clock.advance(1000)
    clean(store)
    batch = read_all(store.log)[0]
    header = read_header(batch)
    assert header.attributes & compaction.DELETE_HORIZON_BIT
    assert header.base_timestamp == written + 1000 + DAY
    assert decode_records(batch)[0].timestamp == written
    assert header.max_timestamp == written


def test_records_without_a_key_go() -> None:
    store = Store(COMPACT)
    append(store.log, encode_batch([Record(0, 1, None, b"x"), Record(0, 1, b"a", b"1")]))
    end_segment(store)
    clean(store)
    assert contents(store) == {1: ("a", "1")}


@pytest.mark.parametrize("ends_with_marker", [False, True])
def test_the_last_batch_stays_so_that_the_end_of_the_log_can_be_fetched(ends_with_marker: bool) -> None:
    """Though records without a key go, and markers of which nothing else is left."""
    store = Store(COMPACT)
    for _ in range(3):
        append(store.log, encode_batch([Record(0, 1, None, b"x")]))
    if ends_with_marker:
        mark(store, committed=False)
    store.log.producers().expire(store.clock.now_ms() + 100 * DAY, DAY, DAY)
    for _ in range(2):
        store.log.first_dirty_offset = 0  # as after a crash before it was written down
        store.log.end_segment_older_than(1 << 60)
        assert clean(store)
        store.clock.advance(DAY + 1)
    (batch,) = read_all(store.log)
    assert read_header(batch).last_offset == store.log.log_end_offset - 1
    assert not contents(store)
    end = store.log.log_end_offset
    write(store, ("a", "1"))
    end_segment(store)
    clean(store)
    assert read_header(read_all(store.log)[0]).base_offset == end, "it is not the last one any more"


def test_index_files_of_a_cleaned_segment_say_nothing_of_what_was_truncated() -> None:
    store = Store(COMPACT)
    for number in range(12):
        store.clock.advance(1000)
        write(store, (f"key-{number}", "x" * 20))
    end_segment(store)
    clean(store)
    store.log.truncate_to(1)
    append(store.log, encode_batch([Record(0, 5000, b"other", b"x" * 10)] * 16))
    latest = store.log.offset_of_max_timestamp(store.log.log_end_offset)
    store.restart()
    assert store.log.offset_of_max_timestamp(store.log.log_end_offset) == latest


def test_small_neighbours_are_merged() -> None:
    store = store_of(*[[("a", "x" * 50)] for _ in range(30)])
    before = store.log.segment_count
    size = store.log.size_bytes
    clean(store)
    assert store.log.size_bytes < size
    end_segment(store)
    clean(store)
    assert store.log.segment_count < before


def test_a_clean_log_is_left_alone_until_it_is_dirty_enough() -> None:
    store = store_of([("a", "1")], [("a", "2")])
    store.log.configure(replace(COMPACT, min_cleanable_dirty_ratio=0.9))
    assert clean(store)
    assert not clean(store)
    end_segment(store)
    assert not clean(store)
    store.log.configure(replace(COMPACT, min_cleanable_dirty_ratio=0.9, max_compaction_lag_ms=1000))
    store.clock.advance(2000)
    assert clean(store)


def test_young_records_wait_for_the_compaction_lag() -> None:
    store = store_of([("a", "1")], [("a", "2")])
    store.log.configure(replace(COMPACT, min_compaction_lag_ms=5000))
    assert not clean(store)
    store.clock.advance(5000)
    assert clean(store)


def test_a_cleaning_with_few_keys_goes_on_where_it_stopped() -> None:
    store = store_of(*[[(f"key-{number % 7}", str(number))] for number in range(50)])
    rounds = 0
    while clean(store, most_keys=1) and rounds < 100:
        rounds += 1
    assert rounds > 1
    assert sorted(contents(store).values()) == [
        (f"key-{n % 7}", str(n)) for n in sorted(range(43, 50), key=lambda n: n % 7)
    ]


def test_a_batch_with_more_keys_than_fit_is_cleaned_in_parts() -> None:
    store = Store(replace(COMPACT, segment_bytes=100_000))
    for version in ("old", "new"):
        write(store, *[(f"key-{number}", version) for number in range(100)])
    store.log.configure(COMPACT)
    end_segment(store)
    rounds = 0
    while clean(store, most_keys=30) and rounds < 20:
        rounds += 1
    assert 4 <= rounds < 20
    assert contents(store) == {100 + number: (f"key-{number}", "new") for number in range(100)}


def test_a_tombstone_waits_until_the_map_has_reached_it() -> None:
    """Its time begins when all older records of its key are gone, else readers might miss it and keep those."""
    store = store_of([("a", "1")], [("b", "1"), ("a", None)])
    assert clean(store, most_keys=1)
    store.clock.advance(2 * DAY)
    write(store, ("a", None))
    end_segment(store)
    while clean(store, most_keys=1):
        assert [key for key, value in contents(store).values() if key == "a" and value is None]
    assert ("a", "1") not in contents(store).values()


def filled(store: Store, batches: Sequence[Sequence[tuple[str, str | None]]]) -> Store:
    """A store with these batches in one finished segment."""
    store.log.configure(replace(COMPACT, segment_bytes=1 << 30))
    for batch in batches:
        write(store, *batch)
    store.log.configure(COMPACT)
    end_segment(store)
    return store


@pytest.mark.parametrize(
    "batches",
    [
        [[(str(number), "") for number in range(30_000)]],
        [[(f"{start + number:020d}", "x") for number in range(100)] for start in range(0, 30_000, 100)],
        [[(str(number) * 100_000, "x")] for number in range(1, 10)] * 3,
    ],
    ids=["one large batch", "many keys", "large keys"],
)
def test_the_keys_of_a_segment_take_no_more_memory_than_they_may(
    batches: Sequence[Sequence[tuple[str, str | None]]],
) -> None:
    store = filled(Store(COMPACT), batches)
    plan = compaction.plan(store.disk, store.log, now_ms=store.clock.now_ms(), last_stable_offset=stable(store))
    assert plan is not None
    most_keys = 2_000
    largest = max(len(batch) for batch in read_all(store.log))
    tracemalloc.start()
    try:
        latest, _ = compaction._map_keys(plan, most_keys)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(latest) <= most_keys
    assert peak < most_keys * compaction.BYTES_PER_KEY + 2 * largest + 3 * SCAN_BLOCK


def test_a_cleaning_that_fails_leaves_nothing_behind() -> None:
    store = filled(Store(COMPACT), [[("a", "1")], [("b", "2")]])
    end_segment(store)
    store.disk.damage(f"/data/events-0/{store.log.inactive_segments()[-1].base_offset:020d}.log", 100, b"\xff")
    before = sorted(store.disk.listdir("/data/events-0"))
    with pytest.raises(CorruptBatch, match="CRC"):
        clean(store)
    assert sorted(store.disk.listdir("/data/events-0")) == before
    assert store.log.offline is None


def test_records_that_lie_outside_of_their_batch_are_damage() -> None:
    """Such a record would hide every later one of its key."""
    store = Store(COMPACT)
    batch = encode_batch([Record(0, 1, b"a", b"1"), Record(500, 1, b"a", b"2")], base_offset=None, last_offset=1)
    append(store.log, batch)
    write(store, ("a", "3"))
    end_segment(store)
    with pytest.raises(CorruptBatch, match="outside"):
        clean(store)


def test_a_batch_too_large_to_be_read_here_keeps_its_log_from_cleaning() -> None:
    """Others may read it: without the tombstones that came after it, what they deleted would be back."""
    store = Store(replace(COMPACT, max_message_bytes=1 << 20))
    write(store, ("a", "x" * (33 << 20)), codec=4)
    end_segment(store)
    with pytest.raises(CorruptBatch, match="decompresses to more than"):
        clean(store)
    assert store.log.first_dirty_offset == 0


def test_aborted_records_do_not_hide_committed_ones() -> None:
    store = Store(COMPACT)
    write(store, ("a", "committed"))
    write(store, ("a", "aborted"), producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    mark(store, committed=False)
    end_segment(store)
    clean(store)
    assert contents(store)[0] == ("a", "committed")
    write(store, ("a", "decided"), producer_id=7, producer_epoch=0, base_sequence=1, transactional=True)
    mark(store, committed=True)
    end_segment(store)
    clean(store)
    assert next(iter(contents(store).values())) == ("a", "decided")


def mark(store: Store, *, committed: bool) -> None:
    view = memoryview(
        encode_marker(committed=committed, producer_id=7, producer_epoch=0, coordinator_epoch=0, timestamp=1)
    )
    store.log.append(view, read_header(view), 0, Origin.COORDINATOR)


def test_an_open_transaction_holds_the_cleaning_back() -> None:
    store = Store(COMPACT)
    write(store, ("a", "open"), producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    end_segment(store)
    assert not clean(store)


def test_a_producers_sequence_survives_the_loss_of_its_records() -> None:
    store = Store(COMPACT)
    write(store, ("a", "1"), producer_id=7, producer_epoch=0, base_sequence=0)
    write(store, ("a", "2"))
    end_segment(store)
    clean(store)
    for path in store.disk.paths():
        if path.endswith(".snapshot"):
            store.disk.unlink(path)
    store.kill()
    assert store.log.producers()[7].last_sequence == 0


def test_a_truncated_log_is_not_given_old_segments() -> None:
    store = store_of([("a", "1")], [("a", "2")])
    plan = compaction.plan(store.disk, store.log, now_ms=store.clock.now_ms(), last_stable_offset=1 << 60)
    assert plan is not None
    rewritten = compaction.rewrite(plan)
    store.log.truncate_to(1)
    assert not compaction.swap(rewritten, store.log)
    assert contents(store) == {0: ("a", "1")}
    assert not [path for path in store.disk.paths() if path.endswith(".cleaned")]


def test_lookups_by_time_see_the_cleaned_log() -> None:
    store = Store(COMPACT)
    for number in range(30):
        store.clock.advance(10)
        write(store, (f"key-{number % 3}", str(number)))
    start = store.clock.now_ms() - 290
    end_segment(store)
    clean(store)
    found = store.log.offset_for_timestamp(start, store.log.log_end_offset)
    assert found is not None
    assert found[:2] == (27, start + 270)


def test_the_clean_part_is_remembered() -> None:
    store = store_of([("a", "1")], [("a", "2")])
    clean(store)
    clean_offset = store.log.first_dirty_offset
    store.restart()
    assert store.log.first_dirty_offset == clean_offset > 0
    expected = f"0\n1\nevents 0 {clean_offset}\n".encode()
    assert store.disk.content("/data/cleaner-offset-checkpoint") == expected


def test_gaps_of_compaction_are_no_damage_even_under_another_policy() -> None:
    store = store_of(*[[("a", str(number))] for number in range(40)])
    clean(store)
    store.checkpoint()
    store.settings = SMALL
    store.kill()
    assert store.log.offline is None


@pytest.mark.slow
def test_a_crash_at_any_step_leaves_the_latest_records() -> None:
    expected = {f"key-{n % 5}": str(n) for n in range(35, 40)}
    operation = 0
    finished = False
    while not finished:
        for seed in range(2):
            store = store_of(*[[(f"key-{number % 5}", str(number))] for number in range(40)])
            store.checkpoint()
            end = store.log.log_end_offset
            store.disk.lose_power(operation)
            try:
                clean(store)
                finished = True
            except PowerLost:
                pass
            log = store.crash(random.Random(1000 * seed + operation))
            assert log.offline is None, log.offline
            assert log.log_end_offset == end
            found = contents(store)
            assert list(found) == sorted(found)
            assert dict(found.values()) == expected
            store.log.verify()
            assert clean(store) or log.first_dirty_offset > 0
            assert dict(contents(store).values()) == expected
        operation += 1
    assert operation > 10


@pytest.mark.parametrize("codec", [0, 4])
def test_a_batch_that_nobody_can_read_stays_as_it_is_and_the_others_are_compacted(codec: int) -> None:
    store = Store(COMPACT)
    write(store, ("a", "1"))
    append(store.log, bytearray(unreadable(codec)))
    write(store, ("a", "2"))
    before = read_all(store.log)[1]
    end_segment(store)
    assert clean(store)
    batches = {read_header(batch).base_offset: batch for batch in read_all(store.log)}
    assert 0 not in batches
    assert batches[1] == before
    assert [record.value for record in decode_records(batches[3])] == [b"2"]


def test_records_are_found_by_time_behind_a_batch_that_nobody_can_read() -> None:
    store = Store(SMALL)
    append(store.log, bytearray(unreadable(0, timestamp=1_000)))
    append(store.log, encode_batch([Record(0, 900, None, b"v"), Record(0, 2_000, None, b"v")]))
    append(store.log, bytearray(unreadable(0, timestamp=9_000)))
    end = store.log.log_end_offset
    found = store.log.offset_for_timestamp(1_000, end)
    assert found is not None
    assert (found.offset, found.timestamp) == (3, 2_000)
    latest = store.log.offset_of_max_timestamp(end)
    assert latest is not None
    assert (latest.offset, latest.timestamp) == (4, 9_000)
