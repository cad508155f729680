"""Spark sources and sinks that do the least there is to do: the ceiling of any written in Python.

Rows look like a topic's. The batch source yields the same Arrow batch again and again; the streams make up as many rows
as their rate says. The sink writes down how old each row was when it arrived.
"""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit
from pyspark.sql.types import StructType

from headrace.client.columnar.model import SCHEMA
from headrace.spark.data_source import RECORD

BATCH_ROWS: Final = 40_000
VALUE_SIZE: Final = 100


def rows(count: int, first_us: float | None = None, apart_us: float = 0.0) -> pa.RecordBatch:
    """A batch of so many rows, each with another key; made just now, or from `first_us` on, one after the other."""

    def blob(data: NDArray[Any], size: int) -> pa.Array:
        offsets = np.arange(count + 1, dtype=np.int32) * size
        return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])

    began = time.time_ns() // 1000 if first_us is None else first_us
    columns = [
        blob(np.arange(count), np.dtype(np.int64).itemsize),
        blob(np.zeros(count * VALUE_SIZE, dtype=np.uint8), VALUE_SIZE),
        pa.array(["synthetic"] * count),
        pa.array(np.zeros(count, dtype=np.int32)),
        pa.array(np.arange(count)),
        pa.array((began + np.arange(count) * apart_us).astype(np.int64), pa.timestamp("us", tz="UTC")),
        pa.array(np.zeros(count, dtype=np.int32)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


class SyntheticSource(DataSource):
    """`rows` rows in `partitions` parts; as a stream, `rate` rows a second."""

    @classmethod
    def name(cls) -> str:
        return "synthetic"

    def schema(self) -> StructType:
        return RECORD

    def reader(self, schema: StructType) -> DataSourceReader:
        return SyntheticReader(int(self.options["rows"]), int(self.options["partitions"]))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return SyntheticStream(int(self.options["rate"]), int(self.options.get("rows", "0")))


class SyntheticReader(DataSourceReader):
    def __init__(self, count: int, partitions: int) -> None:
        self._count = count
        self._partitions = partitions

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(self._count // self._partitions) for _ in range(self._partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        batch = rows(BATCH_ROWS)
        for _ in range(partition.value // BATCH_ROWS):
            yield batch


class SyntheticStream(DataSourceStreamReader):
    """Rows since the query began, at a rate; or a fixed number at once where there is no rate."""

    def __init__(self, rate: int, count: int) -> None:
        self._rate = rate
        self._count = count
        self._began = time.time()

    def initialOffset(self) -> dict[str, Any]:
        return {"row": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        if not self._rate:
            return {"row": self._count}
        return {"row": int((time.time() - self._began) * self._rate)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        first, last = start["row"], end["row"]
        middle = (first + last) // 2
        return [InputPartition((*part, self._began)) for part in ((first, middle), (middle, last))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        first, last, began = partition.value  # what reads is another object than what planned
        apart_us = 1e6 / self._rate if self._rate else 0.0
        for begin in range(first, last, BATCH_ROWS):
            yield rows(min(last - begin, BATCH_ROWS), began * 1e6 + begin * apart_us, apart_us)


class AgeSink(DataSource):
    """Writes the ages of rows, in milliseconds, to files of `path`."""

    @classmethod
    def name(cls) -> str:
        return "ages"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return AgeWriter(self.options["path"])


class AgeWriter(DataSourceStreamArrowWriter):
    def __init__(self, path: str) -> None:
        self._path = path

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        ages: list[float] = []
        for batch in iterator:
            times = batch.column("timestamp").cast(pa.int64()).to_numpy(zero_copy_only=False)
            if len(times):
                ages += np.percentile((time.time_ns() / 1000 - times) / 1000, np.linspace(0, 100, 21)).tolist()
        name = f"{os.getpid()}-{time.monotonic_ns()}.json"
        Path(self._path, name).write_text(json.dumps(ages))
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to decide."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to undo."""
