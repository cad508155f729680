"""What a query says, taken apart by DuckDB's own parser: one SELECT, and the tables it names."""

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from headrace.config.names import nearest, shown

from .errors import SqlError

DATABASE: Final = "headrace"
"""What topics can be called by: `orders`, or `headrace.orders`."""
_READING: Final = frozenset({"SELECT", "EXPLAIN"})


class TableName(NamedTuple):
    """A table, as a query names it."""

    database: str
    name: str


def single_statement(connection: Any, sql: str) -> str:
    """The text of the one statement there is; SqlError unless it only reads."""
    try:
        statements = connection.extract_statements(sql)
    except Exception as error:
        raise SqlError(first_line(error)) from None
    if len(statements) != 1:
        raise SqlError("there is no query" if not statements else "several statements: give one query at a time")
    kind = statements[0].type.name
    if kind not in _READING:
        hint = "" if kind != "MULTI" else "; write it with aggregates and CASE"
        raise SqlError(f"only queries are run here, SELECT, WITH, FROM and the like: no {kind}{hint}")
    text: str = statements[0].query
    return text.rstrip().rstrip(";")


def table_names(connection: Any, sql: str) -> list[TableName]:
    """The tables that a query names; none of what DuckDB cannot tell of before it runs it."""
    (written,) = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [_explained(sql)]).fetchall()[0]
    parsed = json.loads(written)
    if parsed.get("error"):
        return []
    return list(dict.fromkeys(_tables(parsed["statements"])))


def _explained(sql: str) -> str:
    """The query that an EXPLAIN is about."""
    words = sql.split(None, 2)
    if not words or words[0].upper() != "EXPLAIN":
        return sql
    return words[2] if len(words) > 2 and words[1].upper() == "ANALYZE" else sql.split(None, 1)[1]


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
