"""Files and directories: the only place that calls the operating system for them.

Everything above takes a `Disk`, so that `headrace.testing.disk` can lose power at any byte. An `OSError` never
leaves this file: it becomes a `StorageError` that names the path.
"""

import errno
import fcntl
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from io import FileIO
from threading import Thread
from typing import Final, Protocol

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_NO_DESCRIPTOR: Final = frozenset({errno.EMFILE, errno.ENFILE})
_BUSY: Final = _NO_DESCRIPTOR | {errno.ENOMEM}
_LARGE: Final = 16 << 20
_AT_ONCE: Final = 32
"""Threads that wait for the disk together."""


class StorageError(Exception):
    """The operating system refused something; says which path and why."""

    def __init__(self, path: str, number: int, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path
        self.errno = number
        self.message = message

    @property
    def is_full(self) -> bool:
        """Whether there is no space left: the one failure that goes away by itself."""
        return self.errno in _FULL

    @property
    def is_missing(self) -> bool:
        """Whether there is no such file."""
        return self.errno == errno.ENOENT

    @property
    def is_busy(self) -> bool:
        """Whether the process is out of descriptors or memory: nothing is wrong with the disk."""
        return self.errno in _BUSY

    @property
    def is_out_of_descriptors(self) -> bool:
        """Whether no file could be opened: what was to be done with it has not begun, and can be tried again."""
        return self.errno in _NO_DESCRIPTOR


class DirectoryLocked(Exception):
    """Another process works in this directory."""


class File(Protocol):
    """A file that mostly grows. It has no position: writes go to its end, reads say where."""

    path: str

    def fileno(self) -> int:
        """The descriptor, for `os.sendfile`; -1 when there is none."""
        ...

    def append(self, data: memoryview | bytes) -> None:
        """Write all of it at the end. After a `StorageError` any part of it may be there."""
        ...

    def pread(self, size: int, position: int) -> bytes:
        """Up to `size` bytes from there; fewer only at the end of the file."""
        ...

    def truncate(self, size: int) -> None: ...

    def datasync(self) -> None:
        """Return when everything appended so far is on stable storage."""
        ...

    @property
    def size(self) -> int: ...

    def close(self) -> None:
        """Let the descriptor go. It is also let go with the last reference, so whoever still sends from a
        deleted file can finish."""
        ...


class Lock(Protocol):
    def release(self) -> None: ...


class Directory(Protocol):
    """An open directory: its names can be synced however many descriptors are left."""

    def sync(self) -> None:
        """Return when the names in it are on stable storage."""
        ...

    def close(self) -> None: ...


class Disk(Protocol):
    """A file system. Paths are plain strings."""

    def open(self, path: str) -> File:
        """An existing file, to read and to append to."""
        ...

    def create(self, path: str) -> File:
        """A new, empty file; `StorageError` when there is one already."""
        ...

    def exists(self, path: str) -> bool: ...

    def listdir(self, path: str) -> list[str]:
        """Names of everything in a directory, in no order."""
        ...

    def sizes(self, path: str, suffix: str = "") -> dict[str, int]:
        """Names of the plain files in a directory, with their sizes; 0 for names that end otherwise."""
        ...

    def mkdir(self, path: str) -> None:
        """Make a directory and those above it; fine when it is there."""
        ...

    def rename(self, source: str, target: str) -> None: ...

    def unlink(self, path: str) -> None:
        """Remove a file; fine when it is gone."""
        ...

    def rmtree(self, path: str) -> None:
        """Remove a directory and everything in it; fine when it is gone."""
        ...

    def sync_directory(self, path: str) -> None:
        """Return when the names in a directory are on stable storage."""
        ...

    def open_directory(self, path: str) -> Directory:
        """A directory to be synced later; for changes that must not stop half way for want of a descriptor."""
        ...

    def read(self, path: str) -> bytes: ...

    def write(self, path: str, data: bytes) -> None:
        """Replace a file's content with no promise about a crash: for what can be rebuilt."""
        ...

    def patch(self, path: str, keep: int, data: bytes) -> None:
        """Keep the first bytes of a file, which may not exist yet, and let the data follow them."""
        ...

    def sync_file(self, path: str) -> None:
        """Return when the content of a file is on stable storage."""
        ...

    def write_atomically(self, path: str, data: bytes) -> None:
        """Replace a file's content: after a crash it has the old or the new one, after return the new one."""
        ...

    def lock(self, path: str) -> Lock:
        """Hold a lock file until released or the process ends; `DirectoryLocked` when another one holds it."""
        ...

    def do_all(self, works: Sequence[Callable[[], None]]) -> None:
        """Return when all is done that waits for the disk, in any order; none of it may raise.

        Several at once where that is faster: a file system that writes a journal syncs them together.
        """
        ...

    def free_bytes(self, path: str) -> int: ...

    def total_bytes(self, path: str) -> int: ...


def parent_of(path: str) -> str:
    """The directory that a path stands in."""
    return os.path.dirname(path) or "."


def replace_atomically(disk: Disk, path: str, data: bytes) -> None:
    """What `write_atomically` means, in terms of a disk's other operations."""
    temporary = path + ".tmp"
    disk.unlink(temporary)
    file = disk.create(temporary)
    try:
        file.append(data)
        file.datasync()
    finally:
        file.close()
    disk.rename(temporary, path)
    disk.sync_directory(parent_of(path))


@contextmanager
def _translated(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _storage_error(path, error) from error


def _storage_error(path: str, error: OSError) -> StorageError:
    return StorageError(path, error.errno or errno.EIO, error.strerror or str(error))


def _unlink(path: str) -> None:
    """The name goes at once. Giving back the space of a large file takes long, and goes on without the caller."""
    held = _held_open(path) if os.lstat(path).st_size >= _LARGE else None
    try:
        os.unlink(path)
    finally:
        if held is not None:
            Thread(target=os.close, args=(held,), name="unlink").start()


def _held_open(path: str) -> int | None:
    try:
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _BUSY:
            return None
        raise


def _write_all(file: FileIO, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


class RealFile:
    """A file of the operating system, opened for appending."""

    __slots__ = ("_fd", "_size", "path")

    def __init__(self, path: str, fd: int, size: int) -> None:
        self.path = path
        self._fd = fd
        self._size = size

    def fileno(self) -> int:
        return self._fd

    def append(self, data: memoryview | bytes) -> None:
        try:
            written = os.write(self._fd, data)
            if written != len(data):
                written = self._append_rest(memoryview(data), written)
        except OSError as error:
            raise _storage_error(self.path, error) from error
        self._size += written

    def _append_rest(self, data: memoryview, written: int) -> int:
        while written < len(data):
            written += os.write(self._fd, data[written:])
        return written

    def pread(self, size: int, position: int) -> bytes:
        try:
            data = os.pread(self._fd, size, position)
            if len(data) != size and data:
                data = self._pread_rest(data, size, position)
        except OSError as error:
            raise _storage_error(self.path, error) from error
        return data

    def _pread_rest(self, data: bytes, size: int, position: int) -> bytes:
        while len(data) < size:
            more = os.pread(self._fd, size - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def truncate(self, size: int) -> None:
        with _translated(self.path):
            os.ftruncate(self._fd, size)
        self._size = size

    def datasync(self) -> None:
        with _translated(self.path):
            os.fdatasync(self._fd)

    @property
    def size(self) -> int:
        return self._size

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with _translated(self.path):
                os.close(fd)

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


class RealLock:
    """A lock file that this process holds."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class RealDirectory:
    """A directory of the operating system, opened to be synced."""

    def __init__(self, path: str, fd: int) -> None:
        self._path = path
        self._fd = fd

    def sync(self) -> None:
        with _translated(self._path):
            os.fsync(self._fd)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class RealDisk:
    """The machine's own file system."""

    def open(self, path: str) -> File:
        with _translated(path):
            fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
            return RealFile(path, fd, os.fstat(fd).st_size)

    def create(self, path: str) -> File:
        with _translated(path):
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            return RealFile(path, os.open(path, flags, 0o640), 0)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def listdir(self, path: str) -> list[str]:
        with _translated(path):
            return os.listdir(path)

    def sizes(self, path: str, suffix: str = "") -> dict[str, int]:
        with _translated(path), os.scandir(path) as entries:
            return {
                entry.name: entry.stat().st_size if entry.name.endswith(suffix) else 0
                for entry in entries
                if entry.is_file()
            }

    def mkdir(self, path: str) -> None:
        with _translated(path):
            os.makedirs(path, exist_ok=True)

    def rename(self, source: str, target: str) -> None:
        with _translated(source):
            os.rename(source, target)

    def unlink(self, path: str) -> None:
        with _translated(path):
            try:
                _unlink(path)
            except FileNotFoundError:
                return

    def rmtree(self, path: str) -> None:
        with _translated(path):
            try:
                with os.scandir(path) as entries:
                    for entry in entries:
                        if entry.is_file(follow_symlinks=False):
                            _unlink(entry.path)
                shutil.rmtree(path)
            except FileNotFoundError:
                return

    def sync_directory(self, path: str) -> None:
        with closing(self.open_directory(path)) as directory:
            directory.sync()

    def open_directory(self, path: str) -> Directory:
        with _translated(path):
            return RealDirectory(path, os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))

    def read(self, path: str) -> bytes:
        with _translated(path), open(path, "rb", buffering=0) as file:
            return file.readall()

    def write(self, path: str, data: bytes) -> None:
        with _translated(path), open(path, "wb", buffering=0) as file:
            _write_all(file, data)

    def patch(self, path: str, keep: int, data: bytes) -> None:
        with _translated(path):
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
            with open(fd, "r+b", buffering=0) as file:
                if file.seek(0, os.SEEK_END) != keep:
                    file.truncate(keep)
                    file.seek(keep)
                _write_all(file, data)

    def sync_file(self, path: str) -> None:
        with _translated(path), open(path, "rb", buffering=0) as file:
            os.fdatasync(file.fileno())

    def write_atomically(self, path: str, data: bytes) -> None:
        replace_atomically(self, path, data)

    def lock(self, path: str) -> Lock:
        with _translated(path):
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                os.close(fd)
                raise DirectoryLocked(f"{path} is held by another process") from error
            return RealLock(fd)

    def do_all(self, works: Sequence[Callable[[], None]]) -> None:
        waiting = deque(works)

        def work_off() -> None:
            while True:
                try:
                    work = waiting.popleft()
                except IndexError:
                    return
                work()

        threads = [Thread(target=work_off, name=f"disk-{number}") for number in range(min(_AT_ONCE, len(works)))]
        begun: list[Thread] = []
        for thread in threads:
            try:
                thread.start()
            except RuntimeError:  # the system gives no more: this thread does what is left
                break
            begun.append(thread)
        work_off()
        for thread in begun:
            thread.join()

    def free_bytes(self, path: str) -> int:
        with _translated(path):
            status = os.statvfs(path)
            return status.f_bavail * status.f_frsize

    def total_bytes(self, path: str) -> int:
        with _translated(path):
            status = os.statvfs(path)
            return status.f_blocks * status.f_frsize
