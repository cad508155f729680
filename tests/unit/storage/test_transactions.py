"""Logs with transactions: what is stable, what was aborted, who may end one; over restarts, cuts and lost files."""

import random
from dataclasses import replace

import pytest

from headrace.protocol.batch import read_header
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.records import encode_batch, encode_marker
from headrace.storage import compaction
from headrace.storage.aborted import AbortedIndex, AbortedTransaction
from headrace.storage.log import Appended, Log, Origin
from headrace.storage.producer_state import Producers
from tests.support.storage import SMALL, Store, append, read_all, records, sync

END = 1 << 40


@pytest.fixture
def store() -> Store:
    return Store()


def write(log: Log, producer_id: int = 7, *, epoch: int = 0, count: int = 1, value: bytes = b"value") -> Appended:
    """The next batch of a producer's transaction."""
    state = log.producers().get(producer_id)
    sequence = state.next_sequence if state is not None and state.epoch == epoch else 0
    batch = encode_batch(
        records(count, value=value),
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=True,
    )
    return append(log, batch)


def mark(
    log: Log,
    producer_id: int = 7,
    *,
    committed: bool = False,
    epoch: int = 0,
    coordinator_epoch: int = 0,
    bumped: bool = False,
) -> Appended:
    batch = memoryview(
        encode_marker(
            committed=committed,
            producer_id=producer_id,
            producer_epoch=epoch,
            coordinator_epoch=coordinator_epoch,
            timestamp=1000,
        )
    )
    return log.append(batch, read_header(batch), 0, Origin.COORDINATOR, bumped=bumped)


def aborted(log: Log, start: int = 0, end: int = END) -> list[tuple[int, int, int]]:
    return [entry[:3] for entry in log.aborted_between(start, end)]


def stable(log: Log) -> int:
    return log.last_stable_offset(log.log_end_offset)


def refusal(log: Log, **marker: int | bool) -> ErrorCode:
    with pytest.raises(CodedError) as refused:
        mark(log, **marker)  # type: ignore[arg-type]
    return refused.value.code


def test_nothing_is_stable_beyond_the_oldest_open_transaction(store: Store) -> None:
    append(store.log)
    write(store.log, 7)
    write(store.log, 8)
    assert stable(store.log) == 1
    mark(store.log, 7)
    assert stable(store.log) == 2
    mark(store.log, 8, committed=True)
    assert stable(store.log) == 5


def test_a_transaction_is_stable_once_its_marker_is_committed(store: Store) -> None:
    write(store.log, count=2)
    mark(store.log, committed=True)
    assert [store.log.last_stable_offset(high_watermark) for high_watermark in (1, 2, 3)] == [0, 0, 3]


def test_the_last_stable_offset_is_never_before_the_start_of_the_log(store: Store) -> None:
    write(store.log, count=3)
    sync(store.log)
    store.log.advance_start(2)
    assert stable(store.log) == 2


def test_aborted_transactions_are_listed_where_they_have_records(store: Store) -> None:
    write(store.log, 7)
    mark(store.log, 7)
    append(store.log)
    write(store.log, 8)
    mark(store.log, 8, committed=True)
    write(store.log, 7)
    mark(store.log, 7)
    assert aborted(store.log) == [(7, 0, 1), (7, 5, 6)]
    assert aborted(store.log, 2) == [(7, 5, 6)]
    assert aborted(store.log, 0, 3) == [(7, 0, 1)]


def test_a_transaction_is_found_by_readers_of_segments_before_that_of_its_marker(store: Store) -> None:
    write(store.log, 7)
    while store.log.segment_count < 4:
        append(store.log)
    mark(store.log, 7)
    end = store.log.log_end_offset
    assert aborted(store.log, 0, 1) == [(7, 0, end - 1)]
    store.restart()
    assert aborted(store.log, 0, 1) == [(7, 0, end - 1)]
    assert aborted(store.log, 0, end) == [(7, 0, end - 1)]


def test_a_marker_without_a_transaction_changes_nothing_but_the_epoch(store: Store) -> None:
    mark(store.log, epoch=3, coordinator_epoch=2)
    assert (aborted(store.log), stable(store.log)) == ([], 1)
    assert store.log.producers()[7].epoch == 3
    assert refusal(store.log, epoch=2) is ErrorCode.invalid_producer_epoch


def test_an_earlier_coordinator_is_fenced_and_so_it_stays(store: Store) -> None:
    write(store.log)
    mark(store.log, coordinator_epoch=4)
    write(store.log)
    for _ in range(2):
        assert refusal(store.log, coordinator_epoch=3) is ErrorCode.transaction_coordinator_fenced
        assert stable(store.log) == 2
        store.restart()
    mark(store.log, coordinator_epoch=4)
    assert stable(store.log) == 4


def test_a_marker_of_the_newer_protocol_raises_the_epoch_and_sequences_begin_anew(store: Store) -> None:
    write(store.log, epoch=0, count=3)
    mark(store.log, epoch=1, bumped=True)
    late = encode_batch(records(1), producer_id=7, producer_epoch=0, base_sequence=3, transactional=True)
    with pytest.raises(CodedError) as refused:
        append(store.log, late)
    assert refused.value.code is ErrorCode.invalid_producer_epoch
    gap = encode_batch(records(1), producer_id=7, producer_epoch=1, base_sequence=3, transactional=True)
    with pytest.raises(CodedError) as refused:
        append(store.log, gap)
    assert refused.value.code is ErrorCode.out_of_order_sequence_number
    assert write(store.log, epoch=1) == Appended(4, 4, False)


def test_a_marker_that_comes_again_is_harmless_and_one_that_comes_late_ends_nothing(store: Store) -> None:
    write(store.log)
    mark(store.log, epoch=1, bumped=True)
    mark(store.log, epoch=1, bumped=True)
    write(store.log, epoch=1)
    assert refusal(store.log, epoch=1, bumped=True) is ErrorCode.invalid_producer_epoch
    assert stable(store.log) == 3


def test_sequences_go_on_after_a_marker_of_the_older_protocol(store: Store) -> None:
    write(store.log, count=2)
    mark(store.log)
    batch = encode_batch(records(1), producer_id=7, producer_epoch=0, base_sequence=2, transactional=True)
    assert append(store.log, batch).base_offset == 3


def test_a_producer_in_a_transaction_cannot_write_outside_of_it(store: Store) -> None:
    write(store.log)
    outside = encode_batch(records(1), producer_id=7, producer_epoch=0, base_sequence=1)
    with pytest.raises(CodedError) as refused:
        append(store.log, bytearray(outside))
    assert refused.value.code is ErrorCode.invalid_txn_state
    mark(store.log, committed=True)
    assert append(store.log, outside).base_offset == 2


def filled(store: Store) -> list[tuple[int, int, int]]:
    """Many transactions over some segments, of which one stays open."""
    for number in range(30):
        write(store.log, 7 + number % 3)
        if number % 2:
            mark(store.log, 7 + number % 3, committed=number % 4 == 1)
    sync(store.log)
    return aborted(store.log)


def state_of(store: Store) -> tuple[list[tuple[int, int, int]], int, bytes]:
    return aborted(store.log), stable(store.log), store.log._load_producers().encode()


@pytest.mark.parametrize("how", ["restart", "kill", "crash", "checkpoint and kill"])
def test_what_was_aborted_and_what_is_open_survives(store: Store, how: str) -> None:
    filled(store)
    before = state_of(store)
    assert before[0]
    if how == "checkpoint and kill":
        store.checkpoint()
    match how:
        case "restart":
            store.restart()
        case "crash":
            store.crash(random.Random(1))
        case _:
            store.kill()
    assert state_of(store)[:2] == before[:2]
    assert store.log.has_open_transaction(7, 0) == (Producers.decode(before[2]) or Producers()).has_open(7, 0)


@pytest.mark.parametrize("snapshots", [True, False])
@pytest.mark.parametrize("damage", ["gone", "torn", "flipped", "empty"])
def test_a_lost_or_damaged_index_is_made_anew(store: Store, damage: str, snapshots: bool) -> None:
    before = filled(store)
    store.manager.close({})
    for path in store.disk.paths():
        if path.endswith(".txnindex"):
            content = store.disk.read(path)
            store.disk.unlink(path)
            flipped = bytes((content[0] ^ 1,)) + content[1:]
            kept = {"gone": None, "torn": content[:-3], "flipped": flipped, "empty": b""}[damage]
            if kept is not None:
                store.disk.write(path, kept)
        elif path.endswith(".snapshot") and not snapshots:
            store.disk.unlink(path)
    store.start()
    assert aborted(store.log) == before


def test_an_index_that_is_behind_is_completed(store: Store) -> None:
    write(store.log)
    mark(store.log)
    store.checkpoint()
    write(store.log)
    sync(store.log)
    mark(store.log)
    sync(store.log)
    store.kill()
    assert aborted(store.log) == [(7, 0, 1), (7, 2, 3)]


@pytest.mark.parametrize("restarted", [False, True])
def test_truncation_forgets_markers_and_opens_what_they_ended(store: Store, restarted: bool) -> None:
    before = filled(store)
    producer_id, first, marker = before[-1]
    store.log.truncate_to(marker)
    if restarted:
        store.restart()
    assert aborted(store.log) == before[:-1]
    assert store.log.producers()[producer_id].transaction_first_offset == first
    assert stable(store.log) <= first


def test_other_decisions_after_a_truncation_are_the_ones_that_count(store: Store) -> None:
    write(store.log)
    mark(store.log)
    sync(store.log)
    store.checkpoint()
    store.log.truncate_to(1)
    mark(store.log, committed=True)
    append(store.log)
    sync(store.log)
    store.checkpoint()
    store.crash(random.Random(3))
    assert (aborted(store.log), stable(store.log)) == ([], 3)


def test_retention_takes_indexes_with_their_segments(store: Store) -> None:
    filled(store)
    base = store.log.inactive_segments()[2].base_offset
    store.log.advance_start(base)
    store.log.unlink_deleted(None)
    assert all(last >= base for _, _, last in aborted(store.log))
    kept = {path.rsplit("/", 1)[1].split(".")[0] for path in store.disk.paths() if path.endswith(".txnindex")}
    assert min(map(int, kept)) >= base


COMPACTED = replace(SMALL, cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.0, segment_bytes=400)


def end_segment(store: Store) -> None:
    count = store.log.segment_count
    while store.log.segment_count == count:
        append(store.log, encode_batch(records(1, value=b"x" * 50)))
    sync(store.log)


def clean(store: Store) -> bool:
    plan = compaction.plan(store.disk, store.log, now_ms=store.clock.now_ms(), last_stable_offset=stable(store.log))
    return plan is not None and compaction.swap(compaction.rewrite(plan), store.log)


def controls(store: Store) -> list[int]:
    return [head.base_offset for head in map(read_header, read_all(store.log)) if head.is_control]


def test_compaction_drops_what_was_aborted_and_keeps_the_marker_for_a_while() -> None:
    store = Store(COMPACTED)
    write(store.log, value=b"aborted")
    mark(store.log)
    write(store.log, value=b"committed")
    mark(store.log, committed=True)
    end_segment(store)
    assert clean(store)
    assert not any(b"aborted" in batch for batch in read_all(store.log))
    assert controls(store) == [1, 3]
    end_segment(store)
    assert clean(store)
    store.clock.advance(COMPACTED.delete_retention_ms + 1)
    end_segment(store)
    assert clean(store)
    assert controls(store) == [3]
    store.kill()
    assert stable(store.log) == store.log.log_end_offset


def test_the_last_marker_stays_where_it_alone_tells_a_producers_epoch() -> None:
    store = Store(COMPACTED)
    write(store.log)
    mark(store.log, epoch=1, bumped=True)
    for _ in range(4):
        end_segment(store)
        assert clean(store)
        store.clock.advance(COMPACTED.delete_retention_ms + 1)
    assert controls(store) == [1]
    for path in store.disk.paths():
        if path.endswith(".snapshot"):
            store.disk.unlink(path)
    store.kill()
    assert store.log.producers()[7].epoch == 1


def test_an_index_says_what_it_holds_and_for_how_much() -> None:
    index = AbortedIndex([AbortedTransaction(7, 10, 12, 13), AbortedTransaction(8, 11, 20, 21)])
    again = AbortedIndex.decode(index.encode(30), base_offset=10)
    assert again is not None
    assert (again.entries, again.covered) == (index.entries, 30)
    assert AbortedIndex.decode(index.encode(30), base_offset=31) is None
    assert [entry.producer_id for entry in again.overlapping(13, 30)] == [8]
    again.cut(20)
    assert ([entry.producer_id for entry in again.entries], again.covered) == ([7], 20)


def test_a_search_ends_where_no_later_marker_can_matter() -> None:
    entries = [AbortedTransaction(7, number * 10, number * 10 + 1, number * 10 + 2) for number in range(100)]
    index = AbortedIndex(entries)
    assert [entry.first_offset for entry in index.overlapping(20, 25)] == [20]
