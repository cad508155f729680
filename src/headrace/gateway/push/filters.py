"""Which records a subscription wants. All conditions of a filter must hold.

    {"key": {"prefix": "eu-"}, "headers": {"type": "order"}, "json": {"total": {"gte": 10}, "customer.vip": true}}

A condition is a value to be equal to, or an object of comparisons. A path into JSON has dots between its names.
"""

import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

from msgspec import UNSET, Meta, Struct, to_builtins

from headrace.protocol.records import Record
from headrace.web.problem import bad_request

_MISSING: Final = object()
_MOST: Final = 20
_MOST_DEPTH: Final = 32
_LONGEST_INDEX: Final = 9


class Filter(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Which messages to deliver: all conditions must hold. A condition is a value, or an object of comparisons."""

    key: Annotated[Any, Meta(description="On the key as text.", examples=[{"prefix": "eu-"}])] = UNSET
    headers: Annotated[
        dict[str, Any], Meta(max_length=_MOST, description="On headers by name.", examples=[{"type": "order"}])
    ] = {}
    json: Annotated[
        dict[str, Any],
        Meta(max_length=_MOST, description="On members of a JSON value.", examples=[{"total": {"gte": 10}}]),
    ] = {}


def _is_same(found: Any, wanted: Any) -> bool:
    return (type(found) is type(wanted) and bool(found == wanted)) or (_are_numbers(found, wanted) and found == wanted)


def _are_numbers(*values: Any) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    """Numbers with numbers, texts with texts; anything else is not before or after anything."""

    def check(found: Any, wanted: Any) -> bool:
        comparable = _are_numbers(found, wanted) or (isinstance(found, str) and isinstance(wanted, str))
        return comparable and compare(found, wanted)

    return check


COMPARISONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "eq": _is_same,
    "ne": lambda found, wanted: not _is_same(found, wanted),
    "in": lambda found, wanted: isinstance(wanted, list) and any(_is_same(found, each) for each in wanted),
    "prefix": lambda found, wanted: isinstance(found, str) and isinstance(wanted, str) and found.startswith(wanted),
    "exists": lambda found, wanted: (found is not _MISSING) is bool(wanted),
    "lt": _ordered(lambda a, b: a < b),
    "lte": _ordered(lambda a, b: a <= b),
    "gt": _ordered(lambda a, b: a > b),
    "gte": _ordered(lambda a, b: a >= b),
}


def plain(wanted: Filter) -> dict[str, Any]:
    """A filter as it is kept; `Problem` 400 when it has a comparison that there is not, or is nested too deeply."""
    if not _is_within([wanted.key, wanted.headers, wanted.json], _MOST_DEPTH):
        raise bad_request(f"a filter is nested at most {_MOST_DEPTH} deep")
    described: dict[str, Any] = to_builtins(wanted)
    _check_comparisons(described)
    return described


def _check_comparisons(described: Mapping[str, Any]) -> None:
    conditions = [*described.get("headers", {}).values(), *described.get("json", {}).values()]
    for condition in [*conditions, *([described["key"]] if "key" in described else [])]:
        if isinstance(condition, dict):
            for name in condition:
                if name not in COMPARISONS:
                    raise bad_request(f"a filter compares with {', '.join(COMPARISONS)}, not '{name[:80]}'")


def _is_within(value: Any, depth: int) -> bool:
    if not isinstance(value, dict | list):
        return True
    inside = value.values() if isinstance(value, dict) else value
    return depth > 0 and all(_is_within(each, depth - 1) for each in inside)


def matches(described: Mapping[str, Any] | None, record: Record) -> bool:
    """Whether a record is wanted."""
    if not described:
        return True
    if "key" in described and not _holds(_text(record.key), described["key"]):
        return False
    if "headers" in described:
        headers = {name: _text(value) for name, value in record.headers}
        if not all(_holds(headers.get(name, _MISSING), wanted) for name, wanted in described["headers"].items()):
            return False
    if "json" in described:
        document = _parsed(record.value)
        return all(_holds(_at(document, path), wanted) for path, wanted in described["json"].items())
    return True


def _holds(found: Any, condition: Any) -> bool:
    if isinstance(condition, dict):
        return all(COMPARISONS[name](found, wanted) for name, wanted in condition.items())
    return _is_same(found, condition)


def _text(data: bytes | None) -> Any:
    return _MISSING if data is None else data.decode("utf-8", "replace")


def _parsed(value: bytes | None) -> Any:
    try:
        return _MISSING if value is None else json.loads(value)
    except (ValueError, RecursionError):
        return _MISSING


def _is_index(name: str) -> bool:
    return name.isascii() and name.isdigit() and len(name) <= _LONGEST_INDEX


def _at(document: Any, path: str) -> Any:
    for name in path.removeprefix("$.").split("."):
        if isinstance(document, dict) and name in document:
            document = document[name]
        elif isinstance(document, list) and _is_index(name) and int(name) < len(document):
            document = document[int(name)]
        else:
            return _MISSING
    return document
