"""What a user sees of a query that cannot go on: one sentence, after the few lines that Spark puts before it."""

from collections.abc import Callable, Iterator
from functools import wraps
from typing import ParamSpec, TypeVar

from headrace.client.errors import ClientError
from headrace.config.setting import ConfigError

P = ParamSpec("P")
T = TypeVar("T")


class QueryError(Exception):
    """A query cannot be planned or cannot go on; the message says why and what to do."""


def plainly(call: Callable[P, T]) -> Callable[P, T]:
    """Let what Spark calls raise `QueryError` for the errors we know, without the way they came."""

    @wraps(call)
    def plain(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return call(*args, **kwargs)
        except (ConfigError, ClientError) as error:
            raise QueryError(str(error)) from None

    return plain


def each_plainly(rows: Iterator[T]) -> Iterator[T]:
    """The same for what Spark takes one by one."""
    try:
        yield from rows
    except (ConfigError, ClientError) as error:
        raise QueryError(str(error)) from None
