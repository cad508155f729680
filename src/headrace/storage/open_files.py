"""Which segments hold their file open: not more of them than the process has descriptors to spare.

A segment opens its file when somebody reads or appends, and keeps it for the next who does. When there are too many,
those go first that were not used for longest. A descriptor ends with the last reference to its file, so whoever still
sends from a file that was let go here can finish. A file with bytes that are not on stable storage stays open: the
system reports a write that failed only to those who had the file open.
"""

from collections import OrderedDict
from typing import Final, Protocol

UNLIMITED: Final = 1 << 62
_LOOKS: Final = 16
"""How many segments are looked at for one that is opened, so that nobody waits for a long search."""


class FileHolder(Protocol):
    """A segment, as far as its file is concerned."""

    @property
    def is_synced(self) -> bool: ...

    def was_used(self) -> bool:
        """Whether anybody read or appended since the last call."""
        ...

    def close(self) -> None: ...


class OpenFiles:
    """The segments with an open file, in about the order of their last use."""

    __slots__ = ("_holders", "most")

    def __init__(self, most: int = UNLIMITED) -> None:
        self.most = most
        self._holders: OrderedDict[FileHolder, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._holders)

    @property
    def is_short(self) -> bool:
        """Whether more are open than should be, because what was written to them has to be synced first."""
        return len(self._holders) > self.most

    def add(self, holder: FileHolder) -> None:
        """A segment has opened its file; others let go of theirs for it."""
        if len(self._holders) >= self.most:
            self._close_idle(self.most - 1, min(_LOOKS, 2 * len(self._holders)))
        self._holders[holder] = None

    def discard(self, holder: FileHolder) -> None:
        """A segment has let go of its file."""
        self._holders.pop(holder, None)

    def trim(self) -> None:
        """Let go of what was too much and is synced by now."""
        self._close_idle(self.most, 2 * len(self._holders))

    def give_back(self) -> None:
        """Let go of all that are not needed now: there are no descriptors."""
        self._close_idle(0, 2 * len(self._holders))

    def _close_idle(self, keep: int, looks: int) -> None:
        for _ in range(looks):
            if len(self._holders) <= keep:
                return
            holder, _ = self._holders.popitem(last=False)
            if holder.was_used() or not holder.is_synced:
                self._holders[holder] = None
            else:
                holder.close()
