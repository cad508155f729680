"""Reading a step of a declaration."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Final

from headrace.config.names import nearest, shown

from .connected import plain_value
from .document import Problems, Section
from .expectations import read_expectations
from .functions import parameters
from .graph import PipelineTables
from .model import Call, Dedup, Source, Sql, Step, Watermark
from .sql import tables_in
from .values import is_interval, read_function, read_watermark

_KINDS: Final = ("sql", "python", "dedup")


def read_step(name: str, section: Section, directory: Path) -> Step | None:
    section.allow([*_KINDS, "watermark", "with", "expect"])
    kinds = [kind for kind in _KINDS if section.has(kind)]
    if len(kinds) != 1:
        found = f"has {' and '.join(kinds)}; keep one" if kinds else "needs one of 'sql', 'python' and 'dedup'"
        section.problems.add(section.position, f"{section.what} {found}")
        return None
    if section.has("with") and kinds != ["python"]:
        section.wrong("with", "'with' gives values to a Python function; this step has none")
    work = _READERS[kinds[0]](section, directory)
    if work is None:
        return None
    return Step(
        name=name,
        position=section.position,
        work=work,
        inputs=_inputs(work),
        watermark=read_watermark(section),
        expect=read_expectations(section, directory),
    )


def _inputs(work: Sql | Call | Dedup) -> tuple[str, ...]:
    if isinstance(work, Sql):
        return tuple(tables_in(work.query))
    return work.inputs if isinstance(work, Call) else (work.table,)


def _sql(section: Section, _directory: Path) -> Sql | None:
    query = (section.text("sql") or "").strip().rstrip(";").strip()
    if not query:
        section.wrong("sql", "the query is empty; write SELECT ... FROM the name of a source or a step")
        return None
    return Sql(query=query)


def _dedup(section: Section, _directory: Path) -> Dedup | None:
    inner = section.section("dedup")
    assert inner is not None
    inner.allow(["from", "keys", "column", "within"])
    table = inner.required("from", "orders")
    keys = tuple(inner.texts("keys"))
    if not keys:
        inner.problems.add(inner.position, f"{inner.what} needs 'keys', the columns that tell rows apart")
    watermark = _dedup_watermark(inner)
    return Dedup(table=table, keys=keys, watermark=watermark) if table else None


def check_watermarks(tables: PipelineTables, problems: Problems) -> None:
    """Note every `dedup` of a source that has no watermark for it, or two."""
    for table in tables.all():
        if isinstance(table, Step) and isinstance(table.work, Dedup):
            source = tables.get(table.work.table)
            if isinstance(source, Source) and (source.watermark is None) == (table.work.watermark is None):
                problems.add(table.position, f"step '{table.name}': {_WATERMARKS[source.watermark is None]}")


_WATERMARKS: Final = {
    True: "dedup needs to know how long to remember: give the source a 'watermark', or dedup 'column' and 'within'",
    False: "the source has a watermark already; leave out 'column' and 'within'",
}


def _dedup_watermark(inner: Section) -> Watermark | None:
    column, within = inner.text("column"), inner.text("within")
    if (column is None) != (within is None):
        inner.wrong(
            "column", "'column' and 'within' belong together: the column of times, and how far apart they may be"
        )
    if within is not None and not is_interval(within):
        inner.wrong("within", f"'within' must be a length of time such as 10 minutes, not '{shown(within)}'")
    return Watermark(column=column, delay=within) if column and within else None


def _call(section: Section, directory: Path) -> Call | None:
    function = read_function(section, "python", directory)
    if function is None:
        return None
    given = section.section("with")
    arguments = {} if given is None else {name: plain_value(given.node(name)) for name in given.names()}
    taken = parameters(function)
    _check_arguments(section, taken, arguments)
    inputs = tuple(
        p.name for p in taken if p.name not in arguments and p.name != "spark" and p.default is inspect.Parameter.empty
    )
    return Call(
        function=function,
        inputs=inputs,
        arguments=arguments,
        wants_spark=any(p.name == "spark" for p in taken),
    )


def _check_arguments(section: Section, taken: list[inspect.Parameter], arguments: dict[str, object]) -> None:
    names = [p.name for p in taken]
    for name in arguments:
        if name not in names:
            section.wrong("with", f"the function has no parameter '{shown(name)}'{nearest(name, names)}")
    if any(p.kind not in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) for p in taken):
        section.wrong("python", "its parameters must each have a name, that of the table it gets")


_READERS: Final[dict[str, Callable[[Section, Path], Sql | Call | Dedup | None]]] = {
    "sql": _sql,
    "python": _call,
    "dedup": _dedup,
}
