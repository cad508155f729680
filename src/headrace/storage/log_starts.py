"""The checkpoint of log start offsets: one write for all logs whose start has moved, off the loop.

A log's start moves when records are deleted, here by request or by retention on the leader, often of thousands of
partitions at once. Moves that come while a write is under way share the next one. New logs are noted the same way, so
that one whose directory is lost a moment later is missed.
"""

from functools import partial

from .disk import StorageError
from .flusher import Flusher
from .manager import CheckpointWrite, LogManager


class LogStartWriter:
    """Writes the starts of a data directory's logs when some have moved."""

    def __init__(self, logs: LogManager, flusher: Flusher) -> None:
        self._logs = logs
        self._flusher = flusher
        self._is_writing = False
        self._has_more = False
        logs.on_starts_moved = self.write

    def write(self) -> None:
        """Write the present log start offsets soon; each log is notified."""
        if self._is_writing:
            self._has_more = True
            return
        self._is_writing, self._has_more = True, False
        write = self._logs.prepare_moved_starts()
        self._flusher.run(write.run, partial(self._finish, write))

    def retry(self) -> None:
        """Write what could not be written before; to be called now and then."""
        if self._logs.has_moved_starts and not self._is_writing:
            self.write()

    def _finish(self, write: CheckpointWrite, error: BaseException | None) -> None:
        self._is_writing = False
        if error is None:
            self._logs.finish(write)
        elif isinstance(error, StorageError):
            self._logs.fail(write, error)
        else:
            raise error
        if self._has_more and not self._is_writing:
            self.write()
