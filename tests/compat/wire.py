"""Questions asked of the broker without any client: which APIs it serves, where partitions end, how batches are
compressed. The broker asked must lead the partitions."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from kio.schema.api_versions.v0 import ApiVersionsRequest
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v4.request import FetchPartition, FetchRequest, FetchTopic
from kio.schema.index import api_key_map
from kio.schema.list_offsets.v1.request import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i32, i32Timedelta, i64
from kio.static.protocol import RequestPayload

from tests.support.wire import Wire

from .model import TIMEOUT_SECONDS, Codec

_LATEST = i64(-1)
_CODECS = tuple(Codec)
_CODEC_BITS = 0b111
_LENGTH_END = 12
# length, attributes and producer id of a record batch of format 2, whose other fields are skipped
_BATCH_HEADER = struct.Struct(">8x i 9x h 20x q 6x")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBatch:
    """What a batch header tells: its compression, and the idempotent producer that wrote it (or -1)."""

    codec: Codec
    producer_id: int


def api_name(key: int) -> str:
    """Kafka's name of an API: `ListOffsets` for 2."""
    known = api_key_map.get(key)
    return "".join(word.capitalize() for word in known.split("_")) if known else f"key {key}"


def api_versions(bootstrap: str) -> dict[int, tuple[int, int]]:
    """The versions (lowest, highest) the broker advertises for each API key."""
    answer = _call(bootstrap, ApiVersionsRequest())
    return {int(api.api_key): (int(api.min_version), int(api.max_version)) for api in answer.api_keys}


def end_offsets(bootstrap: str, topic: str, partitions: int) -> list[int | None]:
    """The next offset of each partition; None for one whose leader is not at work yet."""
    asked = tuple(
        ListOffsetsPartition(partition_index=i32(partition), timestamp=_LATEST) for partition in range(partitions)
    )
    request = ListOffsetsRequest(
        replica_id=BrokerId(-1), topics=(ListOffsetsTopic(name=TopicName(topic), partitions=asked),)
    )
    (answer,) = _call(bootstrap, request).topics
    found = {one.partition_index: one for one in answer.partitions}
    return [
        int(found[partition].offset) if found[partition].error_code is ErrorCode.none else None
        for partition in range(partitions)
    ]


def stored_batches(bootstrap: str, topic: str, partition: int) -> list[StoredBatch]:
    """The batches of a small partition as the broker keeps them."""
    asked = FetchPartition(partition=i32(partition), fetch_offset=i64(0), partition_max_bytes=i32(1 << 20))
    request = FetchRequest(
        max_wait=i32Timedelta.parse(timedelta(milliseconds=100)),
        min_bytes=i32(1),
        topics=(FetchTopic(topic=TopicName(topic), partitions=(asked,)),),
    )
    (answer,) = _call(bootstrap, request).responses
    return list(_batches(answer.partitions[0].records or b""))


def _batches(stored: bytes) -> Iterator[StoredBatch]:
    position = 0
    while position + _BATCH_HEADER.size <= len(stored):
        length, attributes, producer_id = _BATCH_HEADER.unpack_from(stored, position)
        yield StoredBatch(codec=_CODECS[attributes & _CODEC_BITS], producer_id=producer_id)
        position += _LENGTH_END + length


def _call(bootstrap: str, request: RequestPayload) -> Any:
    with Wire(bootstrap, TIMEOUT_SECONDS) as wire:
        return wire.ask(request.__api_key__, request.__version__, request)
