"""Confluent's rules for JSON Schema, one change a case: content models, limits, combinations.

Each case: what changes, the old schema, the new one, whether what was valid stays valid, whether what is now valid was.
"""

from typing import Any

Case = tuple[str, Any, Any, bool, bool]


def obj(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, **more}


def shut(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return obj(properties, additionalProperties=False, **more)


def partly(properties: dict[str, Any], rest: Any, **more: Any) -> dict[str, Any]:
    return obj(properties, additionalProperties=rest, **more)


S, I, N = {"type": "string"}, {"type": "integer"}, {"type": "number"}  # noqa: E741 - as types are written in algebra
A, AB = {"a": S}, {"a": S, "b": I}
B_DEFAULT = {"a": S, "b": {"type": "integer", "default": 0}}
NEW = "https://json-schema.org/draft/2020-12/schema"


def limits(kind: str, upper: tuple[str, ...], lower: tuple[str, ...]) -> list[Case]:
    cases: list[Case] = []
    for name in upper:
        cases.append((f"{name} is added", {"type": kind}, {"type": kind, name: 5}, False, True))
        cases.append((f"{name} grows", {"type": kind, name: 5}, {"type": kind, name: 9}, True, False))
    for name in lower:
        cases.append((f"{name} is added", {"type": kind}, {"type": kind, name: 5}, False, True))
        cases.append((f"{name} grows", {"type": kind, name: 5}, {"type": kind, name: 9}, False, True))
    return cases


CASES: list[Case] = [
    *limits("string", ("maxLength",), ("minLength",)),
    *limits("number", ("maximum", "exclusiveMaximum"), ("minimum", "exclusiveMinimum")),
    *limits("array", ("maxItems",), ("minItems",)),
    *limits("object", ("maxProperties",), ("minProperties",)),
    ("nothing changes", obj(AB), obj(AB), True, True),
    ("the title changes", {**S, "title": "x"}, {**S, "title": "y"}, True, True),
    ("the description changes", {**S, "description": "x"}, S, True, True),
    ("the default changes", {**S, "default": "x"}, {**S, "default": "y"}, True, True),
    ("the id changes", {**S, "$id": "http://x/a"}, {**S, "$id": "http://x/b"}, True, True),
    ("a string becomes a number", S, N, False, False),
    ("an integer becomes a number", I, N, True, False),
    ("a boolean becomes null", {"type": "boolean"}, {"type": "null"}, False, False),
    ("a type becomes anything", S, {}, True, False),
    ("a type becomes true", S, True, True, False),
    ("false becomes a type", False, S, True, False),
    ("one type becomes several", S, {"type": ["string", "null"]}, True, False),
    ("types change places", {"type": ["null", "string"]}, {"type": ["string", "null"]}, True, True),
    ("several types become fewer", {"type": ["string", "null", "integer"]}, {"type": ["string", "null"]}, False, True),
    ("a pattern is added", S, {**S, "pattern": "^a"}, False, True),
    ("a pattern changes", {**S, "pattern": "^a"}, {**S, "pattern": "^b"}, False, False),
    ("multipleOf is added", N, {**N, "multipleOf": 2}, False, True),
    ("multipleOf is multiplied", {**N, "multipleOf": 2}, {**N, "multipleOf": 4}, False, True),
    ("multipleOf changes", {**N, "multipleOf": 2}, {**N, "multipleOf": 3}, False, False),
    ("multipleOf is written differently", {**N, "multipleOf": 0.5}, {**N, "multipleOf": 0.50}, True, True),
    ("an enum gets a value", {"enum": ["a"]}, {"enum": ["a", "b"]}, True, False),
    ("an enum changes", {"enum": ["a"]}, {"enum": ["b"]}, False, False),
    ("an enum's values change places", {"enum": ["a", "b"]}, {"enum": ["b", "a"]}, True, True),
    ("a typed enum gets a value", {**S, "enum": ["a"]}, {**S, "enum": ["a", "b"]}, True, False),
    ("a constant changes", {"const": 1}, {"const": 2}, False, False),
    ("a constant stays", {"const": {"a": [1]}}, {"const": {"a": [1]}}, True, True),
    ("open: an optional property is added", obj(A), obj(AB), False, True),
    ("open: a required property is added", obj(A), obj(AB, required=["b"]), False, True),
    ("open: a property that may be anything is added", obj(A), obj({**A, "b": {}}), True, True),
    ("closed: an optional property is added", shut(A), shut(AB), True, False),
    ("closed: a required property is added", shut(A), shut(AB, required=["b"]), False, False),
    ("closed: a required property with default is added", shut(A), shut(B_DEFAULT, required=["b"]), True, False),
    ("closed: a property that was forbidden is removed", shut({**A, "b": False}), shut(A), True, True),
    ("partly open: a property that fits is added", partly(A, S), partly({**A, "b": S}, S), True, True),
    ("partly open: a property that does not fit is added", partly(A, S), partly(AB, S), False, False),
    ("partly open: a property that may be more is added", partly(A, I), partly({**A, "b": N}, I), True, False),
    ("patterns: a property that fits is added",
     shut(A, patternProperties={"^b": S}), shut({**A, "b": S}, patternProperties={"^b": S}), True, True),
    ("patterns: a property that no pattern takes is added",
     shut(A, patternProperties={"^x": S}), shut({**A, "b": S}, patternProperties={"^x": S}), True, False),
    ("an open model is closed", obj(A), shut(A), False, True),
    ("an open model is partly closed", obj(A), partly(A, S), False, True),
    ("a partly open model takes more", partly(A, I), partly(A, N), True, False),
    ("a partly open model is closed", partly(A, S), shut(A), False, True),
    ("a property becomes required", obj(A), obj(A, required=["a"]), False, True),
    ("a property with default becomes required",
     obj({"a": {**S, "default": ""}}), obj({"a": {**S, "default": ""}}, required=["a"]), True, True),
    ("a property's type changes", obj(A), obj({"a": I}), False, False),
    ("a property's type widens", obj({"a": I}), obj({"a": N}), True, False),
    ("a nested closed object gets a property", obj({"o": shut(A)}), obj({"o": shut(AB)}), True, False),
    ("a nested open object gets a property", obj({"o": obj(A)}), obj({"o": obj(AB)}), False, True),
    ("a dependency is added", obj(AB), obj(AB, dependencies={"a": ["b"]}), False, True),
    ("a dependency asks for more",
     obj(AB, dependencies={"a": ["b"]}), obj(AB, dependencies={"a": ["b", "c"]}), False, True),
    ("a dependency asks for something else",
     obj(AB, dependencies={"a": ["b"]}), obj(AB, dependencies={"a": ["c"]}), False, False),
    ("a dependency on a schema is added", obj(AB), obj(AB, dependencies={"a": {"required": ["b"]}}), False, True),
    ("items change type", {"type": "array", "items": S}, {"type": "array", "items": I}, False, False),
    ("items widen", {"type": "array", "items": I}, {"type": "array", "items": N}, True, False),
    ("items are described", {"type": "array"}, {"type": "array", "items": S}, False, True),
    ("items must be unique", {"type": "array"}, {"type": "array", "uniqueItems": True}, False, True),
    ("open tuple: an item is added", {"type": "array", "items": [S]}, {"type": "array", "items": [S, I]}, False, True),
    ("open tuple: an item that may be anything is added",
     {"type": "array", "items": [S]}, {"type": "array", "items": [S, {}]}, True, True),
    ("closed tuple: an item is added",
     {"type": "array", "items": [S], "additionalItems": False},
     {"type": "array", "items": [S, I], "additionalItems": False}, True, False),
    ("partly open tuple: an item that fits is added",
     {"type": "array", "items": [S], "additionalItems": I},
     {"type": "array", "items": [S, I], "additionalItems": I}, True, True),
    ("a tuple is closed",
     {"type": "array", "items": [S]}, {"type": "array", "items": [S], "additionalItems": False}, False, True),
    ("2020-12: prefixItems grow in a closed tuple",
     {"$schema": NEW, "type": "array", "prefixItems": [S], "items": False},
     {"$schema": NEW, "type": "array", "prefixItems": [S, I], "items": False}, True, False),
    ("2020-12: unevaluatedProperties are refused",
     {"$schema": NEW, **obj(A)}, {"$schema": NEW, **obj(A, unevaluatedProperties=False)}, False, True),
    ("2020-12: dependentRequired is added",
     {"$schema": NEW, **obj(AB)}, {"$schema": NEW, **obj(AB, dependentRequired={"a": ["b"]})}, False, True),
    ("2020-12: a reference has company",
     {"$schema": NEW, "$defs": {"x": S}, "$ref": "#/$defs/x"},
     {"$schema": NEW, "$defs": {"x": S}, "$ref": "#/$defs/x", "maxLength": 5}, False, True),
    ("anyOf gets an alternative", {"anyOf": [S]}, {"anyOf": [S, I]}, True, False),
    ("oneOf gets an alternative", {"oneOf": [S, I]}, {"oneOf": [S, I, {"type": "null"}]}, True, False),
    ("oneOf becomes anyOf", {"oneOf": [S, I]}, {"anyOf": [S, I]}, True, False),
    ("oneOf's alternatives change places", {"oneOf": [S, I]}, {"oneOf": [I, S]}, True, True),
    ("oneOf's alternative widens", {"oneOf": [S, I]}, {"oneOf": [S, N]}, True, False),
    ("oneOf's alternatives are exchanged", {"oneOf": [S, I]}, {"oneOf": [S, {"type": "null"}]}, False, False),
    ("allOf gets a part", {"allOf": [S]}, {"allOf": [S, {"maxLength": 3}]}, False, True),
    ("a type becomes an alternative", S, {"oneOf": [S, I]}, True, False),
    ("not excludes more", {"not": I}, {"not": N}, False, True),
    ("a reference is followed",
     {"definitions": {"x": S}, **obj({"a": {"$ref": "#/definitions/x"}})}, obj({"a": S}), True, True),
    ("what a reference stands for changes",
     {"definitions": {"x": S}, **obj({"a": {"$ref": "#/definitions/x"}})},
     {"definitions": {"x": I}, **obj({"a": {"$ref": "#/definitions/x"}})}, False, False),
    ("a schema that contains itself stays",
     shut({"next": {"$ref": "#"}, "a": S}), shut({"next": {"$ref": "#"}, "a": S}), True, True),
    ("a schema that contains itself gets a property",
     shut({"next": {"$ref": "#"}, "a": S}), shut({"next": {"$ref": "#"}, "a": S, "b": I}), True, False),
]  # fmt: skip
