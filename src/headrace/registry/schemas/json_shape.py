"""What a JSON Schema says about a value, sorted by kind, so that two can be compared kind by kind.

A schema with several kinds of keyword means all of them at once: it becomes an `allOf` of one shape each. A list of
types becomes an `anyOf`. Without `type`, the keywords tell which kind of value is meant.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from .json_schema import Documents, SchemaLocation, inside, is_newer

_STRING: Final = {"minLength", "maxLength", "pattern", "format"}
_NUMBER: Final = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
_ARRAY: Final = {
    "items",
    "additionalItems",
    "prefixItems",
    "minItems",
    "maxItems",
    "uniqueItems",
    "contains",
    "minContains",
    "maxContains",
    "unevaluatedItems",
}
_OBJECT: Final = {
    "properties",
    "required",
    "minProperties",
    "maxProperties",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "patternProperties",
    "propertyNames",
    "additionalProperties",
    "unevaluatedProperties",
}
_SNIFFED: Final = (("array", _ARRAY), ("object", _OBJECT), ("number", _NUMBER), ("string", _STRING))
CRITERIA: Final = ("allOf", "anyOf", "oneOf")


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonShape:
    """One kind of statement. `kind` is a JSON type (integers are numbers), or empty, false, enum, const, not,
    conditional, or one of allOf, anyOf and oneOf with their `parts`."""

    kind: str
    location: SchemaLocation
    parts: tuple[SchemaLocation, ...] = ()
    is_integer: bool = False

    @property
    def keywords(self) -> Mapping[str, Any]:
        value = self.location.value
        return value if isinstance(value, dict) else {}

    @property
    def is_combined(self) -> bool:
        return self.kind in CRITERIA


def shape_of(location: SchemaLocation, documents: Documents) -> JsonShape:
    """What a schema says, with references followed."""
    seen: set[int] = set()
    while isinstance(location.value, dict) and "$ref" in location.value and id(location.value) not in seen:
        seen.add(id(location.value))
        beside = {k: v for k, v in location.value.items() if k != "$ref"}
        target = documents.resolve(location, location.value["$ref"])
        if is_newer(location.draft) and _statements(
            SchemaLocation(value=beside, base=location.base, draft=location.draft)
        ):
            rest = SchemaLocation(value=beside, base=location.base, draft=location.draft)
            return JsonShape(kind="allOf", location=location, parts=(target, rest))
        location = target
    return _sorted(location)


def _sorted(location: SchemaLocation) -> JsonShape:
    if isinstance(location.value, bool):
        return JsonShape(kind="empty" if location.value else "false", location=location)
    statements = _statements(location)
    if not statements:
        return JsonShape(kind="empty", location=location)
    if len(statements) == 1:
        return statements[0]
    return JsonShape(kind="allOf", location=location, parts=tuple(_alone(statement) for statement in statements))


def _alone(shape: JsonShape) -> SchemaLocation:
    """A statement as a schema of its own, with only the keywords that belong to it."""
    value = shape.keywords
    if shape.kind in ("enum", "const", "not", *CRITERIA):
        kept = {shape.kind: value[shape.kind]} if shape.kind in value else {"type": value["type"]}
    elif shape.kind == "conditional":
        kept = {k: value[k] for k in ("if", "then", "else") if k in value}
    else:
        others = {"enum", "const", "not", "if", "then", "else", *CRITERIA}
        kept = {k: v for k, v in value.items() if k not in others}
    return SchemaLocation(value=kept, base=shape.location.base, draft=shape.location.draft)


def _statements(location: SchemaLocation) -> list[JsonShape]:
    value = location.value
    found = [JsonShape(kind=kind, location=location) for kind in ("enum", "const", "not") if kind in value]
    if "if" in value and ("then" in value or "else" in value):
        found.append(JsonShape(kind="conditional", location=location))
    for criterion in CRITERIA:
        if criterion in value:
            parts = tuple(inside(location, part) for part in value[criterion])
            found.append(JsonShape(kind=criterion, location=location, parts=parts))
    typed = _typed(location)
    return [*found, typed] if typed is not None else found


def _typed(location: SchemaLocation) -> JsonShape | None:
    kind = location.value.get("type")
    if isinstance(kind, list):
        if len(kind) == 1:
            return _of_type(location, kind[0])
        rest = {k: v for k, v in location.value.items() if k in _STRING | _NUMBER | _ARRAY | _OBJECT}
        parts = tuple(inside(location, {"type": each, **_relevant(each, rest)}) for each in kind)
        return JsonShape(kind="anyOf", location=location, parts=parts)
    if isinstance(kind, str):
        return _of_type(location, kind)
    for sniffed, keywords in _SNIFFED:
        if keywords & location.value.keys():
            return JsonShape(kind=sniffed, location=location)
    return None


def _of_type(location: SchemaLocation, kind: str) -> JsonShape:
    if kind == "integer":
        return JsonShape(kind="number", location=location, is_integer=True)
    return JsonShape(kind=kind, location=location)


def _relevant(kind: str, keywords: Mapping[str, Any]) -> dict[str, Any]:
    by_kind = {"string": _STRING, "number": _NUMBER, "integer": _NUMBER, "array": _ARRAY, "object": _OBJECT}
    return {k: v for k, v in keywords.items() if k in by_kind.get(kind, ())}
