"""Regular expressions that come from outside: RE2's, which never backtracks, so that what one costs can be told before.

Matching takes at most a step for each instruction of the compiled expression and each byte of the text. Both are
bounded here, so that no expression keeps an event loop busy for long; who matches many texts sums up their `cost`.
"""

from functools import lru_cache
from typing import Final

import re2

LONGEST: Final = 1024
"""Characters of an expression."""
MOST_INSTRUCTIONS: Final = 2_000
MOST_STEPS: Final = 1_000_000
"""For one text: at the worst some 30 ms."""
_MOST_MEMORY: Final = 256 * 1024
_CALL: Final = 200
"""What a match costs besides its steps, in steps."""


class PatternError(ValueError):
    """An expression that is none, or that costs too much."""


class Pattern:
    """One expression. Where it and all texts are ASCII, `of_ascii`, it has a third of the instructions."""

    __slots__ = ("_compiled", "instructions")

    def __init__(self, expression: str, *, of_ascii: bool = False) -> None:
        if len(expression) > LONGEST:
            raise PatternError(f"it is longer than {LONGEST} characters")
        options = re2.Options()
        options.max_mem = _MOST_MEMORY
        options.log_errors = False
        if of_ascii and expression.isascii():
            options.encoding = re2.Options.Encoding.LATIN1  # a character is one byte, not one of many sequences
        try:
            self._compiled = re2.compile(expression.encode(), options)
        except re2.error as error:
            raise PatternError(_reason(error)) from None
        except UnicodeEncodeError as error:
            raise PatternError(str(error)) from None
        self.instructions: int = self._compiled.programsize
        if self.instructions > MOST_INSTRUCTIONS:
            raise PatternError("it is too large")

    def cost(self, text: str) -> int:
        """The most steps that a match against a text can take."""
        return _CALL + self.instructions * (len(text) + 1)

    def matches(self, text: str) -> bool:
        """Whether it matches the whole text."""
        return self._compiled.fullmatch(self._bounded(text)) is not None

    def finds(self, text: str) -> bool:
        """Whether it matches somewhere in the text."""
        return self._compiled.search(self._bounded(text)) is not None

    def _bounded(self, text: str) -> bytes:
        if self.instructions * len(text) > MOST_STEPS:
            raise PatternError(f"it is too large for a text of {len(text)} characters")
        return text.encode(errors="surrogatepass")


def _reason(error: Exception) -> str:
    (found,) = error.args or ("",)
    return found.decode(errors="replace") if isinstance(found, bytes) else str(found)


@lru_cache(maxsize=64)
def pattern(expression: str, *, of_ascii: bool = False) -> Pattern:
    """The expression, ready to match; `PatternError` where it is none, or too large."""
    return Pattern(expression, of_ascii=of_ascii)
