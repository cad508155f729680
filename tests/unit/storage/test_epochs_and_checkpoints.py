"""Small text files in Kafka's formats, and the epochs they tell."""

import uuid

import pytest

from headrace.protocol.topic_partition import TopicPartition
from headrace.storage import checkpoints
from headrace.storage.epochs import Epochs


def epochs(*entries: tuple[int, int]) -> Epochs:
    known = Epochs()
    for epoch, start in entries:
        known.assign(epoch, start)
    return known


def test_the_file_of_epochs_is_kafkas() -> None:
    known = epochs((0, 0), (3, 17))
    assert known.encode() == b"0\n2\n0 0\n3 17\n"
    decoded = Epochs.decode(known.encode())
    assert decoded is not None
    assert decoded.entries() == [(0, 0), (3, 17)]


@pytest.mark.parametrize(
    "data", [b"", b"0\n2\n0 0\n", b"1\n0\n", b"0\n1\n0 x\n", b"0\n2\n3 0\n2 5\n", b"\xff\xfe", bytes(9)]
)
def test_a_damaged_file_of_epochs_is_refused(data: bytes) -> None:
    assert Epochs.decode(data) is None


def test_the_end_of_an_epoch_is_where_the_next_one_starts() -> None:
    known = epochs((1, 10), (3, 20), (5, 30))
    assert known.end_offset(3, 40) == (3, 30)
    assert known.end_offset(4, 40) == (3, 30)
    assert known.end_offset(5, 40) == (5, 40)
    assert known.end_offset(0, 40) == (0, 10)
    assert known.end_offset(6, 40) == (-1, -1)
    assert known.end_offset(-1, 40) == (-1, -1)
    assert Epochs().end_offset(0, 40) == (-1, -1)


def test_the_epoch_of_an_offset_is_the_one_in_force() -> None:
    known = epochs((1, 10), (3, 20))
    assert [known.at(offset) for offset in (9, 10, 19, 20, 99)] == [-1, 1, 1, 3, 3]


def test_a_new_history_replaces_the_old_one() -> None:
    known = epochs((1, 10), (3, 20), (4, 30))
    assert known.assign(5, 20)
    assert known.entries() == [(1, 10), (5, 20)]
    assert not known.assign(5, 50)


def test_an_epoch_that_wrote_nothing_gives_way() -> None:
    assert epochs((1, 10), (2, 20), (3, 20)).entries() == [(1, 10), (3, 20)]


def test_both_ends_can_be_cut() -> None:
    known = epochs((1, 10), (3, 20), (5, 30))
    assert known.cut_end(30)
    assert known.entries() == [(1, 10), (3, 20)]
    assert not known.cut_end(30)
    assert known.cut_start(25)
    assert known.entries() == [(3, 25)]
    assert not known.cut_start(25)


def test_offsets_by_partition_are_written_as_kafka_does() -> None:
    offsets = {TopicPartition("b", 1): 7, TopicPartition("a", 0): 5}
    data = checkpoints.encode_offsets(offsets)
    assert data == b"0\n2\na 0 5\nb 1 7\n"
    assert checkpoints.decode_offsets(data) == offsets


@pytest.mark.parametrize("data", [b"", b"0\n2\na 0 5\n", b"0\n1\na 0\n", b"0\n1\na 0 -5\n", b"0\n1\na 0 5", bytes(20)])
def test_a_damaged_checkpoint_is_refused(data: bytes) -> None:
    assert checkpoints.decode_offsets(data) is None


def test_a_topic_id_is_written_in_kafkas_base64() -> None:
    topic_id = uuid.UUID("12345678-90ab-cdef-1234-567890abcdef")
    assert checkpoints.encode_partition_metadata(topic_id) == b"version: 0\ntopic_id: EjRWeJCrze8SNFZ4kKvN7w\n"
    assert checkpoints.decode_partition_metadata(checkpoints.encode_partition_metadata(topic_id)) == topic_id


@pytest.mark.parametrize(
    "data", [b"", b"version: 1\ntopic_id: EjRWeJCrze8SNFZ4kKvN7w\n", b"version: 0\ntopic_id: x\n", bytes(30)]
)
def test_damaged_partition_metadata_is_refused(data: bytes) -> None:
    assert checkpoints.decode_partition_metadata(data) is None


def test_properties_are_read_with_comments() -> None:
    assert checkpoints.decode_properties(b"#Mon\nversion=1\ncluster.id=a=b\n") == {"version": "1", "cluster.id": "a=b"}
