import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocol.partitioner import murmur2, partition_for

JAVA_VECTORS = [
    (b"21", -973932308),
    (b"foobar", -790332482),
    (b"a-little-bit-long-string", -985981536),
    (b"a-little-bit-longer-string", -1486304829),
    (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
    (b"abc", 479470107),
]


@pytest.mark.parametrize(("key", "expected"), JAVA_VECTORS)
def test_murmur2_gives_the_java_clients_hash(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected


def test_a_negative_hash_still_names_a_partition() -> None:
    assert partition_for(b"21", 7) == (-973932308 & 0x7FFFFFFF) % 7


@given(key=st.binary(max_size=64), partitions=st.integers(1, 10_000))
def test_every_key_has_a_partition_in_range(key: bytes, partitions: int) -> None:
    assert 0 <= partition_for(key, partitions) < partitions


def test_no_partitions_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one partition"):
        partition_for(b"key", 0)
