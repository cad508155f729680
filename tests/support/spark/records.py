"""What a topic holds, as rows."""

from typing import Any

from headrace.client.columnar.cluster import Cluster
from headrace.client.columnar.model import EARLIEST, LATEST, Range, TopicPartition
from headrace.client.columnar.reader import read_ranges
from tests.support.process import wait_for


def records(bootstrap: str, topic: str, *, read_committed: bool = False) -> list[dict[str, Any]]:
    """All records of a topic, by partition and offset."""
    with Cluster({"bootstrap.servers": bootstrap}) as cluster:
        partitions = [TopicPartition(topic, number) for number in range(cluster.partitions([topic])[topic])]
        starts = cluster.offsets(dict.fromkeys(partitions, EARLIEST))
        ends = cluster.offsets(dict.fromkeys(partitions, LATEST), read_committed=read_committed)
        ranges = [Range(*where, starts[where] or 0, ends[where] or 0) for where in partitions]
        found = read_ranges(cluster, ranges, with_headers=True, read_committed=read_committed)
        rows = [row for batch in found for row in batch.to_pylist()]
    return sorted(rows, key=lambda row: (row["partition"], row["offset"]))


def wait_until_decided(bootstrap: str, topic: str) -> None:
    """Returns when no transaction is open in a topic: markers come after the answer to who commits."""
    with Cluster({"bootstrap.servers": bootstrap}) as cluster:
        partitions = [TopicPartition(topic, number) for number in range(cluster.partitions([topic])[topic])]
        latest = dict.fromkeys(partitions, LATEST)
        wait_for("all is decided", lambda: cluster.offsets(latest, read_committed=True) == cluster.offsets(latest))


def values(bootstrap: str, topic: str, *, read_committed: bool = False) -> list[bytes | None]:
    """Their values."""
    return [row["value"] for row in records(bootstrap, topic, read_committed=read_committed)]
