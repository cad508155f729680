"""Where a pipeline keeps what must survive it: a checkpoint for each sink, Spark's log, and who runs it now."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from .failures import PipelineFailed
from .model import Declaration

STATE: Final = ".headrace"
_ORPHAN_SECONDS: Final = 20.0


@dataclass(frozen=True, slots=True)
class PipelinePaths:
    """`checkpoints` has a directory for each sink, maybe where only Spark can reach; `local` is on this machine."""

    checkpoints: str
    local: Path

    def checkpoint_of(self, sink: str) -> str:
        return f"{self.checkpoints.rstrip('/')}/{sink}"

    @property
    def log(self) -> Path:
        """What Spark says while the pipeline runs."""
        return self.local / "spark.log"

    @property
    def lock(self) -> Path:
        return self.local / "lock"


def paths_of(declaration: Declaration, checkpoint: str | None) -> PipelinePaths:
    """The given directory, or else the declared one, or else `.headrace/NAME` beside the file."""
    beside = declaration.directory.resolve() / STATE / declaration.name
    chosen = checkpoint if checkpoint is not None else declared_path(declaration, declaration.checkpoint)
    if chosen is None:
        return PipelinePaths(str(beside), beside)
    if is_remote(chosen):
        return PipelinePaths(chosen, beside)
    path = Path(chosen.removeprefix("file://")).resolve()
    return PipelinePaths(str(path), path)


def declared_path(declaration: Declaration, path: str | None) -> str | None:
    """A path of the file: relative ones start beside it, those with a scheme are left alone."""
    if path is None or is_remote(path) or path.startswith("file:"):
        return path
    return str(declaration.directory.resolve() / path)


def is_remote(path: str) -> bool:
    """Whether a path names a file system other than this machine's, as `s3a://bucket/dir` does."""
    scheme = urlsplit(path).scheme
    return len(scheme) > 1 and scheme != "file"


@contextmanager
def only_runner(paths: PipelinePaths) -> Iterator[int]:
    """Hold the pipeline's lock; PipelineFailed if someone else does. Gives the lock's file descriptor.

    A child process that inherits the descriptor holds the lock as well. So when a runner was killed, the next one
    waits for the moment that the first one's Spark takes to notice, and two never write to one checkpoint.
    """
    paths.local.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(paths.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _take(descriptor, paths)
        yield descriptor
    finally:
        os.close(descriptor)


def _take(descriptor: int, paths: PipelinePaths) -> None:
    deadline = time.monotonic() + _ORPHAN_SECONDS
    while not _locked(descriptor):
        holder = _holder(descriptor)
        if _is_alive(holder) or time.monotonic() > deadline:
            raise PipelineFailed(
                f"the pipeline runs already{f' (process {holder})' if holder else ''} with the checkpoint"
                f" {paths.checkpoints}; stop it first, or give another --checkpoint"
            )
        time.sleep(0.1)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(descriptor: int) -> int | None:
    """The process that last took the lock; None if it has not written itself down yet."""
    text = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
    return int(text) if text.isdigit() else None


def _is_alive(process: int | None) -> bool:
    if process is None:
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
