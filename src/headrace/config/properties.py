"""Reading `.properties` files as Java does, so that a Kafka broker's file can be taken as it is."""

import re
from collections.abc import Iterator
from typing import Final

_KEY: Final = re.compile(r"((?:\\.|[^\\:=\s])*)\s*[:=]?\s*(.*)", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> dict[str, str]:
    """Names and values; where a name stands twice the last one counts."""
    return {name: value for _, name, value in parse_property_lines(text)}


def parse_property_lines(text: str) -> Iterator[tuple[int, str, str]]:
    """Names and values, each with the number of the line on which it begins."""
    for number, line in _logical_lines(text):
        match = _KEY.fullmatch(line)
        assert match is not None
        yield number, _unescaped(match[1]), _unescaped(match[2])


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines without comments and blank ones, those that end in an odd number of backslashes joined to the next."""
    pending, first = "", 0
    for number, raw in enumerate(re.split(r"\r\n|\n|\r", text), 1):
        line = raw.lstrip(" \t\f")
        if not pending and (not line or line[0] in "#!"):
            continue
        first = first if pending else number
        line = pending + line
        if (len(line) - len(line.rstrip("\\"))) % 2:
            pending = line[:-1]
            continue
        pending = ""
        yield first, line
    if pending:
        yield first, pending


def _unescaped(text: str) -> str:
    def replaced(match: re.Match[str]) -> str:
        escape = match[1]
        return chr(int(escape[1:], 16)) if len(escape) == 5 else _ESCAPED.get(escape, escape)

    return _ESCAPE.sub(replaced, text)
