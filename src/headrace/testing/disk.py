"""A disk in memory that can fail, fill up, and lose power.

It keeps what a real one keeps. The content of a file is safe up to its last `datasync`; a name (of a created,
renamed or removed file) is safe after `sync_directory` of the directory it stands in. `crash` takes everything else
away, or part of it, or leaves garbage in its place:

    disk = SimulatedDisk()
    ...
    disk.crash(random.Random(7))       # any outcome that a power loss can have
    disk.crash(cut=lambda path, lost: lost[:10])   # this outcome
    ...                                # open everything anew

Files that were open before the crash are dead.
"""

import errno
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Final

from headrace.storage.disk import Directory, DirectoryLocked, File, Lock, StorageError, parent_of, replace_atomically

Cut = Callable[[str, bytes], bytes]
"""What becomes of the bytes of a file that were not synced."""

PLENTY: Final = 1 << 50
_DESCRIPTOR: Final = "descriptor"


class PowerLost(BaseException):
    """The machine is off; only `crash` brings it back."""


class Inode:
    """A file's content, whatever its names."""

    __slots__ = ("data", "poisoned", "rewound", "synced_size")

    def __init__(self) -> None:
        self.data = bytearray()
        self.synced_size = 0
        self.rewound: bytes | None = None
        """What is safe, when it is no longer the beginning of `data`."""
        self.poisoned = False
        """A sync has failed: the system forgot what it had not written, and later syncs say all is well."""

    def truncate(self, size: int) -> None:
        if size < self.synced_size:
            if self.rewound is None:
                self.rewound = bytes(self.data[: self.synced_size])
            self.synced_size = size
        del self.data[size:]
        self.data.extend(bytes(size - len(self.data)))

    def sync(self) -> None:
        if not self.poisoned:
            self.synced_size = len(self.data)
            self.rewound = None

    def crash(self, path: str, cut: Cut, keep_truncation: bool) -> None:
        if self.rewound is not None and not keep_truncation:
            self.data[:] = self.rewound
        else:
            self.data[self.synced_size :] = cut(path, bytes(self.data[self.synced_size :]))
        self.synced_size = len(self.data)
        self.rewound = None
        self.poisoned = False


Node = Inode | None
"""A file, or None for a directory."""


class _NameChange:
    """A change to the names in a directory that is not safe yet."""

    __slots__ = ("directories", "node", "source", "target")

    def __init__(self, source: str | None, target: str | None, node: Node) -> None:
        self.source = source
        self.target = target
        self.node = node
        self.directories = tuple({_parent(path): None for path in (source, target) if path is not None})
        """In which names change."""

    def lies_under(self, directory: str) -> bool:
        return any(path is not None and path.startswith(directory + "/") for path in (self.source, self.target))

    def apply(self, names: dict[str, Node]) -> None:
        if self.source is not None and self.target is not None:
            _move(names, self.source, self.target)
        elif self.target is not None:
            names[self.target] = self.node
        elif self.source is not None:
            names.pop(self.source, None)


class _NameChanges:
    """Changes of names that are not safe yet, in their order; and by the directories that they are in."""

    def __init__(self) -> None:
        self._all: dict[_NameChange, None] = {}
        self._by_directory: dict[str, dict[_NameChange, None]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, change: _NameChange) -> bool:
        return change in self._all

    def __iter__(self) -> Iterator[_NameChange]:
        return iter(self._all)

    def inside(self, directory: str) -> list[_NameChange]:
        """Those of names that stand in a directory."""
        return list(self._by_directory.get(directory, ()))

    def under(self, directory: str, *, before: _NameChange) -> list[_NameChange]:
        """Those of names in a directory and in directories in it, which are older than another change."""
        if not any(path == directory or path.startswith(directory + "/") for path in self._by_directory):
            return []
        older = takewhile(lambda change: change is not before, self._all)
        return [change for change in older if change.lies_under(directory)]

    def add(self, change: _NameChange) -> None:
        self._all[change] = None
        for directory in change.directories:
            self._by_directory.setdefault(directory, {})[change] = None

    def remove(self, change: _NameChange) -> None:
        del self._all[change]
        for directory in change.directories:
            changes = self._by_directory[directory]
            del changes[change]
            if not changes:
                del self._by_directory[directory]


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _move(names: dict[str, Node], source: str, target: str) -> None:
    if names.get(source) is not None:
        names[target] = names.pop(source)
        return
    for path in [path for path in names if path == source or path.startswith(source + "/")]:
        names[target + path[len(source) :]] = names.pop(path)


@dataclass(slots=True)
class _Fault:
    number: int
    kind: str | None
    part_of_path: str
    countdown: int
    times: int
    written: int


class SimulatedFile:
    """An open file of a simulated disk."""

    def __init__(self, disk: "SimulatedDisk", path: str, inode: Inode) -> None:
        self._disk = disk
        self._inode = inode
        self._life = disk.life
        self.path = path
        self._is_open = True
        disk.open_files += 1

    def _operate(self, kind: str, written: int | None = None) -> int | None:
        if self._life != self._disk.life:
            raise PowerLost(f"{self.path} was open before the crash")
        return self._disk.operate(kind, self.path, written)

    def fileno(self) -> int:
        return -1

    def append(self, data: memoryview | bytes) -> None:
        fitting = self._operate("append", len(data))
        if fitting is None:
            self._inode.data += data
            return
        self._inode.data += data[:fitting]
        self._disk.raise_pending(self.path)

    def pread(self, size: int, position: int) -> bytes:
        self._operate("pread")
        return bytes(self._inode.data[position : position + size])

    def truncate(self, size: int) -> None:
        self._operate("truncate")
        self._inode.truncate(size)

    def datasync(self) -> None:
        try:
            self._operate("datasync")
        except StorageError:
            self._inode.poisoned = True
            raise
        self._inode.sync()

    @property
    def size(self) -> int:
        return len(self._inode.data)

    def close(self) -> None:
        if self._is_open and self._life == self._disk.life:
            self._disk.open_files -= 1
        self._is_open = False

    def __del__(self) -> None:
        self.close()


class _SimulatedDirectory:
    def __init__(self, disk: "SimulatedDisk", path: str) -> None:
        self._disk = disk
        self._path = path

    def sync(self) -> None:
        self._disk.sync_names(self._path)

    def close(self) -> None:
        """Nothing to let go: it is never held for long."""


class _SimulatedLock:
    def __init__(self, held: set[str], path: str) -> None:
        self._held = held
        self._path = path

    def release(self) -> None:
        self._held.discard(self._path)


class SimulatedDisk:
    """A file system with memory, faults and power losses. `operations` counts what could have failed so far.

    `open_files` counts the files that are held open. With `descriptors`, everything that has to open a file fails with
    EMFILE once so many are.
    """

    def __init__(self, capacity: int = PLENTY) -> None:
        self.capacity = capacity
        self.descriptors: int | None = None
        self.open_files = 0
        self.operations = 0
        self.life = 0
        self._names: dict[str, Node] = {"/": None}
        self._safe_names: dict[str, Node] = {"/": None}
        self._name_changes = _NameChanges()
        self._locks: set[str] = set()
        self._faults: list[_Fault] = []
        self._power_left: int | None = None
        self._pending_error: BaseException | None = None

    def copy(self) -> "SimulatedDisk":
        """A disk of its own with the same contents, all of them safe: a copy of the directories, or a snapshot."""
        other = SimulatedDisk(self.capacity)
        for path, node in self._names.items():
            copied = None
            if node is not None:
                copied = Inode()
                copied.data = bytearray(node.data)
                copied.synced_size = len(copied.data)
            other._names[path] = copied
        other._safe_names = dict(other._names)
        return other

    # Faults

    def fail(
        self,
        number: int = errno.EIO,
        *,
        kind: str | None = None,
        path: str = "",
        after: int = 0,
        times: int = 1,
        written: int = 0,
    ) -> None:
        """Let an operation fail with this errno: the first of its kind whose path has this part, after some others
        that succeed. An append that fails has `written` of its bytes in the file. Of kind "descriptor" are all that
        have to open a file: for EMFILE, which nothing else can meet."""
        self._faults.append(_Fault(number, kind, path, after, times, written))

    def heal(self) -> None:
        """Forget faults that have not struck yet."""
        self._faults.clear()

    @property
    def has_faults(self) -> bool:
        """Whether some have not struck yet."""
        return bool(self._faults)

    def lose_power(self, after: int) -> None:
        """Let the operation after the next `after` ones, and all that follow, raise `PowerLost`."""
        self._power_left = after

    def operate(self, kind: str, path: str, writing: int | None = None) -> int | None:
        """Count an operation and let it fail if it is its turn.

        A failing append must write the returned number of bytes first, then call `raise_pending`.
        """
        error = self._due_error(kind, path)
        if error is None:
            return self._check_room(path, writing)
        if writing is None:
            raise error
        self._pending_error = error
        return min(error.written, writing) if isinstance(error, _InjectedError) else writing

    def _due_error(self, kind: str, path: str) -> BaseException | None:
        if kind == "pread" and self._power_left is None and not self._faults:
            return None
        self.operations += 1
        if self._power_left is not None and kind != "pread":
            self._power_left -= 1
            if self._power_left < 0:
                return PowerLost(f"{kind} of {path}")
        return self._struck(path, (None, kind))

    def _struck(self, path: str, kinds: tuple[str | None, ...]) -> StorageError | None:
        for fault in self._faults:
            if fault.part_of_path not in path or fault.kind not in kinds:
                continue
            if fault.countdown > 0:
                fault.countdown -= 1
                continue
            fault.times -= 1
            if fault.times <= 0:
                self._faults.remove(fault)
            return _InjectedError(path, fault.number, os.strerror(fault.number), fault.written)
        return None

    def _check_room(self, path: str, writing: int | None) -> int | None:
        if writing is None or self.capacity >= PLENTY:
            return None
        room = self.free_bytes(path)
        if writing <= room:
            return None
        self._pending_error = StorageError(path, errno.ENOSPC, os.strerror(errno.ENOSPC))
        return max(room, 0)

    def raise_pending(self, path: str) -> None:
        error, self._pending_error = self._pending_error, None
        raise error or StorageError(path, errno.EIO, os.strerror(errno.EIO))

    def crash(
        self,
        rng: random.Random | None = None,
        *,
        cut: Cut | None = None,
        names_kept: int | None = None,
        keep_truncations: bool = False,
    ) -> None:
        """Lose power and come back.

        With `rng` the fate of everything that was not synced is drawn. Otherwise `cut` decides about bytes (they are
        lost when it is not given), and the first `names_kept` unsafe changes of names survive (none by default).
        """
        if rng is not None:
            cut = cut or _random_cut(rng)
            names_kept = rng.randint(0, len(self._name_changes)) if names_kept is None else names_kept
        for change in islice(self._name_changes, names_kept or 0):
            change.apply(self._safe_names)
        self._names = {path: node for path, node in self._safe_names.items() if _parents_exist(path, self._safe_names)}
        seen: set[int] = set()
        for path, node in sorted(self._names.items()):
            if node is not None and id(node) not in seen:
                seen.add(id(node))
                keep = rng.random() < 0.5 if rng is not None else keep_truncations
                node.crash(path, cut or _lose_all, keep)
        self._restart()

    def _restart(self) -> None:
        self._end_life()
        self._safe_names = dict(self._names)
        self._name_changes = _NameChanges()
        self._locks.clear()
        self._faults.clear()
        self._power_left = None
        self._pending_error = None

    def kill(self) -> None:
        """What `kill -9` does: the process is gone, the system and all that was written are not."""
        self._end_life()
        self._locks.clear()
        self._power_left = None
        self._pending_error = None

    def _end_life(self) -> None:
        self.life += 1
        self.open_files = 0

    # Looking and damaging, for tests

    def content(self, path: str) -> bytes:
        """What a file holds now."""
        return bytes(self._inode(path).data)

    def synced_size(self, path: str) -> int:
        return self._inode(path).synced_size

    def damage(self, path: str, position: int, data: bytes) -> None:
        """Overwrite bytes behind everybody's back."""
        self._inode(path).data[position : position + len(data)] = data

    def lose(self, path: str) -> None:
        """Remove a file or a directory behind everybody's back, for good; no fault that is set strikes for it."""
        self._remove(path)
        self._commit_names(parent_of(path))

    def used_bytes(self) -> int:
        """What all files take."""
        return sum(len(node.data) for node in self._names.values() if node is not None)

    def paths(self, directory: str = "/") -> list[str]:
        """All files under a directory."""
        prefix = directory.rstrip("/") + "/"
        return sorted(path for path, node in self._names.items() if node is not None and path.startswith(prefix))

    # The disk

    def _inode(self, path: str) -> Inode:
        node = self._names.get(path)
        if node is None:
            raise StorageError(path, errno.ENOENT, os.strerror(errno.ENOENT))
        return node

    def _change(self, source: str | None, target: str | None, node: Node = None) -> None:
        change = _NameChange(source, target, node)
        change.apply(self._names)
        self._name_changes.add(change)

    def _need_descriptor(self, path: str) -> None:
        if self.descriptors is not None and self.open_files >= self.descriptors:
            raise StorageError(path, errno.EMFILE, os.strerror(errno.EMFILE))
        error = self._struck(path, (_DESCRIPTOR,)) if self._faults else None
        if error is not None:
            raise error

    def open(self, path: str) -> File:
        self._need_descriptor(path)
        self.operate("open", path)
        return SimulatedFile(self, path, self._inode(path))

    def create(self, path: str) -> File:
        self._need_descriptor(path)
        self.operate("create", path)
        if path in self._names:
            raise StorageError(path, errno.EEXIST, os.strerror(errno.EEXIST))
        self._require_directory(_parent(path))
        inode = Inode()
        self._change(None, path, inode)
        return SimulatedFile(self, path, inode)

    def _require_directory(self, path: str) -> None:
        if path not in self._names or self._names[path] is not None:
            raise StorageError(path, errno.ENOENT, os.strerror(errno.ENOENT))

    def exists(self, path: str) -> bool:
        return path in self._names

    def listdir(self, path: str) -> list[str]:
        self._need_descriptor(path)
        self._require_directory(path)
        prefix = path.rstrip("/") + "/"
        inside = [name[len(prefix) :] for name in self._names if name.startswith(prefix)]
        return [name for name in inside if name and "/" not in name]

    def sizes(self, path: str, suffix: str = "") -> dict[str, int]:
        nodes = {name: self._names[os.path.join(path, name)] for name in self.listdir(path)}
        files = {name: node for name, node in nodes.items() if node is not None}
        return {name: len(node.data) if name.endswith(suffix) else 0 for name, node in files.items()}

    def mkdir(self, path: str) -> None:
        if path in self._names:
            return
        self.mkdir(_parent(path))
        self.operate("mkdir", path)
        self._change(None, path)

    def rename(self, source: str, target: str) -> None:
        self.operate("rename", source)
        if source not in self._names:
            raise StorageError(source, errno.ENOENT, os.strerror(errno.ENOENT))
        self._change(source, target)

    def unlink(self, path: str) -> None:
        self.operate("unlink", path)
        if path in self._names:
            self._change(path, None)

    def rmtree(self, path: str) -> None:
        self._need_descriptor(path)
        self.operate("rmtree", path)
        self._remove(path)

    def _remove(self, path: str) -> None:
        inside = [name for name in self._names if name == path or name.startswith(path + "/")]
        for name in sorted(inside, reverse=True):
            self._change(name, None)

    def sync_directory(self, path: str) -> None:
        self._need_descriptor(path)
        self.sync_names(path)

    def open_directory(self, path: str) -> Directory:
        self._need_descriptor(path)
        self._require_directory(path)
        return _SimulatedDirectory(self, path)

    def sync_names(self, path: str) -> None:
        """What syncing a directory does, once it is open."""
        self.operate("sync_directory", path)
        self._require_directory(path)
        self._commit_names(path)

    def _commit_names(self, path: str) -> None:
        for change in self._name_changes.inside(path):
            self._commit(change)

    def _commit(self, change: _NameChange) -> None:
        if change not in self._name_changes:
            return  # it was made safe with another
        if change.source is not None:  # of a directory what happened inside comes first, also where it is removed
            for earlier in self._name_changes.under(change.source, before=change):
                self._commit(earlier)
        self._name_changes.remove(change)
        change.apply(self._safe_names)

    def read(self, path: str) -> bytes:
        self._need_descriptor(path)
        self.operate("read", path)
        return bytes(self._inode(path).data)

    def write(self, path: str, data: bytes) -> None:
        self.patch(path, 0, data)

    def patch(self, path: str, keep: int, data: bytes) -> None:
        self._need_descriptor(path)
        if path not in self._names:
            self.create(path)
        file = SimulatedFile(self, path, self._inode(path))
        file.truncate(keep)
        file.append(data)

    def sync_file(self, path: str) -> None:
        self._need_descriptor(path)
        if path in self._names:
            SimulatedFile(self, path, self._inode(path)).datasync()

    def write_atomically(self, path: str, data: bytes) -> None:
        replace_atomically(self, path, data)

    def lock(self, path: str) -> Lock:
        if path in self._locks:
            raise DirectoryLocked(f"{path} is held by another process")
        self._locks.add(path)
        return _SimulatedLock(self._locks, path)

    def do_all(self, works: Sequence[Callable[[], None]]) -> None:
        for work in works:
            work()

    def free_bytes(self, path: str) -> int:  # noqa: ARG002 - there is one file system
        return self.capacity - self.used_bytes()

    def total_bytes(self, path: str) -> int:  # noqa: ARG002 - there is one file system
        return self.capacity


class _InjectedError(StorageError):
    def __init__(self, path: str, number: int, message: str, written: int) -> None:
        super().__init__(path, number, message)
        self.written = written


def _parents_exist(path: str, names: dict[str, Node]) -> bool:
    while path != "/":
        path = _parent(path)
        if path not in names:
            return False
    return True


def _lose_all(path: str, lost: bytes) -> bytes:  # noqa: ARG001 - a Cut
    return b""


def _random_cut(rng: random.Random) -> Cut:
    def cut(path: str, lost: bytes) -> bytes:  # noqa: ARG001 - a Cut
        if not lost:
            return b""
        kept = bytearray(lost[: rng.randint(0, len(lost))])
        fate = rng.choice(("cut", "cut", "zeros", "garbage", "torn", "all"))
        if fate == "all":
            return lost
        if fate == "zeros":
            kept += bytes(rng.randint(1, 4096))
        elif fate == "garbage":
            kept += rng.randbytes(rng.randint(1, 4096))
        elif fate == "torn" and kept:
            start = rng.randrange(len(kept))
            kept[start : start + 512] = bytes(min(512, len(kept) - start))
        return bytes(kept)

    return cut
