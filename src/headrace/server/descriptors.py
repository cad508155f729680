"""How a broker divides its file descriptors, so that no number of connections can take those of its logs.

    connections, and files that answers are sent from  |  open files of logs  |  all that is opened for a moment
    0 ...                                   connections  ... + log_files        ... + reserve = limit

The system gives the lowest descriptor that is free. So one at or above `connections` says that all below are taken:
a connection that gets it is refused, and an answer from such a file is copied instead of holding it open.
"""

import resource
from typing import NamedTuple

_RESERVE = 256
_UNLIMITED = 1 << 20
LEAST = 128
"""With fewer a broker does not start: a few clients would take those of its logs."""
_LEAST_CONNECTIONS = 256


class TooFewDescriptors(OSError):
    """The process may open too few files."""


class Descriptors(NamedTuple):
    """The shares of a process's descriptors."""

    connections: int
    log_files: int
    reserve: int

    @property
    def limit(self) -> int:
        return self.connections + self.log_files + self.reserve


def divide(limit: int) -> Descriptors:
    """The shares of so many descriptors: the reserve is at most a quarter, logs get a quarter of the rest."""
    reserve = min(_RESERVE, limit // 4)
    log_files = (limit - reserve) // 4
    return Descriptors(connections=limit - reserve - log_files, log_files=log_files, reserve=reserve)


def needed(logs: int) -> int:
    """The limit with which so many logs keep a file open each, beside some hundred connections."""
    for_logs = 4 * logs + _RESERVE
    for_connections = _LEAST_CONNECTIONS * 4 // 3 + _RESERVE
    return max(for_logs, for_connections, 1024)


def raise_limit() -> int:
    """The most files this process may open, after asking for all it may have; `TooFewDescriptors` where no broker can
    live with that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    limit = hard if hard != resource.RLIM_INFINITY else _UNLIMITED
    if limit < LEAST:
        raise TooFewDescriptors(
            f"only {limit} files may be open (ulimit -Hn, LimitNOFILE= in systemd): a broker needs {LEAST} to start, "
            f"and {needed(0)} or more to serve"
        )
    return limit
