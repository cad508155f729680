"""What a query says, taken apart by DuckDB's own parser: one SELECT, and the tables it names."""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from headrace.config.names import nearest, shown

from .errors import SqlError

DATABASE: Final = "headrace"
"""What topics can be called by: `orders`, or `headrace.orders`."""
_READING: Final = frozenset({"SELECT", "EXPLAIN"})
_READING_NODES: Final = frozenset({"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"})
"""What queries consist of; there are others, as a WITH may have parts that write."""
_GAP: Final = r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/)*"
_EXPLAIN: Final = re.compile(
    rf"{_GAP}EXPLAIN\b{_GAP}(?:(ANALYZE|ANALYSE)\b{_GAP})?(\((?:ANALYZE|ANALYSE|FORMAT)\b[\w\s,]*\){_GAP})?",
    re.IGNORECASE | re.DOTALL,
)
"""EXPLAIN and its options, up to its query."""


class TableName(NamedTuple):
    """A table, as a query names it."""

    database: str
    name: str


def single_statement(connection: Any, sql: str) -> str:
    """The text of the one statement there is; SqlError unless it only reads."""
    kind, text = _only_one(connection, sql)
    if kind != "EXPLAIN":
        _parsed(connection, text)
        return text
    # Explained is what was looked at, and nothing else: EXPLAIN ANALYZE runs its statement, whatever that is.
    explains = _EXPLAIN.match(text)
    kind, query = _only_one(connection, text[explains.end() if explains else 0 :])
    if kind != "SELECT":
        raise SqlError(f"only queries are explained here: no {kind}")
    _parsed(connection, query)
    words = explains.groups("") if explains else ("", "")
    return " ".join(("EXPLAIN", *(word for word in words if word), query))


def explained(statement: str) -> str:
    """The query that an EXPLAIN of `single_statement` is about; other statements as they are."""
    explains = _EXPLAIN.match(statement)
    return statement[explains.end() :] if explains else statement


def table_names(connection: Any, statement: str) -> list[TableName]:
    """The tables that a statement names; none of what DuckDB cannot tell of before it runs it."""
    return list(dict.fromkeys(_tables(_parsed(connection, explained(statement)))))


def _only_one(connection: Any, sql: str) -> tuple[str, str]:
    """The kind and the text of the one statement there is."""
    try:
        statements = connection.extract_statements(sql)
    except Exception as error:
        raise SqlError(first_line(error)) from None
    if len(statements) != 1:
        raise SqlError("there is no query" if not statements else "several statements: give one query at a time")
    kind: str = statements[0].type.name
    if kind not in _READING:
        hint = "" if kind != "MULTI" else "; write it with aggregates and CASE"
        raise SqlError(f"only queries are run here, SELECT, WITH, FROM and the like: no {kind}{hint}")
    text: str = statements[0].query
    return kind, text.rstrip().rstrip(";")


def _parsed(connection: Any, query: str) -> Any:
    """A query as DuckDB's parser has it; SqlError if there is a part in it that writes, such as WITH x AS (COPY …)."""
    (written,) = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [query]).fetchall()[0]
    parsed = json.loads(written)
    if parsed.get("error"):
        raise SqlError(f"only queries are run here, and this is none: {parsed.get('error_message', 'unknown')}")
    statements = parsed["statements"]
    for kind in _node_kinds(statements):
        if kind not in _READING_NODES:
            what = kind.removesuffix("_NODE").removesuffix("_QUERY")
            raise SqlError(f"only queries are run here, SELECT, WITH, FROM and the like: no {what} within one")
    return statements


def _node_kinds(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if "cte_map" in node:
            yield str(node.get("type"))
        for child in node.values():
            yield from _node_kinds(child)
    elif isinstance(node, list):
        for child in node:
            yield from _node_kinds(child)


def _tables(node: Any) -> Iterator[TableName]:
    if isinstance(node, dict):
        name = node.get("table_name")
        if isinstance(name, str) and name and "schema_name" in node:
            yield TableName(node.get("catalog_name") or node["schema_name"], name)
        for child in node.values():
            yield from _tables(child)
    elif isinstance(node, list):
        for child in node:
            yield from _tables(child)


def portable_name(topic: str) -> str:
    """The name of a topic that needs no quotes: Spark's catalogs know no others."""
    return "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in topic)


def topic_of(name: str, topics: Iterable[str]) -> str | None:
    """The topic that a table's name stands for, None if there is none.

    It is the topic of this very name; or, as SQL does not tell upper from lower case, the only one that is so called
    but for that; or the only one whose name has `.` and `-` where this has `_`.
    """
    known = list(topics)
    if name in known:
        return name
    for alike in (str.lower, lambda topic: portable_name(topic).lower()):
        found = [topic for topic in known if alike(topic) == name.lower()]
        if len(found) > 1:
            raise SqlError(f"table {shown(name)} may be any of the topics {', '.join(found)}; quote the name of one")
        if found:
            return found[0]
    return None


def no_such_table(name: str, topics: Iterable[str]) -> SqlError:
    """The error for a table that is no topic."""
    return SqlError(f"there is no topic {shown(name)}{nearest(name, list(topics))}", "UNKNOWN_TOPIC_OR_PART")


def first_line(error: Exception) -> str:
    """DuckDB's message without the place in the text that it draws, and in one line."""
    text = str(error).split("\n\nLINE ")[0].strip()
    return " ".join(text.split())
