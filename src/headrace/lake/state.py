"""What a table knows of where its rows came from; kept in the table, committed together with the rows.

`offsets` says for each partition of the topic which offsets the table has, as ranges that do not touch: the records of
a range are in the table, each once, or were never there (transaction markers, compaction). A commit that adds rows adds
their range; one that finds the range there already adds nothing. So it does not matter how often a batch is tried, by
whom, or what was killed before.

`versions` is the same for rows that have no offsets: the number of the last batch of each writer.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from .errors import LakeError

Interval = tuple[int, int]
"""Offsets from the first up to, not including, the second."""
Intervals = tuple[Interval, ...]
_FORMAT: Final = 1


def united(intervals: Iterable[Interval]) -> Intervals:
    """The same offsets as sorted ranges that neither overlap nor touch; empty ranges are left out."""
    found: list[Interval] = []
    for start, end in sorted(one for one in intervals if one[0] < one[1]):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return tuple(found)


def without(wanted: Interval, covered: Intervals) -> list[Interval]:
    """What of `wanted` is in none of the ranges."""
    left, (position, end) = list[Interval](), wanted
    for begin, stop in covered:
        if stop <= position or begin >= end:
            continue
        if begin > position:
            left.append((position, begin))
        position = max(position, stop)
    if position < end:
        left.append((position, end))
    return left


def overlap(wanted: Interval, covered: Intervals) -> list[Interval]:
    """What of `wanted` is in one of the ranges."""
    cut = [(max(wanted[0], start), min(wanted[1], end)) for start, end in covered]
    return [one for one in cut if one[0] < one[1]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """Where the rows of a table are from. `mode` is `append`, or `upsert` for one row a key."""

    topic: str = ""
    topic_id: str = ""
    mode: str = "append"
    offsets: Mapping[int, Intervals] = field(default_factory=dict)
    versions: Mapping[str, int] = field(default_factory=dict)

    def covered(self, partition: int) -> Intervals:
        """The offsets of a partition that the table has."""
        return self.offsets.get(partition, ())

    def has(self, partition: int, wanted: Interval) -> bool:
        """Whether the table has all of a range."""
        return not without(wanted, self.covered(partition))

    def end(self, partition: int) -> int | None:
        """The offset after the last one that the table has; None if it has none."""
        covered = self.covered(partition)
        return covered[-1][1] if covered else None

    def adding(self, ranges: Mapping[int, Iterable[Interval]]) -> Self:
        """The state with more offsets."""
        merged = {**self.offsets}
        for partition, intervals in ranges.items():
            if found := united([*merged.get(partition, ()), *intervals]):
                merged[partition] = found
        return replace(self, offsets=merged)

    def at_version(self, writer: str, version: int) -> Self:
        """The state after a writer's batch."""
        return replace(self, versions={**self.versions, writer: version})

    def text(self) -> str:
        """The state as it is kept."""
        offsets = {str(partition): self.offsets[partition] for partition in sorted(self.offsets)}
        return json.dumps(
            {
                "format": _FORMAT,
                "topic": self.topic,
                "topicId": self.topic_id,
                "mode": self.mode,
                "offsets": offsets,
                "versions": dict(self.versions),
            },
            separators=(",", ":"),
        )


def state_of(text: str) -> TableState:
    """The state that was kept; LakeError if a newer Headrace wrote it."""
    fields: dict[str, Any] = json.loads(text)
    if fields.get("format") != _FORMAT:
        raise LakeError(
            f"the table's state is of format {fields.get('format')}, and this Headrace knows {_FORMAT}: upgrade it"
        )
    return TableState(
        topic=fields["topic"],
        topic_id=fields["topicId"],
        mode=fields["mode"],
        offsets={int(number): united((a, b) for a, b in ranges) for number, ranges in fields["offsets"].items()},
        versions=fields["versions"],
    )
