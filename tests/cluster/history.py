"""What clients of a cluster did and saw, and what is wrong with it.

A history is believed only against what the cluster holds in the end: `problems` compares the two. It knows nothing of
brokers, so it judges any system that keeps records by offset.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

Records = Mapping[int, bytes]
"""Values by their offsets."""


class Outcome(Enum):
    """What a producer was told of a value."""

    UNKNOWN = "unknown"
    """Nothing, or nothing certain: it may be there, or not."""
    ACKNOWLEDGED = "acknowledged"
    REFUSED = "refused"
    """That it was not written."""


@dataclass(slots=True, kw_only=True)
class Write:
    """One value that a producer sent, once or until it was acknowledged."""

    producer: str
    partition: int
    value: bytes
    is_idempotent: bool
    outcome: Outcome = Outcome.UNKNOWN
    offset: int = -1


@dataclass(slots=True)
class History:
    """Everything that clients did, in the order in which they began it."""

    writes: list[Write] = field(default_factory=list)
    seen: dict[int, dict[int, set[bytes]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(set)))
    """By partition and offset: what consumers were given there."""
    complaints: list[str] = field(default_factory=list)
    """What clients found wrong themselves."""

    def begin(self, write: Write) -> Write:
        self.writes.append(write)
        return write

    def saw(self, partition: int, offset: int, value: bytes) -> None:
        self.seen[partition][offset].add(value)

    @property
    def acknowledged(self) -> list[Write]:
        return [write for write in self.writes if write.outcome is Outcome.ACKNOWLEDGED]


def problems(history: History, final: Mapping[int, Records]) -> list[str]:
    """What is wrong, given what each partition holds in the end."""
    found = list(history.complaints)
    for partition, records in final.items():
        writes = [write for write in history.writes if write.partition == partition]
        seen = history.seen.get(partition, {})
        wrong = (
            *_lost(writes, records),
            *_two_values(writes, seen),
            *_vanished(seen, records),
            *_duplicates(writes, records),
            *_out_of_order(writes, records),
            *_from_nowhere(writes, records),
            *_gaps(records),
        )
        found += [f"partition {partition}: {problem}" for problem in wrong]
    return found


def _lost(writes: list[Write], records: Records) -> Iterator[str]:
    for write in writes:
        there = records.get(write.offset)
        if write.outcome is Outcome.ACKNOWLEDGED and there != write.value:
            yield f"lost write: {write.value!r} was acknowledged at {write.offset}, there is {there!r}"


def _two_values(writes: list[Write], seen: Mapping[int, set[bytes]]) -> Iterator[str]:
    values: dict[int, set[bytes]] = defaultdict(set)
    for offset, some in seen.items():
        values[offset] |= some
    for write in writes:
        if write.outcome is Outcome.ACKNOWLEDGED:
            values[write.offset].add(write.value)
    for offset, some in values.items():
        if len(some) > 1:
            yield f"an offset with two values: {offset} was {sorted(some)}"


def _vanished(seen: Mapping[int, set[bytes]], records: Records) -> Iterator[str]:
    for offset, values in seen.items():
        if records.get(offset) not in values:
            yield f"vanished: a consumer saw {sorted(values)} at {offset}, there is {records.get(offset)!r}"


def _duplicates(writes: list[Write], records: Records) -> Iterator[str]:
    counts = Counter(records.values())
    for write in writes:
        if counts[write.value] > 1 and write.is_idempotent:
            yield f"duplicate: {write.value!r} stands {counts[write.value]} times"


def _out_of_order(writes: list[Write], records: Records) -> Iterator[str]:
    """What one producer sent one after another stands in that order; what was not acknowledged may be missing."""
    first = {value: offset for offset, value in sorted(records.items(), reverse=True)}
    last: dict[str, tuple[int, bytes]] = {}
    for write in writes:
        offset = first.get(write.value, -1)
        if offset < 0:
            continue
        before = last.get(write.producer)
        if before is not None and before[0] > offset:
            yield f"out of order: {write.value!r} at {offset} was sent after {before[1]!r} at {before[0]}"
        last[write.producer] = (offset, write.value)


def _from_nowhere(writes: list[Write], records: Records) -> Iterator[str]:
    sent = {write.value: write for write in writes}
    for offset, value in records.items():
        write = sent.get(value)
        if write is None:
            yield f"from nowhere: {value!r} at {offset} was never sent"
        elif write.outcome is Outcome.REFUSED:
            yield f"refused, and there: {value!r} at {offset}"


def _gaps(records: Records) -> Iterator[str]:
    if records and len(records) != max(records) - min(records) + 1:
        missing = sorted(set(range(min(records), max(records))) - set(records))
        yield f"a gap: nothing at {missing[:10]}"
