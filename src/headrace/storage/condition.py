"""Whether a log can be used, and what becomes of it when the disk fails.

-   Without space appends are refused until there is some (`revive`); reads go on.
-   What needs a descriptor when there is none is refused, and can be tried again at once.
-   After any other failure the log is offline until the next start, or until it is opened anew.
"""

from collections.abc import Callable
from enum import Enum
from typing import NoReturn

from headrace.protocol.errors import CodedError, ErrorCode

from .checkpoints import REFETCHING
from .disk import Disk, StorageError
from .scan import CorruptBatch


class Health(Enum):
    """Which operations a log can serve."""

    ONLINE = "online"
    """Everything."""
    REFETCHING = "refetching"
    """It lost what it had held, and may be counted on for it: it takes what a leader sends, and must not lead."""
    FULL = "full"
    """It can be read, and takes nothing before there is space on the disk."""
    FAILED = "failed"
    """Nothing."""


class Condition:
    """The health of one log, and the error for requests that it cannot serve."""

    __slots__ = (
        "_directory",
        "_disk",
        "_is_closed",
        "_name",
        "_on_fault",
        "_on_refusal",
        "_refusal",
        "is_lost",
        "is_refetching",
        "is_reopenable",
        "offline",
    )

    def __init__(
        self,
        disk: Disk,
        directory: str,
        name: str,
        *,
        offline: str | None,
        is_refetching: bool,
        on_refusal: Callable[[str | None], None],
        on_fault: Callable[[], None],
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._name = name
        self._on_refusal = on_refusal
        self._on_fault = on_fault
        self._is_closed = False
        self.offline = offline
        """Why nothing can be read or written; None while something can."""
        self._refusal = offline
        self.is_refetching = is_refetching
        """Whether it lost what it had held, and its cluster may still count on that: see `refetched`."""
        self.is_reopenable = False
        """Whether it is offline only because the disk was full in the middle of a change: opened anew it is well."""
        self.is_lost = False
        """Whether it is offline because its directory is gone: there is nothing that could be repaired."""

    @property
    def is_full(self) -> bool:
        """Whether appends wait for space on the disk."""
        return self._refusal is not None and self.offline is None and not self._is_closed

    @property
    def health(self) -> Health:
        """Which operations the log can serve now."""
        if self.offline is not None:
            return Health.FAILED
        if self.is_full:
            return Health.FULL
        return Health.REFETCHING if self.is_refetching else Health.ONLINE

    @property
    def is_usable(self) -> bool:
        """Whether it is open and online."""
        return self.offline is None and not self._is_closed

    def refused(self) -> CodedError:
        """The error for a request that the log cannot serve."""
        return CodedError(ErrorCode.kafka_storage_error, self._refusal or "")

    def fail(self, error: BaseException | str) -> None:
        """Take the log offline until the next start."""
        if self.offline is None:
            is_missing = isinstance(error, StorageError) and error.is_missing
            self.is_lost = is_missing and not self._disk.exists(self._directory)
            self.offline = f"{self._name} is offline: {error}"
            self._refuse(self.offline)
            self._on_fault()

    def raise_failed(self, error: StorageError | CorruptBatch) -> NoReturn:
        """Turn a failure into its answer: try again, wait for space, or the log is offline."""
        if isinstance(error, StorageError) and error.is_busy:
            raise CodedError(ErrorCode.kafka_storage_error, str(error)) from error
        if isinstance(error, StorageError) and error.is_full:
            if self._refusal is None:
                self._refuse(f"no space left on {self._directory}; free space or shorten retention")
                self._on_fault()
        else:
            self.fail(error)
        raise self.refused() from error

    def raise_broken(self, error: StorageError | CorruptBatch) -> NoReturn:
        """Fail half way through a change that cannot be undone: no state is certain but that on disk."""
        self.is_reopenable = self.offline is None and isinstance(error, StorageError) and error.is_full
        self.fail(error)
        raise self.refused() from error

    def revive(self) -> None:
        """Let a full log take appends again; to be called when there is space."""
        if self.is_full:
            self._refuse(None)

    def refetched(self) -> None:
        """The cluster no longer counts on what the log had lost: it is healthy again."""
        if self.is_refetching:
            try:
                self._disk.unlink(f"{self._directory}/{REFETCHING}")
                self._disk.sync_directory(self._directory)
            except StorageError as error:
                self.raise_failed(error)
            self.is_refetching = False

    def close(self) -> None:
        """Refuse every further append."""
        self._is_closed = True
        self._refuse(self._refusal or f"{self._name} is closed")

    def _refuse(self, reason: str | None) -> None:
        """Refuse appends for a reason, or with None accept them; the log keeps the reason where every append looks."""
        self._refusal = reason
        self._on_refusal(reason)
