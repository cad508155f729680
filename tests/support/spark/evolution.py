"""Avro schemas that have changed: what a reader may have made of a writer's schema."""

import copy
from collections.abc import Callable
from itertools import count
from typing import Any

from hypothesis import strategies as st

_WIDER: dict[str, list[str]] = {
    "int": ["long", "float", "double"],
    "long": ["float", "double", "int"],
    "float": ["double"],
    "string": ["bytes"],
    "bytes": ["string"],
    "double": ["float"],
}
"""Mostly what Avro promotes to, and some that it does not."""

_ADDED: list[tuple[Any, Any]] = [
    ("int", 7),
    ("long", -(2**40)),
    ("float", 0.5),
    ("double", 1e300),
    ("string", "añ"),
    ("boolean", True),
    (["null", "string"], None),
    (["long", "null"], 3),
    ({"type": "array", "items": "string"}, []),
    ({"type": "array", "items": "string"}, ["x", "", "y"]),
    ({"type": "map", "values": "int"}, {"a": 1, "b": 2}),
    ({"type": "enum", "name": "Added", "symbols": ["A", "B"]}, "B"),
    (
        {
            "type": "record",
            "name": "Extra",
            "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": {"type": "array", "items": "int"}}],
        },
        {"a": 5, "b": [1, 2]},
    ),
]


class Evolution:
    """Draws a reader's schema for a writer's."""

    def __init__(self, draw: Callable[..., Any]) -> None:
        self._draw = draw
        self._names = count()

    def of(self, schema: Any) -> Any:
        """The schema, or what it has become."""
        if isinstance(schema, list):
            return self._union(schema)
        if isinstance(schema, dict):
            return self._complex(schema)
        if schema in _WIDER and self._one_in(4):
            schema = self._draw(st.sampled_from(_WIDER[schema]))
        return self._in_union(schema)

    def _one_in(self, chances: int) -> bool:
        return bool(self._draw(st.integers(1, chances)) == 1)

    def _in_union(self, schema: Any) -> Any:
        return self._draw(st.sampled_from([["null", schema], [schema, "null"]])) if self._one_in(8) else schema

    def _union(self, branches: list[Any]) -> Any:
        kept = [self.of(branch) if isinstance(branch, dict) else branch for branch in branches]
        flat = [branch for branch in kept if not isinstance(branch, list)]
        if len(flat) == len(kept) == 2 and self._one_in(6):
            return next(branch for branch in flat if branch != "null")
        return self._draw(st.permutations(flat)) if len(flat) == len(kept) else branches

    def _complex(self, schema: dict[str, Any]) -> Any:
        made = copy.deepcopy(schema)
        if made["type"] == "record":
            made["fields"] = self._fields(made["fields"])
        elif made["type"] == "array":
            made["items"] = self.of(made["items"])
        elif made["type"] == "map":
            made["values"] = self.of(made["values"])
        elif made["type"] == "enum" and self._one_in(2):
            made["symbols"] = self._draw(st.permutations(made["symbols"]))[: self._draw(st.integers(1, 3))]
            made |= {"default": made["symbols"][0]} if self._one_in(2) else {}
        elif made["type"] == "fixed" and self._one_in(6):
            made["size"] += 1
        return self._in_union(made)

    def _fields(self, fields: list[Any]) -> list[Any]:
        kept = [self._field(field) for field in fields if not self._one_in(5)]
        for _ in range(self._draw(st.integers(0, 2))):
            kind, default = self._draw(st.sampled_from(_ADDED))
            number = next(self._names)
            if isinstance(kind, dict) and "name" in kind:
                kind = {**kind, "name": f"{kind['name']}{number}"}
            field = {"name": f"added{number}", "type": kind}
            kept.append(field if self._one_in(20) else {**field, "default": default})
        kept = kept or [{"name": "only", "type": "int", "default": 1}]
        return list(self._draw(st.permutations(kept)))

    def _field(self, field: dict[str, Any]) -> dict[str, Any]:
        made = {**field, "type": self.of(field["type"])}
        if self._one_in(5):
            made |= {"name": f"renamed{next(self._names)}", "aliases": ["other", field["name"]]}
        return made
