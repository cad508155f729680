"""The words of a .proto file."""

import re
from typing import Final, NoReturn

from ..errors import InvalidSchemaError

_TOKEN: Final = re.compile(
    r"(?P<skip>\s+|//[^\n]*|/\*.*?\*/)"
    r"|(?P<text>\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*')"
    r"|(?P<number>[0-9](?:[0-9A-Za-z_.]|(?<=[eE])[+-])*|\.[0-9]+(?:[eE][+-]?[0-9]+)?)"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<symbol>[-+.,;:=(){}\[\]<>/])",
    re.DOTALL,
)
_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_ESCAPE: Final = re.compile(r"\\(x[0-9A-Fa-f]{1,2}|[0-7]{1,3}|u[0-9A-Fa-f]{4}|.)", re.DOTALL)


class Tokens:
    """The words of a file, one ahead."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self.kind = ""
        self.value = ""
        self.advance()

    def advance(self) -> str:
        """Step over the current token, and give it."""
        before = self.value
        while True:
            if self._position >= len(self._text):
                self.kind, self.value = "end", ""
                return before
            match = _TOKEN.match(self._text, self._position)
            if match is None:
                self.fail(f"unexpected {self._text[self._position]!r}")
            self._position = match.end()
            if match.lastgroup != "skip":
                self.kind, self.value = match.lastgroup or "", match.group()
                return before

    def fail(self, reason: str) -> NoReturn:
        line = self._text.count("\n", 0, self._position) + 1
        raise InvalidSchemaError(f"line {line}: {reason}")

    def take(self, value: str) -> bool:
        """Step over a token if it is this one."""
        if self.value == value and self.kind != "text":
            self.advance()
            return True
        return False

    def expect(self, value: str) -> None:
        if not self.take(value):
            self.fail(f"expected {value!r}, found {self.value or 'the end'!r}")

    def name(self) -> str:
        if self.kind != "name":
            self.fail(f"expected a name, found {self.value or 'the end'!r}")
        return self.advance()

    def dotted(self) -> str:
        """A name with dots in it, perhaps before it."""
        parts = ["."] if self.take(".") else []
        parts.append(self.name())
        while self.take("."):
            parts += [".", self.name()]
        return "".join(parts)

    def text(self) -> str:
        if self.kind != "text":
            self.fail(f"expected a string, found {self.value or 'the end'!r}")
        found = ""
        while self.kind == "text":
            found += _ESCAPE.sub(_unescape, self.advance()[1:-1])
        return found

    def integer(self) -> int:
        sign = -1 if self.take("-") else 1
        if self.kind != "number":
            self.fail(f"expected a number, found {self.value or 'the end'!r}")
        word = self.advance()
        try:
            return sign * (int(word, 8) if re.fullmatch(r"0[0-7]+", word) else int(word, 0))
        except ValueError:
            self.fail(f"not a whole number: {word!r}")


def _unescape(match: re.Match[str]) -> str:
    code = match.group(1)
    if code[0] in "xu":
        return chr(int(code[1:], 16))
    if code[0] in "01234567":
        return chr(int(code, 8) & 0xFF)
    return _ESCAPES.get(code, code)
