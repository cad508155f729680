"""Where the registry's records are kept: an interface, and one in memory for tests and trials."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """A record at its offset. `key` is different for every proposal, so that compaction would remove nothing."""

    offset: int
    key: bytes
    value: bytes | None


class LogUnavailableError(Exception):
    """The log cannot be read or written now, or is not whole; the message says why."""


class SchemaLog(Protocol):
    """One sequence of records that everyone sees in the same order."""

    async def append(self, key: bytes, value: bytes) -> None:
        """Returns once the record is durable. After LogUnavailableError it may be there or not."""

    def follow(self) -> AsyncIterator[LogEntry]:
        """Every record from the first on, and then each new one; ends only with an error or a cancellation."""

    async def end(self) -> int:
        """The offset behind the last record that anyone was told is durable."""


class MemoryLog:
    """A log that lives as long as the process; any number of registries may share it."""

    def __init__(self) -> None:
        self.entries: list[LogEntry] = []
        self._grown = asyncio.Condition()

    async def append(self, key: bytes, value: bytes) -> None:
        async with self._grown:
            self.entries.append(LogEntry(offset=len(self.entries), key=key, value=value))
            self._grown.notify_all()

    async def follow(self) -> AsyncIterator[LogEntry]:
        position = 0
        while True:
            async with self._grown:
                while len(self.entries) <= position:
                    await self._grown.wait()
            for entry in self.entries[position:]:
                yield entry
                position += 1

    async def end(self) -> int:
        return len(self.entries)
