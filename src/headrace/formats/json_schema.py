"""The Spark type of documents that a JSON Schema describes.

An object with properties is a struct, one without is a map, or text if nothing says what it maps to. What may be of
several types, refers to itself or is not described is a STRING, which has any value as it was written.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from headrace.registry.errors import InvalidSchemaError
from headrace.registry.schemas.model import Dependency

from . import types as t
from .errors import OptionError

_SCALARS: Final[dict[str, t.DataType]] = {
    "string": t.StringType(),
    "integer": t.LongType(),
    "number": t.DoubleType(),
    "boolean": t.BooleanType(),
}
_NUMBERS: Final = frozenset({"integer", "number"})
_OF_VALUES: Final[dict[type[Any], str]] = {str: "string", bool: "boolean", int: "integer", float: "number"}
_CHOICES: Final = ("oneOf", "anyOf")


def spark_type_of(text: str, dependencies: Sequence[Dependency] = ()) -> t.StructType:
    """The type of a document; OptionError if it is no object with properties."""
    found = _Types({one.name: _loaded(one.text) for one in dependencies}).type_of(_loaded(text), _loaded(text), ())
    if not isinstance(found, t.StructType):
        raise OptionError("the JSON Schema must describe an object with properties at its top level")
    return found


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidSchemaError(f"not JSON: {error}") from error


class _Types:
    def __init__(self, others: Mapping[str, Any]) -> None:
        self._others = others

    def type_of(self, schema: Any, root: Any, inside: tuple[str, ...]) -> t.DataType:
        """`root` is the document that a schema is in, `inside` the references that led to it."""
        if not isinstance(schema, dict):
            return t.StringType()
        if "$ref" in schema:
            return self._referenced(str(schema["$ref"]), root, inside)
        if "allOf" in schema:
            return self._all_of(schema, root, inside)
        for choice in _CHOICES:
            if choice in schema:
                return self._one_of(schema[choice], root, inside)
        kind = _kind(schema)
        if kind == "object":
            return self._object(schema, root, inside)
        if kind == "array":
            return t.ArrayType(self.type_of(schema.get("items"), root, inside))
        return _SCALARS.get(kind, t.StringType())

    def _referenced(self, reference: str, root: Any, inside: tuple[str, ...]) -> t.DataType:
        name, _, pointer = reference.partition("#")
        document = self._others.get(name) if name and name != _id(root) else root
        place = f"{id(document)}#{pointer}"
        target = _at(document, pointer)
        if target is None or place in inside:
            return t.StringType()
        return self.type_of(target, document, (*inside, place))

    def _one_of(self, choices: Any, root: Any, inside: tuple[str, ...]) -> t.DataType:
        wanted = [one for one in choices if not (isinstance(one, dict) and one.get("type") == "null")]
        found = [self.type_of(one, root, inside) for one in wanted]
        return found[0] if found and all(one == found[0] for one in found) else t.StringType()

    def _all_of(self, schema: dict[str, Any], root: Any, inside: tuple[str, ...]) -> t.DataType:
        own = {name: value for name, value in schema.items() if name != "allOf"}
        parts = [self.type_of(one, root, inside) for one in [own, *schema["allOf"]] if one]
        structs = [part for part in parts if isinstance(part, t.StructType)]
        if structs:
            fields = {field.name: field for struct in structs for field in struct.fields}
            return t.StructType(list(fields.values()))
        known = [part for part in parts if not isinstance(part, t.StringType)]
        return known[0] if len(known) == 1 else t.StringType()

    def _object(self, schema: dict[str, Any], root: Any, inside: tuple[str, ...]) -> t.DataType:
        properties = schema.get("properties")
        if isinstance(properties, dict) and properties:
            fields = [t.StructField(name, self.type_of(one, root, inside)) for name, one in properties.items()]
            return t.StructType(fields)
        more = schema.get("additionalProperties")
        if isinstance(more, dict) and more:
            return t.MapType(t.StringType(), self.type_of(more, root, inside))
        return t.StringType()


def _kind(schema: dict[str, Any]) -> str:
    """The one type of a schema's values beside null; empty if there may be several."""
    given = schema.get("type")
    if given is None:
        return _kind_of_values(schema) or ("object" if "properties" in schema else "array" if "items" in schema else "")
    kinds = {str(kind) for kind in (given if isinstance(given, list) else [given])} - {"null"}
    if kinds == _NUMBERS:
        return "number"
    return kinds.pop() if len(kinds) == 1 else ""


def _kind_of_values(schema: dict[str, Any]) -> str:
    values = [schema["const"]] if "const" in schema else schema.get("enum") or []
    kinds = {_OF_VALUES.get(type(value), "") for value in values if value is not None}
    return kinds.pop() if len(kinds) == 1 else ""


def _id(document: Any) -> str:
    return str(document.get("$id") or document.get("id") or "") if isinstance(document, dict) else ""


def _at(document: Any, pointer: str) -> Any:
    """What a JSON pointer points at, None for nothing."""
    for part in filter(None, pointer.split("/")):
        name = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(document, dict) or name not in document:
            return None
        document = document[name]
    return document
