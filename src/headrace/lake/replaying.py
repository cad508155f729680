"""A table back into a topic: the same keys, values, headers and times, in the order of each partition.

Records are written in transactions. With each goes a record in the topic `__headrace_replays` that says how far the
replay has come, so after a kill it goes on where the last transaction ended, and nothing is there twice for readers of
what is committed. Run again later it writes what was archived since.
"""

import json
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

import pyarrow as pa

from headrace.client.columnar.administration import require_compacted_topic
from headrace.client.columnar.cluster import Cluster
from headrace.client.columnar.model import EARLIEST, LATEST, Range, TopicPartition
from headrace.client.columnar.reader import read_ranges
from headrace.client.columnar.writer import Writer

from .errors import LakeError
from .opening import Lake
from .reading import Archived, archived
from .state import Interval

PROGRESS: Final = "__headrace_replays"
_SEGMENT_BYTES: Final = 1 << 20
_BATCH_BYTES: Final = 32 << 20
"""How many bytes of rows are written in a transaction, about."""
_ALL: Final = (0, 1 << 62)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """How far a replay has come."""

    records: int
    partition: int
    offset: int
    """The next one of the table's offsets."""


def replay(
    lake: Lake,
    source: str,
    cluster: Cluster,
    topic: str,
    *,
    wanted: Callable[[int], Interval] = lambda _partition: _ALL,
    name: str = "",
) -> Generator[Replayed]:
    """Write the archived records of a topic to another one, and tell after each transaction.

    `wanted` are the offsets of a partition; `name` tells this replay from others of the same topic to the same one.
    """
    found = archived(lake, source, as_log=False)
    partitions = found.partitions()
    _require_partitions(cluster, topic, partitions)
    require_compacted_topic(cluster, PROGRESS, segment_bytes=_SEGMENT_BYTES)
    topic_id = (cluster.describe([topic], max_age=0.0)[topic].id or b"").hex()
    identity = sha256(f"{lake.table(source).place.url}\0{topic}\0{name}".encode()).hexdigest()[:32]
    with Writer(cluster, transactional_id=f"headrace-replay-{identity}") as writer:
        # From here on nobody else writes for this replay, and what was left open is undone: so the progress is known.
        writer.begin()
        progress = _progress(cluster, identity, topic_id)
        for partition in partitions:
            first, end = wanted(partition)
            position = max(first, progress.get(partition, 0))
            if position < end:
                notes = _Notes(writer, identity, topic_id, partition)
                yield from _partition(notes, found, topic, partition, (position, end))
        writer.commit()


@dataclass(frozen=True, slots=True)
class _Notes:
    """How far a replay has come in a partition, written in the transactions of its records."""

    writer: Writer
    identity: str
    topic_id: str
    partition: int

    def commit(self, position: int) -> None:
        """Commit what was written, and that it goes up to an offset of the table."""
        key = f"{self.identity}.{self.partition}"
        value = json.dumps({"offset": position, "topicId": self.topic_id})
        self.writer.write(pa.table({"key": [key], "value": [value]}), PROGRESS)
        self.writer.commit()


def _partition(notes: _Notes, found: Archived, topic: str, partition: int, wanted: Interval) -> Iterator[Replayed]:
    count = size = 0
    position = wanted[0]
    writer = notes.writer
    for batch in found.records(partition, wanted, with_headers=True):
        writer.write(batch.select(["key", "value", "timestamp", "headers", "partition"]), topic)
        count += len(batch)
        size += batch.nbytes
        position = batch.column("offset")[-1].as_py() + 1
        if size >= _BATCH_BYTES:
            notes.commit(position)
            yield Replayed(records=count, partition=partition, offset=position)
            count = size = 0
            writer.begin()
    if count:
        notes.commit(position)
        yield Replayed(records=count, partition=partition, offset=position)
        writer.begin()


def _progress(cluster: Cluster, identity: str, topic_id: str) -> dict[int, int]:
    """The next offset of each partition; what is noted of a topic that was deleted since does not count."""
    where = TopicPartition(PROGRESS, 0)
    first, last = (cluster.offsets({where: end})[where] or 0 for end in (EARLIEST, LATEST))
    found: dict[int, int] = {}
    for batch in read_ranges(cluster, [Range(*where, first, last)], read_committed=True):
        for row in batch.select(["key", "value"]).to_pylist():
            name, _, partition = row["key"].decode().partition(".")
            if name == identity:
                noted = json.loads(row["value"])
                same = not (topic_id and noted.get("topicId")) or noted["topicId"] == topic_id
                found[int(partition)] = noted["offset"] if same else 0
    return found


def _require_partitions(cluster: Cluster, topic: str, partitions: list[int]) -> None:
    count = cluster.partitions([topic])[topic]
    if partitions and partitions[-1] >= count:
        raise LakeError(
            f"topic '{topic}' has {count} partitions, and the table has records of partition {partitions[-1]}: records "
            f"go to the partition that they were in, so make a topic with at least {partitions[-1] + 1}"
        )
