"""A query that goes on: rows of what was there, then of what comes, each once.

That can be done where each row of the answer is made of one row of a topic: what is new is read and nothing else. An
aggregate, an order or a join is of all rows, which change; such a query is refused, since a pipeline does that and
keeps its state.
"""

import time
from collections.abc import Callable, Iterator
from typing import Final

import pyarrow as pa

from .engine import Engine
from .errors import SqlError

INTERVAL: Final = 0.25
"""Seconds between looks at the ends of topics."""
_ROW_BY_ROW: Final = frozenset({"PROJECTION", "FILTER", "PYTHON_ARROW_SCAN", "UNION", "UNNEST", "EMPTY_RESULT"})
_WORDS: Final = {
    "AGGREGATE": "an aggregate",
    "GROUP_BY": "GROUP BY or DISTINCT",
    "ORDER": "ORDER BY",
    "TOP_N": "ORDER BY",
    "LIMIT": "LIMIT",
    "WINDOW": "a window function",
    "JOIN": "a join",
    "CROSS_PRODUCT": "a join",
}
_HINT: Final = "leave out --follow, or let a pipeline keep the answer (`headrace pipeline`)"


def check_followable(engine: Engine, statement: str) -> None:
    """SqlError unless each row of a prepared query's answer is made of one row of a topic."""
    if not engine.read_topics or not engine.reads_only_topics:
        raise SqlError("only topics can be followed, and the query reads no topic, or other tables too")
    for operator in engine.operators(statement):
        if operator not in _ROW_BY_ROW:
            what = next((words for part, words in _WORDS.items() if part in operator), operator)
            raise SqlError(f"a query with {what} cannot be followed: its answer changes with every record; {_HINT}")


def follow(
    engine: Engine, sql: str, wait: Callable[[float], None] = time.sleep
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The columns of a query, and its rows without an end; an empty batch stands for a wait."""
    statement = engine.prepare(sql)
    check_followable(engine, statement)
    first = engine.run(statement)
    return first.schema, _rows(engine, statement, first, wait)


def _rows(
    engine: Engine, statement: str, reader: pa.RecordBatchReader, wait: Callable[[float], None]
) -> Iterator[pa.RecordBatch]:
    schema = reader.schema
    nothing = pa.RecordBatch.from_pylist([], schema)
    while True:
        yield from reader
        yield nothing
        while not engine.advance():
            wait(INTERVAL)
        reader = engine.run(statement)
