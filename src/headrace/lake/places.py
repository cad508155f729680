"""Directories of tables: on this machine, or in an object store (`s3://bucket/path`, `gs://`, `az://`).

What a table needs of them is little: files are written once, whole, and one of them only if it is not there yet, which
is how a commit is made.
"""

import os
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from .errors import CommitConflict, LakeError, needed


class NewFile(Protocol):
    """A file that is being written; it is there for good once it is finished."""

    @property
    def sink(self) -> Any:
        """What pyarrow writes to."""

    def finish(self) -> int:
        """Keep it; how many bytes it has."""

    def discard(self) -> None:
        """Leave it."""


class Place(Protocol):
    """A directory. Names are paths in it, with slashes."""

    @property
    def url(self) -> str:
        """Where it is, as other programs are told."""

    def read(self, name: str) -> bytes:
        """The bytes of a file; FileNotFoundError if there is none."""

    def open(self, name: str) -> Any:
        """The same for pyarrow, which reads parts of it."""

    def write(self, name: str, data: Any) -> None:
        """Write a file, in the place of one that is there."""

    def begin(self, name: str) -> "NewFile":
        """A file to be written bit by bit."""

    def create(self, name: str, data: bytes) -> None:
        """Write a file; CommitConflict if it is there already."""

    def names(self, directory: str) -> list[str]:
        """The names in a directory, without those of directories in it; none if it is not there."""

    def walk(self) -> dict[str, float]:
        """All files below, with the time of their last change."""

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""


class LocalFile:
    """A file on this machine, synced when it is finished."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self.sink = path.open("wb")

    def finish(self) -> int:
        self.sink.flush()
        os.fsync(self.sink.fileno())
        self.sink.close()
        return self._path.stat().st_size

    def discard(self) -> None:
        self.sink.close()
        self._path.unlink(missing_ok=True)


class BufferedFile:
    """A file that is put into a store when it is finished."""

    def __init__(self, place: "Place", name: str) -> None:
        self._place = place
        self._name = name
        self.sink = pa.BufferOutputStream()

    def finish(self) -> int:
        data = self.sink.getvalue()
        self._place.write(self._name, data)
        return int(data.size)

    def discard(self) -> None:
        self.sink.close()


@dataclass(frozen=True, slots=True)
class LocalPlace:
    """A directory of this machine, or one that is mounted."""

    path: Path

    @property
    def url(self) -> str:
        return str(self.path)

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def open(self, name: str) -> Any:
        return pa.memory_map(str(self.path / name))

    def write(self, name: str, data: Any) -> None:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        try:
            _synced(temporary, data)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)

    def begin(self, name: str) -> NewFile:
        return LocalFile(self.path / name)

    def create(self, name: str, data: bytes) -> None:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        try:
            _synced(temporary, data)
            os.link(temporary, path)
        except FileExistsError:
            raise CommitConflict(f"{path} was written by somebody else") from None
        finally:
            temporary.unlink(missing_ok=True)
        _sync_directory(path.parent)

    def names(self, directory: str) -> list[str]:
        path = self.path / directory
        try:
            return [entry.name for entry in os.scandir(path) if entry.is_file() and not entry.name.startswith(".")]
        except FileNotFoundError:
            return []

    def walk(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for directory, _, files in os.walk(self.path):
            for name in files:
                path = Path(directory, name)
                with suppress(FileNotFoundError):
                    found[str(path.relative_to(self.path))] = path.stat().st_mtime
        return found

    def remove(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)


def _synced(path: Path, data: Any) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class ObjectPlace:
    """A prefix of an object store, through obstore."""

    url: str
    store: Any = field(repr=False)

    def read(self, name: str) -> bytes:
        return bytes(self.store.get(name).bytes())

    def open(self, name: str) -> Any:
        return pa.BufferReader(self.read(name))

    def write(self, name: str, data: Any) -> None:
        self.store.put(name, bytes(data))

    def begin(self, name: str) -> NewFile:
        return BufferedFile(self, name)

    def create(self, name: str, data: bytes) -> None:
        exceptions = needed("obstore.exceptions", "an object store")
        try:
            self.store.put(name, data, mode="create")
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
            raise CommitConflict(f"{self.url}/{name} was written by somebody else") from None

    def names(self, directory: str) -> list[str]:
        prefix = f"{directory.rstrip('/')}/" if directory else None
        listed = self.store.list_with_delimiter(prefix)["objects"]
        return [str(one["path"]).rpartition("/")[2] for one in listed]

    def walk(self) -> dict[str, float]:
        return {str(one["path"]): one["last_modified"].timestamp() for batch in self.store.list() for one in batch}

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self.store.delete(name)


def is_object_store(path: str) -> bool:
    """Whether a path names an object store rather than a directory."""
    scheme = urlsplit(path).scheme
    return len(scheme) > 1 and scheme != "file"


def local_path(path: str) -> Path:
    """A path of this machine, absolute."""
    return Path(unquote(urlsplit(path).path) if path.startswith("file:") else path).expanduser().resolve()


def joined(root: str, *parts: str) -> str:
    """A path below another one."""
    return "/".join([root.rstrip("/"), *parts])


def place_of(path: str, options: Mapping[str, str] | None = None) -> Place:
    """The directory at a path. `options` are those of the object store, such as `aws_endpoint`."""
    if not is_object_store(path):
        return LocalPlace(local_path(path))
    obstore = needed("obstore.store", f"{path}")
    try:
        return ObjectPlace(path.rstrip("/"), obstore.from_url(path, **object_options(options or {})))
    except Exception as error:
        raise LakeError(f"{path} is no object store that can be used: {error}") from error


def object_options(options: Mapping[str, str]) -> dict[str, Any]:
    """The options as obstore takes them: those that allow plain HTTP are its client's."""
    named = {name.lower(): value for name, value in options.items()}
    allow = named.pop("aws_allow_http", named.pop("allow_http", None))
    return {**named, **({"client_options": {"allow_http": allow == "true"}} if allow is not None else {})}
