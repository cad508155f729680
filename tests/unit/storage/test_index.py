"""Index files hold Kafka's bytes, and anything else is recognised."""

import pytest

from headrace.storage.index import OffsetIndex, TimeEntry, TimeIndex


def offset_index(*entries: tuple[int, int]) -> OffsetIndex:
    index = OffsetIndex()
    for entry in entries:
        index.add(*entry)
    return index


def time_index(*entries: tuple[int, int]) -> TimeIndex:
    index = TimeIndex()
    for entry in entries:
        index.add(*entry)
    return index


def test_offset_entries_are_two_big_endian_ints() -> None:
    index = offset_index((5, 4200), (260, 8500))
    assert index.encode() == bytes.fromhex("00000005 00001068 00000104 00002134")
    assert index.encode(1) == bytes.fromhex("00000104 00002134")
    decoded = OffsetIndex.decode(index.encode(), 9000)
    assert decoded is not None
    assert decoded.offsets == index.offsets
    assert decoded.positions == index.positions


def test_time_entries_are_a_long_and_an_int() -> None:
    index = time_index((1_700_000_000_000, 5), (1_700_000_000_001, 9))
    assert index.encode() == bytes.fromhex("0000018bcfe56800 00000005 0000018bcfe56801 00000009")
    decoded = TimeIndex.decode(index.encode())
    assert decoded is not None
    assert decoded.timestamps == index.timestamps
    assert decoded.offsets == index.offsets


def test_the_floor_is_the_last_entry_at_or_below() -> None:
    index = offset_index((5, 100), (9, 200))
    assert [index.floor(offset) for offset in (0, 4, 5, 8, 9, 100)] == [-1, -1, 0, 0, 1, 1]


@pytest.mark.parametrize(
    "data",
    [
        b"\x00" * 7,
        offset_index((5, 100), (5, 200)).encode(),
        offset_index((5, 100), (9, 100)).encode(),
        offset_index((9, 100), (5, 200)).encode(),
        offset_index((5, 100)).encode() + bytes(8),
        offset_index((5, 1000)).encode(),
        bytes(8),
        b"\xff" * 8,
    ],
)
def test_what_cannot_be_an_offset_index_is_refused(data: bytes) -> None:
    assert OffsetIndex.decode(data, 1000) is None


@pytest.mark.parametrize(
    "data", [b"\x00" * 11, time_index((5, 1)).encode() + bytes(12), time_index((5, 1)).encode() * 2, b"\xff" * 12]
)
def test_what_cannot_be_a_time_index_is_refused(data: bytes) -> None:
    assert TimeIndex.decode(data) is None


def test_an_empty_index_is_fine() -> None:
    assert OffsetIndex.decode(b"", 0) is not None
    assert TimeIndex.decode(b"") is not None


def test_time_is_noted_only_when_it_grows() -> None:
    index = time_index((10, 1), (10, 2), (9, 3), (11, 4), (-1, 5))
    assert index.timestamps.tolist() == [10, 11]
    assert index.last == TimeEntry(11, 4)
    assert time_index((-1, 0)).last is None


def test_lookups_by_time_and_offset() -> None:
    index = time_index((10, 1), (20, 5), (30, 9))
    assert index.before(10) is None
    assert index.before(25) == TimeEntry(20, 5)
    assert index.below(1) is None
    assert index.below(9) == TimeEntry(20, 5)


def test_a_cut_forgets_what_lies_beyond() -> None:
    index = offset_index((5, 100), (9, 200), (12, 300))
    index.cut(12, 1000)
    assert index.offsets.tolist() == [5, 9]
    index.cut(1000, 200)
    assert index.offsets.tolist() == [5]
    times = time_index((10, 1), (20, 5))
    times.cut(5)
    assert times.last == TimeEntry(10, 1)
