"""Where the state of the cluster is kept: a small tree of values, each with a version.

The interface is what ZooKeeper offers, so that its implementation is a translation: a value is created at version 0,
each change of it adds one, a change names the version it was decided on, and several changes happen together or not
at all. Keys are absolute paths; `list` gives the values under one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

ANY_VERSION: Final = -1
"""An `expected_version` that every version satisfies."""


class Versioned(NamedTuple):
    """A value and how often it was changed."""

    value: bytes
    version: int


Entries = list[tuple[str, Versioned]]
"""Keys with their values."""


@dataclass(frozen=True, slots=True)
class Create:
    """Adds a key that must not exist."""

    key: str
    value: bytes


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


class Conflict(Exception):  # noqa: N818 - the store works as it should, another was faster
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
