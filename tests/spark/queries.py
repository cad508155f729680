"""Streaming queries on a machine that may be busy."""

from collections.abc import Callable
from typing import Any, TypeVar

Query = TypeVar("Query")

_TOO_SLOW = "Python worker failed to connect back"
_STARTS = 6


def started(start: Callable[[], Query], settle: Callable[[Query], Any]) -> Query:
    """A query that has started and `settle`d.

    Spark gives the Python process of a source ten seconds to answer, and has no setting for it. A query that failed
    for that has read nothing, and is started again.
    """
    for _ in range(_STARTS - 1):
        query = start()
        try:
            settle(query)
        except Exception as error:
            if _TOO_SLOW not in str(error):
                raise
        else:
            return query
    query = start()
    settle(query)
    return query
