"""The records of `__share_group_state`, beside bytes put together by hand after Kafka's schemas."""

from struct import pack
from uuid import UUID

import pytest

from headrace.coordinator.runtime.fields import BadRecord, key_kind
from headrace.coordinator.share.records import (
    SNAPSHOT,
    UPDATE,
    Snapshot,
    Update,
    decode_key,
    decode_snapshot,
    decode_update,
    encode_key,
    encode_snapshot,
    encode_update,
)
from headrace.replication.share_state import UNKNOWN_COUNT, SharePartition, StateBatch

TOPIC = UUID(int=77)
KEY = SharePartition("gruppe", TOPIC, 3)
BATCHES = (StateBatch(100, 109, 0, 1), StateBatch(111, 111, 4, 5))
BATCHES_BYTES = b"\x03" + pack(">qqbhB", 100, 109, 0, 1, 0) + pack(">qqbhB", 111, 111, 4, 5, 0)
SNAPSHOT_VALUE = Snapshot(
    snapshot_epoch=2,
    state_epoch=4,
    leader_epoch=6,
    start_offset=100,
    delivery_complete_count=1,
    created_ms=1_000,
    written_ms=2_000,
    batches=BATCHES,
)
UPDATE_VALUE = Update(
    snapshot_epoch=2, leader_epoch=6, start_offset=-1, delivery_complete_count=UNKNOWN_COUNT, batches=BATCHES
)


def test_keys_are_kafkas() -> None:
    for kind in (SNAPSHOT, UPDATE):
        key = encode_key(kind, KEY)
        assert key == pack(">hh", kind, 6) + b"gruppe" + TOPIC.bytes + pack(">i", 3)
        assert (key_kind(key), decode_key(key)) == (kind, KEY)


def test_a_snapshot_is_kafkas() -> None:
    encoded = encode_snapshot(SNAPSHOT_VALUE)
    count = b"\x01\x00\x04" + pack(">i", 1)
    assert encoded == pack(">hiiiqqq", 0, 2, 4, 6, 100, 1_000, 2_000) + BATCHES_BYTES + count
    assert decode_snapshot(encoded) == SNAPSHOT_VALUE


def test_an_update_is_kafkas() -> None:
    encoded = encode_update(UPDATE_VALUE)
    assert encoded == pack(">hiiq", 0, 2, 6, -1) + BATCHES_BYTES + b"\x00"
    assert decode_update(encoded) == UPDATE_VALUE


@pytest.mark.parametrize("size", range(len(encode_snapshot(SNAPSHOT_VALUE))))
def test_a_torn_record_is_told(size: int) -> None:
    with pytest.raises(BadRecord):
        decode_snapshot(encode_snapshot(SNAPSHOT_VALUE)[:size])
