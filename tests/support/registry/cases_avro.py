"""Avro's rules of schema resolution, one change a case: what the specification says of readers and writers.

Each case: what changes, the old schema, the new one, whether new readers read old data, whether old readers read new.
"""

from typing import Any

Case = tuple[str, Any, Any, bool, bool]


def record(*fields: Any, **more: Any) -> dict[str, Any]:
    named = [{"name": f, "type": "int"} if isinstance(f, str) else f for f in fields]
    return {"type": "record", "name": "R", "fields": named, **more}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": list(symbols), **more}


def fixed(size: int, **more: Any) -> dict[str, Any]:
    return {"type": "fixed", "name": "F", "size": size, **more}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def mapped(values: Any) -> dict[str, Any]:
    return {"type": "map", "values": values}


PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
PROMOTED = {
    ("int", "long"),
    ("int", "float"),
    ("int", "double"),
    ("long", "float"),
    ("long", "double"),
    ("float", "double"),
    ("string", "bytes"),
    ("bytes", "string"),
}

TYPES: list[Case] = [
    (f"{old} becomes {new}", old, new, old == new or (old, new) in PROMOTED, old == new or (new, old) in PROMOTED)
    for i, old in enumerate(PRIMITIVES)
    for new in PRIMITIVES[i:]
]

TREE = record(field("next", ["null", "R"], default=None), "a")

CASES: list[Case] = [
    *TYPES,
    ("a field without default is added", record("a"), record("a", "b"), False, True),
    ("a field with default is added", record("a"), record("a", field("b", "int", default=0)), True, True),
    ("a nullable field with default null is added",
     record("a"), record("a", field("b", ["null", "int"], default=None)), True, True),
    ("a nullable field without default is added", record("a"), record("a", field("b", ["null", "int"])), False, True),
    ("a field without default is removed", record("a", "b"), record("a"), True, False),
    ("a field with default is removed", record("a", field("b", "int", default=0)), record("a"), True, True),
    ("fields change places", record("a", "b"), record("b", "a"), True, True),
    ("a field is renamed", record("a"), record("b"), False, False),
    ("a field is renamed with an alias", record("a"), record(field("b", "int", aliases=["a"])), True, False),
    ("a field gets a default", record("a"), record(field("a", "int", default=1)), True, True),
    ("a field's default changes",
     record(field("a", "int", default=1)), record(field("a", "int", default=2)), True, True),
    ("a field's doc changes", record(field("a", "int", doc="x")), record(field("a", "int", doc="y")), True, True),
    ("a field's order changes", record(field("a", "int", order="ignore")), record("a"), True, True),
    ("a field is promoted", record(field("a", "int")), record(field("a", "long")), True, False),
    ("a field's type changes", record(field("a", "int")), record(field("a", "string")), False, False),
    ("a field becomes nullable", record(field("a", "int")), record(field("a", ["null", "int"])), True, False),
    ("a record is renamed", record("a"), record("a") | {"name": "S"}, False, False),
    ("a record is renamed with an alias", record("a"), record("a", aliases=["R"]) | {"name": "S"}, True, False),
    ("a record moves to another namespace", record("a"), record("a", namespace="x"), True, True),
    ("a record becomes an enum", record("a"), enum("A") | {"name": "R"}, False, False),
    ("a nested record gets a field with default",
     record(field("n", record("a") | {"name": "N"})),
     record(field("n", record("a", field("b", "int", default=0)) | {"name": "N"})), True, True),
    ("a nested record gets a field without default",
     record(field("n", record("a") | {"name": "N"})),
     record(field("n", record("a", "b") | {"name": "N"})), False, True),
    ("a nested record is renamed",
     record(field("n", record("a") | {"name": "N"})), record(field("n", record("a") | {"name": "M"})), False, False),
    ("a recursive record stays", TREE, TREE, True, True),
    ("a recursive record gets a field with default",
     TREE, record(*TREE["fields"], field("b", "int", default=0)), True, True),
    ("a recursive record gets a field without default", TREE, record(*TREE["fields"], "b"), False, True),
    ("a union gets a branch", ["int"], ["int", "string"], True, False),
    ("a union loses a branch", ["int", "string"], ["int"], False, True),
    ("a union's branches change places", ["int", "string"], ["string", "int"], True, True),
    ("a type becomes a union that has it", "int", ["null", "int"], True, False),
    ("a type becomes a union that lacks it", "int", ["null", "string"], False, False),
    ("a type becomes a union that takes it promoted", "int", ["null", "long"], True, False),
    ("a union of one becomes its type", ["int"], "int", True, True),
    ("a union becomes a type that takes all branches", ["int", "long"], "long", True, True),
    ("a union becomes a type that takes some branches", ["int", "string"], "int", False, True),
    ("a union's branch is promoted", ["null", "int"], ["null", "long"], True, False),
    ("a union's record gets a field with default",
     ["null", record("a")], ["null", record("a", field("b", "int", default=0))], True, True),
    ("a union's record gets a field without default", ["null", record("a")], ["null", record("a", "b")], False, True),
    ("a union's record is renamed", ["null", record("a")], ["null", record("a") | {"name": "S"}], False, False),
    ("an enum gets a symbol", enum("A"), enum("A", "B"), True, False),
    ("an enum loses a symbol", enum("A", "B"), enum("A"), False, True),
    ("an enum's symbols change places", enum("A", "B"), enum("B", "A"), True, True),
    ("an enum with default loses a symbol", enum("A", "B", default="A"), enum("A", default="A"), True, True),
    ("an enum with default gets a symbol", enum("A", default="A"), enum("A", "B", default="A"), True, True),
    ("an enum gets a default", enum("A", "B"), enum("A", default="A"), True, True),
    ("an enum is renamed", enum("A"), enum("A") | {"name": "G"}, False, False),
    ("an enum is renamed with an alias", enum("A"), enum("A", aliases=["E"]) | {"name": "G"}, True, False),
    ("an enum becomes a string", enum("A"), "string", False, False),
    ("an enum field with a default symbol is added",
     record("a"), record("a", field("e", enum("A", default="A"))), True, True),
    ("a fixed stays", fixed(4), fixed(4), True, True),
    ("a fixed grows", fixed(4), fixed(8), False, False),
    ("a fixed is renamed", fixed(4), fixed(4) | {"name": "G"}, False, False),
    ("a fixed is renamed with an alias", fixed(4), fixed(4, aliases=["F"]) | {"name": "G"}, True, False),
    ("a fixed becomes bytes", fixed(4), "bytes", False, False),
    ("an array's items are promoted", array("int"), array("long"), True, False),
    ("an array's items change type", array("int"), array("string"), False, False),
    ("an array's items become nullable", array("int"), array(["null", "int"]), True, False),
    ("an array becomes a map", array("int"), mapped("int"), False, False),
    ("an array becomes its item", array("int"), "int", False, False),
    ("a map's values are promoted", mapped("int"), mapped("double"), True, False),
    ("a map's values change type", mapped("int"), mapped("boolean"), False, False),
    ("a map's records get a field without default", mapped(record("a")), mapped(record("a", "b")), False, True),
    ("a logical type is added", "long", {"type": "long", "logicalType": "timestamp-millis"}, True, True),
    ("a logical type changes",
     {"type": "int", "logicalType": "date"}, {"type": "int", "logicalType": "time-millis"}, True, True),
    ("a decimal's scale changes",
     {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1},
     {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, True, True),
    ("an attribute of one's own changes", record("a", team="x"), record("a", team="y"), True, True),
    ("string and bytes take each other in a field",
     record(field("a", "string")), record(field("a", "bytes")), True, True),
]  # fmt: skip
