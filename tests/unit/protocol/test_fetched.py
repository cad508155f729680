"""What a follower reads out of a Fetch response, as the leader writes it."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocol.errors import ProtocolViolation
from headrace.protocol.fetch import EpochEnd, FetchedPartition, FetchedTopic, Response, write_response
from headrace.protocol.fetched import parse_fetch

TOPIC = UUID(int=7)
WHOLE = FetchedPartition(
    3,
    0,
    high_watermark=10,
    last_stable_offset=9,
    log_start_offset=2,
    aborted=((5, 6), (7, 8)),
    preferred_read_replica=1,
)


def written(version: int, *partitions: FetchedPartition) -> memoryview:
    response = Response(b"")
    write_response(response, version, [FetchedTopic("orders", TOPIC, list(partitions))])
    return memoryview(b"".join(part for part in response.finish() if isinstance(part, (bytes, bytearray))))


@pytest.mark.parametrize("version", range(4, 19))
def test_what_the_leader_writes_the_follower_reads(version: int) -> None:
    (partition,) = parse_fetch(written(version, WHOLE), version).partitions
    assert partition.topic == (TOPIC.bytes if version >= 13 else "orders")
    assert partition[1:5] == (3, 0, 10, 9)
    assert partition.log_start_offset == (2 if version >= 5 else -1)
    assert partition.aborted == ((5, 6), (7, 8))
    assert partition.diverging is None


def test_a_diverging_epoch_is_read_between_partitions_without_one() -> None:
    lost = FetchedPartition(4, diverging=EpochEnd(6, 123_456_789_012))
    answer = parse_fetch(written(17, WHOLE, lost, WHOLE), 17)
    assert [partition.diverging for partition in answer.partitions] == [None, EpochEnd(6, 123_456_789_012), None]
    assert [partition.partition for partition in answer.partitions] == [3, 4, 3]


@given(st.data())
def test_a_response_cut_anywhere_is_a_violation(data: st.DataObject) -> None:
    version = data.draw(st.integers(4, 18))
    body = written(version, WHOLE, FetchedPartition(4, diverging=EpochEnd(6, 7)))
    cut = data.draw(st.integers(0, len(body) - 2))  # the last byte has nothing in it
    with pytest.raises(ProtocolViolation):
        parse_fetch(body[:cut], version)


@given(st.integers(4, 18), st.binary(max_size=200))
def test_no_bytes_end_the_process(version: int, body: bytes) -> None:
    try:
        parse_fetch(memoryview(body), version)
    except ProtocolViolation:
        pass
