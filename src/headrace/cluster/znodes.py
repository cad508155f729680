"""The store's operations in ZooKeeper's terms: translations that decide and touch nothing.

A key is the znode of the same path below a root. ZooKeeper wants a znode's parent to be there first, the store does
not; parents that are no keys themselves are therefore made on the way, as *husks*: znodes whose data is null, which no
key has. A husk is not seen through the store.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple
from urllib.parse import urlsplit

from kazoo.exceptions import (
    EXCEPTIONS,
    BadVersionError,
    NoAuthError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    UnimplementedError,
)
from kazoo.protocol.serialization import (
    CheckVersion,
    GetChildren,
    GetData,
    SetData,
    int_struct,
    multiheader_struct,
    read_buffer,
    read_string,
    stat_struct,
)
from kazoo.protocol.serialization import Create as CreateNode
from kazoo.protocol.serialization import Delete as DeleteNode
from kazoo.security import OPEN_ACL_UNSAFE

from .commits import ancestors, has_bad_part
from .store import (
    AlreadyExists,
    Create,
    Delete,
    NotFound,
    Operation,
    Put,
    StoreError,
    VersionConflict,
    Versioned,
)

SCHEME: Final = "zookeeper://"
_EPHEMERAL: Final = 1


class ZooKeeperAddress(NamedTuple):
    """Where the cluster's state is: servers, and the path below which its keys are ('' for the top)."""

    hosts: str
    root: str


def parse_url(url: str) -> ZooKeeperAddress:
    """The parts of `zookeeper://host:port,host:port/path`; `StoreError` says what is wrong with it."""
    hosts, slash, path = url.removeprefix(SCHEME).partition("/")
    try:
        if not url.startswith(SCHEME):
            raise ValueError(f"it does not begin with {SCHEME}")
        for host in hosts.split(","):
            parts = urlsplit(f"//{host}")
            if not parts.hostname or (parts.port or 1) < 1 or "@" in host:
                raise ValueError(f"'{host}' is not HOST:PORT")
        root = f"/{path.rstrip('/')}" if path.strip("/") else ""
        if root and has_bad_part(root):
            raise ValueError(f"'{slash}{path}' is no path")
    except ValueError as error:
        raise StoreError(f"'{url}' is no place of a store: {error}; write zookeeper://HOST:2181/PATH") from error
    return ZooKeeperAddress(hosts, root)


class Znode(NamedTuple):
    """What is read of a znode."""

    value: bytes | None
    version: int
    created: int
    children: int

    def versioned(self) -> Versioned | None:
        """It as the store shows it: a husk is nothing."""
        return None if self.value is None else Versioned(self.value, self.version, self.created)


def node_of(value: bytes | None, stat: Sequence[int]) -> Znode:
    """A znode from its data and its stat, whose fields begin czxid, mzxid, ctime, mtime, version."""
    return Znode(value, stat[4], stat[0], stat[9])


@dataclass(frozen=True, slots=True)
class MultiRead:
    """Many reads in one request, which ZooKeeper has since 3.6 and kazoo does not: thirty times faster than one each.

    The answer has, for each, the `Node` or the names of its children, None where there is no such znode, or an error.
    """

    operations: Sequence[GetData | GetChildren]
    type: ClassVar[int] = 22

    def serialize(self) -> bytes:
        request = bytearray()
        for operation in self.operations:
            request += multiheader_struct.pack(operation.type, False, -1) + operation.serialize()
        return bytes(request + multiheader_struct.pack(-1, True, -1))

    @classmethod
    def deserialize(cls, answer: bytes, offset: int) -> list[Znode | list[str] | Exception | None]:
        results: list[Znode | list[str] | Exception | None] = []
        while True:
            kind, done, _ = multiheader_struct.unpack_from(answer, offset)
            offset += multiheader_struct.size
            if done:
                return results
            one, offset = _PARTS[kind](answer, offset)
            results.append(one)


def _read_data(answer: bytes, offset: int) -> tuple[Znode, int]:
    value, offset = read_buffer(answer, offset)
    return node_of(value, stat_struct.unpack_from(answer, offset)), offset + stat_struct.size


def _read_names(answer: bytes, offset: int) -> tuple[list[str], int]:
    count = int_struct.unpack_from(answer, offset)[0]
    offset += int_struct.size
    names = []
    for _ in range(count):
        name, offset = read_string(answer, offset)
        names.append(name)
    return names, offset


def _read_failure(answer: bytes, offset: int) -> tuple[Exception | None, int]:
    code = int_struct.unpack_from(answer, offset)[0]
    return None if code == NoNodeError.code else EXCEPTIONS[code](), offset + int_struct.size


_PARTS: Final[Mapping[int, Any]] = {GetData.type: _read_data, GetChildren.type: _read_names, -1: _read_failure}


@dataclass(frozen=True, slots=True)
class Husk:
    """Makes a parent that is no key."""

    key: str


@dataclass(frozen=True, slots=True)
class Crack:
    """Removes a husk that nothing is below, so that a key can take its place."""

    key: str
    version: int


Step = Operation | Husk | Crack


def requests(steps: Sequence[Step], root: str, acl: Sequence[Any] = OPEN_ACL_UNSAFE) -> list[Any]:
    """The parts of one transaction; what it makes has the ACL."""
    return [_request(step, root + step.key, acl) for step in steps]


def _request(step: Step, path: str, acl: Sequence[Any]) -> Any:
    match step:
        case Create():
            return CreateNode(path, step.value, acl, _EPHEMERAL if step.ephemeral else 0)
        case Husk():
            return CreateNode(path, None, acl, 0)
        case Put():
            return SetData(path, step.value, step.expected_version)
        case Delete():
            return DeleteNode(path, step.expected_version)
        case Crack():
            return DeleteNode(path, step.version)
    return CheckVersion(path, step.expected_version)


class Failed(NamedTuple):
    """Why a transaction did not happen."""

    step: Step
    error: Exception


def first_failure(steps: Sequence[Step], results: Sequence[object]) -> Failed | None:
    """The step that failed, None if all is done. Those before it are told as rolled back, those after it as not run."""
    for step, result in zip(steps, results, strict=True):
        if isinstance(result, Exception) and not isinstance(result, RolledBackError):
            return Failed(step, result)
    return None


def parents_needed(operations: Sequence[Operation]) -> list[str]:
    """The keys that must exist before the operations are done and are not created by them in time."""
    made: set[str] = set()
    needed: dict[str, None] = {}
    for operation in operations:
        if isinstance(operation, Create):
            needed.update((key, None) for key in ancestors(operation.key) if key not in made)
            made.add(operation.key)
    return list(needed)


def with_husks(operations: Sequence[Operation], missing: Sequence[str]) -> list[Step]:
    """The operations, each creation after the missing ones of its parents."""
    left = dict.fromkeys(missing)
    steps: list[Step] = []
    for operation in operations:
        if isinstance(operation, Create):
            husks = [key for key in ancestors(operation.key) if key in left]
            steps += [Husk(key) for key in husks]
            for key in husks:
                del left[key]
        steps.append(operation)
    return steps


def with_crack(steps: Sequence[Step], at: Step, husk: Znode) -> list[Step]:
    """The steps with the husk out of the way of a creation."""
    changed: list[Step] = []
    for step in steps:
        if step is at:
            changed.append(Crack(step.key, husk.version))
        changed.append(step)
    return changed


def verdict(failed: Failed) -> Exception:
    """What a failed transaction means to the caller of the store."""
    key, error = failed.step.key, failed.error
    creates = isinstance(failed.step, Create | Husk)
    if isinstance(error, NodeExistsError):
        return AlreadyExists(key)
    if isinstance(error, BadVersionError):
        return VersionConflict(key)
    if isinstance(error, NoNodeError) and not creates:
        return NotFound(key)
    if isinstance(failed.step, Crack):
        return StoreError(f"{key} cannot be created after keys below it; create it first")
    if isinstance(error, NotEmptyError):
        return StoreError(f"{key} cannot be deleted while keys are below it; delete those first, in the same commit")
    if isinstance(error, NoChildrenForEphemeralsError):
        return StoreError(f"{key} cannot be created: a key above it is ephemeral")
    return StoreError(f"ZooKeeper refuses to change {key}: {explained(error)}")


def explained(error: BaseException) -> str:
    """An error of ZooKeeper in words."""
    if isinstance(error, NoAuthError):
        return "its access rules (ACL) do not allow it; see headrace.zookeeper.auth, or give the brokers another path"
    if isinstance(error, UnimplementedError):
        return "it is older than 3.6; use a later version"
    return str(error) or type(error).__name__
