"""Streaming queries on a machine that may be busy."""

import time
from collections.abc import Callable
from typing import Any, TypeVar

Query = TypeVar("Query")

_TOO_SLOW = "Python worker failed to connect back"
_PATIENCE = 240.0
"""Seconds in which a busy machine starts it once, however often it fails to."""


def started(start: Callable[[], Query], settle: Callable[[Query], Any]) -> Query:
    """A query that has started and `settle`d.

    Spark gives the Python process of a source ten seconds to answer, and has no setting for it. That process compiles
    all that it imports of PySpark, out of a zip file: a second of processor time, which a machine with a dozen others
    to serve does not have in ten. A query that failed for that has read nothing, and is started again.
    """
    deadline = time.monotonic() + _PATIENCE
    while True:
        query = start()
        try:
            settle(query)
        except Exception as error:
            if _TOO_SLOW not in str(error) or time.monotonic() > deadline:
                raise
        else:
            return query
