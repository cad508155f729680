"""What values may look like: each shape reads a value from JSON or from text, and describes itself as JSON Schema.

A value that does not fit is a `Problem` (400) that names where it stands, what is wrong and what would fit.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final, Protocol

from .problem import Problem, bad_request

Schema = dict[str, Any]
_INTEGER: Final = re.compile(r"-?[0-9]{1,19}")
_NUMBER: Final = re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,15})?")
_BOOLEANS: Final = {"true": True, "false": False}


class Shape(Protocol):
    """What a value may look like."""

    def read(self, value: Any, path: str) -> Any:
        """The value out of JSON; raises `Problem`."""
        ...

    def parse(self, text: str, path: str) -> Any:
        """The value out of a path, query or header; raises `Problem`."""
        ...

    def schema(self) -> Schema:
        """JSON Schema."""
        ...


def _refuse(path: str, wanted: str, value: Any) -> Problem:
    shown = value if isinstance(value, str) else json.dumps(value, default=str)
    return bad_request(f"{path} must be {wanted}, not '{shown[:80]}'")


class Text:
    """A string."""

    def __init__(self, *, pattern: str | None = None, least: int = 0, most: int = 65_536, wanted: str = "") -> None:
        self._pattern = pattern
        self._matches = None if pattern is None else re.compile(pattern).fullmatch
        self._least, self._most = least, most
        self._wanted = wanted or (
            f"text that matches {pattern}" if pattern else f"text of {least} to {most} characters"
        )

    def read(self, value: Any, path: str) -> str:
        if not isinstance(value, str):
            raise _refuse(path, self._wanted, value)
        return self.parse(value, path)

    def parse(self, text: str, path: str) -> str:
        if not self._least <= len(text) <= self._most or (self._matches is not None and not self._matches(text)):
            raise _refuse(path, self._wanted, text)
        if not text.isascii():
            _require_unicode(text, path)
        return text

    def schema(self) -> Schema:
        found: Schema = {"type": "string", "maxLength": self._most}
        if self._least:
            found["minLength"] = self._least
        if self._pattern is not None:
            found["pattern"] = f"^{self._pattern}$"
        return found


def _require_unicode(text: str, path: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise bad_request(f"{path} holds half a surrogate pair, which is no text") from None


class Choice:
    """One of some words."""

    def __init__(self, *words: str) -> None:
        self._words = words

    def read(self, value: Any, path: str) -> str:
        if not isinstance(value, str) or value not in self._words:
            raise _refuse(path, f"one of {', '.join(self._words)}", value)
        return value

    parse = read

    def schema(self) -> Schema:
        return {"type": "string", "enum": list(self._words)}


class Integer:
    """A whole number between two, both included."""

    def __init__(self, least: int = -(2**63), most: int = 2**63 - 1) -> None:
        self._least, self._most = least, most

    def read(self, value: Any, path: str) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not self._least <= value <= self._most:
            raise self._refuse(value, path)
        return value

    def parse(self, text: str, path: str) -> int:
        if not _INTEGER.fullmatch(text) or not self._least <= int(text) <= self._most:
            raise self._refuse(text, path)
        return int(text)

    def _refuse(self, value: Any, path: str) -> Problem:
        return _refuse(path, f"a whole number from {self._least} to {self._most}", value)

    def schema(self) -> Schema:
        return {"type": "integer", "minimum": self._least, "maximum": self._most}


class Number:
    """A number between two, both included."""

    def __init__(self, least: float, most: float) -> None:
        self._least, self._most = least, most

    def read(self, value: Any, path: str) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool) or not self._least <= value <= self._most:
            raise _refuse(path, f"a number from {self._least} to {self._most}", value)
        return float(value)

    def parse(self, text: str, path: str) -> float:
        if not _NUMBER.fullmatch(text):
            raise _refuse(path, f"a number from {self._least} to {self._most}", text)
        return self.read(float(text), path)

    def schema(self) -> Schema:
        return {"type": "number", "minimum": self._least, "maximum": self._most}


class Boolean:
    """true or false."""

    def read(self, value: Any, path: str) -> bool:
        if not isinstance(value, bool):
            raise _refuse(path, "true or false", value)
        return value

    def parse(self, text: str, path: str) -> bool:
        if text not in _BOOLEANS:
            raise _refuse(path, "true or false", text)
        return _BOOLEANS[text]

    def schema(self) -> Schema:
        return {"type": "boolean"}


class Anything:
    """Any JSON."""

    def read(self, value: Any, path: str) -> Any:  # noqa: ARG002 - as every shape
        return value

    parse = read

    def schema(self) -> Schema:
        return {}


class Nullable:
    """A shape, or null."""

    def __init__(self, inner: Shape) -> None:
        self._inner = inner

    def read(self, value: Any, path: str) -> Any:
        return None if value is None else self._inner.read(value, path)

    def parse(self, text: str, path: str) -> Any:
        return self._inner.parse(text, path)

    def schema(self) -> Schema:
        inner = self._inner.schema()
        return {"anyOf": [inner, {"type": "null"}]} if inner else {}


class Array:
    """A list; in a query, separated by commas."""

    def __init__(self, inner: Shape, *, least: int = 0, most: int = 10_000) -> None:
        self._inner, self._least, self._most = inner, least, most

    def read(self, value: Any, path: str) -> list[Any]:
        if not isinstance(value, list) or not self._least <= len(value) <= self._most:
            raise _refuse(path, f"a list of {self._least} to {self._most} entries", value)
        return [self._inner.read(each, f"{path}[{i}]") for i, each in enumerate(value)]

    def parse(self, text: str, path: str) -> list[Any]:
        return [self._inner.parse(part, path) for part in text.split(",")]

    def schema(self) -> Schema:
        return {"type": "array", "items": self._inner.schema(), "minItems": self._least, "maxItems": self._most}


class Mapped:
    """An object with any names and one shape of values."""

    def __init__(self, inner: Shape, *, most: int = 1000) -> None:
        self._inner, self._most = inner, most

    def read(self, value: Any, path: str) -> dict[str, Any]:
        if not isinstance(value, dict) or len(value) > self._most:
            raise _refuse(path, f"an object of at most {self._most} members", value)
        for name in value:
            _require_unicode(name, path)
        return {name: self._inner.read(each, f"{path}.{name}") for name, each in value.items()}

    def parse(self, text: str, path: str) -> Any:
        raise _refuse(path, "an object", text)

    def schema(self) -> Schema:
        return {"type": "object", "additionalProperties": self._inner.schema(), "maxProperties": self._most}


class Object:
    """An object with known members. What is not `required` may be missing; what is not known is refused."""

    def __init__(self, members: Mapping[str, Shape], *, required: tuple[str, ...] = (), open: bool = False) -> None:
        self._members, self._required, self._open = dict(members), required, open

    def read(self, value: Any, path: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _refuse(path, "an object", value)
        for name in self._required:
            if name not in value:
                raise bad_request(f"{path}.{name} is missing")
        found = {}
        for name, each in value.items():
            shape = self._members.get(name)
            if shape is not None:
                found[name] = shape.read(each, f"{path}.{name}")
            elif not self._open:
                known = ", ".join(self._members)
                raise bad_request(f"{path} has no member '{name[:80]}'; it has {known}", "unknown-member")
        return found

    def parse(self, text: str, path: str) -> Any:
        raise _refuse(path, "an object", text)

    def schema(self) -> Schema:
        properties = {name: shape.schema() for name, shape in self._members.items()}
        found: Schema = {"type": "object", "properties": properties, "additionalProperties": self._open}
        if self._required:
            found["required"] = list(self._required)
        return found


class Described:
    """A shape with a JSON Schema given by hand, or a few words and an example added to its own."""

    def __init__(
        self, inner: Shape, description: str = "", *, example: Any = None, schema: Schema | None = None
    ) -> None:
        self._inner, self._description, self._example, self._schema = inner, description, example, schema

    def read(self, value: Any, path: str) -> Any:
        return self._inner.read(value, path)

    def parse(self, text: str, path: str) -> Any:
        return self._inner.parse(text, path)

    def schema(self) -> Schema:
        found = dict(self._schema if self._schema is not None else self._inner.schema())
        if self._description:
            found["description"] = self._description
        if self._example is not None:
            found["examples"] = [self._example]
        return found
