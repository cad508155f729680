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


def raise_limit() -> int:
    """The most files this process may open, after asking for all it may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard != resource.RLIM_INFINITY else _UNLIMITED
