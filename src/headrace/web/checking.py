"""Structs out of paths, queries, headers and bodies: msgspec checks them, here its refusals become problems.

A value that does not fit is a `Problem` (400) that names where it stands and what would fit.
"""

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from types import UnionType
from typing import Annotated, Any, Final, Literal, TypeVar, Union, get_args, get_origin, get_type_hints
from urllib.parse import parse_qsl

import msgspec
from msgspec import Meta, Struct

from .problem import Problem, bad_request

T = TypeVar("T")
MOST_QUERY_FIELDS: Final = 64
MOST_ELEMENTS: Final = 10_000
"""Of a list in a body."""
_SEEMS_MANY: Final = MOST_ELEMENTS
_DEPTH_OF_ELEMENTS: Final = 3
_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"|[{}\[\]]', re.DOTALL)
_AT: Final = re.compile(r"(?P<what>.*?)(?: - at `(?P<where>.*)`)?", re.DOTALL)
_FIELD: Final = re.compile(r"Object (?P<how>contains unknown|missing required) field `(?P<name>.*)`", re.DOTALL)
_EXPECTED: Final = re.compile(r"Expected (?P<wanted>.*?)(?:, got (?P<got>.*))?", re.DOTALL)
_PATTERN: Final = re.compile(r"`str` matching regex (?P<quote>['\"])(?P<pattern>.*)(?P=quote)", re.DOTALL)
_STEP: Final = re.compile(r"\.([^.\[\]]+)")
_NO_CHOICE: Final = "Invalid enum value "
_OUT_OF_RANGE: Final = "out of range"
_WORDS: Final = {
    "int": "a whole number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "a JSON object",
    "float": "a number",
}
_wanted: Final[dict[str, str]] = {}


def pattern(regex: str, wanted: str) -> str:
    """A pattern for `Meta`; `wanted` says to people what matches."""
    _wanted[repr(regex)[1:-1]] = wanted
    return regex


def text_meta(regex: str, wanted: str, *examples: str, most: int | None = None, description: str = "") -> Meta:
    """What a text must match, told to people in words. `most` is told to programs: the pattern must see to it."""
    return Meta(
        pattern=pattern(regex, wanted),
        examples=list(examples),
        description=description or None,
        extra_json_schema=None if most is None else {"maxLength": most},
    )


def refused(error: Exception, kind: Any, where: str) -> Problem:
    """The problem that a refusal of msgspec's is. `where` names the body; empty for parameters."""
    found = _AT.fullmatch(str(error))
    assert found is not None
    path = (found["where"] or "$").removeprefix("key in ")
    place = f"{where}{path[1:]}" if where else path.lstrip("$.")
    field = _FIELD.fullmatch(found["what"])
    if field is not None and field["how"] == "missing required":
        missing = f"{place}.{field['name']}" if place else f"the parameter '{field['name']}'"
        return bad_request(f"{missing} is missing")
    if field is not None:
        known = ", ".join(names_of(kind)) if path == "$" else ""
        return _unknown(place, field["name"][:80], known)
    return bad_request(f"{place} must be {_told(found['what'], _choices(kind, path))}")


def _unknown(place: str, name: str, known: str) -> Problem:
    if not place:
        return bad_request(f"there is no parameter '{name}' here; known: {known or 'none'}", "unknown-parameter")
    return bad_request(f"{place} has no member '{name}'" + (f"; it has {known}" if known else ""), "unknown-member")


def _choices(kind: Any, path: str) -> tuple[Any, ...]:
    """What may stand at a place, where only some values may."""
    hints = [kind]
    for name in _STEP.findall(path):
        hints = [inner for hint in hints for inner in _inside(hint, name)]
    return tuple(choice for hint in hints for each in _unwrapped(hint) for choice in _literals(each))


def _inside(hint: Any, name: str) -> Iterator[Any]:
    for each in _unwrapped(hint):
        if isinstance(each, type) and issubclass(each, Struct):
            hints = get_type_hints(each)
            yield from (hints[field.name] for field in msgspec.structs.fields(each) if field.encode_name == name)


def _unwrapped(hint: Any) -> Iterator[Any]:
    """The types that a hint is made of: of a union, or of a list's elements."""
    if get_origin(hint) in (Union, UnionType, list):
        for each in get_args(hint):
            yield from _unwrapped(each)
    else:
        yield hint


def _literals(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) is Literal else ()


def _told(message: str, choices: tuple[Any, ...]) -> str:
    if message.startswith(_NO_CHOICE):
        given = message.removeprefix(_NO_CHOICE)
        return f"one of {', '.join(map(str, choices))}, not {given}" if choices else f"another value than {given}"
    if message.endswith(_OUT_OF_RANGE):
        return "a number that is not so large"
    found = _EXPECTED.fullmatch(message)
    if found is None:
        return message.lower() if message.isascii() else message
    matching = _PATTERN.fullmatch(found["wanted"])
    if matching is not None:
        return _wanted.get(matching["pattern"], found["wanted"])
    words = re.sub(
        r"`([a-z]+)( \| null)?`", lambda m: _WORDS.get(m[1], m[1]) + (" or null" if m[2] else ""), found["wanted"]
    )
    got = (found["got"] or "").strip("`")
    return f"{words}, not {got}" if got and got != "str" else words


@cache
def names_of(kind: type[Struct]) -> tuple[str, ...]:
    """Members of a struct, as they are written."""
    return tuple(field.encode_name for field in msgspec.structs.fields(kind))


async def check_counts(body: bytes) -> None:
    """`Problem` 400 for a JSON body one of whose lists has more than `MOST_ELEMENTS` objects: each would be made before
    the list is found to be too long. What stands inside of values does not count."""
    if body.count(b"{") > _SEEMS_MANY:
        await asyncio.to_thread(_check_counts, body)


def _check_counts(body: bytes) -> None:
    depth = count = 0
    for found in _TOKEN.finditer(body):
        token = found[0]
        if token in (b"{", b"["):
            depth += 1
            count += token == b"{" and depth == _DEPTH_OF_ELEMENTS
            if count > MOST_ELEMENTS:
                raise bad_request(f"a list has at most {MOST_ELEMENTS} elements")
        elif token in (b"}", b"]"):
            depth -= 1


def decoder(kind: type[T], where: str, *, strict: bool = True) -> Callable[[bytes], T]:
    """Reads JSON bodies; `Problem` 400 when one is not JSON, or not what is wanted. Without `strict` texts may stand
    for numbers and truth values."""
    decode = msgspec.json.Decoder(kind, strict=strict).decode

    def read(body: bytes) -> T:
        try:
            if not body.isascii():
                body.decode()  # msgspec does not look into what it keeps as it is written
            return decode(body)
        except msgspec.ValidationError as error:
            raise refused(error, kind, where) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
            raise bad_request(f"the body is not the JSON that is wanted here: {reason}", "invalid-json") from None

    return read


class Parameters:
    """Reads one set of parameters: those of a path, a query, or headers."""

    def __init__(self, kind: type[Struct]) -> None:
        fields = msgspec.structs.fields(kind)
        self.kind = kind
        hints = get_type_hints(kind)
        self._lists = {field.encode_name for field in fields if _is_list(hints[field.name])}
        """Those that are separated by commas."""
        self._is_strict = bool(kind.__struct_config__.forbid_unknown_fields)
        self._names = [(field.encode_name.lower().encode(), field.encode_name) for field in fields]
        self._default: Struct | None = None if any(field.required for field in fields) else kind()

    def of(self, values: Mapping[str, Any]) -> Any:
        """From texts by name."""
        try:
            return msgspec.convert(values, self.kind, strict=False)
        except msgspec.ValidationError as error:
            raise refused(error, self.kind, "") from None

    def of_query(self, text: bytes) -> Any:
        if not text and self._default is not None:
            return self._default
        try:
            pairs = parse_qsl(
                text.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MOST_QUERY_FIELDS
            )
        except ValueError as error:
            raise bad_request(f"the query cannot be read: {error}") from None
        values: dict[str, Any] = dict(pairs)
        for name in self._lists & values.keys():
            values[name] = values[name].split(",")
        return self.of(values)

    def of_headers(self, fields: Mapping[bytes, bytes]) -> Any:
        """Only those that are known. Texts are Latin-1: `.encode("latin-1")` gives the bytes that came."""
        values = {name: fields[key].decode("latin-1") for key, name in self._names if key in fields}
        if not values and self._default is not None:
            return self._default
        return self.of(values)


def _is_list(hint: Any) -> bool:
    origin = get_origin(hint)
    if origin is Annotated or (origin is not None and origin is not list):
        return any(_is_list(each) for each in getattr(hint, "__args__", ()))
    return origin is list


class NoParameters(Struct, frozen=True, forbid_unknown_fields=True):
    """For operations without parameters."""
