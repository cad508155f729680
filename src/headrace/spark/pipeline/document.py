"""What a user declared, with the place of every value, and the reading of it that finds all mistakes at once.

A declaration is a tree of `DocumentNode`s, from a YAML file (`yaml_file`) or from calls in a Python one (`authoring`).
A `Section` reads one mapping of it: each method takes a key, notes what is wrong with it in `Problems`, and goes on
with a harmless value, so that a user sees every mistake of a file in one run.
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.config.names import nearest, shown


@dataclass(frozen=True, slots=True)
class DocumentPosition:
    """Where something was written."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class DocumentNode:
    """A value (scalar, callable, list of nodes or mapping of names to nodes) and where it was written."""

    value: Any
    position: DocumentPosition


class InvalidPipeline(Exception):
    """The declaration cannot be run; `problems` has one line for each mistake, with its place."""

    def __init__(self, problems: Collection[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


@dataclass(slots=True)
class Problems:
    """Mistakes found so far."""

    entries: list[tuple[DocumentPosition, str]] = field(default_factory=list)

    def add(self, position: DocumentPosition, message: str) -> None:
        self.entries.append((position, message))

    def raise_any(self) -> None:
        """InvalidPipeline with all of them in the order of the file, if there are any."""
        if self.entries:
            ordered = sorted(self.entries, key=lambda one: (one[0].file, one[0].line))
            raise InvalidPipeline([f"{position}: {message}" for position, message in ordered])


class Section:
    """One mapping of a declaration. `what` names it in messages, as in "source 'orders'"."""

    def __init__(self, node: DocumentNode, what: str, problems: Problems) -> None:
        self.what = what
        self.position = node.position
        self.problems = problems
        self._nodes: Mapping[str, DocumentNode] = node.value if isinstance(node.value, dict) else {}
        if not isinstance(node.value, dict):
            problems.add(node.position, f"{what} must be a mapping of names to values, not {described(node.value)}")

    def allow(self, known: Collection[str], accepts: Callable[[str], bool] = lambda _name: False) -> None:
        """Note every key that is neither known nor accepted by the function."""
        for name, node in self._nodes.items():
            if name not in known and not accepts(name):
                self.problems.add(node.position, f"{self.what} has no setting '{shown(name)}'{nearest(name, known)}")

    def has(self, key: str) -> bool:
        return key in self._nodes

    def node(self, key: str) -> DocumentNode | None:
        return self._nodes.get(key)

    def place_of(self, key: str) -> DocumentPosition:
        """Where a key stands, or else the section."""
        return self._nodes[key].position if key in self._nodes else self.position

    def names(self) -> list[str]:
        return list(self._nodes)

    def wrong(self, key: str, message: str) -> None:
        """Note a mistake in the value of a key."""
        self.problems.add(self.place_of(key), f"{self.what}: {message}")

    def checked_by(self, check: Callable[[Mapping[str, str]], str | None], options: Mapping[str, str]) -> bool:
        """Add every problem that `check` finds in the section's options, at the line of the option it names; whether
        there was none.

        `check` returns the first problem only. So it is called again without the option it named, until it finds
        nothing, or names an option that was left out already.
        """
        rest, left_out = dict(options), set[str]()
        while (verdict := check(rest)) is not None and not any(_is_named(name, verdict) for name in left_out):
            named = max((name for name in {**self._nodes, **rest} if _is_named(name, verdict)), key=len, default="")
            self.wrong(named, verdict)
            if rest.pop(named, None) is None:
                return False
            left_out.add(named)
        return not left_out

    def text(self, key: str) -> str | None:
        """A scalar as text; None if it is not there."""
        node = self._nodes.get(key)
        if node is None:
            return None
        text = scalar_text(node.value)
        if text is None:
            self.wrong(key, f"'{key}' must be a single value, not {described(node.value)}")
        return text

    def required(self, key: str, example: str) -> str:
        """A scalar that must be there; the empty text, with a problem noted, if it is not."""
        if key not in self._nodes:
            self.problems.add(self.position, f"{self.what} needs '{key}', for example `{key}: {example}`")
            return ""
        return self.text(key) or ""

    def texts(self, key: str) -> list[str]:
        """A list of scalars; one scalar counts as a list of one."""
        node = self._nodes.get(key)
        if node is None:
            return []
        items = node.value if isinstance(node.value, list) else [node]
        texts = [scalar_text(item.value) for item in items]
        if not texts or None in texts:
            self.wrong(key, f"'{key}' must be a name or a list of names")
        return [text for text in texts if text]

    def choice(self, key: str, known: Collection[str], default: str) -> str:
        """One of several words."""
        text = self.text(key)
        if text is None or text in known:
            return text or default
        self.wrong(key, f"'{key}' must be one of {', '.join(known)}, not '{shown(text)}'{nearest(text, known)}")
        return default

    def section(self, key: str) -> "Section | None":
        """A mapping within this one."""
        node = self._nodes.get(key)
        return None if node is None else Section(node, f"{self.what}: '{key}'", self.problems)

    def options(self, but: Collection[str] = ()) -> dict[str, str]:
        """Every other key as the text that Spark wants; lists by commas."""
        found = {}
        for name, node in self._nodes.items():
            if name not in but:
                found[name] = self._option(name, node)
        return found

    def _option(self, name: str, node: DocumentNode) -> str:
        if isinstance(node.value, list):
            return ",".join(self.texts(name))
        return self.text(name) or ""


def _is_named(key: str, verdict: str) -> bool:
    """Whether a verdict speaks of a key; settings of the client go by Kafka's names there."""
    return re.search(rf"(?<![\w.])(?:kafka\.)?{re.escape(key.removeprefix('kafka.'))}(?!\w)", verdict) is not None


def scalar_text(value: object) -> str | None:
    """A scalar as Spark's options spell it; None for what is not a scalar."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (str, int, float)):
        return str(value)
    return None


def described(value: object) -> str:
    """What kind of value this is, in words of the file."""
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    return f"'{shown(str(value))}'"
