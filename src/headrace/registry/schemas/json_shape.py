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
class Shape:
    """One kind of statement. `kind` is a JSON type (integers are numbers), or empty, false, enum, const, not,
    conditional, or one of allOf, anyOf and oneOf with their `parts`."""

    kind: str
    place: SchemaLocation
    parts: tuple[SchemaLocation, ...] = ()
    is_integer: bool = False

    @property
    def keywords(self) -> Mapping[str, Any]:
        value = self.place.value
        return value if isinstance(value, dict) else {}

    @property
    def is_combined(self) -> bool:
        return self.kind in CRITERIA


def shape_of(place: SchemaLocation, documents: Documents) -> Shape:
    """What a schema says, with references followed."""
    seen: set[int] = set()
    while isinstance(place.value, dict) and "$ref" in place.value and id(place.value) not in seen:
        seen.add(id(place.value))
        beside = {k: v for k, v in place.value.items() if k != "$ref"}
        target = documents.resolve(place, place.value["$ref"])
        if is_newer(place.draft) and _statements(SchemaLocation(value=beside, base=place.base, draft=place.draft)):
            rest = SchemaLocation(value=beside, base=place.base, draft=place.draft)
            return Shape(kind="allOf", place=place, parts=(target, rest))
        place = target
    return _sorted(place)


def _sorted(place: SchemaLocation) -> Shape:
    if isinstance(place.value, bool):
        return Shape(kind="empty" if place.value else "false", place=place)
    statements = _statements(place)
    if not statements:
        return Shape(kind="empty", place=place)
    if len(statements) == 1:
        return statements[0]
    return Shape(kind="allOf", place=place, parts=tuple(_alone(statement) for statement in statements))


def _alone(shape: Shape) -> SchemaLocation:
    """A statement as a schema of its own, with only the keywords that belong to it."""
    value = shape.keywords
    if shape.kind in ("enum", "const", "not", *CRITERIA):
        kept = {shape.kind: value[shape.kind]} if shape.kind in value else {"type": value["type"]}
    elif shape.kind == "conditional":
        kept = {k: value[k] for k in ("if", "then", "else") if k in value}
    else:
        others = {"enum", "const", "not", "if", "then", "else", *CRITERIA}
        kept = {k: v for k, v in value.items() if k not in others}
    return SchemaLocation(value=kept, base=shape.place.base, draft=shape.place.draft)


def _statements(place: SchemaLocation) -> list[Shape]:
    value = place.value
    found = [Shape(kind=kind, place=place) for kind in ("enum", "const", "not") if kind in value]
    if "if" in value and ("then" in value or "else" in value):
        found.append(Shape(kind="conditional", place=place))
    for criterion in CRITERIA:
        if criterion in value:
            parts = tuple(inside(place, part) for part in value[criterion])
            found.append(Shape(kind=criterion, place=place, parts=parts))
    typed = _typed(place)
    return [*found, typed] if typed is not None else found


def _typed(place: SchemaLocation) -> Shape | None:
    kind = place.value.get("type")
    if isinstance(kind, list):
        if len(kind) == 1:
            return _of_type(place, kind[0])
        rest = {k: v for k, v in place.value.items() if k in _STRING | _NUMBER | _ARRAY | _OBJECT}
        parts = tuple(inside(place, {"type": each, **_relevant(each, rest)}) for each in kind)
        return Shape(kind="anyOf", place=place, parts=parts)
    if isinstance(kind, str):
        return _of_type(place, kind)
    for sniffed, keywords in _SNIFFED:
        if keywords & place.value.keys():
            return Shape(kind=sniffed, place=place)
    return None


def _of_type(place: SchemaLocation, kind: str) -> Shape:
    if kind == "integer":
        return Shape(kind="number", place=place, is_integer=True)
    return Shape(kind=kind, place=place)


def _relevant(kind: str, keywords: Mapping[str, Any]) -> dict[str, Any]:
    by_kind = {"string": _STRING, "number": _NUMBER, "integer": _NUMBER, "array": _ARRAY, "object": _OBJECT}
    return {k: v for k, v in keywords.items() if k in by_kind.get(kind, ())}
