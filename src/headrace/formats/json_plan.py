"""A Spark struct as tables: what each place of a JSON document is, and the columns that it becomes."""

import json
from typing import Any, Final, NamedTuple

import numpy as np

from . import types as t
from .arrow_types import arrow_type
from .errors import OptionError
from .layout import ROOT_SCOPE, ColumnLayout, ColumnNode, Form

BOOLEAN, INTEGER, FLOAT, DOUBLE, DECIMAL, STRING, BINARY, DATE, TIMESTAMP, TIMESTAMP_NTZ = range(10)
STRUCT, LIST, MAP = range(10, 13)

KIND, FIRST, SECOND, THIRD, WIDTH = range(5)
"""Columns of `places`, a row per node. INTEGER: the bits it has. DECIMAL: its digits, and those behind the point.
STRUCT: where its fields start and end in `names`. LIST: its scope and element. MAP: its scope, value and key.
The last name is how many columns there are."""

NAME_START, NAME_SIZE, NAME_NODE, NAME_WORDS, NAME_WIDTH = range(5)
"""Columns of `names`, a row per field: where it is in `letters`, its node, and where it is in `words`."""


class JsonPlan(NamedTuple):
    """What the loop needs to know of a struct."""

    layout: ColumnLayout
    nodes: Any
    names: Any
    letters: Any
    """The bytes of all names, each as it stands before its value: in quotes, with a colon."""
    words: Any
    """The same, each name from a word of its own on, filled up with zeros."""
    masks: Any
    """For each of the words, ones where it has bytes of the name."""


_SIMPLE: Final = {
    t.BooleanType: (Form.NUMBER, BOOLEAN, 0),
    t.ByteType: (Form.NUMBER, INTEGER, 8),
    t.ShortType: (Form.NUMBER, INTEGER, 16),
    t.IntegerType: (Form.NUMBER, INTEGER, 32),
    t.LongType: (Form.NUMBER, INTEGER, 64),
    t.FloatType: (Form.NUMERAL, FLOAT, 0),
    t.DoubleType: (Form.NUMERAL, DOUBLE, 0),
    t.StringType: (Form.BYTES, STRING, 0),
    t.BinaryType: (Form.BYTES, BINARY, 0),
    t.DateType: (Form.NUMBER, DATE, 0),
    t.TimestampType: (Form.LOCAL_TIME, TIMESTAMP, 0),
    t.TimestampNTZType: (Form.NUMBER, TIMESTAMP_NTZ, 0),
}


def plan_of(spark_type: t.StructType) -> JsonPlan:
    """The plan of a struct."""
    planner = _Planner()
    planner.add(spark_type, ROOT_SCOPE, "value")
    names = np.array(planner.names, np.int64).reshape(-1, 4)
    letters, words, masks = (np.frombuffer(bytes(made), np.uint8) for made in planner.letters)
    return JsonPlan(
        planner.layout, np.array(planner.nodes, np.int64), names, letters, words.view(np.uint64), masks.view(np.uint64)
    )


class _Planner:
    def __init__(self) -> None:
        self.layout = ColumnLayout()
        self.nodes: list[list[int]] = []
        self.names: list[list[int]] = []
        self.letters = bytearray(), bytearray(), bytearray()

    def add(self, spark_type: t.DataType, scope: int, path: str) -> ColumnNode:
        """The node of a type, and its row."""
        if isinstance(spark_type, t.StructType):
            return self._struct(spark_type, scope, path)
        if isinstance(spark_type, t.ArrayType):
            node = self._add(Form.LIST, scope, spark_type, [LIST, 0, 0, 0])
            self._entries(node, [(spark_type.element_type, f"{path}[]")])
            return node
        if isinstance(spark_type, t.MapType):
            if not isinstance(spark_type.key_type, t.StringType):
                raise OptionError(f"schema: {path} is a map, whose keys can only be STRING in JSON")
            node = self._add(Form.MAP, scope, spark_type, [MAP, 0, 0, 0])
            self._entries(node, [(spark_type.key_type, f"{path}{{key}}"), (spark_type.value_type, f"{path}{{}}")])
            return node
        if isinstance(spark_type, t.DecimalType):
            return self._add(Form.DECIMAL, scope, spark_type, [DECIMAL, spark_type.precision, spark_type.scale, 0])
        form, kind, size = _simple(spark_type, path)
        return self._add(form, scope, spark_type, [kind, size, 0, 0])

    def _add(self, form: Form, scope: int, spark_type: t.DataType, row: list[int]) -> ColumnNode:
        self.nodes.append(row)
        return self.layout.add(form, scope, arrow_type(spark_type))

    def _entries(self, node: ColumnNode, parts: list[tuple[t.DataType, str]]) -> None:
        node.children = [self.add(spark_type, node.inner_scope, path) for spark_type, path in parts]
        row = self.nodes[node.index]
        row[FIRST], row[SECOND], row[THIRD] = node.inner_scope, node.children[-1].index, node.children[0].index

    def _struct(self, spark_type: t.StructType, scope: int, path: str) -> ColumnNode:
        node = self._add(Form.STRUCT, scope, spark_type, [STRUCT, len(self.names), 0, 0])
        rows = [self._name(field.name) for field in spark_type.fields]
        start = len(self.names)
        self.names += rows
        self.nodes[node.index][FIRST], self.nodes[node.index][SECOND] = start, start + len(rows)
        for row, field in zip(rows, spark_type.fields, strict=True):
            child = self.add(field.data_type, scope, f"{path}.{field.name}")
            row[NAME_NODE] = child.index
            node.children.append(child)
        return node

    def _name(self, name: str) -> list[int]:
        letters, words, masks = self.letters
        written = f"{json.dumps(name, ensure_ascii=False)}:".encode()  # a quote in it must be escaped in documents, too
        row = [len(letters), len(written), 0, len(words) // 8]
        letters += written
        words += written.ljust(-(-len(written) // 8) * 8, b"\0")
        masks += (b"\xff" * len(written)).ljust(-(-len(written) // 8) * 8, b"\0")
        return row


def _simple(spark_type: t.DataType, path: str) -> tuple[Form, int, int]:
    if type(spark_type) not in _SIMPLE:
        raise OptionError(f"schema: {path} has the type {spark_type.simple_string()}, which JSON cannot be decoded to")
    return _SIMPLE[type(spark_type)]
