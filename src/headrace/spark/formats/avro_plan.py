"""An Avro schema as a program: the steps that read a record, and the columns that it becomes.

Spark's types are those of Spark's own Avro reader. A step is four integers: what to do, the node it fills, and two
arguments. A union is a SWITCH over a table of steps to go on with; each branch ends with a JUMP behind the union. An
array is an ARRAY step, the steps of one element, and a NEXT that goes back to them; a map is an array whose elements
start with their key.
"""

import json
from typing import Any, Final, NamedTuple

import fastavro
import numpy as np
from pyspark.sql import types as t

from .arrow_types import arrow_type
from .errors import OptionError
from .layout import ROOT_SCOPE, Form, Layout, Node

END, BOOLEAN, INT, LONG, MILLIS, FLOAT, FLOAT_AS_DOUBLE, DOUBLE, BYTES, STRING = range(10)
FIXED, ENUM, DECIMAL, FIXED_DECIMAL, NOTHING, RECORD, SWITCH, JUMP, ARRAY, NEXT = range(10, 20)

_MOST_DIGITS: Final = 38


class Plan(NamedTuple):
    """What the loop needs to know of a schema."""

    spark_type: t.DataType
    layout: Layout
    steps: Any
    tables: Any


class _Scalar(NamedTuple):
    spark_type: t.DataType
    form: Form
    code: int
    argument: int = 0


_PRIMITIVES: Final = {
    "boolean": _Scalar(t.BooleanType(), Form.NUMBER, BOOLEAN),
    "int": _Scalar(t.IntegerType(), Form.NUMBER, INT),
    "long": _Scalar(t.LongType(), Form.NUMBER, LONG),
    "float": _Scalar(t.FloatType(), Form.FLOAT_BITS, FLOAT),
    "double": _Scalar(t.DoubleType(), Form.FLOAT_BITS, DOUBLE),
    "bytes": _Scalar(t.BinaryType(), Form.BYTES, BYTES),
    "string": _Scalar(t.StringType(), Form.BYTES, STRING),
    "null": _Scalar(t.NullType(), Form.NOTHING, NOTHING),
}
_LOGICAL: Final = {
    ("int", "date"): _Scalar(t.DateType(), Form.NUMBER, INT),
    ("long", "timestamp-millis"): _Scalar(t.TimestampType(), Form.NUMBER, MILLIS),
    ("long", "timestamp-micros"): _Scalar(t.TimestampType(), Form.NUMBER, LONG),
    ("long", "local-timestamp-millis"): _Scalar(t.TimestampNTZType(), Form.NUMBER, MILLIS),
    ("long", "local-timestamp-micros"): _Scalar(t.TimestampNTZType(), Form.NUMBER, LONG),
}
_WIDENED: Final = {
    frozenset({"int", "long"}): (t.LongType(), Form.NUMBER, {"int": INT, "long": LONG}),
    frozenset({"float", "double"}): (t.DoubleType(), Form.FLOAT_BITS, {"float": FLOAT_AS_DOUBLE, "double": DOUBLE}),
}


def plan_of(schema_text: str) -> Plan:
    """The plan of a schema in JSON, whose top level must be a record."""
    schema = _parsed(schema_text)
    if _kind(schema) != "record":
        raise OptionError("schema: the Avro schema must be a record at its top level")
    planner = _Planner()
    _, spark_type = planner.value(schema, ROOT_SCOPE, None, "value")
    planner.emit(END)
    steps = np.array(planner.steps, np.int64)
    tables = np.array(planner.tables or [0], np.int64)
    return Plan(spark_type, planner.layout, steps, tables)


def _parsed(text: str) -> Any:
    try:
        return fastavro.parse_schema(json.loads(text))
    except json.JSONDecodeError as error:
        raise OptionError(f"schema: not an Avro schema in JSON ({error})") from error
    except Exception as error:  # fastavro raises whatever the odd schema led it into
        raise OptionError(f"schema: not a valid Avro schema: {str(error) or type(error).__name__}") from error


def _kind(schema: Any) -> str:
    if isinstance(schema, list):
        return "union"
    if isinstance(schema, dict):
        return _kind(schema["type"]) if not isinstance(schema["type"], str) else schema["type"]
    return str(schema)


class _Planner:
    def __init__(self) -> None:
        self.layout = Layout()
        self.steps: list[list[int]] = []
        self.tables: list[int] = []
        self._named: dict[str, Any] = {}
        self._inside: list[str] = []

    def emit(self, code: int, node: Node | None = None, first: int = 0, second: int = 0) -> int:
        self.steps.append([code, node.index if node else 0, first, second])
        return len(self.steps) - 1

    def value(self, schema: Any, scope: int, parent: Node | None, path: str) -> tuple[Node, t.DataType]:
        """The steps and the node for one value."""
        schema = self._resolved(schema)
        kind = _kind(schema)
        if kind == "union":
            return self._union(schema if isinstance(schema, list) else schema["type"], scope, parent, path)
        if kind == "record":
            return self._record(schema, scope, parent, path)
        if kind in ("array", "map"):
            return self._entries(kind, schema, scope, parent, path)
        return self._scalar(_scalar(kind, schema, path), schema, scope, parent)

    def _resolved(self, schema: Any) -> Any:
        while isinstance(schema, dict) and isinstance(schema["type"], dict):
            schema = schema["type"]
        if isinstance(schema, dict) and "name" in schema:
            self._named[schema["name"]] = schema
        return self._named.get(schema, schema) if isinstance(schema, str) else schema

    def _scalar(self, scalar: _Scalar, schema: Any, scope: int, parent: Node | None) -> tuple[Node, t.DataType]:
        node = self.layout.add(scalar.form, scope, arrow_type(scalar.spark_type), parent)
        if scalar.form is Form.SYMBOL:
            node.name_them(dict(enumerate(schema["symbols"])))
        self.emit(scalar.code, node, scalar.argument, getattr(scalar.spark_type, "precision", 0))
        return node, scalar.spark_type

    def _record(self, schema: Any, scope: int, parent: Node | None, path: str) -> tuple[Node, t.DataType]:
        name = schema["name"]
        if name in self._inside:
            raise OptionError(f"schema: {path} is a {name} inside a {name}; recursive records cannot become columns")
        self._inside.append(name)
        node = self.layout.add(Form.STRUCT, scope, parent=parent)
        self.emit(RECORD, node)
        fields = []
        for field in schema["fields"]:
            child, spark_type = self.value(field["type"], scope, node, f"{path}.{field['name']}")
            node.children.append(child)
            fields.append(t.StructField(field["name"], spark_type))
        self._inside.pop()
        return _typed(node, t.StructType(fields))

    def _entries(self, kind: str, schema: Any, scope: int, parent: Node | None, path: str) -> tuple[Node, t.DataType]:
        node = self.layout.add(Form.MAP if kind == "map" else Form.LIST, scope, parent=parent)
        start = self.emit(ARRAY, node, node.inner_scope)
        if kind == "map":
            key, _ = self._scalar(_PRIMITIVES["string"], None, node.inner_scope, None)
            node.children.append(key)
        item = schema["values"] if kind == "map" else schema["items"]
        child, spark_type = self.value(item, node.inner_scope, None, f"{path}[]")
        if kind == "array" and self._takes_no_bytes(item):
            raise OptionError(f"schema: {path} is an array of items that take no bytes, so nothing bounds its length")
        node.children.append(child)
        self.emit(NEXT, node, node.inner_scope, start + 1)
        self.steps[start][3] = len(self.steps)
        whole = t.MapType(t.StringType(), spark_type) if kind == "map" else t.ArrayType(spark_type)
        return _typed(node, whole)

    def _takes_no_bytes(self, schema: Any) -> bool:
        schema = self._resolved(schema)
        kind = _kind(schema)
        if kind == "record":
            return all(self._takes_no_bytes(field["type"]) for field in schema["fields"])
        return kind == "null" or (kind == "fixed" and schema["size"] == 0)

    def _union(self, branches: Any, scope: int, parent: Node | None, path: str) -> tuple[Node, t.DataType]:
        table = len(self.tables)
        self.emit(SWITCH, None, table, len(branches))
        self.tables += [-1] * len(branches)
        places = [place for place, branch in enumerate(branches) if _kind(self._resolved(branch)) != "null"]
        rest = [branches[place] for place in places]
        fill = self._branches(rest, scope, parent, path)
        jumps = []
        for place, branch in zip(places, rest, strict=True):
            self.tables[table + place] = len(self.steps)
            fill.add(self, branch)
            jumps.append(self.emit(JUMP))
        self._land(table, len(branches), jumps)
        return fill.done()

    def _land(self, table: int, count: int, jumps: list[int]) -> None:
        for jump in jumps:
            self.steps[jump][2] = len(self.steps)
        for entry in range(table, table + count):
            if self.tables[entry] < 0:
                self.tables[entry] = len(self.steps)

    def _branches(self, rest: list[Any], scope: int, parent: Node | None, path: str) -> "_One | _Widened | _Members":
        kinds = frozenset(_kind(self._resolved(branch)) for branch in rest)
        if len(rest) <= 1:
            return _One(self.layout, scope, parent, path)
        if len(rest) == 2 and kinds in _WIDENED:
            return _Widened(self.layout, scope, parent, kinds)
        return _Members(self.layout, scope, parent, path)


class _One:
    """A union of one type, and perhaps null."""

    def __init__(self, layout: Layout, scope: int, parent: Node | None, path: str) -> None:
        self._place = (scope, parent, path)
        self._layout = layout
        self._found: tuple[Node, t.DataType] | None = None

    def add(self, planner: _Planner, branch: Any) -> None:
        self._found = planner.value(branch, *self._place)

    def done(self) -> tuple[Node, t.DataType]:
        scope, parent, _ = self._place
        return self._found or _typed(self._layout.add(Form.NOTHING, scope, parent=parent), t.NullType())


class _Widened:
    """A union of two widths of number, which Spark reads as the wider."""

    def __init__(self, layout: Layout, scope: int, parent: Node | None, kinds: frozenset[str]) -> None:
        self._type, form, self._codes = _WIDENED[kinds]
        self._node = layout.add(form, scope, arrow_type(self._type), parent)

    def add(self, planner: _Planner, branch: Any) -> None:
        planner.emit(self._codes[_kind(branch)], self._node)

    def done(self) -> tuple[Node, t.DataType]:
        return self._node, self._type


class _Members:
    """Any other union: a struct with a member per branch, of which one is set."""

    def __init__(self, layout: Layout, scope: int, parent: Node | None, path: str) -> None:
        self._node = layout.add(Form.STRUCT, scope, parent=parent)
        self._path = path
        self._fields: list[t.StructField] = []

    def add(self, planner: _Planner, branch: Any) -> None:
        name = f"member{len(self._fields)}"
        planner.emit(RECORD, self._node)
        child, spark_type = planner.value(branch, self._node.scope, self._node, f"{self._path}.{name}")
        self._node.children.append(child)
        self._fields.append(t.StructField(name, spark_type))

    def done(self) -> tuple[Node, t.DataType]:
        return _typed(self._node, t.StructType(self._fields))


def _typed(node: Node, spark_type: t.DataType) -> tuple[Node, t.DataType]:
    node.type = arrow_type(spark_type)
    return node, spark_type


def _scalar(kind: str, schema: Any, path: str) -> _Scalar:
    logical = schema.get("logicalType") if isinstance(schema, dict) else None
    if kind in ("bytes", "fixed") and logical == "decimal":
        spark_type = _decimal_type(schema, path)
        size = schema["size"] if kind == "fixed" else 0
        return _Scalar(spark_type, Form.DECIMAL, FIXED_DECIMAL if kind == "fixed" else DECIMAL, size)
    if kind == "fixed":
        return _Scalar(t.BinaryType(), Form.BYTES, FIXED, schema["size"])
    if kind == "enum":
        return _Scalar(t.StringType(), Form.SYMBOL, ENUM, len(schema["symbols"]))
    found = _LOGICAL.get((kind, str(logical))) or _PRIMITIVES.get(kind)
    if found is None:
        raise OptionError(f"schema: {path} has the Avro type {kind}, which is not known")
    return found


def _decimal_type(schema: Any, path: str) -> t.DecimalType:
    precision, scale = schema.get("precision", 0), schema.get("scale", 0)
    if not 0 < precision <= _MOST_DIGITS or not 0 <= scale <= precision:
        raise OptionError(f"schema: {path} is a decimal({precision}, {scale}); Spark has 1 to {_MOST_DIGITS} digits")
    return t.DecimalType(precision, scale)
