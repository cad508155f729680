"""Which offsets a batch takes and how they are divided: each offset once, whatever the limits."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.client.columnar.model import Range, TopicPartition
from headrace.spark.source.planning import (
    Limit,
    Splitting,
    bounded,
    gathered,
    lost,
    records_between,
    split,
    step,
    total_bytes,
    unsettled,
)

A, B, C = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)

_RANGES = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 5000)), max_size=6).map(
    lambda pairs: [Range("t", number, start, start + size) for number, (start, size) in enumerate(pairs)]
)
_SPLITTING = st.builds(
    Splitting,
    min_partitions=st.none() | st.integers(1, 40),
    max_records=st.none() | st.integers(100, 6000),
)


@given(_RANGES, _SPLITTING)
def test_split_ranges_give_every_offset_once_and_in_order(ranges: list[Range], how: Splitting) -> None:
    parts = split(ranges, how)
    offsets = [(one.partition, offset) for one in parts for offset in range(one.start, one.end)]
    assert offsets == [(one.partition, offset) for one in ranges for offset in range(one.start, one.end)]
    assert all(one.start < one.end for one in parts)


@given(_RANGES, _SPLITTING)
def test_no_task_is_longer_than_it_may_be(ranges: list[Range], how: Splitting) -> None:
    longest = how.max_records or 10**9
    assert all(one.end - one.start <= longest for one in split(ranges, how))


def test_without_limits_a_task_reads_one_partition() -> None:
    ranges = [Range("t", 0, 0, 10), Range("t", 1, 5, 5), Range("t", 2, 3, 9)]
    assert split(ranges, Splitting()) == [ranges[0], ranges[2]]


def test_large_partitions_are_cut_and_small_ones_left_whole() -> None:
    parts = split([Range("t", 0, 0, 1), Range("t", 1, 0, 1000)], Splitting(min_partitions=5))
    assert parts[0] == Range("t", 0, 0, 1)
    assert [one.end - one.start for one in parts[1:]] == [250] * 4


def test_enough_partitions_are_not_cut() -> None:
    ranges = [Range("t", 0, 0, 10), Range("t", 1, 0, 1000)]
    assert split(ranges, Splitting(min_partitions=2)) == ranges


def test_both_limits_together() -> None:
    parts = split([Range("t", 0, 0, 1000)], Splitting(min_partitions=4, max_records=600))
    assert len(parts) == 4


@given(_RANGES, st.integers(1, 5000))
def test_gathered_ranges_are_the_same_ranges(ranges: list[Range], most: int) -> None:
    tasks = gathered(ranges, most)
    assert [one for task in tasks for one in task] == ranges
    assert all(len(task) == 1 or sum(one.end - one.start for one in task) <= most for task in tasks)


def test_neighbours_with_few_records_share_a_task() -> None:
    ranges = [Range("t", number, 0, size) for number, size in enumerate([4, 6, 1, 50, 2, 8])]
    assert [[one.partition for one in task] for task in gathered(ranges, 10)] == [[0, 1], [2], [3], [4, 5]]


@given(
    st.dictionaries(st.sampled_from([A, B, C]), st.integers(0, 100)),
    st.dictionaries(st.sampled_from([A, B, C]), st.integers(0, 200)),
    st.lists(st.integers(1, 300), max_size=2),
)
def test_a_limited_batch_ends_between_its_start_and_the_end_and_gets_on(
    start: dict[TopicPartition, int], end: dict[TopicPartition, int], most: list[int]
) -> None:
    total = records_between(start, end)
    reached = bounded(start, end, [Limit(limit, total) for limit in most])
    for where, stop in end.items():
        begin = start.get(where, stop)
        assert reached[where] == stop if begin >= stop else begin < reached[where] <= stop


def test_partitions_share_a_limit_by_what_they_have() -> None:
    assert bounded({A: 0, B: 100}, {A: 900, B: 200}, [Limit(100, 1000)]) == {A: 90, B: 110}


def test_a_limit_on_bytes_takes_the_same_share_of_each_partition() -> None:
    start, end = {A: 0, B: 0}, {A: 100, B: 100}
    size = total_bytes(start, end, {A: 10.0, B: 90.0})
    assert size == 10_000
    assert bounded(start, end, [Limit(1000, size)]) == {A: 10, B: 10}


def test_a_step_reads_from_one_point_to_the_next() -> None:
    assert step({A: 1, B: 2}, {A: 5, B: 2}, {}) == ([Range("t", 0, 1, 5)], [])


def test_a_new_partition_is_read_from_its_beginning() -> None:
    assert unsettled({A: 1}, {A: 1, B: 3}) == {B}
    assert step({A: 1}, {A: 1, B: 3}, {B: 0}) == ([Range("t", 1, 0, 3)], [])


def test_a_new_partition_that_does_not_begin_at_0_has_lost_records() -> None:
    ranges, losses = step({}, {B: 9}, {B: 4})
    assert ranges == [Range("t", 1, 4, 9)]
    assert losses == ["the new partition t-1 starts at offset 4 instead of 0"]


def test_a_new_partition_deleted_at_once_is_a_loss() -> None:
    assert step({}, {B: 9}, {}) == ([], ["t-1 was deleted as soon as it was found"])


def test_a_partition_that_is_gone_is_a_loss() -> None:
    assert lost({A: 1, B: 2, C: 3}, {B: 2}) == ["t-0, u-0 are gone"]
    assert lost({C: 3}, {}) == ["u-0 is gone"]


def test_offsets_that_went_back_are_a_loss_and_what_is_there_is_read_from_its_beginning() -> None:
    assert unsettled({A: 10}, {A: 4}) == {A}
    ranges, losses = step({A: 10}, {A: 4}, {A: 1})
    assert ranges == [Range("t", 0, 1, 4)]
    assert losses == ["t-0 went back from offset 10 to 4: it was truncated or made anew"]
