"""JSON whose parts are kept as they were written.

A message's value goes into the log byte for byte as its sender wrote it, and comes out again the same: a number with
more digits than a float has, the order of members, a space. So values are never decoded and encoded again. What stands
around them is read here, member by member, with Python's own scanner for the leaves.
"""

import json
import re
from json import decoder
from typing import Any, Final

from headrace.web.problem import Problem, bad_request

_SPACE: Final = re.compile(r"[ \t\n\r]*")
_FIRST_BYTES: Final = frozenset(bytes([each]) for each in b'{["-0123456789tfn \t\r\n')


class Raw(str):
    """JSON text of one value."""

    __slots__ = ()


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_SKIP: Final = json.JSONDecoder(parse_int=len, parse_float=len, parse_constant=_refuse_constant)
"""Finds where a value ends, without making numbers of its digits."""
_PLAIN: Final = json.JSONDecoder(parse_constant=_refuse_constant)


def loads(data: bytes) -> Any:
    """A whole JSON document; `Problem` 400 when it is none."""
    try:
        return _PLAIN.decode(data.decode())
    except (ValueError, RecursionError) as error:
        raise _not_json(error) from None


def envelope(data: bytes, raw: frozenset[str], lists: frozenset[str] = frozenset()) -> Any:
    """An object in which members named in `raw` are `Raw`, also in the objects of the lists named in `lists`."""
    try:
        text = data.decode()
        value, at = _object(text, _skip(text, 0), raw, lists)
        if _skip(text, at) != len(text):
            raise ValueError(f"something follows the object at character {at}")
    except (ValueError, IndexError, RecursionError) as error:
        raise _not_json(error) from None
    return value


def is_json(data: bytes) -> bool:
    """Whether bytes are one JSON value."""
    if data[:1] not in _FIRST_BYTES:
        return False
    try:
        _SKIP.decode(data.decode())
    except (ValueError, RecursionError):
        return False
    return True


def _object(text: str, at: int, raw: frozenset[str], lists: frozenset[str]) -> tuple[dict[str, Any], int]:
    if text[at : at + 1] != "{":
        raise ValueError("it must be an object")
    members: dict[str, Any] = {}
    at = _skip(text, at + 1)
    if text[at] == "}":
        return members, at + 1
    while True:
        if text[at] != '"':
            raise ValueError(f"a name is missing at character {at}")
        name, at = decoder.scanstring(text, at + 1, True)  # type: ignore[attr-defined]  # not in the stubs
        at = _skip(text, at)
        if text[at] != ":":
            raise ValueError(f"a colon is missing at character {at}")
        members[name], at = _member(text, _skip(text, at + 1), name, raw, lists)
        at = _skip(text, at)
        if text[at] == "}":
            return members, at + 1
        at = _skip(text, _comma(text, at))


def _member(text: str, at: int, name: str, raw: frozenset[str], lists: frozenset[str]) -> tuple[Any, int]:
    if name in raw:
        _, end = _SKIP.raw_decode(text, at)
        return Raw(text[at:end]), end
    if name in lists and text[at : at + 1] == "[":
        return _list(text, at, raw)
    return _PLAIN.raw_decode(text, at)


def _list(text: str, at: int, raw: frozenset[str]) -> tuple[list[Any], int]:
    items: list[Any] = []
    at = _skip(text, at + 1)
    if text[at] == "]":
        return items, at + 1
    while True:
        value, at = _object(text, at, raw, frozenset())
        items.append(value)
        at = _skip(text, at)
        if text[at] == "]":
            return items, at + 1
        at = _skip(text, _comma(text, at))


def _comma(text: str, at: int) -> int:
    if text[at] != ",":
        raise ValueError(f"a comma is missing at character {at}")
    return at + 1


def _skip(text: str, at: int) -> int:
    if text[at : at + 1] > " ":
        return at
    found = _SPACE.match(text, at)
    assert found is not None
    return found.end()


def _not_json(error: Exception) -> Problem:
    reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error) or "it ends too early"
    return bad_request(f"the body is not the JSON that is wanted here: {reason}", "invalid-json")
