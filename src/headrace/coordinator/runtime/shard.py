"""State that is read from a partition of an internal topic, by whoever comes to lead that partition."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum
from typing import ClassVar, Final

import structlog

from headrace.protocol.batch import BatchHeader
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.replication.partition import Partition
from headrace.storage.disk import StorageError

from .batches import Pair, read_batches
from .fields import BadRecord

log = structlog.get_logger(__name__)

SLICE_BYTES: Final = 128 * 1024
"""How much of the log is read before others get a turn: about 3 ms of work."""


class Phase(Enum):
    """Where a shard is between taking over its partition and speaking for what is in it."""

    LOADING = "loading"
    ACTIVE = "active"
    FAILED = "failed"
    CLOSED = "closed"


class Shard(ABC):
    """A partition that this broker leads, and what its records say. It speaks for that once it has read them all."""

    contents: ClassVar[str]
    """What is in it, for the log."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        is_new = partition.log.log_start_offset == partition.log.log_end_offset
        self.phase = Phase.ACTIVE if is_new else Phase.LOADING
        self._end = partition.log.log_end_offset
        """What is before this offset is known here."""
        self.failures = 0
        """How often in a row the log could not be read."""
        self.failure = ""
        """Why, the last time."""

    @abstractmethod
    def close(self) -> None:
        """Speak for nobody any more; everyone who waits is told so."""

    @abstractmethod
    def _forget(self) -> None:
        """Start from nothing: the log is read next."""

    @abstractmethod
    def _replay(self, header: BatchHeader, pairs: Sequence[Pair]) -> None:
        """Take what a batch says."""

    @abstractmethod
    def _has_read(self) -> None:
        """All is read, but nobody is answered yet. What is raised here makes the load fail."""

    @abstractmethod
    def _is_loaded(self) -> None:
        """Begin to act."""

    async def load(self) -> None:
        """Read the log from its start to its end, a slice at a time."""
        if self.phase is Phase.CLOSED:
            return
        self.phase = Phase.LOADING
        self._end = self.partition.log.log_end_offset
        self._forget()
        try:
            await self._read_log(self._end)
            if self.phase is Phase.LOADING:
                self._has_read()
        except Exception as error:  # whatever its records are, they must not keep the others from loading
            if self.phase is Phase.LOADING:
                self.phase = Phase.FAILED
            self.failures += 1
            self.failure = str(error)
            is_foreseen = isinstance(error, CodedError | StorageError | BadRecord)
            name = self.partition.log.name
            words = f"{self.contents} could not be loaded"
            log.error(words, partition=name, reason=str(error), exc_info=not is_foreseen)
            return
        if self.phase is Phase.LOADING:
            self.phase = Phase.ACTIVE
            self.failures = 0
            self._is_loaded()

    async def _read_log(self, end: int) -> None:
        records = self.partition.log
        offset = records.log_start_offset
        while offset < end and self.phase is Phase.LOADING:
            found = records.read(offset, SLICE_BYTES, end)
            if found is None:
                return
            reached = offset
            for header, pairs in read_batches(found.file.pread(found.length, found.position)):
                self._replay(header, pairs)
                reached = header.last_offset + 1
            if reached == offset:
                raise BadRecord(f"there is no whole batch at offset {offset}")
            offset = reached
            await asyncio.sleep(0)


def unavailable(error: CodedError) -> CodedError:
    """What a client is told when something could not be written or committed: to try again, here or elsewhere."""
    return CodedError(ErrorCode.coordinator_not_available, error.message)
