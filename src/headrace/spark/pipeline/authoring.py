"""Pipelines declared in Python.

    from headrace.spark.pipeline import Pipeline

    pipeline = Pipeline("orders", trigger="5 seconds")
    pipeline.source("orders", topic="orders", watermark={"column": "timestamp", "delay": "10 minutes"})

    @pipeline.step
    def large(orders):
        return orders.where("length(value) > 1000")

    pipeline.sql("counted", "SELECT topic, count(*) AS n FROM large GROUP BY topic")
    pipeline.sink("counts", from_="counted", topic="counts", format="json", mode="complete")

The calls take the settings of the YAML form by the same names (`from_` for `from`) and are held to the same rules,
with the line of the call in each message. `headrace pipeline run FILE.py` runs the one `Pipeline` of the file.
"""

import inspect
from pathlib import Path
from typing import Any, overload

from .document import DocumentNode, DocumentPosition, InvalidPipeline
from .model import Declaration, Function
from .reading import read_declaration


class Pipeline:
    """A pipeline to be run by `headrace pipeline run`; settings are those of the top of a YAML file."""

    def __init__(self, name: str, **settings: Any) -> None:
        self._position = _caller()
        self._top = {"name": DocumentNode(name, self._position), **_nodes(settings, self._position)}
        self._parts: dict[str, list[tuple[str, DocumentNode]]] = {"sources": [], "steps": [], "sinks": []}

    def source(self, name: str, **settings: Any) -> None:
        """Declare a source, as under `sources:`."""
        self._add("sources", name, settings, _caller())

    def sql(self, name: str, query: str, **settings: Any) -> None:
        """Declare a step that is a query."""
        self._add("steps", name, {"sql": query, **settings}, _caller())

    def dedup(self, name: str, **settings: Any) -> None:
        """Declare a step that drops duplicates, with the settings of `dedup:`."""
        self._add("steps", name, {"dedup": {_spelled(key): value for key, value in settings.items()}}, _caller())

    @overload
    def step(self, function: Function) -> Function: ...
    @overload
    def step(self, **settings: Any) -> Any: ...
    def step(self, function: Function | None = None, **settings: Any) -> Any:
        """Declare a step that is the decorated function; its parameters name the tables it gets."""
        position = _caller()

        def declare(function: Function) -> Function:
            self._add("steps", function.__name__, {"python": function, **settings}, position)
            return function

        return declare if function is None else declare(function)

    def sink(self, name: str, **settings: Any) -> None:
        """Declare a sink, as under `sinks:`."""
        self._add("sinks", name, settings, _caller())

    def declaration(self, file: Path) -> Declaration:
        """The checked pipeline; InvalidPipeline with every mistake found."""
        return read_declaration(DocumentNode(self._tree(), self._position), file)

    def _add(self, part: str, name: str, settings: dict[str, Any], position: DocumentPosition) -> None:
        if name in dict(self._parts[part]):
            raise InvalidPipeline([f"{position}: {part.removesuffix('s')} '{name}' is declared a second time"])
        self._parts[part].append((name, DocumentNode(_nodes(settings, position), position)))

    def _tree(self) -> dict[str, DocumentNode]:
        return {
            **self._top,
            **{part: DocumentNode(dict(entries), self._position) for part, entries in self._parts.items() if entries},
        }


def _nodes(settings: dict[str, Any], position: DocumentPosition) -> dict[str, DocumentNode]:
    return {_spelled(name): node_of(value, position) for name, value in settings.items()}


def _spelled(name: str) -> str:
    """A setting as YAML has it: `from_` and `with_` stand for words that Python keeps for itself."""
    return name.removesuffix("_")


def node_of(value: Any, position: DocumentPosition) -> DocumentNode:
    """Plain values as a part of a declaration."""
    if isinstance(value, dict):
        return DocumentNode({str(name): node_of(item, position) for name, item in value.items()}, position)
    if isinstance(value, (list, tuple)):
        return DocumentNode([node_of(item, position) for item in value], position)
    return DocumentNode(value, position)


def _caller() -> DocumentPosition:
    """The line outside of this file that is being run."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return (
        DocumentPosition(frame.f_code.co_filename, frame.f_lineno)
        if frame is not None
        else DocumentPosition("<python>", 1)
    )
