"""What a broker says of itself in the store."""

from uuid import UUID

from headrace.cluster.image import BrokerNode
from headrace.cluster.registration import (
    DataLoss,
    Registration,
    decode_log_keys,
    decode_registration,
    encode_log_keys,
    encode_registration,
    registration_key,
)
from headrace.cluster.store import Versioned


def test_a_registration_is_read_as_it_was_written() -> None:
    synced = frozenset({(UUID(int=1), 0), (UUID(int=1), 1), (UUID(int=1), 3), (UUID(int=2), 9)})
    node = BrokerNode(id=4, host="h", port=9, rack=None, epoch=7)
    registration = Registration(node=node, directory="d", place="p", loss=DataLoss.UNSYNCED, synced=synced, lineage="l")
    stored = Versioned(value=encode_registration(registration), version=0, created=7)
    assert decode_registration(registration_key(4), stored) == registration


def test_a_hundred_thousand_synced_partitions_take_little_room() -> None:
    keys = [(UUID(int=topic), partition) for topic in range(1_000) for partition in range(100)]
    encoded = encode_log_keys(keys)
    assert encoded[UUID(int=5).hex] == [0, 99]
    assert decode_log_keys(encoded) == frozenset(keys)


def test_more_topics_than_a_record_of_the_store_can_hold_are_left_out() -> None:
    encoded = encode_log_keys(((UUID(int=topic), 0) for topic in range(100)), most_bytes=1_000)
    assert 10 < len(encoded) < 30
    assert decode_log_keys(encoded) <= {(UUID(int=topic), 0) for topic in range(100)}


def test_a_topic_that_does_not_fit_leaves_room_for_others() -> None:
    many, one = UUID(int=1), UUID(int=2)
    encoded = encode_log_keys([*((many, partition) for partition in range(0, 1_000, 2)), (one, 0)], most_bytes=1_000)
    assert decode_log_keys(encoded) == {(one, 0)}
