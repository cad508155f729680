"""Ten million messages through Spark: as many, the same, and in order, however the work is split."""

import zlib
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.client.columnar import Cluster, Writer
from tests.support.spark.topics import Topics

PARTITIONS = 4
EACH = 2_500_000
ROWS = 50_000
DIGITS = 8


def numbered(first: int, count: int) -> pa.Array:
    """Values that are their own number, of `DIGITS` digits."""
    numbers = np.arange(first, first + count)
    digits = np.empty((count, DIGITS), dtype=np.uint8)
    for place in range(DIGITS):
        digits[:, DIGITS - 1 - place] = 48 + numbers // 10**place % 10
    offsets = np.arange(count + 1, dtype=np.int32) * DIGITS
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(digits.ravel())])


@pytest.fixture(scope="module")
def checksums() -> list[int]:
    """For each partition, the sum of the CRC-32 of all its values."""
    sums = []
    for partition in range(PARTITIONS):
        total = 0
        for first in range(partition * EACH, (partition + 1) * EACH, ROWS):
            total += sum(zlib.crc32(value) for value in numbered(first, ROWS).to_pylist())
        sums.append(total)
    return sums


@pytest.mark.timeout(1200)
def test_ten_million_messages_read_as_they_were_written(spark: Any, topics: Topics, checksums: list[int]) -> None:
    topic = topics.create(PARTITIONS, **{"flush.messages": 1 << 40})
    write(topics, topic)
    for options in ({}, {"minPartitions": "11"}, {"maxRecordsPerPartition": "700000"}):
        frame = spark.read.format("headrace").option("kafka.bootstrap.servers", topics.bootstrap)
        frame = frame.option("subscribe", topic).options(**options).load()
        found = frame.selectExpr(
            "partition", "crc32(value) crc", "offset", f"cast(cast(value as string) as long) - {EACH} * partition n"
        )
        rows = found.groupBy("partition").agg(*map(expression, AGGREGATES)).collect()
        got = sorted(tuple(row) for row in rows)
        assert got == [(partition, EACH, checksums[partition], 0, EACH - 1, 0) for partition in range(PARTITIONS)]


AGGREGATES = (
    "count(*)",
    "sum(crc)",
    "min(offset)",
    "max(offset)",
    "sum(if(n = offset, 0, 1))",  # the offset each has is the order they were written in
)


def expression(text: str) -> Any:
    from pyspark.sql.functions import expr

    return expr(text)


def write(topics: Topics, topic: str) -> None:
    cluster = Cluster({"bootstrap.servers": topics.bootstrap})
    writer = Writer(cluster)
    for first in range(0, PARTITIONS * EACH, ROWS):
        partition = pa.array(np.full(ROWS, first // EACH, dtype=np.int32))
        writer.write(
            pa.RecordBatch.from_arrays([numbered(first, ROWS), partition], names=["value", "partition"]), topic
        )
    writer.close()
    cluster.close()
