"""The tree of values that a simulated store's sessions share."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from headrace.cluster.commits import ancestors
from headrace.cluster.store import (
    ANY_VERSION,
    AlreadyExists,
    Check,
    Create,
    Delete,
    Entries,
    NotFound,
    Operation,
    Put,
    StoreError,
    VersionConflict,
    Versioned,
)

Fire = Callable[[], None]
_ROOT: Final = ""


@dataclass(frozen=True, slots=True)
class _Node:
    """A value; or None for what is only there because something is below it."""

    value: bytes | None
    version: int
    created: int
    owner: int = 0
    """The session with which it goes; 0 for none."""


@dataclass(frozen=True, slots=True)
class TreeSnapshot:
    """A tree as it was."""

    commits: int
    nodes: Mapping[str, _Node]

    def entries(self, prefix: str) -> Entries:
        """What it holds below a key."""
        held = [(key, self.nodes[key]) for key in sorted(self.nodes) if key.startswith(prefix)]
        return [
            (key, Versioned(node.value, node.version, node.created)) for key, node in held if node.value is not None
        ]


class Tree:
    """Values with versions, changed by several operations at once or not at all; it tells who watches."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {_ROOT: _Node(None, 0, 0)}
        self._names: dict[str, set[str]] = {_ROOT: set()}
        self._before: dict[str, _Node | None] = {}
        """What the keys that the running commit has touched were."""
        self._commits = 0
        self._key_watches: dict[str, list[Fire]] = {}
        self._name_watches: dict[str, list[Fire]] = {}
        self.changed: Callable[[Iterable[str]], None] | None = None
        """Told of the keys that each commit has changed, by whomever."""

    def get(self, key: str) -> Versioned | None:
        node = self._nodes.get(key)
        return None if node is None or node.value is None else Versioned(node.value, node.version, node.created)

    def list(self, prefix: str) -> Entries:
        keys = sorted(key for key in self._nodes if key.startswith(prefix))
        return [(key, found) for key in keys if (found := self.get(key)) is not None]

    def names(self, parent: str) -> "Sequence[str]":
        """What is right below a key, sorted."""
        return sorted(self._names.get(parent, ()))

    def watch(self, key: str, fire: Fire) -> None:
        """`fire` is called once, at the next change of the key."""
        self._key_watches.setdefault(key, []).append(fire)

    def watch_names(self, parent: str, fire: Fire) -> None:
        """`fire` is called once, when a key right below the parent comes or goes."""
        self._name_watches.setdefault(parent, []).append(fire)

    def commit(self, operations: Sequence[Operation], session: int) -> None:
        """Does all, or raises what is wrong with the first that cannot be done, and does none."""
        self._commits += 1
        try:
            for operation in operations:
                self._do(operation, session)
        except BaseException:
            self._take_back()
            raise
        self._fire()

    def end_session(self, session: int) -> None:
        """Removes what is ephemeral and of that session, all at once."""
        self._commits += 1
        for key in [key for key, node in self._nodes.items() if node.owner == session]:
            self._set(key, None)
        self._fire()

    def snapshot(self) -> "TreeSnapshot":
        """All values that do not go with a session, as of now."""
        return TreeSnapshot(self._commits, {key: node for key, node in self._nodes.items() if not node.owner})

    def set_back(self, snapshot: "TreeSnapshot", *, renumber: bool = False) -> None:
        """Be what a snapshot holds, as after a restore from a backup. Commits are counted from there, or with
        `renumber` from far above, as ZooKeeper's are after an election.
        """
        kept = snapshot.nodes
        for key in sorted((key for key in self._nodes if key not in kept), reverse=True):
            self._set(key, None)
        for key, node in sorted(kept.items()):
            if self._nodes.get(key) is not node:
                self._set(key, node)
        self._commits = snapshot.commits + ((1 << 32) if renumber else 0)
        self._fire()

    def _do(self, operation: Operation, session: int) -> None:
        key = operation.key
        if isinstance(operation, Create):
            self._create(operation, session)
            return
        node = self._nodes.get(key)
        if node is None or node.value is None:
            raise NotFound(key)
        if operation.expected_version not in (ANY_VERSION, node.version):
            raise VersionConflict(key)
        match operation:
            case Put():
                self._set(key, replace(node, value=operation.value, version=node.version + 1))
            case Delete():
                self._delete(key)
            case Check():
                pass

    def _create(self, operation: Create, session: int) -> None:
        key = operation.key
        node = self._nodes.get(key)
        if node is not None and node.value is not None:
            raise AlreadyExists(key)
        if node is not None and self._names[key]:
            raise StoreError(f"{key} cannot be created after keys below it; create it first")
        for parent in ancestors(key):
            above = self._nodes.get(parent)
            if above is None:
                self._set(parent, _Node(None, 0, self._commits))
            elif above.owner:
                raise StoreError(f"{key} cannot be created: a key above it is ephemeral")
        self._set(key, _Node(operation.value, 0, self._commits, session if operation.ephemeral else 0))

    def _delete(self, key: str) -> None:
        if self._names[key]:
            raise StoreError(f"{key} cannot be deleted while keys are below it; delete those first, in the same commit")
        self._set(key, None)

    def _set(self, key: str, node: _Node | None) -> None:
        self._before.setdefault(key, self._nodes.get(key))
        parent, _, name = key.rpartition("/")
        if node is None:
            del self._nodes[key], self._names[key]
            self._names[parent].discard(name)
        else:
            self._nodes[key] = node
            self._names.setdefault(key, set())
            self._names[parent].add(name)

    def _take_back(self) -> None:
        before, self._before = self._before, {}
        for key in sorted((key for key, node in before.items() if node is None and key in self._nodes), reverse=True):
            self._set(key, None)
        for key, node in sorted(before.items()):
            if node is not None:
                self._set(key, node)
        self._before = {}

    def _fire(self) -> None:
        before, self._before = self._before, {}
        fired: list[Fire] = []
        for key, node in before.items():
            now = self._nodes.get(key)
            if now is not node:
                fired += self._key_watches.pop(key, ())
            if node is None or now is None or node.created != now.created:
                fired += self._name_watches.pop(key.rpartition("/")[0], ())
            if now is None:
                fired += self._name_watches.pop(key, ())
        for fire in fired:
            fire()
        if self.changed is not None:
            self.changed(before)
