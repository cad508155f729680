"""The tree of nodes that a schema becomes: what each node is in Arrow, and how its slots are read."""

from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa

ROOT_SCOPE: Final = 0


class Form(IntEnum):
    """How the slots of a node are read."""

    NOTHING = 0
    NUMBER = 1
    """An integer, a boolean, a date or a time, as Arrow stores it."""
    FLOAT_BITS = 2
    """The bits of a float or double."""
    BYTES = 3
    """Where the bytes start, and how many; a negative start counts in the side buffer from `-1 - start`."""
    NUMERAL = 4
    """The bits of a float or double, and 0; or where its digits start, and how many there are."""
    SYMBOL = 5
    """The number of one of the node's names."""
    DECIMAL = 6
    """The low and the high half of a 128-bit integer."""
    LOCAL_TIME = 7
    """Microseconds, and whether they are of the zone's local time instead of UTC."""
    STRUCT = 8
    LIST = 9
    MAP = 10


_WIDE: Final = frozenset({Form.BYTES, Form.NUMERAL, Form.DECIMAL, Form.LOCAL_TIME})


@dataclass(slots=True, eq=False)
class ColumnNode:
    """One place of a schema. `children` are a struct's fields, a list's element, or a map's key and value."""

    index: int
    scope: int
    form: Form
    type: Any
    children: "list[ColumnNode]" = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    names_are_dense: bool = False
    unknown_name: str = ""
    parent: "ColumnNode | None" = None
    default: int | bytes | None = None
    """What an absent value of a struct that is there is read as; None for null."""
    inner_scope: int = -1

    def name_them(self, names: dict[int, str], unknown: str = "") -> None:
        """What the numbers of a SYMBOL are called; the others are called `unknown` with their number behind it."""
        self.names, self.unknown_name = names, unknown
        self.names_are_dense = set(names) == set(range(len(names)))

    def name_of(self, number: int) -> str:
        """The name of one."""
        return self.names.get(number, f"{self.unknown_name}{number}")


class ColumnLayout:
    """The nodes of a schema, added from the root down; a node's Arrow type may be set later, when its children are."""

    def __init__(self) -> None:
        self.nodes: list[ColumnNode] = []
        self.scopes = 1

    def add(
        self, form: Form, scope: int, arrow_type: pa.DataType | None = None, parent: ColumnNode | None = None
    ) -> ColumnNode:
        """A new node; a list or a map opens a scope for its entries."""
        node = ColumnNode(len(self.nodes), scope, form, arrow_type, parent=parent)
        if form in (Form.LIST, Form.MAP):
            node.inner_scope = self.scopes
            self.scopes += 1
        self.nodes.append(node)
        return node

    @property
    def root(self) -> ColumnNode:
        """The node of whole values."""
        return self.nodes[0]

    @cached_property
    def scope_of(self) -> Any:
        """The scope of each node."""
        return np.array([node.scope for node in self.nodes], np.int64)

    @cached_property
    def wide(self) -> Any:
        """True for each node that has a second integer."""
        return np.array([node.form in _WIDE for node in self.nodes], np.bool_)

    @cached_property
    def members(self) -> Any:
        """The nodes by their scopes."""
        return np.argsort(self.scope_of, kind="stable").astype(np.int64)

    @cached_property
    def member_bounds(self) -> Any:
        """Where each scope's nodes begin among `members`, and where the last one's end."""
        return np.searchsorted(np.sort(self.scope_of), np.arange(self.scopes + 1)).astype(np.int64)
