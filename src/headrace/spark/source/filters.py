"""Filters on where and when a record is, turned into less to read.

Of the filters Spark offers, those on topic and partition choose partitions, and comparisons of the offset cut ranges:
these are exact, so Spark need not check them again. Comparisons of the timestamp only give a lower bound: the broker
knows the first offset of a time or later, so all before it are earlier; but a record after it may be early again,
since producers set the time. Such filters narrow what is read, and Spark still checks them.
"""

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from headrace.client.columnar.model import Range, TopicPartition
from headrace.config.setting import MAX_LONG

_COMPARISONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "EqualTo": operator.eq,
    "EqualNullSafe": operator.eq,
    "GreaterThan": operator.gt,
    "GreaterThanOrEqual": operator.ge,
    "LessThan": operator.lt,
    "LessThanOrEqual": operator.le,
    "In": lambda value, among: value in among,
}
_LOWER_BOUNDS: Final = {"EqualTo": 0, "EqualNullSafe": 0, "GreaterThan": 1, "GreaterThanOrEqual": 0}
_UPPER_BOUNDS: Final = {"EqualTo": 1, "EqualNullSafe": 1, "LessThan": 0, "LessThanOrEqual": 1}
_NEVER_NULL: Final = frozenset({"topic", "partition", "offset"})


@dataclass(slots=True)
class Narrowing:
    """What filters leave to read."""

    record_column: Callable[[str], str | None] = str
    """The column of the record that a column of the rows shows as it is."""
    keeps: list[Callable[[TopicPartition], bool]] = field(default_factory=list)
    start: int = 0
    end: int = MAX_LONG
    since: int | None = None
    """No record before this time in ms is wanted."""

    def take(self, filter_: Any) -> bool:
        """Narrow by one of Spark's filters; True if no record it rejects will be read."""
        kind, name, value = _parts(filter_)
        column = None if name is None else self.record_column(name)
        if kind == "IsNotNull":
            return column in _NEVER_NULL
        match column:
            case "topic" | "partition":
                return self._take_partition(kind, column, value)
            case "offset":
                return self._take_offset(kind, value)
            case "timestamp":
                self._take_time(kind, value)
        return False

    def keeps_partition(self, topic_partition: TopicPartition) -> bool:
        """Whether records of the partition are wanted at all."""
        return self.start < self.end and all(keep(topic_partition) for keep in self.keeps)

    def cut(self, ranges: Iterable[Range]) -> list[Range]:
        """The ranges without the offsets that are not wanted."""
        cut = [one._replace(start=max(one.start, self.start), end=min(one.end, self.end)) for one in ranges]
        return [one for one in cut if one.start < one.end]

    def _take_partition(self, kind: str, column: str, value: Any) -> bool:
        compare = _COMPARISONS.get(kind)
        wanted = value if kind == "In" else [value]
        if compare is None or not all(isinstance(one, str if column == "topic" else int) for one in wanted):
            return False
        self.keeps.append(lambda where: compare(getattr(where, column), value))
        return True

    def _take_offset(self, kind: str, value: Any) -> bool:
        if kind == "In" and value and all(isinstance(one, int) for one in value):
            self._between(min(value), max(value) + 1)
            return False  # the offsets between those named are read too
        if not isinstance(value, int) or kind not in _LOWER_BOUNDS | _UPPER_BOUNDS:
            return False
        low = value + _LOWER_BOUNDS[kind] if kind in _LOWER_BOUNDS else 0
        high = value + _UPPER_BOUNDS[kind] if kind in _UPPER_BOUNDS else MAX_LONG
        self._between(low, high)
        return True

    def _between(self, low: int, high: int) -> None:
        self.start, self.end = max(self.start, low), min(self.end, high)

    def _take_time(self, kind: str, value: Any) -> None:
        times = value if kind == "In" else [value]
        if (kind == "In" or kind in _LOWER_BOUNDS) and times and all(_is_instant(one) for one in times):
            earliest = min(_milliseconds(one) for one in times)
            self.since = max(0, earliest if self.since is None else max(self.since, earliest))


def _parts(filter_: Any) -> tuple[str, str | None, Any]:
    """Kind, column and value of a filter; filters of nested columns, and those with a child, have no column."""
    attribute: tuple[str, ...] = getattr(filter_, "attribute", ())
    column = attribute[0] if len(attribute) == 1 else None
    return type(filter_).__name__, column, getattr(filter_, "value", None)


def _is_instant(value: Any) -> bool:
    return isinstance(value, datetime) and value.tzinfo is not None


def _milliseconds(time: datetime) -> int:
    since = time - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000
