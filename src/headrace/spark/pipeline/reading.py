"""From a tree of nodes to a `Declaration`, or to the list of everything that is wrong with it."""

import re
from pathlib import Path
from typing import Final

from headrace.config.names import shown

from .connected import KEY, read_connected_source
from .document import DocumentNode, Problems, Section
from .expectations import read_expectations
from .graph import PipelineTables, in_order
from .lake_sinks import with_headers
from .model import Declaration, Source, Step, Trigger
from .sinks import read_sink
from .steps import check_watermarks, read_step
from .values import beside, read_restart, read_trigger, read_watermark
from .vocabulary import (
    METADATA,
    SUBSCRIPTIONS,
    dead_letter_topic,
    is_client_setting,
    source_options,
    wrong_with_source,
)

_TOP: Final = ("name", "bootstrap", "sources", "steps", "sinks", "spark", "trigger", "restart", "checkpoint")
_TABLE_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PIPELINE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_FILES: Final = ("schema", "descriptorFile")
"""Options of a source that may name a file beside the pipeline's."""

_TOPICS: Final = {"topic": "subscribe", "topics": "subscribe", "pattern": "subscribePattern"}


def read_declaration(tree: DocumentNode, file: Path, problems: Problems | None = None) -> Declaration:
    """The pipeline that a tree declares; InvalidPipeline with every mistake found, beside those noted already."""
    problems = problems or Problems()
    top = Section(tree, "the pipeline", problems)
    top.allow(_TOP)
    sources = [_read_source(name, section, file.parent) for name, section in _named(top, "sources", "source")]
    steps = [read_step(name, section, file.parent) for name, section in _named(top, "steps", "step")]
    tables = PipelineTables([table for table in (*sources, *steps) if table is not None], problems)
    sinks = [read_sink(name, section, tables, file.parent) for name, section in _named(top, "sinks", "sink")]
    if not problems.entries and not sinks:
        problems.add(top.position, "the pipeline has no sinks; add at least one under `sinks:`")
    ordered = [with_headers(table, sinks) for table in in_order(tables, problems)]
    check_watermarks(tables, problems)
    declaration = Declaration(
        name=_pipeline_name(top),
        file=file,
        tables=tuple(ordered),
        sinks=tuple(sink for sink in sinks if sink is not None),
        bootstrap=top.text("bootstrap"),
        checkpoint=top.text("checkpoint"),
        trigger=read_trigger(top) or Trigger(),
        restart=read_restart(top),
        spark=_spark(top),
    )
    problems.raise_any()
    return declaration


def _pipeline_name(top: Section) -> str:
    name = top.required("name", "orders")
    if name and not _PIPELINE_NAME.fullmatch(name):
        top.wrong("name", f"the name '{shown(name)}' may have letters, digits, '.', '_' and '-' only")
    return name


def _spark(top: Section) -> dict[str, str]:
    section = top.section("spark")
    return {} if section is None else section.options()


def _named(top: Section, key: str, kind: str) -> list[tuple[str, Section]]:
    """The entries of a mapping of names, names checked."""
    section = top.section(key)
    if section is None:
        return []
    sections = []
    for name in section.names():
        node = section.node(name)
        assert node is not None
        if not _TABLE_NAME.fullmatch(name):
            message = f"the name '{shown(name)}' of a {kind} must be letters, digits and '_', not starting with a digit"
            top.problems.add(node.position, message)
        sections.append((name, Section(node, f"{kind} '{shown(name)}'", top.problems)))
    return sections


def _read_source(name: str, section: Section, directory: Path) -> Source | Step | None:
    if section.has(KEY):
        return read_connected_source(name, section, directory)
    return _source(name, section, directory)


def _source(name: str, section: Section, directory: Path) -> Source:
    own = (*_TOPICS, "watermark", "metadata", "expect")
    before = len(section.problems.entries)
    section.allow([*own, *source_options()], is_client_setting)
    options = section.options(but=own)
    given = [key for key in (*_TOPICS, *SUBSCRIPTIONS) if section.has(key)]
    if len(given) != 1:
        message = f"has {' and '.join(given)}; keep one" if given else "needs a topic, for example `topic: orders`"
        section.problems.add(section.position, f"{section.what} {message}")
    for key in given:
        if key in _TOPICS:
            options[_TOPICS[key]] = ",".join(section.texts(key))
    options |= {key: beside(options[key], directory) for key in _FILES if key in options}
    metadata = _metadata(section)
    if is_sound := len(section.problems.entries) == before:
        is_sound = section.checked_by(wrong_with_source, options)
    return Source(
        name=name,
        position=section.position,
        options=options,
        watermark=read_watermark(section),
        metadata=metadata,
        dead_letter_topic=dead_letter_topic(options) if is_sound else "",
        expect=read_expectations(section, directory),
    )


def _metadata(section: Section) -> tuple[str, ...] | None:
    """The columns of the record that a source asks for."""
    if not section.has("metadata"):
        return None
    names = section.texts("metadata")
    for name in names:
        if name not in METADATA:
            section.wrong("metadata", f"a record has no column '{shown(name)}'; it has {', '.join(METADATA)}")
    return tuple(names)
