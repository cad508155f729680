"""Changes to a JSON Schema after which some value that was valid no longer is: Confluent's rules, content models too.

A content model is open (properties nobody named are taken), closed (refused) or partially open (taken if they fit a
schema). Adding a property to an open model breaks, since anything may stand under its name already; removing one from
a closed model breaks, since it would be refused. Only breaking changes are reported.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from headrace.protocol.patterns import PatternError, pattern

from ..errors import InvalidSchemaError
from .json_schema import Documents, JsonModel, SchemaLocation, inside
from .json_shape import JsonShape, shape_of
from .model import Difference

MOST_COMPARISONS: Final = 100_000
"""Schemas can be written whose comparison would take for ever; this much work is done, then it is refused."""

_UPPER: Final = {"maxLength", "maximum", "exclusiveMaximum", "maxProperties", "maxItems", "maxContains"}
_LOWER: Final = {"minLength", "minimum", "exclusiveMinimum", "minProperties", "minItems", "minContains"}
_LIMITS: Final = {
    "string": ("maxLength", "minLength"),
    "number": ("maximum", "minimum", "exclusiveMaximum", "exclusiveMinimum"),
    "object": ("maxProperties", "minProperties"),
    "array": ("maxItems", "minItems", "maxContains", "minContains"),
}


TOLERATED: Final = frozenset(
    {
        "ADDITIONAL_PROPERTIES_NARROWED",
        "ADDITIONAL_PROPERTIES_REMOVED",
        "UNEVALUATED_PROPERTIES_NARROWED",
        "UNEVALUATED_PROPERTIES_REMOVED",
        "REQUIRED_PROPERTY_WITH_DEFAULT_ADDED_TO_OPEN_CONTENT_MODEL",
        "OPTIONAL_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL",
        "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL",
        "PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
        "PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
    }
)
"""Changes that the lenient policy lets pass."""


def differences(*, original: JsonModel, update: JsonModel, lenient: bool = False) -> list[Difference]:
    """What stops values of the original from being values of the update."""
    tolerated = TOLERATED if lenient else frozenset[str]()
    comparison = Comparison(original.documents, update.documents, tolerated)
    return comparison.compare(original.root, update.root, "#/")


class _Memory:
    """What is known while one question is answered, both ways round, and how much work may still be done for it."""

    def __init__(self) -> None:
        self.depth: dict[_Pair, int] = {}
        """Pairs that are being compared."""
        self.good: set[_Pair] = set()
        self.bad: set[_Pair] = set()
        self.rests_on = _NOTHING
        self._left = MOST_COMPARISONS

    def spend(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise InvalidSchemaError("too complex to be compared with an earlier version")


_Pair = tuple[bool, str, str]
_NOTHING: Final = 1 << 30


class Comparison:
    """Compares places pairwise. A pair that is being compared counts as compatible where it comes up again; a result
    that rests on such an assumption about an outer pair is not remembered. What fails all the same has failed."""

    def __init__(
        self,
        original: Documents,
        update: Documents,
        tolerated: frozenset[str],
        memory: _Memory | None = None,
        *,
        is_flipped: bool = False,
    ) -> None:
        self._documents = (original, update)
        self._tolerated = tolerated
        self._memory = memory or _Memory()
        self._is_flipped = is_flipped

    def flipped(self) -> "Comparison":
        """The same question the other way round."""
        original, update = self._documents
        return Comparison(update, original, self._tolerated, self._memory, is_flipped=not self._is_flipped)

    def compare(self, original: SchemaLocation | None, update: SchemaLocation | None, path: str) -> list[Difference]:
        if update is None:
            return []
        if original is None:
            return [Difference(kind="SCHEMA_ADDED", path=path)]
        return self._once(*self._pair(original, update), path)

    def compatible(self, original: SchemaLocation, update: SchemaLocation) -> bool:
        pair, before, after = self._pair(original, update)
        return pair not in self._memory.bad and not self._once(pair, before, after, "")

    def _pair(self, original: SchemaLocation, update: SchemaLocation) -> tuple[_Pair, JsonShape, JsonShape]:
        self._memory.spend()
        before, after = shape_of(original, self._documents[0]), shape_of(update, self._documents[1])
        return (self._is_flipped, _label(before), _label(after)), before, after

    def _once(self, pair: _Pair, before: JsonShape, after: JsonShape, path: str) -> list[Difference]:
        memory = self._memory
        if pair in memory.good:
            return []
        if pair in memory.depth:
            memory.rests_on = min(memory.rests_on, memory.depth[pair])
            return []
        depth = memory.depth[pair] = len(memory.depth)
        outer, memory.rests_on = memory.rests_on, _NOTHING
        try:
            found = [d for d in self._compare_shapes(before, after, path) if d.kind not in self._tolerated]
        finally:
            del memory.depth[pair]
        if found:
            memory.bad.add(pair)
        elif memory.rests_on >= depth:
            memory.good.add(pair)
        memory.rests_on = min(outer, memory.rests_on if memory.rests_on < depth else _NOTHING)
        return found

    def _compare_shapes(self, before: JsonShape, after: JsonShape, path: str) -> list[Difference]:
        if before.is_combined != after.is_combined and self._one_part_does(before, after):
            return []
        if before.is_combined and after.is_combined:
            return self._combined(before, after, path)
        if before.kind != after.kind:
            return [] if _always_fits(before, after) else [Difference(kind="TYPE_CHANGED", path=path)]
        compare = _BY_KIND.get(before.kind)
        return list(compare(self, before, after, path)) if compare else []

    def _one_part_does(self, before: JsonShape, after: JsonShape) -> bool:
        if after.is_combined:
            alone = len(after.parts) == 1 or after.kind != "allOf"
            return alone and any(self.compatible(before.location, part) for part in after.parts)
        alone = len(before.parts) == 1 or before.kind == "allOf"
        return alone and any(self.compatible(part, after.location) for part in before.parts)

    def _combined(self, before: JsonShape, after: JsonShape, path: str) -> list[Difference]:
        if not _criteria_allow(before, after):
            return [Difference(kind="COMBINED_TYPE_CHANGED", path=path)]
        olds, news = _distinct(before.parts), _distinct(after.parts)
        found = []
        if len(olds) < len(news) and after.kind == "allOf":
            found.append(Difference(kind="PRODUCT_TYPE_EXTENDED", path=path))
        if len(olds) > len(news) and before.kind != "allOf":
            found.append(Difference(kind="SUM_TYPE_NARROWED", path=path))
        edges = [[j for j, new in enumerate(news) if self.compatible(old, new)] for old in olds]
        if _matching(edges) < min(len(olds), len(news)):
            found.append(Difference(kind="COMBINED_TYPE_SUBSCHEMAS_CHANGED", path=path))
        return found


def _label(shape: JsonShape) -> str:
    """The same for shapes that say the same in the same document."""
    value = json.dumps(shape.location.value, sort_keys=True)
    return f"{shape.kind}|{shape.location.base}|{value}"


def _always_fits(before: JsonShape, after: JsonShape) -> bool:
    if before.kind == "false" or after.kind == "empty":
        return True
    return before.keywords.get("connect.type") == after.keywords.get("connect.type") == "bytes"


def _criteria_allow(before: JsonShape, after: JsonShape) -> bool:
    if before.kind == after.kind or after.kind == "anyOf":
        return True
    was_one, is_one = len(before.parts) == 1, len(after.parts) == 1
    return (was_one and (is_one or after.kind == "oneOf")) or (is_one and before.kind == "allOf")


def _distinct(parts: Sequence[SchemaLocation]) -> list[SchemaLocation]:
    return list({json.dumps(part.value, sort_keys=True): part for part in parts}.values())


def _matching(edges: Sequence[Sequence[int]]) -> int:
    """How many on the left can have a partner of their own on the right."""
    partner: dict[int, int] = {}

    def place(left: int, tried: set[int]) -> bool:
        for right in edges[left]:
            if right not in tried:
                tried.add(right)
                if right not in partner or place(partner[right], tried):
                    partner[right] = left
                    return True
        return False

    return sum(place(left, set()) for left in range(len(edges)))


def _limits(before: JsonShape, after: JsonShape, path: str) -> Iterator[Difference]:
    for keyword in _LIMITS[before.kind]:
        old, new = _number(before, keyword), _number(after, keyword)
        if new is None or old == new:
            continue
        name = re.sub(r"([A-Z])", r"_\1", keyword).upper()
        where = _under(path, keyword)
        if old is None:
            yield Difference(kind=f"{name}_ADDED", path=where)
        elif keyword in _UPPER and new < old:
            yield Difference(kind=f"{name}_DECREASED", path=where)
        elif keyword in _LOWER and new > old:
            yield Difference(kind=f"{name}_INCREASED", path=where)


def _number(shape: JsonShape, keyword: str) -> Decimal | None:
    value = shape.keywords.get(keyword)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return Decimal(str(value))


def _strings(_: Comparison, before: JsonShape, after: JsonShape, path: str) -> Iterator[Difference]:
    yield from _limits(before, after, path)
    old, new = before.keywords.get("pattern"), after.keywords.get("pattern")
    if new is not None and old != new:
        yield Difference(kind="PATTERN_ADDED" if old is None else "PATTERN_CHANGED", path=_under(path, "pattern"))


def _numbers(_: Comparison, before: JsonShape, after: JsonShape, path: str) -> Iterator[Difference]:
    yield from _limits(before, after, path)
    old, new = _number(before, "multipleOf"), _number(after, "multipleOf")
    if new is not None and old != new:
        where = _under(path, "multipleOf")
        if old is None:
            yield Difference(kind="MULTIPLE_OF_ADDED", path=where)
        elif old and not new % old:
            yield Difference(kind="MULTIPLE_OF_EXPANDED", path=where)
        elif not new or old % new:
            yield Difference(kind="MULTIPLE_OF_CHANGED", path=where)
    if after.is_integer and not before.is_integer:
        yield Difference(kind="TYPE_NARROWED", path=path)


def _enums(_: Comparison, before: JsonShape, after: JsonShape, path: str) -> Iterator[Difference]:
    old = {json.dumps(value, sort_keys=True) for value in before.keywords["enum"]}
    new = {json.dumps(value, sort_keys=True) for value in after.keywords["enum"]}
    if not old <= new:
        kind = "ENUM_ARRAY_NARROWED" if new < old else "ENUM_ARRAY_CHANGED"
        yield Difference(kind=kind, path=_under(path, "enum"))


def _constants(_: Comparison, before: JsonShape, after: JsonShape, path: str) -> Iterator[Difference]:
    if json.dumps(before.keywords["const"], sort_keys=True) != json.dumps(after.keywords["const"], sort_keys=True):
        yield Difference(kind="ENUM_ARRAY_CHANGED", path=_under(path, "const"))


def _negations(comparison: Comparison, before: JsonShape, after: JsonShape, path: str) -> Iterator[Difference]:
    old, new = inside(before.location, before.keywords["not"]), inside(after.location, after.keywords["not"])
    if not comparison.flipped().compatible(new, old):
        yield Difference(kind="NOT_TYPE_EXTENDED", path=_under(path, "not"))


def _objects(comparison: Comparison, before: JsonShape, after: JsonShape, path: str) -> Iterator[Difference]:
    yield from _required(before, after, path)
    yield from _properties(comparison, before, after, path)
    yield from _dependencies(comparison, before, after, path)
    yield from _additional(comparison, before, after, path, "additionalProperties", "ADDITIONAL_PROPERTIES")
    yield from _unevaluated(comparison, before, after, path, "unevaluatedProperties")
    yield from _limits(before, after, path)


def _under(path: str, *names: str) -> str:
    return "/".join([path.rstrip("/"), *names])


def _map(shape: JsonShape, keyword: str) -> Mapping[str, Any]:
    value = shape.keywords.get(keyword)
    return value if isinstance(value, dict) else {}


def _has_default(schema: Any) -> bool:
    return isinstance(schema, dict) and "default" in schema


def _required(before: JsonShape, after: JsonShape, path: str) -> Iterator[Difference]:
    olds, news = _map(before, "properties"), _map(after, "properties")
    was, now = set(before.keywords.get("required", ())), set(after.keywords.get("required", ()))
    for name in olds:
        if name in news and name in now and name not in was and not _has_default(news[name]):
            yield Difference(kind="REQUIRED_ATTRIBUTE_ADDED", path=_under(path, "required", name))


def _properties(comparison: Comparison, before: JsonShape, after: JsonShape, path: str) -> Iterator[Difference]:
    olds, news = _map(before, "properties"), _map(after, "properties")
    for name in [*olds, *(name for name in news if name not in olds)]:
        where = _under(path, "properties", name)
        if name not in news:
            yield from _property_removed(comparison, before, after, name, where)
        elif name not in olds:
            yield from _property_added(comparison, before, after, name, where)
        else:
            yield from comparison.compare(
                inside(before.location, olds[name]), inside(after.location, news[name]), where
            )


def _property_removed(
    comparison: Comparison, before: JsonShape, after: JsonShape, name: str, path: str
) -> Iterator[Difference]:
    if _is_open(after, "additionalProperties", "unevaluatedProperties"):
        return
    old = inside(before.location, _map(before, "properties")[name])
    cover = _cover(after, name)
    if cover is not None:
        yield from _covered(comparison, old, cover, "PROPERTY_REMOVED", path)
    elif old.value is not False:
        yield Difference(kind="PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL", path=path)


def _covered(
    comparison: Comparison, before: SchemaLocation, after: SchemaLocation, change: str, path: str
) -> Iterator[Difference]:
    """What is different where the schema of further properties or items stands in for one that came or went."""
    found = comparison.compare(before, after, path)
    yield from found
    if found:
        yield Difference(kind=f"{change}_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", path=path)


def _property_added(
    comparison: Comparison, before: JsonShape, after: JsonShape, name: str, path: str
) -> Iterator[Difference]:
    new = inside(after.location, _map(after, "properties")[name])
    must = name in after.keywords.get("required", ())
    has_default = _has_default(new.value)
    if _is_open(before, "additionalProperties", "unevaluatedProperties"):
        if not _says_nothing(new.value):
            with_default = "_WITH_DEFAULT" if has_default else ""
            kind = f"REQUIRED_PROPERTY{with_default}" if must else "OPTIONAL_PROPERTY"
            yield Difference(kind=f"{kind}_ADDED_TO_OPEN_CONTENT_MODEL", path=path)
        return
    cover = _cover(before, name)
    if cover is not None:
        yield from _covered(comparison, cover, new, "PROPERTY_ADDED", path)
    if must and not has_default:
        yield Difference(kind="REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL", path=path)


def _says_nothing(value: Any) -> bool:
    """True, or an object without a keyword that constrains."""
    annotations = {"title", "description", "default", "$comment", "examples", "$id", "deprecated"}
    return value is True or (isinstance(value, dict) and not (value.keys() - annotations))


def _is_open(shape: JsonShape, additional: str, unevaluated: str) -> bool:
    if shape.keywords.get(additional, True) is not True or shape.keywords.get("patternProperties"):
        return False
    return _says_nothing(shape.keywords.get(unevaluated, True))


def _cover(shape: JsonShape, name: str) -> SchemaLocation | None:
    """The schema that a property nobody named must fit; None where every such property is refused."""
    for expression, schema in _map(shape, "patternProperties").items():
        if _matches(expression, name):
            return inside(shape.location, schema)
    return _rest(shape, "additionalProperties", "unevaluatedProperties")


def _rest(shape: JsonShape, additional: str, unevaluated: str) -> SchemaLocation | None:
    schema = shape.keywords.get(additional, True)
    if isinstance(schema, dict):
        return inside(shape.location, schema)
    other = shape.keywords.get(unevaluated)
    if schema is True and isinstance(other, dict) and not _says_nothing(other):
        return inside(shape.location, other)
    return None


def _matches(expression: str, name: str) -> bool:
    """Whether a property's name matches an expression; one that cannot be served matches nothing."""
    try:
        return pattern(expression).finds(name)
    except PatternError:
        return False


def _dependencies(comparison: Comparison, before: JsonShape, after: JsonShape, path: str) -> Iterator[Difference]:
    for name, new in _dependents(after, list).items():
        where = _under(path, "dependencies", name)
        old = _dependents(before, list).get(name)
        if old is None:
            yield Difference(kind="DEPENDENCY_ARRAY_ADDED", path=where)
        elif not set(new) <= set(old):
            kind = "DEPENDENCY_ARRAY_EXTENDED" if set(old) <= set(new) else "DEPENDENCY_ARRAY_CHANGED"
            yield Difference(kind=kind, path=where)
    for name, new in _dependents(after, (dict, bool)).items():
        where = _under(path, "dependencies", name)
        old = _dependents(before, (dict, bool)).get(name)
        if old is None:
            yield Difference(kind="DEPENDENCY_SCHEMA_ADDED", path=where)
        else:
            yield from comparison.compare(inside(before.location, old), inside(after.location, new), where)


def _dependents(shape: JsonShape, kind: type | tuple[type, ...]) -> dict[str, Any]:
    keywords = ("dependencies", "dependentRequired", "dependentSchemas")
    return {n: v for keyword in keywords for n, v in _map(shape, keyword).items() if isinstance(v, kind)}


def _additional(
    comparison: Comparison, before: JsonShape, after: JsonShape, path: str, keyword: str, name: str
) -> Iterator[Difference]:
    old, new = before.keywords.get(keyword, True), after.keywords.get(keyword, True)
    where = _under(path, keyword)
    if (old is False) != (new is False):
        if new is False:
            yield Difference(kind=f"{name}_REMOVED", path=where)
    elif isinstance(new, dict):
        if not isinstance(old, dict):
            yield Difference(kind=f"{name}_NARROWED", path=where)
        else:
            yield from comparison.compare(inside(before.location, old), inside(after.location, new), where)


def _unevaluated(
    comparison: Comparison, before: JsonShape, after: JsonShape, path: str, keyword: str
) -> Iterator[Difference]:
    name = re.sub(r"([A-Z])", r"_\1", keyword).upper()
    old, new = before.keywords.get(keyword), after.keywords.get(keyword)
    where = _under(path, keyword)
    if new is None or old is False:
        return
    if new is False:
        yield Difference(kind=f"{name}_REMOVED", path=where)
    elif old is None or (_says_nothing(old) and not _says_nothing(new)):
        yield Difference(kind=f"{name}_NARROWED", path=where)
    elif not _says_nothing(new):
        yield from comparison.compare(inside(before.location, old), inside(after.location, new), where)


def _arrays(comparison: Comparison, before: JsonShape, after: JsonShape, path: str) -> Iterator[Difference]:
    yield from comparison.compare(_every_item(before), _every_item(after), _under(path, "items"))
    yield from _items_by_position(comparison, before, after, path)
    yield from _additional_items(comparison, before, after, path)
    yield from _unevaluated(comparison, before, after, path, "unevaluatedItems")
    yield from _limits(before, after, path)
    if after.keywords.get("uniqueItems") and not before.keywords.get("uniqueItems"):
        yield Difference(kind="UNIQUE_ITEMS_ADDED", path=_under(path, "uniqueItems"))


def _every_item(shape: JsonShape) -> SchemaLocation | None:
    items = shape.keywords.get("items")
    if isinstance(items, (dict, bool)) and "prefixItems" not in shape.keywords:
        return inside(shape.location, items)
    return None


def _positions(shape: JsonShape) -> list[SchemaLocation]:
    items = shape.keywords.get("prefixItems", shape.keywords.get("items"))
    return [inside(shape.location, item) for item in items] if isinstance(items, list) else []


def _further(shape: JsonShape) -> Any:
    """What holds for items beyond those described one by one."""
    keyword = "items" if "prefixItems" in shape.keywords else "additionalItems"
    return shape.keywords.get(keyword, True)


def _further_cover(shape: JsonShape) -> SchemaLocation | None:
    further = _further(shape)
    if isinstance(further, dict):
        return inside(shape.location, further)
    other = shape.keywords.get("unevaluatedItems")
    if further is True and isinstance(other, dict) and not _says_nothing(other):
        return inside(shape.location, other)
    return None


def _takes_any_further(shape: JsonShape) -> bool:
    return _further(shape) is True and _says_nothing(shape.keywords.get("unevaluatedItems", True))


def _items_by_position(comparison: Comparison, before: JsonShape, after: JsonShape, path: str) -> Iterator[Difference]:
    olds, news = _positions(before), _positions(after)
    for i, (old, new) in enumerate(zip(olds, news, strict=False)):
        yield from comparison.compare(old, new, _under(path, "items", str(i)))
    for i, old in enumerate(olds[len(news) :], len(news)):
        yield from _item_removed(comparison, old, after, _under(path, "items", str(i)))
    for i, new in enumerate(news[len(olds) :], len(olds)):
        yield from _item_added(comparison, before, new, _under(path, "items", str(i)))


def _item_removed(comparison: Comparison, old: SchemaLocation, after: JsonShape, path: str) -> Iterator[Difference]:
    if _takes_any_further(after):
        return
    cover = _further_cover(after)
    if cover is not None:
        yield from _covered(comparison, old, cover, "ITEM_REMOVED", path)
    elif old.value is not False:
        yield Difference(kind="ITEM_REMOVED_FROM_CLOSED_CONTENT_MODEL", path=path)


def _item_added(comparison: Comparison, before: JsonShape, new: SchemaLocation, path: str) -> Iterator[Difference]:
    if _takes_any_further(before):
        if not _says_nothing(new.value):
            yield Difference(kind="ITEM_ADDED_TO_OPEN_CONTENT_MODEL", path=path)
        return
    cover = _further_cover(before)
    if cover is not None:
        yield from _covered(comparison, cover, new, "ITEM_ADDED", path)


def _additional_items(comparison: Comparison, before: JsonShape, after: JsonShape, path: str) -> Iterator[Difference]:
    old, new = _further(before), _further(after)
    where = _under(path, "additionalItems")
    if (old is False) != (new is False):
        if new is False:
            yield Difference(kind="ADDITIONAL_ITEMS_REMOVED", path=where)
    elif isinstance(new, dict):
        if not isinstance(old, dict):
            yield Difference(kind="ADDITIONAL_ITEMS_NARROWED", path=where)
        else:
            yield from comparison.compare(inside(before.location, old), inside(after.location, new), where)


_Compare = Callable[[Comparison, JsonShape, JsonShape, str], Iterable[Difference]]
_BY_KIND: Final[Mapping[str, _Compare]] = {
    "string": _strings,
    "number": _numbers,
    "enum": _enums,
    "const": _constants,
    "not": _negations,
    "object": _objects,
    "array": _arrays,
}
