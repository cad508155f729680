"""What a user sees of a query that cannot go on: one sentence, after the few lines that Spark puts before it."""

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Final, ParamSpec, TypeVar

from headrace.client.errors import ClientError, ClusterUnreachable
from headrace.client.registry import RegistryUnreachable
from headrace.config.setting import ConfigError

P = ParamSpec("P")
T = TypeVar("T")

_PASSING: Final = frozenset(
    {
        "_TRANSPORT",
        "_TIMED_OUT",
        "REQUEST_TIMED_OUT",
        "NETWORK_EXCEPTION",
        "LEADER_NOT_AVAILABLE",
        "NOT_LEADER_OR_FOLLOWER",
        "REPLICA_NOT_AVAILABLE",
        "NOT_ENOUGH_REPLICAS",
        "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
        "KAFKA_STORAGE_ERROR",
        "COORDINATOR_NOT_AVAILABLE",
        "COORDINATOR_LOAD_IN_PROGRESS",
        "NOT_COORDINATOR",
    }
)
"""What a cluster answers while a part of it is away."""


class QueryError(Exception):
    """A query cannot be planned or cannot go on; the message says why and what to do."""


class Unreachable(QueryError):
    """The cluster, a part of it or a schema registry does not answer: nothing is wrong with the query."""


_MARK: Final = f"{Unreachable.__module__}.{Unreachable.__qualname__}"


def is_unreachable(error: BaseException) -> bool:
    """Whether an error, as Spark hands it on, says that the cluster was away."""
    return isinstance(error, Unreachable) or _MARK in str(error)


def plain_error(error: ConfigError | ClientError) -> QueryError:
    """The error for a user, without the way it came."""
    is_away = isinstance(error, (ClusterUnreachable, RegistryUnreachable)) or getattr(error, "code", "") in _PASSING
    return Unreachable(str(error)) if is_away else QueryError(str(error))


def with_query_errors(call: Callable[P, T]) -> Callable[P, T]:
    """Let what Spark calls raise `QueryError` for the errors we know, without the way they came."""

    @wraps(call)
    def plain(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return call(*args, **kwargs)
        except (ConfigError, ClientError) as error:
            raise plain_error(error) from None

    return plain


def iterate_with_query_errors(rows: Iterator[T]) -> Iterator[T]:
    """The same for what Spark takes one by one."""
    try:
        yield from rows
    except (ConfigError, ClientError) as error:
        raise plain_error(error) from None
