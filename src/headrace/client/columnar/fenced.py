"""A partition of one's own: records that only one process at a time can append, whoever took over last.

The name is a transactional id, used for nothing but its producer epoch: taking over raises it, and a partition refuses
every older epoch from the first record of the new one on. So whoever takes over, appends, and then reads has read all
that its predecessors will ever have written. No transaction is opened, so readers wait for nobody.
"""

import time
from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode
from headrace.protocol.produce_request import produce_parts

from ..errors import ClientError
from .cluster import Cluster
from .encode import EncodedBatch, encode_rows, seal_for
from .model import EARLIEST, LATEST, OffsetsGone, Range, TopicPartition
from .producing import FENCING, FIRST_SEQUENCE, Producer
from .reader import read_ranges
from .retry import PASSING, STALE_METADATA, TryAgain, refused
from .transaction import init_producer

_ALL: Final = -1
_LARGE: Final = 16 * 1024
"""Bytes of a value from which on it is compressed."""
_PASSING: Final = PASSING | {ErrorCode.not_enough_replicas, ErrorCode.not_enough_replicas_after_append}


class FencedLog:
    """Appends to a partition under a name, and reads what is in it."""

    def __init__(self, cluster: Cluster, where: TopicPartition, name: str) -> None:
        self._cluster = cluster
        self._where = where
        self._name = name
        self._producer: Producer | None = None
        self._sequence = FIRST_SEQUENCE
        self._position = EARLIEST

    @property
    def is_ours(self) -> bool:
        """Whether we took over, and have not heard of anybody who did so since."""
        return self._producer is not None

    def take_over(self) -> None:
        """From the next `append` on nobody who took over before can append."""
        nobody = Producer(-1, -1)
        self._producer = init_producer(
            self._cluster, self._name, self._cluster.settings["transaction.timeout.ms"], nobody
        )
        self._sequence = FIRST_SEQUENCE

    def append(self, key: bytes, value: bytes) -> None:
        """Write a record, durably, once; `ClientError` PRODUCER_FENCED when somebody else took over."""
        assert self._producer is not None, "take_over comes first"
        rows = pa.record_batch([pa.array([key], pa.binary()), pa.array([value], pa.binary())], names=["key", "value"])
        compression = "zstd" if len(value) >= _LARGE else "none"
        (batch,) = encode_rows(rows, compression=compression, now_ms=time.time_ns() // 1_000_000)
        seal_for(batch, *self._producer, self._sequence, transactional=False)
        try:
            self._cluster.retried(lambda: self._send(batch))
        except ClientError:
            # Whether it was written is not known, so the next number is not either: a new epoch starts from the first.
            self._producer = None
            raise
        self._sequence += 1

    def read(self) -> Iterator[tuple[bytes, bytes | None]]:
        """Keys and values of the records that were not read yet, up to the end as it is now."""
        end = self._end(LATEST)
        if self._position == EARLIEST:
            self._position = self._end(EARLIEST)
        try:
            yield from self._records(self._position, end)
        except OffsetsGone:
            # Compaction does not do that; whoever made the topic anew did.
            self._position = EARLIEST
            raise
        self._position = max(self._position, end)

    def _records(self, start: int, end: int) -> Iterator[tuple[bytes, bytes | None]]:
        if start >= end:
            return
        for batch in read_ranges(self._cluster, [Range(*self._where, start, end)]):
            yield from zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True)

    def _end(self, which: int) -> int:
        return self._cluster.offsets({self._where: which})[self._where] or 0

    def _send(self, batch: EncodedBatch) -> None:
        topic, partition = self._where
        place = self._cluster.locate(self._where)
        timeout_ms = self._cluster.settings["request.timeout.ms"]
        with self._cluster.channel_to(place.node) as channel:
            version = channel.version_of(ApiKey.PRODUCE)
            parts = produce_parts(
                version, {topic: [(partition, batch.data)]}, acks=_ALL, timeout_ms=timeout_ms, transactional_id=None
            )
            channel.send(ApiKey.PRODUCE, version, parts)
            answer = channel.receive_entity()
        self._check(answer.responses[0].partition_responses[0].error_code)

    def _check(self, code: ErrorCode) -> None:
        if code in (ErrorCode.none, ErrorCode.duplicate_sequence_number):
            return
        if code in FENCING:
            raise ClientError(f"'{self._name}' was taken over by another process", "PRODUCER_FENCED")
        error = refused(code, f"topic '{self._where.topic}' partition {self._where.partition}")
        if code in STALE_METADATA:
            self._cluster.forget_leaders([self._where.topic])
        raise TryAgain(error) if code in _PASSING else error
