"""What every part of a log stands on: its state, how it fails, how it ends a segment, how it gets to stable storage."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple, NoReturn

from headrace.net.clock import Clock
from headrace.protocol.errors import CodedError, ErrorCode

from .aborted import NONE_OPEN, AbortedIndex, AbortedTransaction
from .chain import Chain
from .checkpoints import REFETCHING
from .disk import Disk, File, StorageError
from .epochs import Epochs
from .history import History, PendingSnapshot
from .open_files import OpenFiles
from .producer_state import Producers
from .scan import BadBatch
from .segment import Segment
from .settings import LogSettings
from .sync import SyncTicket, Unsynced


class FileSlice(NamedTuple):
    """Bytes of whole batches, except that the last may be cut."""

    file: File
    position: int
    length: int


class Doomed(NamedTuple):
    """Files that left the log: to be unlinked at `due_ms`, once the log's start is known on disk to be beyond."""

    due_ms: int
    end_offset: int
    paths: list[str]


class Health(Enum):
    """What a log is good for."""

    ONLINE = "online"
    """Everything."""
    REFETCHING = "refetching"
    """It lost what it had held, and may be counted on for it: it takes what a leader sends, and must not lead."""
    FULL = "full"
    """It can be read, and takes nothing before there is space on the disk."""
    FAILED = "failed"
    """Nothing."""


@dataclass(slots=True, kw_only=True)
class LogState:
    """What opening a log finds; the log takes it over. None stands for what is loaded when first needed."""

    segments: list[Segment]
    log_start_offset: int
    log_end_offset: int
    synced_offset: int
    producers: Producers | None = None
    epochs: Epochs | None = None
    offline: str | None = None
    refetching: bool = False
    findings: list[str] = field(default_factory=list)
    unsynced: Unsynced


def _ignore() -> None:
    """What a log without a manager does when it should tell one."""


ENDED_SEGMENT_MS: Final = 45_000
"""How long a segment that ended may stay unsynced where its topic does not ask for more."""


class LogCore:
    """The state of a log, and what is done with it as a whole."""

    __slots__ = (
        "_chain",
        "_closed",
        "_dirty_since_ms",
        "_disk",
        "_doomed",
        "_history",
        "_may_be_unnamed",
        "_on_fault",
        "_on_recovery_point_lowered",
        "_on_start_lowered",
        "_on_start_moved",
        "_refusal",
        "_ticket",
        "_unsynced",
        "directory",
        "findings",
        "first_dirty_offset",
        "is_lost",
        "is_refetching",
        "is_reopenable",
        "log_end_offset",
        "log_start_offset",
        "name",
        "offline",
        "on_start_stored",
        "settings",
        "stored_start_offset",
        "synced_offset",
    )

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        directory: str,
        name: str,
        settings: LogSettings,
        state: LogState,
        *,
        on_recovery_point_lowered: Callable[[], None] = _ignore,
        on_start_lowered: Callable[[], None] = _ignore,
        on_start_moved: Callable[[], None] = _ignore,
        on_fault: Callable[[], None] = _ignore,
        files: OpenFiles | None = None,
    ) -> None:
        self._disk = disk
        self.directory = directory
        self.name = name
        self.settings = settings
        self._chain = Chain(disk, clock, directory, state.segments, files)
        self._history = History(disk, self._chain, state.producers, state.epochs)
        self.log_start_offset = state.log_start_offset
        self.stored_start_offset = state.log_start_offset
        """Below it nothing comes back, whatever happens: the disk knows that the log starts here, or later."""
        self.log_end_offset = state.log_end_offset
        self.synced_offset = state.synced_offset
        self.findings = state.findings
        self.first_dirty_offset = 0
        self._unsynced = state.unsynced
        self._may_be_unnamed = bool(state.unsynced)
        """Whether the disk may not know yet of which topic the log is: nobody could say so after a power loss."""
        self._ticket: SyncTicket | None = None
        self._closed = False
        self._dirty_since_ms: int | None = None
        self._doomed: list[Doomed] = []
        self._on_recovery_point_lowered = on_recovery_point_lowered
        self._on_start_lowered = on_start_lowered
        self._on_start_moved = on_start_moved
        self.on_start_stored: Callable[[CodedError | None], None] | None = None
        """Called when the disk knows where the log starts, or why it does not."""
        self._on_fault = on_fault
        self.is_reopenable = False
        """Whether it is offline only because the disk was full in the middle of a change: opened anew it is well."""
        self.is_lost = False
        """Whether it is offline because its directory is gone: there is nothing that could be repaired."""
        self.offline: str | None = state.offline
        self.is_refetching = state.refetching
        """Whether it lost what it had held, and its cluster may still count on that: see `refetched`."""
        self._refusal: str | None = state.offline

    @property
    def size_bytes(self) -> int:
        return self._chain.size

    @property
    def segment_count(self) -> int:
        return len(self._chain)

    @property
    def is_full(self) -> bool:
        """Whether appends wait for space on the disk."""
        return self._refusal is not None and self.offline is None and not self._closed

    @property
    def health(self) -> Health:
        """What the log is good for now."""
        if self.offline is not None:
            return Health.FAILED
        if self.is_full:
            return Health.FULL
        return Health.REFETCHING if self.is_refetching else Health.ONLINE

    def refetched(self) -> None:
        """Nobody counts on what the log had lost any more: from now on it is a log like others."""
        if self.is_refetching:
            try:
                self._disk.unlink(f"{self.directory}/{REFETCHING}")
                self._disk.sync_directory(self.directory)
            except StorageError as error:
                self._raise_failed(error)
            self.is_refetching = False

    def configure(self, settings: LogSettings) -> None:
        """Take new settings; they hold from the next append on."""
        self.settings = settings
        self._chain.active.interval = settings.index_interval_bytes

    def _roll(self) -> Segment:
        """End the active segment and start the next one."""
        self._load_producers()
        old = self._chain.active
        new = self._chain.add(self.log_end_offset, self.settings.index_interval_bytes)
        if old.file is not None:
            self._unsynced.add_file(old.file)
        self._history.note_open(old)
        self._unsynced.add_directory(self.directory)
        self._save(old.finish)
        for path in old.index_paths():
            self._unsynced.add_path(path)
        self._save(self._save_producers)
        return new

    def _save_producers(self) -> None:
        snapshot = self._history.save_snapshot(self.log_end_offset)
        if isinstance(snapshot, PendingSnapshot):
            self._unsynced.add_step(snapshot.write)
        elif snapshot is not None:
            self._unsynced.add_path(snapshot)
        if snapshot is not None:
            self._unsynced.add_directory(self.directory)

    def _save(self, write: Callable[[], object]) -> None:
        """Write something that can be made anew: a full disk does not matter, nor a want of descriptors."""
        try:
            write()
        except StorageError as error:
            if not (error.is_full or error.is_busy):
                self.fail(error)

    # Failing

    def _undo_write(self, segment: Segment, file: File, error: StorageError) -> NoReturn:
        try:
            file.truncate(segment.size)
        except StorageError as second:
            self._raise_broken(second)
        self._raise_failed(error)

    def _raise_failed(self, error: StorageError | BadBatch) -> NoReturn:
        """Turn a failure into its answer: try again, wait for space, or go offline."""
        if isinstance(error, StorageError) and error.is_busy:
            raise CodedError(ErrorCode.kafka_storage_error, str(error)) from error
        if isinstance(error, StorageError) and error.is_full:
            if self._refusal is None:
                self._refusal = f"no space left on {self.directory}; free space or shorten retention"
                self._on_fault()
        else:
            self.fail(error)
        raise self._refused() from error

    def _raise_broken(self, error: StorageError | BadBatch) -> NoReturn:
        """Fail half way through a change that cannot be undone: no state is certain but that on disk."""
        self.is_reopenable = self.offline is None and isinstance(error, StorageError) and error.is_full
        self.fail(error)
        raise self._refused() from error

    def _refused(self) -> CodedError:
        return CodedError(ErrorCode.kafka_storage_error, self._refusal or "")

    def fail(self, error: BaseException | str) -> None:
        """Take the log offline until the next start."""
        if self.offline is None:
            is_missing = isinstance(error, StorageError) and error.is_missing
            self.is_lost = is_missing and not self._disk.exists(self.directory)
            self.offline = self._refusal = f"{self.name} is offline: {error}"
            self._on_fault()

    def revive(self) -> None:
        """Let a full log take appends again; to be called when there is space."""
        if self.is_full:
            self._refusal = None

    # What follows from the batches

    def _load_producers(self) -> Producers:
        producers = self._history.producers
        if producers is not None:
            return producers
        try:
            return self._history.load_producers(self.log_start_offset, self.log_end_offset)
        except (StorageError, BadBatch) as error:
            self._raise_failed(error)

    def _load_epochs(self) -> Epochs:
        try:
            return self._history.load_epochs(self.log_end_offset)
        except (StorageError, BadBatch) as error:
            self._raise_failed(error)

    def _assign_epoch(self, leader_epoch: int, offset: int) -> None:
        epochs = self._load_epochs()
        if epochs.assign(leader_epoch, offset):
            self._epochs_changed(epochs)

    def _epochs_changed(self, epochs: Epochs) -> None:
        """The file is written by the next sync, so it knows the epochs of everything below `synced_offset`."""
        self._history.latest_epoch = epochs.latest
        self._unsynced.add_document(self._history.epochs_path, epochs.encode())

    def start_epoch(self, leader_epoch: int) -> None:
        """Note that a leader epoch begins at the end of the log, before it has written anything."""
        if leader_epoch != self._history.latest_epoch:
            self._assign_epoch(leader_epoch, self.log_end_offset)

    def latest_epoch(self) -> int | None:
        return self._load_epochs().latest

    def last_record_epoch(self) -> int:
        """The epoch of the last record: one that was begun after it says nothing of what the log holds. -1 for none."""
        latest = self.latest_epoch()
        if self.log_start_offset < self.log_end_offset:
            return self.epoch_at(self.log_end_offset - 1)
        return -1 if latest is None else latest

    def epoch_at(self, offset: int) -> int:
        """The epoch that an offset was written in; -1 when it is not known."""
        return self._load_epochs().at(offset)

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """The largest epoch up to the asked one and where it ends; (-1, -1) when that is not known here."""
        return self._load_epochs().end_offset(leader_epoch, self.log_end_offset)

    def loaded_producers(self) -> Producers | None:
        """The producers that this log remembers; None as long as nobody has asked for them."""
        return self._history.producers

    def producers(self) -> Producers:
        """The producers that this log remembers, by id."""
        return self._load_producers()

    # Transactions

    def has_open_transaction(self, producer_id: int, epoch: int) -> bool:
        """Whether a producer of this epoch has written here in a transaction that has not ended."""
        return self._load_producers().has_open(producer_id, epoch)

    def last_stable_offset(self, high_watermark: int) -> int:
        """Up to where every transaction is decided, and its end committed."""
        producers = self._history.producers
        if producers is None:
            producers = self._load_producers()
        if not producers.is_unstable:
            return high_watermark
        first = producers.first_unstable_offset(high_watermark)
        if first is None or first >= high_watermark:
            return high_watermark
        return max(first, self.log_start_offset)

    def aborted_between(self, start: int, end: int) -> list[AbortedTransaction]:
        """The aborted transactions that may have records from offset `start` up to `end`, by their markers."""
        found: list[AbortedTransaction] = []
        for segment in self._chain.segments_from(start):
            index = self._aborted_index(segment)
            found += index.overlapping(start, end)
            is_last = segment is self._chain.active
            if is_last or (segment.next_offset >= end and not NONE_OPEN < index.first_open < end):
                break
        return found

    def aborted_within(self, offset: int, found: FileSlice, end: int) -> list[AbortedTransaction]:
        """The aborted transactions that may have records in what was read from an offset on, up to `end`."""
        for segment in self._chain.segments_from(offset):
            if segment.path == found.file.path:
                end = min(end, segment.bound_at(found.position + found.length))
                break
        return self.aborted_between(offset, end)

    def first_open_after(self, segment: Segment) -> int:
        """Where the oldest transaction began that was open at the end of a segment that has ended; -1 for none."""
        return self._aborted_index(segment).first_open

    def _aborted_index(self, segment: Segment) -> AbortedIndex:
        """The index of aborted transactions, kept up with the segment from now on."""
        index = segment.aborted
        if index is not None and index.covered is None:
            return index
        try:
            return self._history.aborted(segment, self.log_start_offset)
        except (StorageError, BadBatch) as error:
            self._raise_failed(error)

    # Getting to stable storage

    def begin_sync(self) -> SyncTicket | None:
        """What has to be synced now; None when everything is, or while another ticket is under way."""
        if self.offline is not None or self._ticket is not None or not self.is_dirty:
            return None
        active = self._chain.active
        if active.file is not None:
            self._unsynced.add_file(active.file)
        elif not active.is_synced:
            self._unsynced.add_path(active.path)
        self._ticket = SyncTicket(self._unsynced.take(), self.log_end_offset, self._chain.written())
        return self._ticket

    def finish_sync(self, ticket: SyncTicket, failure: BaseException | None = None) -> None:
        """Take note that a ticket has been run, and of what it raised.

        After a failed sync the log is offline. Where nothing was tried for want of a descriptor, nothing has failed:
        what the ticket has left waits for the next one.
        """
        self._ticket = None
        if isinstance(failure, StorageError) and failure.is_out_of_descriptors:
            self._unsynced.put_back(ticket.left())
            return
        self._dirty_since_ms = None
        if failure is not None:
            self.fail(failure)
        if self.offline is None:
            self._may_be_unnamed = False
            self.synced_offset = max(self.synced_offset, ticket.end_offset)
            for segment, size in ticket.written:
                segment.synced_size = max(segment.synced_size, min(size, segment.size))

    @property
    def is_dirty(self) -> bool:
        """Whether anything is not yet on stable storage."""
        return self.synced_offset < self.log_end_offset or bool(self._unsynced)

    def flush_due(self, now_ms: int) -> bool:
        """Whether a sync should be asked for now: by `flush.messages`, `flush.ms`, because a segment ended, or because
        these are the first records.

        An ended segment waits until the system has written most of it by itself: the sync then costs next to nothing.
        """
        if self._ticket is not None or self.offline is not None or not self.is_dirty:
            return False
        if self._dirty_since_ms is None:
            self._dirty_since_ms = now_ms
        settings = self.settings
        return (
            self.log_end_offset - self.synced_offset >= settings.flush_messages
            or (self._may_be_unnamed and self.log_end_offset > self.log_start_offset)
            or now_ms - self._dirty_since_ms >= settings.flush_ms
            or (
                (self._chain.active.base_offset > self.synced_offset or self._history.is_saving)
                and now_ms - self._dirty_since_ms >= ENDED_SEGMENT_MS
            )
        )

    def _lower_recovery_point(self, offset: int) -> None:
        """Nothing at or above an offset counts as synced any more; the disk learns it before anything changes."""
        if self._ticket is not None:
            self._ticket.end_offset = min(self._ticket.end_offset, offset)
        if offset < self.synced_offset:
            before, self.synced_offset = self.synced_offset, offset
            try:
                self._on_recovery_point_lowered()
            except StorageError:
                self.synced_offset = before
                raise
