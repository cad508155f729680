"""The records of `__share_group_state`, byte for byte as Kafka has them (ShareSnapshotKey and ShareSnapshotValue,
ShareUpdateKey and ShareUpdateValue), so that its tools can read the topic.

| type | key                     | value                                                                        |
|------|-------------------------|------------------------------------------------------------------------------|
| 0    | group, topic, partition | all that is kept of a share-partition; null where it is forgotten            |
| 1    | group, topic, partition | what has changed since the last snapshot: leader epoch, start offset, runs   |

A start offset of -1 in an update means that it has not changed. The count of offsets whose delivery is complete stands
in a tagged field.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final
from uuid import UUID

from headrace.coordinator.runtime.fields import FieldReader, plain_text, write_tags
from headrace.protocol.encode import write_uvarint
from headrace.replication.share_state import UNKNOWN_COUNT, SharePartition, StateBatch

from .batches import Batches

SHARE_STATE_TOPIC: Final = "__share_group_state"
SNAPSHOT: Final = 0
UPDATE: Final = 1
_VERSION: Final = bytes(2)
_KIND: Final = Struct(">h")
_I32: Final = Struct(">i")
_KEY_END: Final = Struct(">16si")
_SNAPSHOT_HEAD: Final = Struct(">iiiqqq")
_UPDATE_HEAD: Final = Struct(">iiq")
_BATCH: Final = Struct(">qqbh")
_COUNT_TAG: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All that is kept of a share-partition."""

    snapshot_epoch: int
    """How many snapshots there were before this one."""
    state_epoch: int
    leader_epoch: int
    """That of the last leader that has read the state; -1 where none has."""
    start_offset: int
    delivery_complete_count: int
    created_ms: int
    written_ms: int
    batches: Batches


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What has changed since a snapshot, or the update before."""

    snapshot_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: Batches


def encode_key(kind: int, key: SharePartition) -> bytes:
    return _KIND.pack(kind) + plain_text(key.group_id) + _KEY_END.pack(key.topic_id.bytes, key.partition)


def decode_key(key: bytes) -> SharePartition:
    reader = FieldReader(key, 2)
    return SharePartition(reader.text(), UUID(bytes=reader.take(16)), reader.i32())


def encode_snapshot(snapshot: Snapshot) -> bytes:
    out = bytearray(_VERSION)
    out += _SNAPSHOT_HEAD.pack(
        snapshot.snapshot_epoch,
        snapshot.state_epoch,
        snapshot.leader_epoch,
        snapshot.start_offset,
        snapshot.created_ms,
        snapshot.written_ms,
    )
    _write_end(out, snapshot.batches, snapshot.delivery_complete_count)
    return bytes(out)


def decode_snapshot(value: bytes) -> Snapshot:
    reader = FieldReader(value)
    reader.version(0, 0)
    snapshot_epoch, state_epoch, leader_epoch, start_offset, created_ms, written_ms = reader.fixed(_SNAPSHOT_HEAD)
    batches, count = _read_end(reader)
    return Snapshot(
        snapshot_epoch=snapshot_epoch,
        state_epoch=state_epoch,
        leader_epoch=leader_epoch,
        start_offset=start_offset,
        delivery_complete_count=count,
        created_ms=created_ms,
        written_ms=written_ms,
        batches=batches,
    )


def encode_update(update: Update) -> bytes:
    out = bytearray(_VERSION)
    out += _UPDATE_HEAD.pack(update.snapshot_epoch, update.leader_epoch, update.start_offset)
    _write_end(out, update.batches, update.delivery_complete_count)
    return bytes(out)


def decode_update(value: bytes) -> Update:
    reader = FieldReader(value)
    reader.version(0, 0)
    snapshot_epoch, leader_epoch, start_offset = reader.fixed(_UPDATE_HEAD)
    batches, count = _read_end(reader)
    return Update(
        snapshot_epoch=snapshot_epoch,
        leader_epoch=leader_epoch,
        start_offset=start_offset,
        delivery_complete_count=count,
        batches=batches,
    )


def _write_end(out: bytearray, batches: Sequence[StateBatch], count: int) -> None:
    write_uvarint(out, len(batches) + 1)
    for batch in batches:
        out += _BATCH.pack(*batch)
        out.append(0)
    write_tags(out, {} if count == UNKNOWN_COUNT else {_COUNT_TAG: _I32.pack(count)})


def _read_end(reader: FieldReader) -> tuple[Batches, int]:
    batches = []
    for _ in range(reader.count()):
        batches.append(StateBatch(*reader.fixed(_BATCH)))
        reader.tags()
    count = reader.tags().get(_COUNT_TAG)
    return tuple(batches), UNKNOWN_COUNT if count is None else FieldReader(count).i32()
