"""Log lines about many subjects at once: one line for each event with a count and the first few names, where there
would be one for each of thousands of partitions.
"""

from collections import Counter
from typing import Any, Final

NAMED: Final = 5
"""Subjects that a line names."""


class _Summary:
    __slots__ = ("count", "fields", "names", "sums")

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields
        self.count = 0
        self.names: list[str] = []
        self.sums: Counter[str] = Counter()


class Summaries:
    """Events that are collected until they are written, in the order in which the first of each came."""

    def __init__(self, logger: Any, subjects: str = "partitions") -> None:
        """`subjects` is what is counted, as lines call it."""
        self._logger = logger
        self._subjects = subjects
        self._collected: dict[tuple[Any, ...], _Summary] = {}

    def add(
        self, event: str, name: str, *, level: str = "info", sums: dict[str, int] | None = None, **fields: Any
    ) -> None:
        """Have a subject told of. Those with equal fields share a line, in which numbers of `sums` are added up."""
        key = (event, level, *fields.values())
        summary = self._collected.get(key)
        if summary is None:
            summary = self._collected[key] = _Summary(fields)
        summary.count += 1
        if summary.count <= NAMED:
            summary.names.append(name)
        if sums:
            summary.sums.update(sums)

    def write(self) -> None:
        """Log what was collected."""
        if not self._collected:
            return
        collected, self._collected = self._collected, {}
        for (event, level, *_), summary in collected.items():
            counted = {self._subjects: summary.count, "names": _some(summary)}
            getattr(self._logger, level)(event, **counted, **summary.fields, **summary.sums)


def _some(summary: _Summary) -> str:
    more = summary.count - len(summary.names)
    return ", ".join(summary.names) + (f" and {more} more" if more else "")
