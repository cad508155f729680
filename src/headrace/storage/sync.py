"""What has been written but is not yet on stable storage, and the ticket that takes it there.

`Log.begin_sync` collects the work on the loop, `SyncTicket.run` does it on a worker thread and touches nothing but
files, `Log.finish_sync` takes note on the loop.
"""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from threading import Lock

from .disk import Disk, File, StorageError, parent_of
from .segment import Segment

Step = Callable[[], None]


class SyncTicket:
    """A blocking piece of work; when it is done, everything below `end_offset` is on stable storage."""

    __slots__ = ("_error", "_lock", "_steps", "end_offset", "written")

    def __init__(self, steps: list[Step], end_offset: int, written: Sequence[tuple[Segment, int]] = ()) -> None:
        self._steps = deque(steps)
        self.written = written
        """Segments, and how many bytes of them are then on stable storage."""
        self._error: BaseException | None = None
        self._lock = Lock()
        self.end_offset = end_offset

    def run(self) -> None:
        """Block until all is synced; `StorageError` when the disk refuses.

        Whoever comes second (a log that is closed while the worker is at it) waits, and gets the same answer: a
        sync is never tried twice. One for which no file could be opened was not tried, and is still to be done.
        """
        with self._lock:
            if self._error is not None:
                raise self._error
            try:
                while self._steps:
                    self._steps[0]()
                    self._steps.popleft()
            except BaseException as error:
                if not (isinstance(error, StorageError) and error.is_out_of_descriptors):
                    self._error = error
                raise

    def try_run(self) -> None:
        """As `run`; what it would raise the next `run` does."""
        with suppress(Exception):
            self.run()

    def left(self) -> list[Step]:
        """What is still to be done, after no file could be opened for it."""
        return list(self._steps)


class Unsynced:
    """Files, directories and small documents that wait for the next ticket."""

    __slots__ = ("_directories", "_disk", "_documents", "_steps")

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._steps: list[Step] = []
        self._documents: dict[str, bytes] = {}
        self._directories: dict[str, None] = {}

    def __bool__(self) -> bool:
        return bool(self._steps or self._documents or self._directories)

    def add_file(self, file: File) -> None:
        self._steps.append(file.datasync)

    def add_step(self, step: Step) -> None:
        """Have something written that can be made anew from the batches."""
        self._steps.append(step)

    def add_path(self, path: str) -> None:
        """Have a file synced, if it is there then."""
        self._steps.append(partial(_sync_file, self._disk, path))

    def add_directory(self, path: str) -> None:
        self._directories[path] = None

    def add_document(self, path: str, data: bytes) -> None:
        """Have a small file, which can be made anew from the batches, replaced by the next ticket."""
        self._documents[path] = data

    def put_back(self, steps: list[Step]) -> None:
        """What a ticket could not do comes first in the next one."""
        self._steps[:0] = steps

    def take(self) -> list[Step]:
        """Everything collected, in an order that is safe: contents, then names."""
        steps = self._steps
        steps += [partial(_write_document, self._disk, path, data) for path, data in self._documents.items()]
        steps += [partial(self._disk.sync_directory, path) for path in self._directories]
        self._steps, self._documents, self._directories = [], {}, {}
        return steps


def _sync_file(disk: Disk, path: str) -> None:
    try:
        disk.sync_file(path)
    except StorageError as error:
        if not error.is_missing:
            raise


def _write_document(disk: Disk, path: str, data: bytes) -> None:
    """With the disk full no file is as good as the new one, and better than the old one, which would be believed."""
    try:
        disk.write_atomically(path, data)
    except StorageError as error:
        if not error.is_full:
            raise
        disk.unlink(path)
        disk.sync_directory(parent_of(path))
