"""What to read: pure rules that turn where a query stands and where the logs end into ranges of offsets.

The rules are those of Spark's own Kafka connector, so that a query that moves over reads alike. Every function here
keeps one promise: the ranges of consecutive batches, however they are limited and split, hold every offset once.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from headrace.client.columnar.model import Range, TopicPartition

from .offsets import Offsets, named


@dataclass(frozen=True, slots=True, kw_only=True)
class Splitting:
    """How a batch is divided among tasks; without either limit a task reads one partition."""

    min_partitions: int | None = None
    max_records: int | None = None

    @property
    def is_asked_for(self) -> bool:
        """Whether the user said anything about it."""
        return self.min_partitions is not None or self.max_records is not None


class Limit(NamedTuple):
    """At most `most` of a batch that would be `total` large, in records or in bytes."""

    most: int
    total: int


class RangesStep(NamedTuple):
    """The ranges from one point of a query to the next, and what was lost on the way, in words."""

    ranges: list[Range]
    losses: list[str]


def bounded(start: Offsets, end: Offsets, limits: Sequence[Limit]) -> Offsets:
    """`end`, moved back so that every limit holds, each partition giving the same share of what it has.

    A partition that has records gives at least one, so that none starves; many partitions may thus exceed a tiny
    limit, as they do with Spark's connector. A partition that `start` does not have, or that lies behind it, is left
    as it is.
    """
    return {where: _bounded(start.get(where, stop), stop, limits) for where, stop in end.items()}


def _bounded(begin: int, stop: int, limits: Sequence[Limit]) -> int:
    size = stop - begin
    if size <= 0:
        return stop
    shares = [max(1, limit.most * size // limit.total) for limit in limits if limit.total > limit.most]
    return begin + min([size, *shares])


def records_between(start: Offsets, end: Offsets) -> int:
    """How many offsets lie ahead; a partition that `start` does not have counts from its beginning at 0."""
    return sum(max(0, stop - start.get(where, 0)) for where, stop in end.items())


def lost(start: Offsets, end: Offsets) -> list[str]:
    """What cannot be read on the way from `start` to `end`: partitions that are gone, and offsets that went back."""
    gone = start.keys() - end.keys()
    losses = [f"{named(gone)} {'is' if len(gone) == 1 else 'are'} gone"] if gone else []
    back = [where for where in sorted(end) if start.get(where, 0) > end[where]]
    return losses + [
        f"{named([where])} went back from offset {start[where]} to {end[where]}: it was truncated or made anew"
        for where in back
    ]


def replaced(before: Mapping[str, bytes], now: Mapping[str, bytes | None]) -> list[str]:
    """Topics that were deleted and made anew: those whose id is another one. One without an id, then or now, counts
    as the same."""
    return [topic for topic, topic_id in sorted(before.items()) if now.get(topic) not in (None, topic_id)]


def made_anew(topics: Iterable[str]) -> list[str]:
    """The loss of topics that were replaced, in words."""
    return [f"topic '{topic}' was deleted and made anew since the query read it" for topic in sorted(topics)]


def without(offsets: Offsets, topics: Collection[str]) -> Offsets:
    """The offsets of other topics."""
    return {where: offset for where, offset in offsets.items() if where.topic not in topics}


def step(start: Offsets, end: Offsets, earliest: Offsets) -> RangesStep:
    """What to read to come from `start` to `end`.

    `earliest` has the first offset of each partition that is new in `end` or whose offsets went back; a partition it
    lacks has been deleted meanwhile.
    """
    losses = lost(start, end)
    for partition in sorted(end.keys() - start.keys()):
        if partition not in earliest:
            losses.append(f"{named([partition])} was deleted as soon as it was found")
        elif earliest[partition] > 0:
            losses.append(f"the new partition {named([partition])} starts at offset {earliest[partition]} instead of 0")
    begin = start | earliest
    ranges = [Range(*partition, begin.get(partition, stop), stop) for partition, stop in sorted(end.items())]
    return RangesStep([wanted for wanted in ranges if wanted.start < wanted.end], losses)


def unsettled(start: Offsets, end: Offsets) -> set[TopicPartition]:
    """The partitions whose earliest offset `step` needs: the new ones, and those whose offsets went back."""
    return {where for where, stop in end.items() if start.get(where, -1) > stop or where not in start}


def split(ranges: Iterable[Range], how: Splitting) -> list[Range]:
    """The ranges cut into the tasks of a batch, in the same order; empty ones are left out.

    First none is longer than `max_records`; then, while there are fewer than `min_partitions`, the large ones are cut
    further in proportion to their size. The number of tasks is about that, a little more or less by rounding.
    """
    whole = [wanted for wanted in ranges if wanted.start < wanted.end]
    if how.max_records is not None:
        whole = [part for wanted in whole for part in _cut(wanted, -(-_size(wanted) // how.max_records))]
    if how.min_partitions is None or len(whole) >= how.min_partitions:
        return whole
    return [part for wanted, parts in _parts(whole, how.min_partitions) for part in _cut(wanted, parts)]


def gathered(ranges: Iterable[Range], most: int) -> list[list[Range]]:
    """The ranges, neighbours together as long as they have at most so many offsets: a task costs more to start than
    a few records to read.
    """
    tasks: list[list[Range]] = []
    room = 0
    for each in ranges:
        room -= _size(each)
        if tasks and room >= 0:
            tasks[-1].append(each)
        else:
            tasks.append([each])
            room = most - _size(each)
    return tasks


def _parts(ranges: list[Range], range_: int) -> list[tuple[Range, int]]:
    """How many tasks each range gets; small ranges count as one, and only the rest shares out what is left."""
    total = sum(map(_size, ranges))
    small = {one for one in ranges if _share(_size(one), total, range_) == 1}
    left = total - sum(map(_size, small))
    tasks = max(range_ - len(small), 1)
    return [(one, 1 if one in small else _share(_size(one), left, tasks)) for one in ranges]


def _share(size: int, total: int, tasks: int) -> int:
    return max(1, (2 * size * tasks + total) // (2 * total))  # rounded to nearest, half up, without floats


def _cut(range_: Range, parts: int) -> list[Range]:
    size = _size(range_)
    cuts = [range_.start + size * part // parts for part in range(parts + 1)]
    pieces = [range_._replace(start=begin, end=end) for begin, end in pairwise(cuts)]
    return [piece for piece in pieces if piece.start < piece.end]


def _size(range_: Range) -> int:
    return range_.end - range_.start


def total_bytes(start: Offsets, end: Offsets, bytes_per_record: Mapping[TopicPartition, float]) -> int:
    """About how many bytes lie ahead."""
    return round(
        sum(max(0, stop - start.get(where, 0)) * bytes_per_record.get(where, 0.0) for where, stop in end.items())
    )
