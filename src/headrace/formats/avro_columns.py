"""The columns that an Avro schema becomes, and for each place of the schema where its values go.

Spark's types are those of Spark's own Avro reader: a union with null is nullable, int and long together are the wider,
any other union is a struct with a member per branch, an enum is its name.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.registry.errors import InvalidSchemaError
from headrace.registry.schemas.avro import Avro, AvroModel, Enum, Fixed, Items, Named, Names, Node, Record, Ref, Union
from headrace.registry.schemas.avro import fits as is_default_of
from headrace.registry.schemas.model import Dependency

from . import layout
from . import types as t
from .arrow_types import arrow_type
from .errors import OptionError
from .layout import ROOT_SCOPE, ColumnLayout, Form

_MOST_DIGITS: Final = 38
_PRIMITIVES: Final[dict[str, tuple[t.DataType, Form]]] = {
    "boolean": (t.BooleanType(), Form.NUMBER),
    "int": (t.IntegerType(), Form.NUMBER),
    "long": (t.LongType(), Form.NUMBER),
    "float": (t.FloatType(), Form.FLOAT_BITS),
    "double": (t.DoubleType(), Form.FLOAT_BITS),
    "bytes": (t.BinaryType(), Form.BYTES),
    "string": (t.StringType(), Form.BYTES),
    "null": (t.NullType(), Form.NOTHING),
}
_LOGICAL: Final[dict[tuple[str, str], t.DataType]] = {
    ("int", "date"): t.DateType(),
    ("long", "timestamp-millis"): t.TimestampType(),
    ("long", "timestamp-micros"): t.TimestampType(),
    ("long", "local-timestamp-millis"): t.TimestampNTZType(),
    ("long", "local-timestamp-micros"): t.TimestampNTZType(),
}
_LOGICAL_OF: Final[dict[str, tuple[str, ...]]] = {
    "date": ("int",),
    "time-millis": ("int",),
    "time-micros": ("long",),
    "decimal": ("bytes", "fixed"),
} | {f"{local}timestamp-{unit}": ("long",) for local in ("", "local-") for unit in ("millis", "micros", "nanos")}
"""Which types may have a logical type; of others it means nothing, as Avro has it."""
_WIDENED: Final[dict[frozenset[str], t.DataType]] = {
    frozenset({"int", "long"}): t.LongType(),
    frozenset({"float", "double"}): t.DoubleType(),
}

__all__ = ["AvroColumn", "columns_of", "is_default_of", "logical_type", "model_of", "resolved", "takes_no_bytes"]


@dataclass(slots=True, eq=False)
class AvroColumn:
    """One place of a schema and the column for its values.

    `parts` are a record's fields, an array's or map's item, or the branches of a union. A union of one type and null
    has that type's column, and one of two widths of a number gives both branches the same.
    """

    schema: Node
    column: layout.ColumnNode
    spark_type: t.DataType
    parts: "list[AvroColumn]" = field(default_factory=list)
    has_members: bool = False
    """Whether it is a union whose column is a struct with a member per branch."""


def model_of(text: str, dependencies: Sequence[Dependency] = ()) -> AvroModel:
    """The schema in a text; InvalidSchemaError if it is none."""
    try:
        model: AvroModel = Avro().parse(text, dependencies, new=False).model
    except RecursionError as error:
        raise InvalidSchemaError("nested too deeply") from error
    return model


def resolved(node: Node, names: Names) -> Node:
    """The type that a node stands for."""
    return names[node.name] if isinstance(node, Ref) else node


def logical_type(node: Node) -> str:
    """The name of a node's logical type; empty if it has none, or one that its type cannot have."""
    name = str(node.extra.get("logicalType", ""))
    return name if node.kind in _LOGICAL_OF.get(name, (node.kind,)) else ""


def takes_no_bytes(node: Node, names: Names, inside: tuple[str, ...] = ()) -> bool:
    """Whether no value of a type takes a byte: nothing bounds how many of them an array has."""
    node = resolved(node, names)
    if isinstance(node, Record):
        return node.name in inside or all(takes_no_bytes(f.type, names, (*inside, node.name)) for f in node.fields)
    return node.kind == "null" or (isinstance(node, Fixed) and node.size == 0)


def columns_of(model: AvroModel) -> tuple[ColumnLayout, AvroColumn]:
    """The columns of a schema, whose top level must be a record; OptionError where it cannot become columns."""
    if not isinstance(resolved(model.root, model.names), Record):
        raise OptionError("schema: the Avro schema must be a record at its top level")
    columns = _Columns(model.names)
    return columns.layout, columns.add(model.root, ROOT_SCOPE, None, "value")


class _Columns:
    def __init__(self, names: Names) -> None:
        self.layout = ColumnLayout()
        self._names = names
        self._inside: list[str] = []

    def add(self, schema: Node, scope: int, parent: layout.ColumnNode | None, path: str) -> AvroColumn:
        schema = resolved(schema, self._names)
        if isinstance(schema, Union):
            return self._union(schema, scope, parent, path)
        if isinstance(schema, Record):
            return self._record(schema, scope, parent, path)
        if isinstance(schema, Items):
            return self._items(schema, scope, parent, path)
        return self._scalar(schema, *_scalar_type(schema, path), scope, parent)

    def _scalar(
        self, schema: Node, spark_type: t.DataType, form: Form, scope: int, parent: layout.ColumnNode | None
    ) -> AvroColumn:
        column = self.layout.add(form, scope, arrow_type(spark_type), parent)
        if isinstance(schema, Enum):
            column.name_them(dict(enumerate(schema.symbols)))
        return AvroColumn(schema, column, spark_type)

    def _record(self, schema: Record, scope: int, parent: layout.ColumnNode | None, path: str) -> AvroColumn:
        name = schema.name
        if name in self._inside:
            raise OptionError(f"schema: {path} is a {name} inside a {name}; recursive records cannot become columns")
        self._inside.append(name)
        column = self.layout.add(Form.STRUCT, scope, parent=parent)
        parts = [self.add(one.type, scope, column, f"{path}.{one.name}") for one in schema.fields]
        self._inside.pop()
        fields = [t.StructField(one.name, part.spark_type) for one, part in zip(schema.fields, parts, strict=True)]
        return _whole(schema, column, t.StructType(fields), parts)

    def _items(self, schema: Items, scope: int, parent: layout.ColumnNode | None, path: str) -> AvroColumn:
        is_map = schema.kind == "map"
        column = self.layout.add(Form.MAP if is_map else Form.LIST, scope, parent=parent)
        if is_map:
            column.children.append(self.layout.add(Form.BYTES, column.inner_scope, arrow_type(t.StringType())))
        item = self.add(schema.of, column.inner_scope, None, f"{path}[]")
        if not is_map and takes_no_bytes(schema.of, self._names):
            raise OptionError(f"schema: {path} is an array of items that take no bytes, so nothing bounds its length")
        whole = t.MapType(t.StringType(), item.spark_type) if is_map else t.ArrayType(item.spark_type)
        return _whole(schema, column, whole, [item])

    def _union(self, schema: Union, scope: int, parent: layout.ColumnNode | None, path: str) -> AvroColumn:
        branches = [resolved(branch, self._names) for branch in schema.branches]
        rest = [branch for branch in branches if branch.kind != "null"]
        wide = _WIDENED.get(frozenset(branch.kind for branch in rest)) if len(rest) == 2 else None
        if len(rest) > 1 and wide is None:
            return self._members(schema, branches, scope, parent, path)
        if wide is not None:
            shared = self._scalar(rest[0], wide, _PRIMITIVES[rest[0].kind][1], scope, parent)
        elif rest:
            shared = self.add(rest[0], scope, parent, path)
        else:
            shared = self._scalar(schema, t.NullType(), Form.NOTHING, scope, parent)
        parts = [AvroColumn(branch, shared.column, shared.spark_type, shared.parts) for branch in branches]
        return AvroColumn(schema, shared.column, shared.spark_type, parts)

    def _members(
        self, schema: Union, branches: list[Node], scope: int, parent: layout.ColumnNode | None, path: str
    ) -> AvroColumn:
        column = self.layout.add(Form.STRUCT, scope, parent=parent)
        parts: list[AvroColumn] = []
        fields: list[t.StructField] = []
        for branch in branches:
            if branch.kind == "null":
                parts.append(AvroColumn(branch, column, t.NullType()))
                continue
            name = f"member{len(fields)}"
            parts.append(self.add(branch, scope, column, f"{path}.{name}"))
            fields.append(t.StructField(name, parts[-1].spark_type))
        members = [part for part in parts if part.schema.kind != "null"]
        place = _whole(schema, column, t.StructType(fields), members)
        place.parts, place.has_members = parts, True
        return place


def _whole(schema: Node, column: layout.ColumnNode, spark_type: t.DataType, parts: list[AvroColumn]) -> AvroColumn:
    column.children += [part.column for part in parts]
    column.type = arrow_type(spark_type)
    return AvroColumn(schema, column, spark_type, parts)


def _scalar_type(schema: Node, path: str) -> tuple[t.DataType, Form]:
    if isinstance(schema, Enum):
        return t.StringType(), Form.SYMBOL
    if schema.kind in ("bytes", "fixed") and logical_type(schema) == "decimal":
        return _decimal_type(schema.extra, path), Form.DECIMAL
    if isinstance(schema, Named):
        return t.BinaryType(), Form.BYTES
    spark_type, form = _PRIMITIVES[schema.kind]
    return _LOGICAL.get((schema.kind, logical_type(schema)), spark_type), form


def _decimal_type(schema: Any, path: str) -> t.DecimalType:
    precision, scale = schema.get("precision", 0), schema.get("scale", 0)
    if not isinstance(precision, int) or not 0 < precision <= _MOST_DIGITS or not 0 <= scale <= precision:
        raise OptionError(f"schema: {path} is a decimal({precision}, {scale}); Spark has 1 to {_MOST_DIGITS} digits")
    return t.DecimalType(precision, scale)
