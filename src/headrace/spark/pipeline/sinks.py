"""Reading a sink of a declaration."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from .connected import KEY, read_connected_sink
from .document import Section
from .graph import PipelineTables
from .lake_sinks import ARCHIVE_KEYS, require_records, to_archive
from .model import Output, Sink, ToArchive, ToConsole, ToFiles, ToFunction, ToTopic
from .values import beside, read_function, read_trigger
from .vocabulary import ENCODED, TOMBSTONE, file_options, is_client_setting, sink_options, wrong_with_sink

MODES: Final = ("append", "update", "complete")
COLUMNS: Final = ("key", "value", "headers", "partition", "timestamp")
_RECORD: Final = (*COLUMNS, TOMBSTONE)
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KINDS: Final = ("topic", "parquet", "archive", "python", "console", KEY)
_COMMON: Final = ("from", "mode", "trigger", *_KINDS)


def read_sink(name: str, section: Section, tables: PipelineTables, directory: Path) -> Sink | None:
    """The sink, or None with what is wrong noted."""
    kinds = [kind for kind in _KINDS if section.has(kind)]
    if len(kinds) != 1:
        found = f"has {' and '.join(kinds)}; keep one" if kinds else f"needs one of {', '.join(_KINDS)}"
        section.problems.add(section.position, f"{section.what} {found}")
        section.allow(
            [*_COMMON, *_RECORD, "format", "partitionBy", *sink_options(), *file_options(), *ARCHIVE_KEYS],
            is_client_setting,
        )
        return None
    output = _READERS[kinds[0]](section, directory)
    table = _table(name, section, tables)
    mode = section.choice("mode", MODES, "append")
    if isinstance(output, ToFiles) and mode != "append":
        section.wrong("mode", f"files can only be added to: 'mode' must be append, not {mode}")
    if isinstance(output, ToArchive):
        require_records(section, mode, table, tables)
    if output is None or table is None:
        return None
    return Sink(
        name=name, position=section.position, table=table, output=output, mode=mode, trigger=read_trigger(section)
    )


def _table(name: str, section: Section, tables: PipelineTables) -> str | None:
    """The table to write: `from`, or the one of the sink's own name."""
    wanted = section.text("from") or name
    found = tables.get(wanted)
    if found is not None:
        return found.name
    if section.has("from"):
        section.wrong("from", tables.missing(wanted))
    else:
        section.problems.add(section.position, f"{section.what} needs 'from', the name of the table to write")
    return None


def _to_topic(section: Section, directory: Path) -> Output:
    before = len(section.problems.entries)
    section.allow([*_COMMON, *_RECORD, "format", *sink_options()], is_client_setting)
    columns = {column: expression for column in COLUMNS if (expression := section.text(column))}
    chosen = section.choice("format", ("json", *ENCODED), "")
    deleted = section.text(TOMBSTONE) or ""
    every = f"struct(* EXCEPT ({deleted}))" if _NAME.fullmatch(deleted) else "struct(*)"
    if chosen == "json":
        if "value" in columns:
            section.wrong("value", "'format: json' makes the value of all columns; leave out 'value' or 'format'")
        columns["value"] = f"to_json({every})"
    elif chosen:
        columns.setdefault("value", every)
    if deleted and "value" not in columns:
        section.wrong(TOMBSTONE, "'tombstone' tells which rows have no value, so it needs 'format' or 'value'")
    elif deleted:
        columns["value"] = f"CASE WHEN NOT coalesce({deleted}, false) THEN {columns['value']} END"
    options = {**section.options(but=(*_COMMON, *_RECORD, "format")), "topic": section.required("topic", "revenue")}
    options |= {"schema": beside(options["schema"], directory)} if "schema" in options else {}
    options |= {"format": chosen} if chosen in ENCODED else {}
    if len(section.problems.entries) == before:
        section.checked_by(wrong_with_sink, options)
    return ToTopic(columns=columns, options=options)


def _to_files(section: Section, _directory: Path) -> Output:
    section.allow([*_COMMON, "partitionBy", *file_options()])
    return ToFiles(
        path=section.required("parquet", "out/orders"),
        partition_by=tuple(section.texts("partitionBy")),
        options=section.options(but=(*_COMMON, "partitionBy")),
    )


def _to_archive(section: Section, directory: Path) -> Output | None:
    section.allow([*_COMMON, *ARCHIVE_KEYS])
    return to_archive(section, directory)


def _to_function(section: Section, directory: Path) -> Output | None:
    section.allow(_COMMON)
    function = read_function(section, "python", directory)
    return None if function is None else ToFunction(function=function)


def _to_console(section: Section, _directory: Path) -> Output:
    section.allow(_COMMON)
    text = section.text("console") or ""
    if not text.isdigit() or not int(text):
        section.wrong("console", "'console' must be how many rows of a batch to print, for example `console: 20`")
        return ToConsole()
    return ToConsole(rows=int(text))


_READERS: Final[dict[str, Callable[[Section, Path], Output | None]]] = {
    "topic": _to_topic,
    "parquet": _to_files,
    "archive": _to_archive,
    "python": _to_function,
    "console": _to_console,
    KEY: lambda section, directory: read_connected_sink(section, directory, _COMMON),
}
