"""Which tables a query reads, found without Spark, so that a declaration is checked before a JVM starts.

Not a parser: it knows where names of tables can stand (after FROM and JOIN, and after the commas between them), and
the places that only look so (`EXTRACT(year FROM t)`, `IS DISTINCT FROM`, `LATERAL VIEW`). Spark judges the rest.
"""

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

_TOKEN: Final = re.compile(
    r"""
    (?P<skip>\s+|--[^\n]*|/\*.*?\*/)
  | (?P<string>'(?:\\.|''|[^'\\])*'|"(?:\\.|""|[^"\\])*")
  | (?P<quoted>`(?:``|[^`])+`)
  | (?P<word>[^\W\d]\w*)
  | (?P<other>\d\w*|.)
    """,
    re.VERBOSE | re.DOTALL,
)
_TAKES_FROM: Final = frozenset({"EXTRACT", "TRIM", "SUBSTRING", "SUBSTR", "OVERLAY", "POSITION", "DATE_PART"})
_ENDS_FROM: Final = frozenset(
    {"SELECT", "WHERE", "GROUP", "ORDER", "HAVING", "LIMIT", "WINDOW", "UNION", "EXCEPT", "INTERSECT", "MINUS"}
    | {"CLUSTER", "DISTRIBUTE", "SORT", "QUALIFY", "PIVOT", "UNPIVOT", "LATERAL"}
)
_BEFORE_A_TABLE: Final = frozenset({"LATERAL", "STREAM"})
_NO_TABLES: Final = frozenset({"SELECT", "VALUES", "WITH", "FROM", "TABLE"})


class _Token(NamedTuple):
    kind: str
    text: str

    @property
    def upper(self) -> str:
        """A keyword in one spelling; nothing for what cannot be one."""
        return self.text.upper() if self.kind == "word" else ""

    @property
    def name(self) -> str | None:
        if self.kind == "quoted":
            return self.text[1:-1].replace("``", "`")
        return self.text if self.kind == "word" else None


@dataclass(slots=True)
class _Level:
    """What is known within one pair of parentheses."""

    in_function: bool = False
    in_from: bool = False
    expects_table: bool = False


_END: Final = _Token("other", "")


def tables_in(query: str) -> list[str]:
    """The names of the tables a query reads, in order, each once; not those of catalogs (`a.b`) and of WITH."""
    tokens = [_Token(str(m.lastgroup), m[0]) for m in _TOKEN.finditer(query) if m.lastgroup != "skip"]
    inner = _common_tables(tokens)
    found: dict[str, str] = {}
    for position, name in _references(tokens):
        if position <= inner.get(name.lower(), position):
            found.setdefault(name.lower(), name)
    return list(found.values())


def _references(tokens: list[_Token]) -> list[tuple[int, str]]:
    """The names of tables, and where each stands."""
    references: list[tuple[int, str]] = []
    levels = [_Level()]
    for position, token in enumerate(tokens):
        before = tokens[position - 1] if position else _END
        after = tokens[position + 1] if position + 1 < len(tokens) else _END
        if token.text == "(":
            levels.append(_Level(before.upper in _TAKES_FROM, False, levels[-1].expects_table))
        elif token.text == ")" and len(levels) > 1:
            levels.pop()
            levels[-1].expects_table = False
        elif _at_table(levels[-1], token):
            levels[-1].expects_table = False
            if token.name is not None and after.text not in (".", "("):
                references.append((position, token.name))
        else:
            _advance(levels[-1], token, before)
    return references


def _at_table(level: _Level, token: _Token) -> bool:
    return level.expects_table and token.upper not in _NO_TABLES and token.upper not in _BEFORE_A_TABLE


def _advance(level: _Level, token: _Token, before: _Token) -> None:
    """Take in a token that is not itself the name of a table."""
    if token.upper == "FROM":
        if not level.in_function and before.upper != "DISTINCT":
            level.in_from = level.expects_table = True
    elif token.upper == "JOIN":
        level.in_from = level.expects_table = True
    elif token.text == ",":
        level.expects_table = level.in_from
    elif level.expects_table and token.upper in _BEFORE_A_TABLE:
        return
    elif token.upper in _ENDS_FROM or token.upper in _NO_TABLES:
        level.in_from = level.expects_table = False


def _common_tables(tokens: list[_Token]) -> dict[str, int]:
    """Names that WITH gives to queries, and the place from which on each means its query.

    They are those before `AS (`, with or without a list of columns between. A query does not see its own name unless
    it is recursive: in `WITH orders AS (SELECT * FROM orders)` the second is a table.
    """
    is_recursive = any(token.upper == "RECURSIVE" for token in tokens)
    tables: dict[str, int] = {}
    for position in range(1, len(tokens) - 1):
        if tokens[position].upper == "AS" and tokens[position + 1].text == "(":
            name = tokens[_before_columns(tokens, position - 1)].name
            if name is not None:
                tables.setdefault(name.lower(), position if is_recursive else _closing(tokens, position + 1))
    return tables


def _closing(tokens: list[_Token], opening: int) -> int:
    """Where the parenthesis that opens there is closed; the end of the query if it never is."""
    depth = 0
    for position in range(opening, len(tokens)):
        depth += {"(": 1, ")": -1}.get(tokens[position].text, 0)
        if not depth:
            return position
    return len(tokens)


def _before_columns(tokens: list[_Token], position: int) -> int:
    if tokens[position].text != ")":
        return position
    while position > 0 and tokens[position].text != "(":
        position -= 1
    return max(position - 1, 0)
