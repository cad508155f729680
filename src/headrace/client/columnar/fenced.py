"""A partition with a single writer: the process that took over last fences all others.

The name is a transactional id, used for nothing but its producer epoch: taking over raises it, and a partition refuses
every older epoch from the first record of the new one on. No transaction is opened, so readers wait for nobody.

The fence lasts as long as the cluster remembers the name (`transactional.id.expiration.ms`). Whoever must be sure, also
after a pause that nobody can bound, goes by the order of the log: `append` tells what came before the record.
"""

import time
from collections.abc import Iterator
from typing import Final, NamedTuple

import pyarrow as pa

from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode
from headrace.protocol.produce_request import produce_parts

from ..core.codes import Remedy, remedy_of
from ..core.produce import ALL_IN_SYNC, UNANSWERED, Produced, read_produced
from ..core.transactions import NOBODY, ProducerId
from ..errors import ClientError
from .channel import Channel
from .cluster import Cluster
from .encode import EncodedBatch, encode_rows, seal_for
from .model import EARLIEST, LATEST, OffsetsGone, Range, TopicPartition
from .producing import FIRST_SEQUENCE
from .reader import read_ranges
from .retry import refused_or_again
from .transaction import init_producer

_UNKNOWN: Final = -1
_LARGE: Final = 16 * 1024
"""Bytes of a value from which on it is compressed."""


class Entry(NamedTuple):
    """A record of the log; a value of None is a tombstone."""

    offset: int
    key: bytes
    value: bytes | None


class FencedLog:
    """Appends to a partition under a name, and reads what is in it."""

    def __init__(self, cluster: Cluster, topic_partition: TopicPartition, name: str) -> None:
        self._cluster = cluster
        self._topic_partition = topic_partition
        self._name = name
        self._producer: ProducerId | None = None
        self._sequence = FIRST_SEQUENCE
        self._position = EARLIEST

    @property
    def is_ours(self) -> bool:
        """Whether we took over, and have not heard of anybody who did so since."""
        return self._producer is not None

    def take_over(self) -> None:
        """From the next `append` on nobody who took over before can append."""
        timeout_ms = self._cluster.settings["transaction.timeout.ms"]
        self._producer = init_producer(self._cluster, self._name, timeout_ms, NOBODY)
        self._sequence = FIRST_SEQUENCE

    def keep_alive(self) -> None:
        """Have the cluster remember the name for as long again; `ClientError` PRODUCER_FENCED when it is not ours."""
        assert self._producer is not None, "take_over comes first"
        timeout_ms = self._cluster.settings["transaction.timeout.ms"]
        try:
            self._producer = init_producer(self._cluster, self._name, timeout_ms, self._producer)
        except ClientError:
            self._producer = None
            raise
        self._sequence = FIRST_SEQUENCE

    def append(self, key: bytes, value: bytes | None) -> list[Entry]:
        """Write a record, durably, once; the entries that were not read yet, up to and with this one.

        `ClientError` PRODUCER_FENCED when somebody else took over.
        """
        assert self._producer is not None, "take_over comes first"
        rows = pa.record_batch([pa.array([key], pa.binary()), pa.array([value], pa.binary())], names=["key", "value"])
        compression = "zstd" if value is not None and len(value) >= _LARGE else "none"
        (batch,) = encode_rows(rows, compression=compression, now_ms=time.time_ns() // 1_000_000)
        seal_for(batch, *self._producer, self._sequence, transactional=False)
        try:
            offset = self._cluster.with_leader(self._topic_partition, lambda channel: self._send(channel, batch))
        except ClientError:
            # Whether it was written is not known, so the next number is not either: a new epoch starts from the first.
            self._producer = None
            raise
        self._sequence += 1
        return self._read_up_to(Entry(offset, key, value))

    def read(self) -> list[Entry]:
        """The entries that were not read yet, up to the end as it is now."""
        return self._read_to(self._end(LATEST))

    def _read_up_to(self, own: Entry) -> list[Entry]:
        """Nothing is to be fetched where nobody else has written since the last look."""
        if own.offset == self._position:
            self._position += 1
            return [own]
        if own.offset >= 0:
            return self._read_to(own.offset + 1)
        entries = self.read()  # a repeated record was recognised, by a broker that did not say where it is
        last = max(index for index, entry in enumerate(entries) if entry[1:] == own[1:])
        return entries[: last + 1]

    def _read_to(self, end: int) -> list[Entry]:
        if self._position == EARLIEST:
            self._position = self._end(EARLIEST)
        try:
            entries = list(self._records(self._position, end))
        except OffsetsGone:
            # Compaction does not do that; whoever made the topic anew did.
            self._position = EARLIEST
            raise
        self._position = max(self._position, end)
        return entries

    def _records(self, start: int, end: int) -> Iterator[Entry]:
        if start >= end:
            return
        for batch in read_ranges(self._cluster, [Range(*self._topic_partition, start, end)]):
            columns = [batch.column(name).to_pylist() for name in ("offset", "key", "value")]
            yield from map(Entry, *columns)

    def _end(self, which: int) -> int:
        return self._cluster.offsets({self._topic_partition: which})[self._topic_partition] or 0

    def _send(self, channel: Channel, batch: EncodedBatch) -> int:
        topic, partition = self._topic_partition
        version = channel.version_of(ApiKey.PRODUCE)
        timeout_ms = self._cluster.settings["request.timeout.ms"]
        parts = produce_parts(version, {topic: [(partition, batch.data)]}, acks=ALL_IN_SYNC, timeout_ms=timeout_ms)
        channel.send(ApiKey.PRODUCE, version, parts)
        return self._offset(read_produced(channel.receive_entity()).get(self._topic_partition, UNANSWERED))

    def _offset(self, produced: Produced) -> int:
        code = produced.code
        if code is ErrorCode.none:
            return produced.base_offset
        if code is ErrorCode.duplicate_sequence_number:
            return _UNKNOWN
        if remedy_of(code) is Remedy.GIVE_UP_PRODUCER:
            raise ClientError(f"'{self._name}' was taken over by another process", "PRODUCER_FENCED")
        raise refused_or_again(code, self._topic_partition.text)
