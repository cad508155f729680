"""The limits of a shared store: valid keys, and the size of one commit.

A ZooKeeper server takes requests of up to 1 MiB (its `jute.maxbuffer`) and closes the connection on a longer one, so
that the outcome would look uncertain. A shared store therefore refuses what does not fit before it is sent, and who
has more to say divides it with `portions`.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from .store import Create, Operation, Put, StoreError

MAX_COMMIT_BYTES: Final = 1_000_000
_OVERHEAD_BYTES: Final = 128
"""What an operation takes on the wire besides its key and value: lengths, access rules, the path before the key."""
_NO_NAMES: Final = frozenset(("", ".", ".."))


class CommitTooLarge(StoreError):
    """A commit that no ZooKeeper server would take; nothing of it happened."""


def refuse_bad_commit(operations: Sequence[Operation]) -> None:
    """Raises `StoreError` for what a shared store cannot take, whatever it holds."""
    for operation in operations:
        refuse_bad_key(operation.key)
    total = sum(map(size_of, operations))
    if total > MAX_COMMIT_BYTES:
        largest = max(operations, key=size_of)
        raise CommitTooLarge(
            f"a commit of {len(operations)} operations takes {total} bytes, and {MAX_COMMIT_BYTES} fit;"
            f" the largest is {largest.key} with {size_of(largest)}: divide it"
        )


def refuse_bad_key(key: str) -> None:
    """Raises `StoreError` for what cannot be a path in ZooKeeper."""
    if not key.startswith("/") or has_bad_part(key):
        raise StoreError(f"'{key}' is no key: keys are absolute paths, without empty parts, '.' and '..'")


def has_bad_part(path: str) -> bool:
    """Whether something between the slashes is empty, or a step to elsewhere."""
    return not _NO_NAMES.isdisjoint(path[1:].split("/"))


def ancestors(key: str) -> Iterator[str]:
    """The keys above a key, from the top."""
    end = key.find("/", 1)
    while end != -1:
        yield key[:end]
        end = key.find("/", end + 1)


def size_of(operation: Operation) -> int:
    """The bytes an operation takes on the wire, at most."""
    value = operation.value if isinstance(operation, Create | Put) else b""
    return _OVERHEAD_BYTES + len(operation.key.encode()) + len(value)


def portions(groups: Iterable[Sequence[Operation]], guard: Sequence[Operation] = ()) -> Iterator[list[Operation]]:
    """Commits that hold all groups in order, each group whole in one of them, and `guard` at the front of each."""
    guarded = sum(map(size_of, guard))
    portion: list[Operation] = []
    total = guarded
    for group in groups:
        size = sum(map(size_of, group))
        if portion and total + size > MAX_COMMIT_BYTES:
            yield [*guard, *portion]
            portion, total = [], guarded
        portion += group
        total += size
    if portion:
        yield [*guard, *portion]
