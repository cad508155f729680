"""Appending, reading, syncing, following and truncating."""

from dataclasses import replace

import pytest

from headrace.protocol.batch import read_header
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.records import Record, encode_batch, encode_marker
from headrace.storage.log import ENDED_SEGMENT_MS, Appended, Origin
from tests.support.storage import SMALL, Store, append, batches_of, idempotent, read_all, records, sync


@pytest.fixture
def store() -> Store:
    return Store()


def read_one(store: Store, offset: int, max_bytes: int = 1 << 20, end: int | None = None) -> list[int]:
    """Base offsets of the whole batches that a read returns."""
    piece = store.log.read(offset, max_bytes, store.log.log_end_offset if end is None else end)
    assert piece is not None
    return [header.base_offset for header, _ in batches_of(piece.file.pread(piece.length, piece.position))]


def code_of(call: object) -> ErrorCode:
    assert callable(call)
    with pytest.raises(CodedError) as caught:
        call()
    return caught.value.code


def test_a_batch_gets_the_next_offsets_and_the_leaders_epoch(store: Store) -> None:
    append(store.log, count=3, leader_epoch=4)
    batch = encode_batch(records(2))
    assert append(store.log, batch, leader_epoch=4) == Appended(3, 4, False)
    header = read_header(batch)
    assert (header.base_offset, header.leader_epoch) == (3, 4)
    assert store.log.log_end_offset == 5


def test_bytes_are_stored_as_they_were_sent(store: Store) -> None:
    sent = [encode_batch(records(n + 1), codec=n % 5) for n in range(10)]
    for batch in sent:
        append(store.log, batch)
    assert read_all(store.log) == [bytes(batch) for batch in sent]


def test_a_read_starts_with_the_batch_that_holds_the_offset(store: Store) -> None:
    for _ in range(5):
        append(store.log, count=3)
    assert read_one(store, 7)[0] == 6
    assert read_one(store, 6, max_bytes=1) == [6]


def test_a_read_ends_before_the_given_offset(store: Store) -> None:
    for _ in range(3):
        append(store.log, count=3)
    assert read_one(store, 0, end=6) == [0, 3]
    assert store.log.read(6, 1000, 6) is None


def test_a_read_at_the_end_has_nothing_and_beyond_it_is_out_of_range(store: Store) -> None:
    append(store.log)
    assert store.log.read(1, 1000, 1) is None
    assert code_of(lambda: store.log.read(2, 1000, 1)) is ErrorCode.offset_out_of_range
    store.log.advance_start(1)
    assert code_of(lambda: store.log.read(0, 1000, 1)) is ErrorCode.offset_out_of_range


def test_the_first_batch_is_whole_and_the_last_may_be_cut(store: Store) -> None:
    store.log.configure(replace(SMALL, segment_bytes=1 << 20))
    for _ in range(4):
        append(store.log, encode_batch(records(1, value=bytes(500))))
    size = store.log.size_bytes // 4
    small, large = store.log.read(0, 10, 4), store.log.read(0, size + 10, 4)
    assert small is not None
    assert large is not None
    assert (small.length, large.length) == (size, size + 10)


def test_available_bytes_are_exact_within_a_segment(store: Store) -> None:
    store.log.configure(replace(SMALL, segment_bytes=1 << 20))
    for _ in range(100):
        append(store.log)
    size = store.log.size_bytes // 100
    for offset, end in ((0, 100), (0, 50), (99, 100), (30, 31)):
        assert store.log.read_bytes_available(offset, end) == (end - offset) * size
    assert store.log.read_bytes_available(50, 50) == 0


def test_segments_roll_by_size_and_are_named_after_their_first_offset(store: Store) -> None:
    while store.log.segment_count < 3:
        append(store.log, count=2)
    names = [path.rsplit("/", 1)[1] for path in store.disk.paths("/data/events-0") if path.endswith(".log")]
    assert len(names) == 3
    assert all(len(name) == 24 for name in names)
    for name in names:
        base = int(name[:20])
        assert base == 0 or read_one(store, base)[0] == base


def test_segments_roll_by_the_age_of_their_records(store: Store) -> None:
    store.log.configure(replace(SMALL, segment_bytes=1 << 20, segment_ms=1000))
    for timestamp in (0, 1000, 1001, 2001, 2002):
        append(store.log, encode_batch(records(1, timestamp=timestamp)))
    assert store.log.segment_count == 3


def test_segments_roll_when_their_index_is_full(store: Store) -> None:
    store.log.configure(replace(SMALL, segment_bytes=1 << 20, segment_index_bytes=64))
    for _ in range(40):
        append(store.log)
    assert store.log.segment_count > 1
    assert len(read_all(store.log)) == 40


def test_segments_roll_before_a_relative_offset_overflows(store: Store) -> None:
    append(store.log)
    far = encode_batch([Record(2**31, 1, b"k", b"v")], base_offset=None)
    store.log.append_as_follower(memoryview(far))
    assert store.log.segment_count == 2
    assert read_one(store, 1) == [2**31]


def test_a_batch_larger_than_a_segment_has_one_of_its_own(store: Store) -> None:
    append(store.log)
    append(store.log, encode_batch(records(1, value=bytes(5000))))
    append(store.log)
    assert store.log.segment_count == 3
    assert len(read_all(store.log)) == 3


def test_a_retried_batch_is_answered_with_its_old_offsets_and_not_written(store: Store) -> None:
    append(store.log, count=4)
    append(store.log, idempotent(2, sequence=0))
    size = store.log.size_bytes
    assert append(store.log, idempotent(2, sequence=0)) == Appended(4, 5, True)
    assert store.log.size_bytes == size


def test_a_refused_sequence_changes_nothing(store: Store) -> None:
    append(store.log, idempotent(1, sequence=0))
    assert code_of(lambda: append(store.log, idempotent(1, sequence=5))) is ErrorCode.out_of_order_sequence_number
    assert code_of(lambda: append(store.log, idempotent(1, epoch=-1, sequence=1))) is ErrorCode.invalid_producer_epoch
    assert store.log.log_end_offset == 1
    assert append(store.log, idempotent(1, sequence=1)) == Appended(1, 1, False)


@pytest.mark.parametrize("how", ["restart", "kill", "crash"])
def test_a_retry_is_recognised_after_a_restart(store: Store, how: str) -> None:
    for sequence in range(12):
        append(store.log, idempotent(1, sequence=sequence))
    sync(store.log)
    getattr(store, how)()
    for sequence in range(7, 12):
        assert append(store.log, idempotent(1, sequence=sequence)).duplicate
    assert append(store.log, idempotent(1, sequence=12)) == Appended(12, 12, False)


def test_a_sync_covers_what_was_written_when_it_began(store: Store) -> None:
    append(store.log)
    ticket = store.log.begin_sync()
    assert ticket is not None
    append(store.log)
    ticket.run()
    store.log.finish_sync(ticket)
    assert store.log.synced_offset == 1
    sync(store.log)
    assert store.log.synced_offset == 2
    assert store.log.begin_sync() is None


def test_a_sync_reaches_every_segment_and_their_names(store: Store) -> None:
    while store.log.segment_count < 4:
        append(store.log)
    sync(store.log)
    count = store.log.log_end_offset
    assert store.crash().log_end_offset == count


def test_a_truncation_during_a_sync_limits_what_it_covers(store: Store) -> None:
    for _ in range(3):
        append(store.log)
    ticket = store.log.begin_sync()
    assert ticket is not None
    store.log.truncate_to(1)
    ticket.run()
    append(store.log)
    store.log.finish_sync(ticket)
    assert store.log.synced_offset == 1


def test_a_flush_is_due_by_messages_time_or_a_finished_segment(store: Store) -> None:
    log = store.log
    sync(log)
    assert not log.flush_due(0)
    append(log)
    assert not log.flush_due(0)
    log.configure(replace(SMALL, flush_messages=1))
    assert log.flush_due(0)
    log.configure(replace(SMALL, flush_ms=50))
    assert not log.flush_due(49)
    assert log.flush_due(50)
    log.configure(SMALL)
    while log.segment_count < 2:
        append(log)
    assert not log.flush_due(ENDED_SEGMENT_MS - 1)
    assert log.flush_due(ENDED_SEGMENT_MS)


def test_a_follower_stores_what_its_leader_sent() -> None:
    leader, follower = Store(), Store()
    for number in range(20):
        append(leader.log, idempotent(2, sequence=2 * number), leader_epoch=number // 7)
    copied = b"".join(read_all(leader.log))
    follower.log.append_as_follower(memoryview(bytearray(copied)))
    assert read_all(follower.log) == read_all(leader.log)
    assert follower.log.end_offset_for_epoch(1) == leader.log.end_offset_for_epoch(1) == (1, 28)
    assert follower.log.producers().keys() == {7}


def test_a_follower_leaves_out_a_cut_batch_and_refuses_a_damaged_or_old_one() -> None:
    leader, follower = Store(), Store()
    for _ in range(3):
        append(leader.log)
    data = bytearray(b"".join(read_all(leader.log)))
    follower.log.append_as_follower(memoryview(data[:-1]))
    assert follower.log.log_end_offset == 2
    refused = lambda: follower.log.append_as_follower(memoryview(data))  # noqa: E731
    assert code_of(refused) is ErrorCode.offset_out_of_range
    data[-1] ^= 1
    last = data[2 * len(data) // 3 :]
    assert code_of(lambda: follower.log.append_as_follower(memoryview(last))) is ErrorCode.corrupt_message
    assert follower.log.log_end_offset == 2


def test_a_follower_takes_the_gaps_that_compaction_left_up_to_its_leaders_end() -> None:
    follower = Store()
    batches = [encode_batch([Record(offset, 1, b"k", b"v")], base_offset=None) for offset in (0, 40, 70)]
    follower.log.append_as_follower(memoryview(bytearray(b"".join(batches))), 71)
    assert follower.log.log_end_offset == 41, "the last one cannot be told from one whose offset is damaged yet"
    refused = lambda: follower.log.append_as_follower(memoryview(bytearray(batches[2])), 70)  # noqa: E731
    assert code_of(refused) is ErrorCode.corrupt_message
    follower.log.append_as_follower(memoryview(bytearray(batches[2])), 71)
    assert follower.log.log_end_offset == 71


def test_a_marker_ends_a_transaction_here_and_after_a_restart(store: Store) -> None:
    batch = encode_batch(records(2), producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    append(store.log, batch)
    assert store.log.last_stable_offset(2) == 0
    marker = encode_marker(committed=True, producer_id=7, producer_epoch=0, coordinator_epoch=5, timestamp=1)
    view = memoryview(marker)
    assert store.log.append(view, read_header(view), 0, Origin.COORDINATOR) == Appended(2, 2, False)
    assert store.log.last_stable_offset(2) == 0
    assert store.log.last_stable_offset(3) == 3
    store.kill()
    assert store.log.last_stable_offset(3) == 3
    assert store.log.producers()[7].coordinator_epoch == 5


def test_truncation_drops_segments_records_producers_and_epochs(store: Store) -> None:
    for number in range(30):
        append(store.log, idempotent(1, sequence=number), leader_epoch=number // 10)
    before = read_all(store.log)
    store.log.truncate_to(13)
    assert store.log.log_end_offset == 13
    assert read_all(store.log) == before[:13]
    assert store.log.latest_epoch() == 1
    assert store.log.end_offset_for_epoch(1) == (1, 13)
    assert append(store.log, idempotent(1, sequence=12), leader_epoch=3).duplicate
    assert append(store.log, idempotent(1, sequence=13), leader_epoch=3) == Appended(13, 13, False)


def test_truncation_inside_a_batch_drops_the_batch(store: Store) -> None:
    append(store.log, count=3)
    append(store.log, count=3)
    store.log.truncate_to(4)
    assert store.log.log_end_offset == 3


@pytest.mark.parametrize("how", ["kill", "crash"])
def test_truncation_inside_a_batch_leaves_nothing_synced_beyond_the_end(store: Store, how: str) -> None:
    """Else a start would miss what was dropped, and the next record would count as synced before it is."""
    append(store.log, count=3)
    append(store.log, count=3)
    sync(store.log)
    store.checkpoint()
    store.log.truncate_to(4)
    assert store.log.synced_offset == 3
    getattr(store, how)()
    assert store.log.offline is None
    assert store.log.log_end_offset == 3


def test_truncation_below_the_start_restarts_the_log(store: Store) -> None:
    for _ in range(30):
        append(store.log)
    store.log.advance_start(20)
    store.log.truncate_to(10)
    assert (store.log.log_start_offset, store.log.log_end_offset) == (10, 10)
    assert append(store.log).base_offset == 10
    sync(store.log)
    store.crash()
    assert (store.log.log_start_offset, store.log.log_end_offset) == (10, 11)


def test_a_truncated_tail_does_not_return_when_shorter_new_batches_are_lost(store: Store) -> None:
    for _ in range(8):
        append(store.log)
    sync(store.log)
    store.checkpoint()
    store.log.truncate_to(3)
    store.crash()
    assert store.log.offline is None
    assert store.log.log_end_offset == 3


def test_a_reader_of_a_removed_segment_can_finish(store: Store) -> None:
    for _ in range(40):
        append(store.log)
    piece = store.log.read(0, 1 << 20, 40)
    assert piece is not None
    store.log.advance_start(35)
    store.manager.delete_files(1 << 60)
    assert read_header(piece.file.pread(piece.length, piece.position)).base_offset == 0


def test_a_new_leader_is_known_before_it_writes(store: Store) -> None:
    append(store.log, leader_epoch=1)
    store.log.start_epoch(2)
    assert store.log.end_offset_for_epoch(1) == (1, 1)
    assert store.log.end_offset_for_epoch(2) == (2, 1)


def test_closed_logs_take_nothing(store: Store) -> None:
    store.log.close()
    assert code_of(lambda: append(store.log)) is ErrorCode.kafka_storage_error
