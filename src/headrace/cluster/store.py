"""Where the state of the cluster is kept: a small tree of values, each with a version.

The interface is what ZooKeeper offers, so that its implementation is a translation: a value is created at version 0,
each change of it adds one, a change names the version it was decided on, and several changes happen together or not
at all. Keys are absolute paths; `list` gives the values under one.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, Protocol

ANY_VERSION: Final = -1
"""An `expected_version` that every version satisfies."""


class Versioned(NamedTuple):
    """A value and how often it was changed."""

    value: bytes
    version: int
    created: int = 0
    """A number that grows with every commit to the store, taken when the key was created: no two creations share it."""


Entries = list[tuple[str, Versioned]]
"""Keys with their values."""


@dataclass(frozen=True, slots=True)
class Create:
    """Adds a key that must not exist. An ephemeral one goes when the session that created it ends."""

    key: str
    value: bytes
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class Put:
    """Changes the value of a key that must exist at that version."""

    key: str
    value: bytes
    expected_version: int


@dataclass(frozen=True, slots=True)
class Delete:
    """Removes a key that must exist at that version."""

    key: str
    expected_version: int


@dataclass(frozen=True, slots=True)
class Check:
    """Changes nothing, but fails the commit unless the key exists at that version."""

    key: str
    expected_version: int


Operation = Create | Put | Delete | Check


class StoreError(Exception):
    """The store cannot be read or written; the message says why and what to do."""


class Conflict(Exception):
    """A commit that did not happen because `key` was not as expected."""

    def __init__(self, key: str) -> None:
        super().__init__(f"{type(self).__name__}: {key}")
        self.key = key


class VersionConflict(Conflict):
    """The key has another version."""


class AlreadyExists(Conflict):
    """The key exists."""


class NotFound(Conflict):
    """The key does not exist."""


class MetadataStore(Protocol):
    """The store as the rest of the broker sees it. Calls raise `StoreError` when the store itself fails."""

    async def get(self, key: str) -> Versioned | None:
        """The value of a key, or None where there is none."""
        ...

    async def list(self, prefix: str) -> Entries:
        """Every key that begins with `prefix`, with its value, in the order of the keys."""
        ...

    async def commit(self, operations: Sequence[Operation]) -> None:
        """Does all operations, in order and durably, or none: then it raises the `Conflict` of the first to fail."""
        ...

    async def close(self) -> None:
        """Ends the use of the store, after what was committed is safe."""
        ...


class SessionState(Enum):
    """What a broker knows of its own session in a shared store."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    """The servers cannot be reached now: the session, and what is ephemeral, may be gone or not."""
    LOST = "lost"
    """The session has ended, and with it everything ephemeral it created. `CONNECTED` may follow, with a new one."""


class SharedStore(MetadataStore, Protocol):
    """A store that many brokers use at once, each in a session of its own.

    A commit whose outcome is unknown (the connection broke while it was under way) raises `Uncertain`: the caller
    reads to learn what became of it. Nothing is retried here that could happen twice.

    Keys are created before those below them and deleted after them; `commits` says how much fits in one commit. A
    commit belongs to the session it was asked in. Reads wait for servers that cannot be reached, for some seconds;
    `list` shows all that was committed before it was called, the others what the session's server knows by then.
    """

    @property
    def session(self) -> SessionState:
        """The session as it is now."""
        ...

    @property
    def session_seconds(self) -> float:
        """How long a session lasts when nothing is heard of it, as the servers have granted it."""
        ...

    def silence(self) -> float:
        """The seconds since anything was heard of the servers, as far as is known."""
        ...

    def on_session(self, told: Callable[[SessionState], None]) -> None:
        """`told` is called on the loop with each change of the session, in order."""
        ...

    async def watch(self, key: str) -> "tuple[Versioned | None, asyncio.Event]":
        """The value of a key, and what is set once when the key is created, changed or deleted after that.

        It is also set when the session changes: then nothing is known, and the caller watches anew.
        """
        ...

    async def watch_children(self, parent: str) -> "tuple[list[str], asyncio.Event]":
        """The names right below a key, sorted, and what is set once when one comes or goes (or the session changes)."""
        ...


class Uncertain(StoreError):
    """A commit that may have happened or not."""
