"""Which sinks are one streaming query.

Sinks that share a table are computed together: from the same offsets, with the same watermark, so that what one of them
has, the others have too. Spark has one output mode and one trigger for a query, so sinks that differ in these are
queries of their own, even where they share tables.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from .document import DocumentPosition
from .model import Declaration, Dedup, Sink, Source, Step, ToArchive, ToFiles, Trigger

_LONGEST_NAME: Final = 120
"""A name is that of a directory as well."""


@dataclass(frozen=True, slots=True)
class SinkGraph:
    """Sinks, by name, that one streaming query writes."""

    sinks: tuple[Sink, ...]

    @property
    def name(self) -> str:
        """The query's name, and its checkpoint's: those of its sinks."""
        names = [sink.name for sink in self.sinks]
        joined = "+".join(names)
        if len(joined) <= _LONGEST_NAME:
            return joined
        return f"{names[0][:_LONGEST_NAME]}+{hashlib.sha256(joined.encode()).hexdigest()[:16]}"

    @property
    def mode(self) -> str:
        return self.sinks[0].mode

    @property
    def trigger(self) -> Trigger | None:
        return self.sinks[0].trigger

    @property
    def position(self) -> DocumentPosition:
        return min((sink.position for sink in self.sinks), key=lambda position: (position.file, position.line))

    @property
    def title(self) -> str:
        """What to call it in messages: sink 'a', or sinks 'a' and 'b'."""
        *most, last = [f"'{sink.name}'" for sink in self.sinks]
        return f"sinks {', '.join(most)} and {last}" if most else f"sink {last}"

    def tables(self, declaration: Declaration) -> list[Source | Step]:
        """All that the sinks are made of, each table after those it reads."""
        needed = {table.name for sink in self.sinks for table in declaration.needed_by(sink.table)}
        return [table for table in declaration.tables if table.name in needed]


def graphs_of(declaration: Declaration, *, files_apart: bool = False) -> list[SinkGraph]:
    """The queries of a pipeline, in the order of the file. With `files_apart` a Parquet sink is always its own.

    An archive is always one: what its batches have is told by its own checkpoint.
    """
    groups: list[list[Sink]] = []
    for sink in declaration.sinks:
        joined = [group for group in groups if any(_together(declaration, sink, one, files_apart) for one in group)]
        merged = [*(one for group in joined for one in group), sink]
        groups = [group for group in groups if group not in joined]
        groups.append(merged)
    order = {sink.name: number for number, sink in enumerate(declaration.sinks)}
    groups.sort(key=lambda group: min(order[sink.name] for sink in group))
    return [SinkGraph(tuple(sorted(group, key=lambda sink: sink.name))) for group in groups]


def _together(declaration: Declaration, one: Sink, other: Sink, files_apart: bool) -> bool:
    if isinstance(one.output, ToArchive) or isinstance(other.output, ToArchive):
        return False
    if files_apart and (isinstance(one.output, ToFiles) or isinstance(other.output, ToFiles)):
        return False
    return _pace(declaration, one) == _pace(declaration, other) and bool(_shared(declaration, one, other))


def _pace(declaration: Declaration, sink: Sink) -> tuple[str, Trigger]:
    """What a query has one of."""
    return sink.mode, sink.trigger or declaration.trigger


def _shared(declaration: Declaration, one: Sink, other: Sink) -> list[Source | Step]:
    """The tables that both sinks are made of."""
    others = {table.name for table in declaration.needed_by(other.table)}
    return [table for table in declaration.needed_by(one.table) if table.name in others]


def disagreements(declaration: Declaration, graphs: Sequence[SinkGraph]) -> list[tuple[DocumentPosition, str]]:
    """Sinks that share a table with a watermark and are no one query: each leaves out late rows by its own watermark,
    so one may have a row that the other one has not.
    """
    return [
        (
            sink.position,
            f"sinks '{other.name}' and '{sink.name}' share '{table.name}', which has a watermark, but are queries of "
            f"their own ({_reason(declaration, other, sink)}): late rows may be in one and not in the other",
        )
        for sink, other in _apart(graphs)
        if (table := _late(declaration, sink, other)) is not None
    ]


def _apart(graphs: Sequence[SinkGraph]) -> Iterator[tuple[Sink, Sink]]:
    for left, right in combinations(graphs, 2):
        for one in left.sinks:
            for other in right.sinks:
                yield (one, other) if one.position.line >= other.position.line else (other, one)


def _late(declaration: Declaration, one: Sink, other: Sink) -> Source | Step | None:
    return next((table for table in _shared(declaration, one, other) if _has_watermark(table)), None)


def _has_watermark(table: Source | Step) -> bool:
    own = table.work.watermark if isinstance(table, Step) and isinstance(table.work, Dedup) else None
    return table.watermark is not None or own is not None


def _reason(declaration: Declaration, one: Sink, other: Sink) -> str:
    if one.mode != other.mode:
        return f"modes {one.mode} and {other.mode}"
    if _pace(declaration, one) != _pace(declaration, other):
        return "their triggers differ"
    if isinstance(one.output, ToArchive) or isinstance(other.output, ToArchive):
        return "an archive always is one"
    return "behind Spark Connect a Parquet sink is one"
