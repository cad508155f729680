"""Ranges of offsets into tables, in a batch: what an archive that began later does not have."""

import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

from headrace.client.columnar.model import TopicPartition
from headrace.lake.archiving import Archive, Archived, ArchiveOptions, TopicBatch
from headrace.lake.state import Interval, without
from headrace.lake.values import decoder_for_topic

from ..source.offsets import to_spark
from .sink import execute

RECORDS: Final = 1_000_000
"""How many offsets a commit has at most."""


def backfill(
    spark: Any,
    options: ArchiveOptions,
    values: Mapping[str, str],
    source: Mapping[str, str],
    ranges: Mapping[TopicPartition, Interval],
    topic_ids: Mapping[str, str],
) -> Iterator[Archived]:
    """Add the ranges to the tables of their topics, as far as these do not have them, some at a time."""
    archive = Archive(options=options, decoders=partial(decoder_for_topic, options=values))
    for part in chunks(missing_ranges(options, ranges), RECORDS):
        rows = _read(spark, source, part)
        by_topic: dict[str, dict[int, tuple[int | None, int]]] = {}
        for where, (start, end) in part.items():
            by_topic.setdefault(where.topic, {})[where.partition] = (start, end)
        batches = [
            TopicBatch(topic=topic, ranges=found, topic_id=topic_ids.get(topic, ""), may_skip=True)
            for topic, found in by_topic.items()
        ]
        yield from archive.add(batches, partial(execute, rows))


def missing_ranges(
    options: ArchiveOptions, ranges: Mapping[TopicPartition, Interval]
) -> dict[TopicPartition, list[Interval]]:
    """What the tables of the topics do not have of some ranges."""
    found = {}
    for where, wanted in ranges.items():
        snapshot = options.lake.table(where.topic).snapshot()
        covered = () if snapshot is None else snapshot.state.covered(where.partition)
        found[where] = without(wanted, covered)
    return found


def chunks(missing: Mapping[TopicPartition, list[Interval]], most: int) -> Iterator[dict[TopicPartition, Interval]]:
    """The ranges in parts of at most so many offsets, each with one range of a partition."""
    part: dict[TopicPartition, Interval] = {}
    room = most
    for where, intervals in missing.items():
        for start, end in intervals:
            position = start
            while position < end:
                if where in part or room == 0:
                    yield part
                    part, room = {}, most
                stop = min(end, position + room)
                part[where] = (position, stop)
                room -= stop - position
                position = stop
    if part:
        yield part


def _read(spark: Any, source: Mapping[str, str], part: Mapping[TopicPartition, Interval]) -> Any:
    assigned: dict[str, list[int]] = {}
    for where in part:
        assigned.setdefault(where.topic, []).append(where.partition)
    options = {
        **source,
        "assign": json.dumps(assigned),
        "startingOffsets": json.dumps(to_spark({where: start for where, (start, _) in part.items()})),
        "endingOffsets": json.dumps(to_spark({where: end for where, (_, end) in part.items()})),
        "includeHeaders": "true",
    }
    return spark.read.format("headrace").options(**options).load()
