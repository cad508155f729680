"""Segments go when they are too old, too many, or before the log's start."""

from dataclasses import replace
from typing import NamedTuple

import pytest

from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.records import encode_batch
from headrace.storage import retention
from headrace.storage.retention import Cause
from headrace.storage.settings import LogSettings
from tests.support.storage import SMALL, Store, append, idempotent, read_all, records, sync

HOUR = 3_600_000


class Aged(NamedTuple):
    base_offset: int
    next_offset: int
    size: int
    age_timestamp: int


SEGMENTS = [Aged(0, 10, 100, 1000), Aged(10, 20, 100, 2000), Aged(20, 30, 100, 3000)]


def count_expired(
    segments: list[Aged], policy: LogSettings, *, now_ms: int, log_start_offset: int, high_watermark: int
) -> int:
    causes = retention.expired(
        segments, policy, now_ms=now_ms, log_start_offset=log_start_offset, high_watermark=high_watermark
    )
    return len(causes)


def expired(now_ms: int = 0, start: int = 0, high_watermark: int = 30, **settings: object) -> int:
    policy = LogSettings(**settings)  # type: ignore[arg-type]
    return count_expired(SEGMENTS, policy, now_ms=now_ms, log_start_offset=start, high_watermark=high_watermark)


def test_segments_older_than_retention_ms_go() -> None:
    assert expired(2600, retention_ms=500) == 2
    assert expired(2500, retention_ms=500) == 1
    assert expired(9000, retention_ms=500) == 3
    assert expired(9000, retention_ms=-1) == 0


def test_the_oldest_go_while_the_rest_is_large_enough() -> None:
    assert [expired(retention_bytes=size) for size in (0, 99, 100, 199, 200, 300)] == [3, 2, 2, 1, 1, 0]


def test_nothing_goes_beyond_the_high_watermark() -> None:
    assert expired(9000, retention_ms=500, high_watermark=19) == 1
    assert expired(9000, retention_ms=500, high_watermark=20) == 2


def test_what_lies_before_the_start_goes_whatever_the_policy() -> None:
    assert expired(start=20, cleanup_policy=frozenset({"compact"})) == 2
    assert expired(9000, retention_ms=500, cleanup_policy=frozenset({"compact"})) == 0
    assert expired(9000, retention_ms=500, cleanup_policy=frozenset()) == 0


def test_each_segment_that_goes_says_why() -> None:
    policy = LogSettings(retention_ms=500, retention_bytes=200)
    causes = retention.expired(SEGMENTS, policy, now_ms=2600, log_start_offset=0, high_watermark=30)
    assert causes == [Cause.SIZE, Cause.TIME]
    causes = retention.expired(SEGMENTS, LogSettings(), now_ms=0, log_start_offset=15, high_watermark=30)
    assert causes == [Cause.LOG_START]


def aged(base: int, size: int, timestamp: int) -> Aged:
    """A segment of ten offsets; one that compaction has emptied ends where it begins."""
    return Aged(base, base + 10, size, timestamp) if size else Aged(base, base, 0, 10**9)


def test_a_log_does_not_start_later_because_compaction_has_emptied_its_first_segment() -> None:
    segments = [aged(0, 0, 1000), aged(10, 0, 2000), aged(20, 100, 3000)]
    policy = LogSettings(cleanup_policy=frozenset({"compact"}))
    counts = [
        count_expired(segments, policy, now_ms=0, log_start_offset=start, high_watermark=30) for start in (0, 9, 10, 20)
    ]
    assert counts == [0, 0, 1, 2]


def test_a_segment_that_compaction_emptied_holds_nothing_back() -> None:
    policy = LogSettings(cleanup_policy=frozenset({"compact", "delete"}), retention_ms=500)

    def count(*sizes: int, now_ms: int, start: int = 0) -> int:
        segments = [aged(10 * n, size, 1000 * (n + 1)) for n, size in enumerate(sizes)]
        return count_expired(segments, policy, now_ms=now_ms, log_start_offset=start, high_watermark=100)

    assert count(0, 100, 100, now_ms=2501) == 2
    assert count(0, 100, 100, now_ms=2500) == 0
    assert count(100, 0, 100, now_ms=2501) == 1
    assert count(0, 0, 100, now_ms=9000) == 3
    assert count(0, 0, now_ms=9000) == 0
    assert count(0, 100, 0, now_ms=1501, start=10) == 1
    assert count(0, 0, now_ms=0, start=10) == 1


def old_store() -> Store:
    store = Store()
    for _ in range(30):
        append(store.log, encode_batch(records(1, timestamp=store.clock.now_ms())))
        store.clock.advance(HOUR)
    sync(store.log)
    return store


def test_expired_segments_leave_the_log_at_once_and_the_disk_later() -> None:
    store = old_store()
    files = len(store.disk.paths())
    store.log.configure(replace(SMALL, retention_ms=15 * HOUR))
    freed = store.log.retain(store.clock.now_ms(), 30)
    assert freed > 0
    assert 0 < store.log.log_start_offset <= 15
    assert len(read_all(store.log)) == 30 - store.log.log_start_offset
    store.manager.delete_files(store.clock.now_ms())
    assert len(store.disk.paths()) == files
    store.clock.advance(60_000)
    store.manager.delete_files(store.clock.now_ms())
    assert len(store.disk.paths()) < files


def test_a_log_that_expired_as_a_whole_is_rolled_and_emptied() -> None:
    store = old_store()
    store.log.configure(replace(SMALL, retention_ms=1))
    store.log.retain(store.clock.now_ms(), 30)
    assert (store.log.log_start_offset, store.log.log_end_offset, store.log.size_bytes) == (30, 30, 0)
    store.manager.delete_files(store.clock.now_ms() + 60_000)
    assert append(store.log).base_offset == 30
    sync(store.log)
    assert store.crash().log_start_offset == 30


def test_idle_producers_are_forgotten() -> None:
    store = Store(replace(SMALL, producer_id_expiration_ms=HOUR))
    append(store.log, idempotent(1, sequence=0, timestamp=store.clock.now_ms()))
    store.log.retain(store.clock.now_ms() + HOUR - 1, 0)
    assert 7 in store.log.producers()
    store.log.retain(store.clock.now_ms() + HOUR * 9 // 8, 0)
    assert 7 not in store.log.producers()


@pytest.mark.parametrize("how", ["restart", "kill", "crash"])
def test_deleted_records_stay_deleted(how: str) -> None:
    store = old_store()
    store.log.advance_start(17)
    getattr(store, how)()
    assert store.log.log_start_offset == 17
    assert len(read_all(store.log)) >= 13
    with pytest.raises(CodedError) as caught:
        store.log.read(16, 100, 30)
    assert caught.value.code is ErrorCode.offset_out_of_range


def test_records_that_are_not_there_cannot_be_deleted() -> None:
    store = old_store()
    with pytest.raises(CodedError) as caught:
        store.log.advance_start(31)
    assert caught.value.code is ErrorCode.offset_out_of_range
    store.log.advance_start(30)
    assert read_all(store.log) == []


def test_segments_half_deleted_at_a_crash_leave_no_gap() -> None:
    store = old_store()
    store.checkpoint()
    store.log.configure(replace(SMALL, retention_ms=5 * HOUR))
    store.log.retain(store.clock.now_ms(), 30)
    store.manager.delete_files(store.clock.now_ms() + 60_000)
    for names_kept in range(12):
        again = old_store()
        again.checkpoint()
        again.log.configure(replace(SMALL, retention_ms=5 * HOUR))
        again.log.retain(again.clock.now_ms(), 30)
        again.manager.delete_files(again.clock.now_ms() + 60_000)
        again.crash(names_kept=names_kept)
        assert again.log.offline is None
        assert again.log.log_start_offset == store.log.log_start_offset
