"""Records are found by time to the record, whatever the order of their timestamps."""

import pytest

from headrace.protocol.compression import DECOMPRESSED_LIMIT
from headrace.protocol.records import Record, encode_batch
from tests.support.storage import Store, append


def store_of(*batches: list[int], codec: int = 0) -> Store:
    """A log of batches with these timestamps."""
    store = Store()
    for timestamps in batches:
        append(
            store.log, encode_batch([Record(0, t, b"k", b"v" * 40) for t in timestamps], codec=codec), leader_epoch=3
        )
    return store


@pytest.mark.parametrize("codec", range(5))
def test_the_exact_record_inside_a_batch_is_found(codec: int) -> None:
    log = store_of([10, 20, 30], [40, 50, 60], codec=codec).log
    assert log.offset_for_timestamp(45, 6) == (4, 50, 3)
    assert log.offset_for_timestamp(20, 6) == (1, 20, 3)
    assert log.offset_for_timestamp(0, 6) == (0, 10, 3)
    assert log.offset_for_timestamp(61, 6) is None


def test_the_first_in_offset_order_wins_when_timestamps_jump() -> None:
    log = store_of([100], [10], [200], [50], [150]).log
    assert log.offset_for_timestamp(40, 5) == (0, 100, 3)
    assert log.offset_for_timestamp(120, 5) == (2, 200, 3)


def test_lookups_cross_segments() -> None:
    log = store_of(*[[10 * n, 10 * n + 1] for n in range(60)]).log
    assert log.segment_count > 3
    for n in range(60):
        assert log.offset_for_timestamp(10 * n + 1, 120) == (2 * n + 1, 10 * n + 1, 3)


def test_nothing_beyond_the_end_or_before_the_start_is_found() -> None:
    log = store_of([10], [20], [30]).log
    assert log.offset_for_timestamp(30, 2) is None
    log.advance_start(1)
    assert log.offset_for_timestamp(0, 3) == (1, 20, 3)


def test_the_largest_timestamp_is_found_with_its_first_record() -> None:
    log = store_of([10, 90, 20], [90], [50], [95]).log
    assert log.offset_of_max_timestamp(6) == (5, 95, 3)
    assert log.offset_of_max_timestamp(5) == (1, 90, 3)
    assert log.offset_of_max_timestamp(0) is None


def test_records_without_timestamps_are_not_found() -> None:
    log = store_of([-1], [-1]).log
    assert log.offset_of_max_timestamp(2) is None
    assert log.offset_for_timestamp(0, 2) is None


def test_lookups_work_after_restarts_of_each_kind() -> None:
    for how in ("restart", "kill"):
        store = store_of(*[[10 * n] for n in range(40)])
        getattr(store, how)()
        assert store.log.offset_for_timestamp(215, 40) == (22, 220, 3)
        assert store.log.offset_of_max_timestamp(40) == (39, 390, 3)


@pytest.mark.parametrize("codec", [1, 4])
def test_a_batch_too_large_to_be_read_here_is_found_at_its_beginning(codec: int) -> None:
    """Its consumers can read it: none of its records may be passed over."""
    store = store_of([10, 20], codec=codec)
    large = [Record(0, t, b"k", bytes(DECOMPRESSED_LIMIT // 2)) for t in (30, 40)]
    append(store.log, encode_batch(large, codec=codec), leader_epoch=3)
    append(store.log, encode_batch([Record(0, 50, b"k", b"v")]), leader_epoch=3)
    assert store.log.offset_for_timestamp(40, 5) == (2, 40, 3)
    assert store.log.offset_for_timestamp(45, 5) == (4, 50, 3)
    assert store.log.offset_of_max_timestamp(4) == (2, 40, 3)
