"""Which table is made of which: names that are missing or doubled, circles, and an order to build them in."""

from collections.abc import Sequence
from typing import Final

from headrace.config.names import nearest

from .document import DocumentPosition, Problems
from .model import Declaration, Source, Step

Table = Source | Step
_RESERVED: Final = frozenset({"spark"})


class PipelineTables:
    """The sources and steps of a pipeline by name, as Spark compares names: without regard to case."""

    def __init__(self, tables: Sequence[Table], problems: Problems) -> None:
        self._problems = problems
        self._by_name: dict[str, Table] = {}
        for table in tables:
            self._add(table)

    def _add(self, table: Table) -> None:
        other = self._by_name.get(table.name.lower())
        if other is not None:
            self._problems.add(
                table.position, f"the name '{table.name}' is taken by {other.position}; names must differ"
            )
        if table.name.lower() in _RESERVED:
            self._problems.add(table.position, f"'{table.name}' is what functions call the session; take another name")
        self._by_name[table.name.lower()] = table

    def get(self, name: str) -> Table | None:
        return self._by_name.get(name.lower())

    def all(self) -> list[Table]:
        return list(self._by_name.values())

    def missing(self, name: str) -> str:
        """How to tell that a table is not there."""
        return f"there is no source or step '{name}'{nearest(name, [table.name for table in self.all()])}"


def in_order(tables: PipelineTables, problems: Problems) -> list[Table]:
    """All tables, each after those it reads; what is missing or circular is noted and left out."""
    ordered: list[Table] = []
    done: set[str] = set()
    for table in tables.all():
        _visit(table, tables, problems, done, [], ordered)
    return ordered


def _visit(
    table: Table, tables: PipelineTables, problems: Problems, done: set[str], path: list[Table], ordered: list[Table]
) -> None:
    if table in path:
        circle = [one.name for one in path[path.index(table) :]]
        problems.add(table.position, f"the steps {' -> '.join([*circle, table.name])} go in a circle")
        return
    if table.name.lower() in done:
        return
    for name in table.inputs if isinstance(table, Step) else ():
        found = tables.get(name)
        if found is None:
            problems.add(table.position, f"step '{table.name}': {tables.missing(name)}")
        else:
            _visit(found, tables, problems, done, [*path, table], ordered)
    done.add(table.name.lower())
    ordered.append(table)


def unused(declaration: Declaration) -> list[tuple[DocumentPosition, str]]:
    """Tables that reach no sink: no mistake, but seldom meant."""
    used = {table.name for sink in declaration.sinks for table in declaration.needed_by(sink.table)}
    return [
        (table.position, f"'{table.name}' feeds no sink, so it is not run")
        for table in declaration.tables
        if table.name not in used
    ]
