"""Files that left a log, and are not unlinked yet.

They go after `file.delete.delay.ms`, so that the disk need not hurry, and only once the disk knows that the log starts
beyond them, so that no gap can appear.
"""

from typing import Final, NamedTuple

from .disk import Disk

AT_ONCE: Final = 0
NO_OFFSET: Final = -1


class _Deleted(NamedTuple):
    due_ms: int
    end_offset: int
    """Where the log must be known to start before they go."""
    paths: list[str]


class DeletedFiles:
    """The files of one log that are still to be unlinked."""

    __slots__ = ("_directory", "_disk", "_waiting")

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._waiting: list[_Deleted] = []

    def add(self, paths: list[str], *, due_ms: int = AT_ONCE, end_offset: int = NO_OFFSET) -> None:
        """Have files unlinked from a time on."""
        if paths:
            self._waiting.append(_Deleted(due_ms, end_offset, paths))

    def end_offset(self, now_ms: int) -> int | None:
        """The log start offset that must be on disk before due files are unlinked; None where none has to be."""
        return max((each.end_offset for each in self._waiting if each.due_ms <= now_ms), default=None)

    def unlink(self, now_ms: int | None, *, in_order: bool = False) -> int:
        """Unlink files that are due, with None all; the offset up to which something is gone now, or NO_OFFSET.

        With `in_order` each is gone for good before the next one goes.
        """
        due = [each for each in self._waiting if now_ms is None or each.due_ms <= now_ms]
        self._waiting = [each for each in self._waiting if each not in due]
        for each in due:
            for path in each.paths:
                self._disk.unlink(path)
            if in_order:
                self._disk.sync_directory(self._directory)
        return max((each.end_offset for each in due), default=NO_OFFSET)
