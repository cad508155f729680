"""Rows to partitions, against `protocol.partitioner` and what the Java client was seen to do."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.columnar.hashing import partitions_of, split_by_partition
from headrace.client.errors import ClientError
from headrace.protocol.partitioner import partition_for

keys = st.lists(st.none() | st.binary(max_size=40), max_size=30)


@given(keys, st.integers(1, 1000), st.data())
def test_keys_land_where_the_plain_partitioner_puts_them(
    keys: list[bytes | None], count: int, data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, len(keys)))
    expected = [count - 1 if key is None else partition_for(key, count) for key in keys]
    chosen = partitions_of(pa.array(keys, pa.binary())[first:], count, count - 1)
    assert chosen.dtype == np.int32
    assert chosen.tolist() == expected[first:]


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        ("21", -973932308),
        ("foobar", -790332482),
        ("a-little-bit-long-string", -985981536),
        ("a-little-bit-longer-string", -1486304829),
        ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        ("abc", 479470107),
    ],
)
def test_keys_hash_as_in_the_tests_of_the_java_client(key: str, hashed: int) -> None:
    count = 2**31 - 1
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        assert partitions_of(pa.array([key]).cast(kind), count, 0).tolist() == [(hashed & 0x7FFFFFFF) % count]


def test_a_column_of_no_type_is_null_everywhere() -> None:
    assert partitions_of(pa.nulls(3), 8, 5).tolist() == [5, 5, 5]


def test_a_topic_without_partitions_and_keys_that_are_no_bytes_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one partition"):
        partitions_of(pa.array([b"a"]), 0, 0)
    with pytest.raises(ClientError, match="column 'key' must hold binary or strings"):
        partitions_of(pa.array([1]), 1, 0)


def _value(number: int) -> bytes | None:
    return None if number % 7 == 3 else bytes(number % 5)


@given(st.lists(st.integers(0, 4), max_size=40), st.data())
def test_each_partition_gets_its_rows_in_order(partitions: list[int], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(partitions)))
    rows = pa.RecordBatch.from_pydict(
        {
            "number": pa.array(range(len(partitions)), pa.int64()),
            "value": pa.array([_value(n) for n in range(len(partitions))], pa.binary()),
            "text": pa.array([str(n) for n in range(len(partitions))], pa.string()),
        }
    )[first:]
    split = split_by_partition(rows, np.array(partitions[first:], np.int32), 5)
    numbered = list(enumerate(partitions))[first:]
    expected = {p: [n for n, one in numbered if one == p] for p in partitions[first:]}
    assert {p: part.column("number").to_pylist() for p, part in split.items()} == expected
    for part in split.values():
        part.validate(full=True)
        numbers = part.column("number").to_pylist()
        assert part.schema == rows.schema
        assert part.column("value").to_pylist() == [_value(n) for n in numbers]
        assert part.column("text").to_pylist() == [str(n) for n in numbers]


def test_rows_of_one_partition_are_not_copied() -> None:
    rows = pa.RecordBatch.from_pydict({"value": [b"a", b"b"]})
    assert split_by_partition(rows, np.array([3, 3], np.int32), 4)[3] is rows


@pytest.mark.parametrize("wrong", [-1, 4])
def test_a_partition_that_is_not_there_is_refused(wrong: int) -> None:
    rows = pa.RecordBatch.from_pydict({"value": [b"a", b"b"]})
    with pytest.raises(ClientError, match=f"no partition {wrong}, the topic has 4"):
        split_by_partition(rows, np.array([0, wrong], np.int32), 4)
