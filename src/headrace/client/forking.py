"""Clients across a fork: librdkafka's threads stay behind in the parent, and who asks the copy waits for ever."""

import os
from typing import Final, Protocol
from weakref import WeakSet

from .errors import ClientError


class LibraryClient(Protocol):
    """A client that stands on librdkafka."""

    def leave_to_parent(self, stub: "LeftBehind") -> None:
        """Put the stub in librdkafka's place, and keep that: to end it is to wait, too."""


class LeftBehind:
    """Stands in the place of librdkafka in a child process."""

    def __getattr__(self, name: str) -> object:
        raise ClientError("this client was made before a fork and is the parent's: make one in each process", "_STATE")


_CLIENTS: Final[WeakSet[LibraryClient]] = WeakSet()


def stays_with_parent(client: LibraryClient) -> None:
    """Have a client refuse to work in children that are forked from now on."""
    _CLIENTS.add(client)


def _leave_to_parent() -> None:
    for client in tuple(_CLIENTS):
        client.leave_to_parent(LeftBehind())


os.register_at_fork(after_in_child=_leave_to_parent)
