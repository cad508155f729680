"""Reading sinks of a declaration that write tables of a lake."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from headrace.config.names import nearest, shown
from headrace.lake.archiving import APPEND, UPSERT, ArchiveOptions
from headrace.lake.errors import LakeError
from headrace.lake.files import BY_TIME, FILE_BYTES
from headrace.lake.opening import FORMATS, Lake
from headrace.lake.places import is_object_store
from headrace.lake.values import decoder_for_topic

from ..units import byte_count
from .document import Section
from .graph import PipelineTables
from .model import Sink, Source, Step, ToArchive
from .values import beside

ARCHIVE_KEYS: Final = (
    "format",
    "partition",
    "upsert",
    "values",
    "keepBytes",
    "onBad",
    "compactEvery",
    "fileSize",
    "compression",
    "catalog",
    "storage",
)
COMPRESSIONS: Final = ("zstd", "snappy", "gzip", "lz4", "none")
ON_BAD: Final = ("table", "fail")
COMPACT_EVERY: Final = 50
_TRUTH: Final = ("true", "false")
_FILES: Final = ("schema", "descriptorFile")


def to_archive(section: Section, directory: Path) -> ToArchive | None:
    """An archive of the keys of a section; None with what is wrong noted."""
    before = len(section.problems.entries)
    values = _values(section, directory)
    path = section.required("archive", "lake")
    options = ArchiveOptions(
        lake=Lake(
            path=path if is_object_store(path) or path.startswith("file:") else str(directory.resolve() / path),
            format=section.choice("format", FORMATS, FORMATS[0]),
            options=_mapping(section, "storage"),
            catalog=_mapping(section, "catalog"),
        ),
        mode=UPSERT if section.choice("upsert", _TRUTH, "false") == "true" else APPEND,
        partition=section.choice("partition", tuple(BY_TIME), "day"),
        keeps_bytes=section.choice("keepBytes", _TRUTH, "true") == "true",
        bad=section.choice("onBad", ON_BAD, "table"),
        file_bytes=_size(section, "fileSize", FILE_BYTES),
        compression=section.choice("compression", COMPRESSIONS, "zstd"),
        compact_every=_count(section, "compactEvery", COMPACT_EVERY),
    )
    if options.lake.catalog and options.lake.format != "iceberg":
        section.wrong("catalog", "'catalog' is for `format: iceberg`")
    if not options.keeps_bytes and not values:
        section.wrong("keepBytes", "'keepBytes: false' needs 'values': without either, nothing of a value is kept")
    return ToArchive(options=options, values=values) if len(section.problems.entries) == before else None


def require_records(section: Section, mode: str, table: str | None, tables: PipelineTables) -> None:
    """Note it if an archive does not get records as they are."""
    if mode != APPEND:
        section.wrong("mode", f"an archive is only added to: 'mode' must be append, not {mode}")
    found = None if table is None else tables.get(table)
    if isinstance(found, Step):
        section.wrong("from", f"an archive has the records of topics: 'from' must be a source, and '{table}' is a step")
    if isinstance(found, Source):
        for wrong in _not_raw(found):
            section.wrong(
                "from", f"an archive decodes values itself, by 'values': leave {wrong} out of source '{table}'"
            )


def _not_raw(source: Source) -> list[str]:
    named = {name.lower(): name for name in source.options}
    found = [named[name] for name in ("format", "keyformat", "badrecords", "deadlettertopic") if name in named]
    if named.get("includeheaders") and source.options[named["includeheaders"]] == "false":
        found.append(named["includeheaders"])
    return [*found, *(["metadata"] if source.metadata is not None else [])]


def with_headers(table: Any, sinks: Sequence[Sink | None]) -> Any:
    """A source with what its archives need beside its own options."""
    if not isinstance(table, Source):
        return table
    is_archived = any(
        one is not None and isinstance(one.output, ToArchive) and one.table.lower() == table.name.lower()
        for one in sinks
    )
    return replace(table, options={**table.options, "includeHeaders": "true"}) if is_archived else table


def _values(section: Section, directory: Path) -> dict[str, str]:
    """The options of values; a word is the format."""
    node = section.node("values")
    if node is None:
        return {}
    if not isinstance(node.value, dict):
        options = {"format": section.text("values") or ""}
    else:
        inner = section.section("values")
        assert inner is not None
        options = inner.options()
        if "format" not in options:
            inner.wrong(
                "values", "'values' needs a format, for example `values: {format: json, schema: \"id BIGINT\"}`"
            )
            return {}
    options |= {name: beside(options[name], directory) for name in _FILES if name in options}
    try:
        decoder_for_topic("topic", options)
    except LakeError as error:
        section.wrong("values", str(error).removeprefix("values of topic 'topic': "))
    return options


def _mapping(section: Section, key: str) -> Mapping[str, str]:
    inner = section.section(key)
    return {} if inner is None else inner.options()


def _size(section: Section, key: str, default: int) -> int:
    text = section.text(key)
    if text is None:
        return default
    try:
        return byte_count(text)
    except ValueError as error:
        section.wrong(key, f"'{key}' must be {error}, not '{shown(text)}'{nearest(text, ())}")
        return default


def _count(section: Section, key: str, default: int) -> int:
    text = section.text(key)
    if text is None:
        return default
    if not text.isdigit():
        section.wrong(key, f"'{key}' must be a whole number, 0 for never, not '{shown(text)}'")
        return default
    return int(text)
