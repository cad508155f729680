"""A checkpoint on disk that any thread may write: what was prepared last is what stays."""

from collections.abc import Callable, Mapping
from functools import partial
from threading import Lock

from .checkpoints import Partition, encode_offsets
from .disk import Disk


class CheckpointFile:
    """A file of offsets by partition."""

    __slots__ = ("_disk", "_lock", "_path", "_prepared", "_written")

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._lock = Lock()
        self._prepared = 0
        self._written = 0

    def prepare(self, offsets: Mapping[Partition, int]) -> Callable[[], None]:
        """Writes these offsets when it is called, on whichever thread; not if later ones have been written by then."""
        self._prepared += 1
        return partial(self._write, self._prepared, dict(offsets))

    def _write(self, number: int, offsets: Mapping[Partition, int]) -> None:
        with self._lock:
            if number > self._written:
                self._disk.write_atomically(self._path, encode_offsets(offsets))
                self._written = number
