"""Batches of a query into the tables of a lake.

Workers read, decode and write their part of a batch to files, and send back what they have written, a few hundred bytes
each. The driver commits that, one commit for each table. Which offsets a batch has is told by the query's checkpoint,
which Spark writes before it runs the batch.
"""

import json
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.client.errors import ClientError
from headrace.config.setting import ConfigError
from headrace.lake.archiving import Archive, Archived, ArchiveOptions, TopicBatch
from headrace.lake.values import decoder_for_topic
from headrace.lake.writing import LakeWriter, TableTask, TopicResult

from ..errors import QueryError, plain_error
from ..source.offsets import Offsets, from_spark, ids_from_spark

_RESULT = pa.schema([pa.field("result", pa.binary())])
_FIRST_BATCHES = 1
"""Up to this one a batch may begin anywhere: a query that starts from given offsets has its first records in it."""


@dataclass(frozen=True, slots=True)
class WritePart:
    """What runs on a worker: the rows of its part, into files."""

    tasks: Mapping[str, TableTask]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One row with the results."""
        writer = LakeWriter(self.tasks)
        try:
            for batch in batches:
                writer.write(batch)
            results = writer.finish()
        except BaseException as error:
            writer.discard()
            if isinstance(error, (ConfigError, ClientError)):
                raise plain_error(error) from None
            raise
        yield pa.record_batch([pa.array([pickle.dumps(results)], pa.binary())], schema=_RESULT)


def execute(rows: Any, tasks: Mapping[str, TableTask]) -> list[TopicResult]:
    """Have Spark's workers write rows of records to the files of tables."""
    found = rows.mapInArrow(WritePart(tasks), "result binary").collect()
    return [one for row in found for one in pickle.loads(bytes(row[0]))]


@dataclass(slots=True)
class ArchiveSink:
    """Adds the batches of one query; `values` are the options by which values are decoded."""

    options: ArchiveOptions
    values: Mapping[str, str]
    checkpoint: str
    _archive: Archive | None = field(default=None, repr=False)

    def __getstate__(self) -> tuple[Any, ...]:
        return self.options, self.values, self.checkpoint

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.options, self.values, self.checkpoint = state
        self._archive = None

    def add(self, rows: Any, number: int) -> list[Archived]:
        """Add a batch, or what the tables do not have of it yet."""
        if self._archive is None:
            self._archive = Archive(options=self.options, decoders=partial(decoder_for_topic, options=self.values))
        batches = topic_batches(rows.sparkSession, self.checkpoint, number)
        return self._archive.add(batches, partial(execute, rows))


def topic_batches(spark: Any, checkpoint: str, number: int) -> list[TopicBatch]:
    """What a batch has of each topic, by the checkpoint."""
    end = _written(spark, checkpoint, number)
    if end is None:
        raise QueryError(f"{checkpoint}/offsets/{number} does not tell which offsets the batch has")
    start = _written(spark, checkpoint, number - 1) if number > 0 else None
    begin: Offsets = {} if start is None else from_spark(start)
    ids = ids_from_spark(end)
    ranges: dict[str, dict[int, tuple[int | None, int]]] = {}
    for where, stop in from_spark(end).items():
        if begin.get(where) != stop:
            ranges.setdefault(where.topic, {})[where.partition] = (begin.get(where), stop)
    return [
        TopicBatch(
            topic=topic,
            ranges=found,
            topic_id=ids[topic].hex() if topic in ids else "",
            may_skip=number <= _FIRST_BATCHES,
        )
        for topic, found in sorted(ranges.items())
    ]


def _written(spark: Any, checkpoint: str, number: int) -> dict[str, dict[str, Any]] | None:
    """The offsets of the query's only source, up to which a batch goes; None if the checkpoint has no such batch."""
    name = f"{checkpoint}/offsets/{number}"
    local = Path(name.removeprefix("file://"))
    if local.is_file():
        lines = local.read_text().splitlines()
    elif "://" in checkpoint:
        lines = [str(row[0]) for row in spark.read.text(name).collect()]
    else:
        return None
    values = [json.loads(line) for line in lines if line.startswith("{")]
    return values[-1] if len(values) > 1 else None
