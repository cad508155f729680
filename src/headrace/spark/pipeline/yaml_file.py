"""A YAML file as a tree of nodes that know their lines, with `${NAME}` and `${NAME:-default}` from the environment."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from .document import DocumentNode, DocumentPosition, InvalidPipeline, Problems

_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_TIMESTAMP: Final = "tag:yaml.org,2002:timestamp"
"""Dates stay as they are written: Spark reads them."""
_EMPTY: Final = "the file is empty; `headrace pipeline new DIR` writes one to start from"
_BOOLEANS: Final = ("true", "false")
"""YAML 1.1 has more words for them, which are topics, countries and keys as well: on, off, yes, no."""


def read_yaml(text: str, file: str, environment: Mapping[str, str], problems: Problems) -> DocumentNode:
    """The whole document; InvalidPipeline if it is not YAML or names a variable that is not set.

    What is wrong with words that have a meaning all the same is noted in `problems`.
    """
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        if root is None:
            raise InvalidPipeline([f"{file}:1: {_EMPTY}"])
        reading = _Tree(loader, file, environment, problems)
        tree = reading.node(root, DocumentPosition(file, root.start_mark.line + 1))
    except yaml.YAMLError as error:
        raise InvalidPipeline([_syntax(error, file)]) from error
    except RecursionError as error:
        raise InvalidPipeline([f"{file}:1: a value holds itself by an alias, or is nested too deeply"]) from error
    if reading.lacks_variables:  # Whatever else is said of a value that is not known would be a guess.
        problems.raise_any()
    return tree


def lacking_variables(file: Path) -> list[str]:
    """Variables without a default that a file names and this process does not have."""
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    found = [match for line in lines if not line.lstrip().startswith("#") for match in _VARIABLE.finditer(line)]
    return sorted({match[1] for match in found if match[2] is None and match[1] not in os.environ})


def _syntax(error: yaml.YAMLError, file: str) -> str:
    mark = getattr(error, "problem_mark", None)
    line = mark.line + 1 if mark is not None else 1
    return f"{file}:{line}: this is not YAML: {getattr(error, 'problem', None) or error}"


class _Tree:
    """Turns the nodes of the YAML library into ours."""

    def __init__(self, loader: yaml.SafeLoader, file: str, environment: Mapping[str, str], problems: Problems) -> None:
        self._loader = loader
        self._file = file
        self._environment = environment
        self._problems = problems
        self.lacks_variables = False

    def node(self, raw: yaml.Node, position: DocumentPosition) -> DocumentNode:
        if isinstance(raw, yaml.MappingNode):
            return DocumentNode(self._mapping(raw), position)
        if isinstance(raw, yaml.SequenceNode):
            return DocumentNode([self.node(item, self._position(item)) for item in raw.value], position)
        return DocumentNode(self._scalar(raw, position), position)

    def _mapping(self, raw: yaml.MappingNode) -> dict[str, DocumentNode]:
        written = [key.value for key, _ in raw.value if isinstance(key, yaml.ScalarNode) and key.value != "<<"]
        self._merge(raw)
        nodes: dict[str, DocumentNode] = {}
        for key, value in raw.value:
            position = self._position(key)
            if not isinstance(key, yaml.ScalarNode):
                self._problems.add(position, "a name must be a plain word")
                continue
            if written.count(key.value) > 1 and key.value in nodes:
                self._problems.add(position, f"'{key.value}' stands here a second time; one of them would be lost")
            nodes[key.value] = self.node(value, position)
        return nodes

    def _merge(self, raw: yaml.MappingNode) -> None:
        """Take in what `<<` names."""
        try:
            self._loader.flatten_mapping(raw)
        except yaml.MarkedYAMLError as error:
            line = (error.problem_mark or raw.start_mark).line + 1
            self._problems.add(DocumentPosition(self._file, line), f"'<<' does not name a mapping: {error.problem}")

    def _scalar(self, raw: yaml.Node, position: DocumentPosition) -> Any:
        if raw.tag == _TIMESTAMP:
            return raw.value
        try:
            value = self._loader.construct_object(raw)
        except (yaml.YAMLError, ValueError, LookupError):
            kind = raw.tag.rpartition(":")[2]
            self._problems.add(position, f"'{raw.value}' cannot be read as {kind}; write it in quotes")
            return raw.value
        if isinstance(value, str):
            return _VARIABLE.sub(lambda found: self._variable(found, position), value)
        if isinstance(value, bool) and raw.value.lower() not in _BOOLEANS:
            self._problems.add(
                position, f"'{raw.value}' is read as {str(value).lower()}; write that, or '{raw.value}' in quotes"
            )
        if value is None or isinstance(value, (bool, int, float)):
            return value if not isinstance(value, float) else raw.value
        return raw.value

    def _variable(self, match: re.Match[str], position: DocumentPosition) -> str:
        name, default = match[1], match[2]
        if name in self._environment:
            return self._environment[name]
        if default is None:
            self.lacks_variables = True
            self._problems.add(
                position, f"the environment variable {name} is not set; set it, or write ${{{name}:-default}}"
            )
        return default or ""

    def _position(self, raw: yaml.Node) -> DocumentPosition:
        return DocumentPosition(self._file, raw.start_mark.line + 1)
