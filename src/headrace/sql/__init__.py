"""Topics as tables of SQL, without Spark: DuckDB over the columnar client.

import headrace.sql

headrace.sql.query("SELECT customer, sum(total) FROM orders GROUP BY customer").to_pandas()
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .api import query, stream, table
    from .errors import SqlError
    from .union import UnionTable

__all__ = ["SqlError", "UnionTable", "query", "stream", "table"]

_HOMES: Final = {
    "SqlError": "errors",
    "UnionTable": "union",
    "query": "api",
    "stream": "api",
    "table": "api",
}


def __getattr__(name: str) -> Any:
    """Load what is asked for, and with it pyarrow, numba and DuckDB, which not every user of the package has."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
