"""One partition's log: a chain of segments, of which the last grows.

Rules that every method keeps:

1.  `log_end_offset` moves only after the bytes are in the file. What fails leaves offsets as they were.
2.  A failed write is undone by truncating the file; what a failure means for the log is decided in `condition`. After a
    failed sync it is offline.
3.  Everything below `synced_offset` is on stable storage, and so is what recovery needs to trust it.
4.  Whatever lowers `synced_offset` tells the manager first, so that the recovery point on disk is never too high.
5.  Indexes, snapshots and epochs can be made anew from the batches; the batches from nothing.

All methods run on the loop's thread except `SyncTicket.run`.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from enum import Enum
from typing import Final, NamedTuple, NoReturn, TypeAlias

from headrace.net.clock import Clock
from headrace.protocol.batch import (
    HEADER_SIZE,
    LOG_OVERHEAD,
    BatchHeader,
    read_header,
    stamp,
)
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.records import Marker, decode_marker

from . import lookup
from .aborted import AbortedIndex, AbortedTransaction
from .chain import Chain
from .condition import Condition, Health
from .deletion import DeletedFiles
from .disk import Directory, Disk, File, StorageError
from .epochs import Epochs
from .history import FEW_PRODUCERS, History, PendingSnapshot, note_aborted
from .lookup import TimestampOffset
from .open_files import OpenFiles
from .producer_state import Producers, check, check_epoch, check_marker
from .recovery import LogState
from .retention import Cause, expired
from .scan import CorruptBatch, check_fetched, check_gap, scan
from .segment import LARGEST_RELATIVE_OFFSET, Segment
from .settings import LogSettings
from .sync import SyncTicket

ENDED_SEGMENT_MS: Final = 45_000
"""How long a segment that ended may stay unsynced where its topic does not ask for more."""
UNLIMITED_OFFSET: Final = (1 << 63) - 1

_new_tuple: Final = tuple.__new__  # a third of what a NamedTuple's own constructor costs


class Origin(Enum):
    """Who made a batch that the leader appends."""

    CLIENT = "client"
    """A producer: its sequence numbers are checked."""
    COORDINATOR = "coordinator"
    """A coordinator: offsets that a producer commits in its transaction, or the marker that ends one."""


_CLIENT: Final = Origin.CLIENT  # an attribute of an enumeration takes as long as a call


class Appended(NamedTuple):
    """Where a batch stands in the log; `duplicate` when it stood there before."""

    base_offset: int
    last_offset: int
    duplicate: bool


class FileSlice(NamedTuple):
    """Bytes of whole batches, except that the last may be cut."""

    file: File
    position: int
    length: int
    next_offset: int
    """Where who has read it goes on: of a cut slice about, by the sparse index."""


OnDeleted: TypeAlias = "Callable[[Log, Cause, int, int], None]"
"""Told of segments that left a log: why, how many, and their bytes."""


def _ignore(*_: object) -> None:
    """What a log without a manager does when it should tell one."""


class Log:
    """A partition's records on disk."""

    __slots__ = (
        "_chain",
        "_deleted",
        "_dirty_since_ms",
        "_disk",
        "_history",
        "_may_be_unnamed",
        "_on_deleted",
        "_on_recovery_point_lowered",
        "_on_start_lowered",
        "_on_start_moved",
        "_refusal",
        "_rolled_bytes",
        "_ticket",
        "_unsynced",
        "condition",
        "directory",
        "findings",
        "first_dirty_offset",
        "log_end_offset",
        "log_start_offset",
        "name",
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
        on_deleted: OnDeleted = _ignore,
        files: OpenFiles | None = None,
    ) -> None:
        self._disk = disk
        self.directory = directory
        self.name = name
        self.settings = settings
        self._refusal = state.offline
        """As `condition` says, why nothing can be appended: every append asks."""
        self.condition = Condition(
            disk,
            directory,
            name,
            offline=state.offline,
            is_refetching=state.refetching,
            on_refusal=self._refuse,
            on_fault=on_fault,
        )
        self._on_deleted = on_deleted
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
        self._rolled_bytes = 0
        """In segments that ended since the log was opened."""
        self._ticket: SyncTicket | None = None
        self._dirty_since_ms: int | None = None
        self._deleted = DeletedFiles(disk, directory)
        self._on_recovery_point_lowered = on_recovery_point_lowered
        self._on_start_lowered = on_start_lowered
        self._on_start_moved = on_start_moved
        self.on_start_stored: Callable[[CodedError | None], None] | None = None
        """Called when the disk knows where the log starts, or why it does not."""

    @property
    def size_bytes(self) -> int:
        return self._chain.size

    @property
    def written_bytes(self) -> int:
        """Grows by what is appended: between two looks, unless the log was cut. Nobody has to count for it."""
        return self._rolled_bytes + self._chain.active.size

    @property
    def segment_count(self) -> int:
        return len(self._chain)

    @property
    def offline(self) -> str | None:
        """Why nothing can be read or written; None while something can."""
        return self.condition.offline

    @property
    def health(self) -> Health:
        """Which operations the log can serve now."""
        return self.condition.health

    def fail(self, error: BaseException | str) -> None:
        """Take the log offline until the next start."""
        self.condition.fail(error)

    def _refuse(self, reason: str | None) -> None:
        self._refusal = reason

    def configure(self, settings: LogSettings) -> None:
        """Take new settings; they hold from the next append on."""
        self.settings = settings
        self._chain.active.interval = settings.index_interval_bytes

    def _roll(self) -> Segment:
        """End the active segment and start the next one."""
        self._load_producers()
        old = self._chain.active
        new = self._chain.add(self.log_end_offset, self.settings.index_interval_bytes)
        self._rolled_bytes += old.size
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

    # Appending

    def append(
        self,
        batch: memoryview,
        header: BatchHeader,
        leader_epoch: int,
        origin: Origin = Origin.CLIENT,
        bumped: bool = False,
    ) -> Appended:
        """Write one checked batch at the end, as the leader; its offset and epoch are stamped in place.

        With `bumped` it is a marker whose producer epoch is one more than that of the transaction's batches.
        """
        if self._refusal is not None:
            raise self.condition.refused()
        base_offset = self.log_end_offset
        last_offset = base_offset + header.last_offset_delta
        producer_id = header.producer_id
        if producer_id < 0:
            self._write(batch, header, base_offset, last_offset, leader_epoch)
            return _new_tuple(Appended, (base_offset, last_offset, False))
        producers = self._history.producers
        if producers is None:
            producers = self._load_producers()
        if origin is _CLIENT:
            known = check(producers.awake(producer_id), header)
            if known is not None:
                return Appended(known.base_offset, known.last_offset, True)
        elif header.is_control:
            return self._append_marker(batch, header, leader_epoch, producers, bumped)
        else:
            check_epoch(producers.get(producer_id), header)
        self._write(batch, header, base_offset, last_offset, leader_epoch)
        producers.note(header, base_offset)
        return _new_tuple(Appended, (base_offset, last_offset, False))

    def _append_marker(
        self, batch: memoryview, header: BatchHeader, leader_epoch: int, producers: Producers, bumped: bool
    ) -> Appended:
        """Write the marker that ends a transaction."""
        marker = decode_marker(batch)
        if marker is not None:
            check_marker(producers.get(header.producer_id), header, marker, bumped=bumped)
        base_offset = self.log_end_offset
        last_offset = base_offset + header.last_offset_delta
        self._write(batch, header, base_offset, last_offset, leader_epoch)
        if marker is not None:
            self._note_marker(producers, header, last_offset, marker)
        return Appended(base_offset, last_offset, False)

    def _note_marker(self, producers: Producers, header: BatchHeader, offset: int, marker: Marker) -> None:
        """A marker was written at the end of the log: what was open before the active segment knew is in its index."""
        index = self._chain.active.aborted
        ended = producers.note_marker(header, offset, marker)
        if index is not None and index.covered is None:
            note_aborted(index, ended)

    def append_as_follower(self, batches: memoryview, leader_end: int = UNLIMITED_OFFSET) -> None:
        """Write batches as the leader stamped them, from `log_end_offset` on; a cut one at the end is left out.

        Offsets may be missing, as compaction removes records; but the leader's log ends at `leader_end`.
        """
        if self._refusal is not None:
            raise self.condition.refused()
        position = 0
        while position + HEADER_SIZE <= len(batches):
            header = read_header(batches, position)
            end = position + header.size
            if end > len(batches):
                break
            batch = batches[position:end]
            check_fetched(self.name, self.log_end_offset, batch, header)
            if header.base_offset > self.log_end_offset:
                following = read_header(batches, end) if end + HEADER_SIZE <= len(batches) else None
                if following is None and position:
                    break  # asked for again as the first of an answer, it comes with what follows it
                check_gap(self.name, self.log_end_offset, header, following, leader_end)
            self._write_followed(batch, header)
            position = end

    def _write_followed(self, batch: memoryview, header: BatchHeader) -> None:
        marker = decode_marker(batch) if header.is_control else None
        producers = self._load_producers() if header.producer_id >= 0 else None
        self._write(batch, header, header.base_offset, header.last_offset, header.leader_epoch)
        if producers is None:
            return
        if marker is not None:
            self._note_marker(producers, header, header.last_offset, marker)
        elif not header.is_control:
            producers.note(header, header.base_offset)

    def _write(
        self, batch: memoryview, header: BatchHeader, base_offset: int, last_offset: int, leader_epoch: int
    ) -> None:
        size = len(batch)
        max_timestamp = header.max_timestamp
        segment = self._chain.active
        file = segment.writer
        settings = self.settings
        if (
            file is None
            or segment.size + size > settings.segment_bytes
            or max_timestamp - segment.first_timestamp > settings.segment_ms
            or last_offset - segment.base_offset > LARGEST_RELATIVE_OFFSET
            or (segment.since_index > segment.interval and segment.index_is_full(settings.segment_index_bytes))
        ):
            segment, file = self._prepare(size, last_offset, max_timestamp)
        stamp(batch, base_offset, leader_epoch)
        try:
            file.append(batch)
        except StorageError as error:
            self._undo_write(segment, file, error)
        segment.note(last_offset, max_timestamp, size)
        self.log_end_offset = last_offset + 1
        if leader_epoch != self._history.latest_epoch:
            self._assign_epoch(leader_epoch, base_offset)

    def _undo_write(self, segment: Segment, file: File, error: StorageError) -> NoReturn:
        try:
            file.truncate(segment.size)
        except StorageError as second:
            self.condition.raise_broken(second)
        self.condition.raise_failed(error)

    def _must_roll(self, segment: Segment, size: int, last_offset: int, max_timestamp: int) -> bool:
        settings = self.settings
        return segment.size > 0 and (
            segment.size + size > settings.segment_bytes
            or max_timestamp - segment.first_timestamp > settings.segment_ms
            or last_offset - segment.base_offset > LARGEST_RELATIVE_OFFSET
            or segment.index_is_full(settings.segment_index_bytes)
        )

    def _prepare(self, size: int, last_offset: int, max_timestamp: int) -> tuple[Segment, File]:
        """A segment that takes a batch: the active one, or a new one when that is full or too old."""
        try:
            segment = self._chain.active
            if segment.writer is None:
                segment.ready()
                self._load_producers()
                self._load_epochs()
                self._aborted_index(segment)
            if self._must_roll(segment, size, last_offset, max_timestamp):
                segment = self._roll()
                if self.condition.offline is not None:
                    raise self.condition.refused()
            return segment, segment.ready()
        except (StorageError, CorruptBatch) as error:
            self.condition.raise_failed(error)

    # Reading

    def read(self, offset: int, max_bytes: int, end_offset: int) -> FileSlice | None:
        """Batches from the one that holds an offset, up to `end_offset` (a batch boundary) and one segment's end.

        None when there is nothing yet. The first batch comes whole whatever `max_bytes` says.
        """
        end_offset = self._check_range(offset, end_offset)
        if offset >= end_offset:
            return None
        try:
            located = self._chain.locate(offset, end_offset)
            if located is None:
                return None
            segment, start, end = located
            file = segment.open()
            next_offset = min(end_offset, segment.next_offset)
            if max_bytes < end - start:
                size = int.from_bytes(file.pread(4, start + 8), "big") + LOG_OVERHEAD
                whole, end = end - start, start + max(max_bytes, size)
                near = segment.offset_near(end)
                share = offset + (next_offset - offset) * (end - start) // whole
                next_offset = min(next_offset, near if near > offset else share)
        except (StorageError, CorruptBatch) as error:
            self.condition.raise_failed(error)
        return _new_tuple(FileSlice, (file, start, end - start, next_offset))

    def read_bytes_available(self, offset: int, end_offset: int) -> int:
        """How much a reader at an offset can get: exact within one segment, else a lower bound."""
        end_offset = self._check_range(offset, end_offset)
        if offset >= end_offset:
            return 0
        try:
            located = self._chain.locate(offset, end_offset)
        except (StorageError, CorruptBatch) as error:
            self.condition.raise_failed(error)
        return located[2] - located[1] if located else 0

    def _check_range(self, offset: int, end_offset: int) -> int:
        if self.condition.offline is not None:
            raise self.condition.refused()
        end = self.log_end_offset
        if offset < self.log_start_offset or offset > end:
            raise CodedError(
                ErrorCode.offset_out_of_range,
                f"{self.name} holds offsets {self.log_start_offset} to {end}, {offset} was asked",
            )
        return min(end_offset, end)

    def offset_for_timestamp(self, timestamp: int, end_offset: int) -> TimestampOffset | None:
        """The first record below `end_offset` that is not older than a timestamp."""
        end_offset = self._check_range(self.log_start_offset, end_offset)
        try:
            return lookup.first_at_or_after(self._chain.segments, timestamp, self.log_start_offset, end_offset)
        except (StorageError, CorruptBatch) as error:
            self.condition.raise_failed(error)

    def offset_of_max_timestamp(self, end_offset: int) -> TimestampOffset | None:
        """The first record below `end_offset` that has the largest timestamp."""
        end_offset = self._check_range(self.log_start_offset, end_offset)
        try:
            return lookup.latest(self._chain.segments, self.log_start_offset, end_offset)
        except (StorageError, CorruptBatch) as error:
            self.condition.raise_failed(error)

    def verify(self) -> list[str]:
        """Check every batch against its CRC; what is wrong, and then the log is offline."""
        faults: list[str] = []
        for segment in self._chain.segments:
            try:
                for _ in scan(segment.open(), 0, segment.size, floor=segment.base_offset, checked_from=0):
                    pass
            except (StorageError, CorruptBatch) as error:
                faults.append(str(error))
        if faults:
            self.fail(faults[0])
        return faults

    # Shortening

    def truncate_to(self, offset: int) -> None:
        """Drop everything at or above an offset, and the batch that holds it; and leader epochs without a record."""
        if offset > self.log_end_offset:
            return
        if self.condition.offline is not None:
            raise self.condition.refused()
        if offset == self.log_end_offset:
            self._cut_epochs()
            return
        end = self._prepare_cut(offset) if offset >= self.log_start_offset else offset
        if end < self.log_start_offset:
            self.restart_at(min(offset, self.log_start_offset))  # also where it begins inside the batch that is dropped
            return
        with closing(self._open_directory()) as directory:
            self._prepare_truncation(end)
            try:
                self._deleted.add(self._chain.cut(offset))
                self.log_end_offset = self._chain.active.next_offset
                self._cut_epochs()
            except (StorageError, CorruptBatch) as error:
                self.condition.raise_broken(error)
            try:
                self._sync_active(directory)
            except StorageError as error:
                self.fail(error)
                raise self.condition.refused() from error

    def _prepare_cut(self, offset: int) -> int:
        try:
            return self._chain.prepare_cut(offset)
        except (StorageError, CorruptBatch) as error:
            self.condition.raise_failed(error)

    def _open_directory(self) -> Directory:
        try:
            return self._disk.open_directory(self.directory)
        except StorageError as error:
            self.condition.raise_failed(error)

    def _prepare_truncation(self, offset: int) -> None:
        """All that needs a descriptor, or may be refused: until here the log is as it was."""
        self._load_epochs()
        try:
            self._lower_recovery_point(offset)
            self.first_dirty_offset = min(self.first_dirty_offset, offset)
            self._history.cut(offset)
        except (StorageError, CorruptBatch) as error:
            self.condition.raise_failed(error)

    def _sync_active(self, directory: Directory) -> None:
        """After a truncation nothing of the old history may come back, once new batches count as synced."""
        active = self._chain.active
        active.open().datasync()
        for path in active.index_paths():
            if self._disk.exists(path):
                self._sync_index(path)
        directory.sync()

    def _sync_index(self, path: str) -> None:
        try:
            self._disk.sync_file(path)
        except StorageError as error:
            if not error.is_out_of_descriptors:
                raise
            self._disk.unlink(path)

    def restart_at(self, offset: int) -> None:
        """Drop everything and go on, empty, at an offset: for a follower that its leader has left behind."""
        if self.condition.offline is not None:
            raise self.condition.refused()
        with closing(self._open_directory()) as directory:
            segment = self._prepare_restart(offset)
            try:
                self._deleted.add(self._chain.restart(segment))
                self.log_start_offset = self.log_end_offset = self.synced_offset = offset
                self.stored_start_offset = offset
                self._forget_epochs()
                directory.sync()
            except (StorageError, CorruptBatch) as error:
                self.condition.raise_broken(error)
        self._on_start_moved()

    def _prepare_restart(self, offset: int) -> Segment:
        """All that needs a descriptor or space, or may be refused: until here the log is as it was.

        The disk must know of a start that goes back before anything is written there; of one that goes on, the
        segments tell as well.
        """
        self._load_epochs()
        try:
            segment = self._chain.prepare_restart(offset, self.settings.index_interval_bytes)
            self._lower_recovery_point(min(offset, self.log_start_offset))
            self.first_dirty_offset = min(self.first_dirty_offset, offset)
            self._history.cut(-1)
            self.unlink_deleted(None)
            if offset < self.log_start_offset:
                self.log_start_offset = self.stored_start_offset = offset
                self._on_start_lowered()
        except (StorageError, CorruptBatch) as error:
            self.condition.raise_failed(error)
        return segment

    def _forget_epochs(self) -> None:
        """A log that begins anew holds nothing of any epoch: with one of before its position would look diverged."""
        epochs = self._load_epochs()
        if epochs.cut_end(0):
            self._epochs_changed(epochs)

    def _cut_epochs(self) -> None:
        epochs = self._load_epochs()
        if epochs.cut_end(self.log_end_offset):
            self._epochs_changed(epochs)

    def advance_start(self, offset: int) -> None:
        """Let the log begin at an offset, as DeleteRecords asks: for readers now, for good with `start_stored`."""
        if offset > self.log_start_offset:
            self._check_range(offset, offset)
            self.log_start_offset = offset
        if self.stored_start_offset < self.log_start_offset:
            self._on_start_moved()

    def start_stored(self, offset: int) -> None:
        """The log start offset is on disk: whole segments below it are deleted."""
        if not self.stored_start_offset < offset <= self.log_start_offset:
            return
        self.stored_start_offset = offset
        if not self.condition.is_usable:
            return
        self._forget_early_epochs(offset)
        segments = self._chain.segments
        causes = [Cause.LOG_START for segment in segments[1:] if segment.base_offset <= offset]
        self._delete_oldest(causes, now_ms=0)
        if self.on_start_stored is not None:
            self.on_start_stored(None)

    def start_not_stored(self, error: StorageError) -> None:
        """The log start offset could not be written. Where the disk is full, or was busy, it will be tried again."""
        if not (error.is_full or error.is_busy):
            self.fail(error)
        if self.on_start_stored is not None:
            self.on_start_stored(CodedError(ErrorCode.kafka_storage_error, str(error)))

    def _forget_early_epochs(self, offset: int) -> None:
        """Only of what cannot come back: the disk knows that the log starts here, or the segments before are gone."""
        epochs = self._load_epochs()
        if epochs.cut_start(offset):
            self._epochs_changed(epochs)

    def retain(self, now_ms: int, high_watermark: int) -> int:
        """Remove segments by `retention.ms` and `retention.bytes`, none beyond the high watermark; bytes freed."""
        if self.condition.offline is not None:
            return 0
        producers = self._history.producers
        if producers is not None:
            settings = self.settings
            producers.expire(now_ms, settings.producer_id_expiration_ms, settings.idempotency_key_expiration_ms)
        try:
            causes = expired(
                self._chain.segments,
                self.settings,
                now_ms=now_ms,
                log_start_offset=self.log_start_offset,
                high_watermark=high_watermark,
            )
            if len(causes) == len(self._chain) and not self._could_roll():
                causes.pop()
        except (StorageError, CorruptBatch) as error:
            self.condition.raise_failed(error)
        return self._delete_oldest(causes, now_ms)

    def _could_roll(self) -> bool:
        """End the active segment so that it can go, unless the disk is too full for a new one."""
        try:
            self._roll()
        except StorageError as error:
            if not error.is_full:
                raise
            return False
        return True

    def _delete_oldest(self, causes: Sequence[Cause], now_ms: int) -> int:
        """Take the oldest segments out of the log, one for each cause; their files go later. Bytes freed."""
        segments = self._chain.take_oldest(len(causes))
        if not segments:
            return 0
        end = self._chain.segments[0].base_offset
        due_ms = now_ms + self.settings.file_delete_delay_ms
        for segment in segments:
            self._deleted.add(segment.files(), due_ms=due_ms, end_offset=end)
        self.log_start_offset = max(self.log_start_offset, end)
        for cause in dict.fromkeys(causes):
            sizes = [segment.size for segment, why in zip(segments, causes, strict=True) if why is cause]
            self._on_deleted(self, cause, len(sizes), sum(sizes))
        return sum(segment.size for segment in segments)

    def deleted_end(self, now_ms: int) -> int | None:
        """The log start offset that must be on disk before `unlink_deleted` is called; None where none has to be.

        As long as a snapshot of the producers is being written, deleted files tell of them: unless there is no space.
        """
        if self._history.is_saving and not self.condition.is_full:
            return None
        return self._deleted.end_offset(now_ms)

    def unlink_deleted(self, now_ms: int | None, *, in_order: bool = False) -> None:
        """Unlink files that left the log and are due; all of them with None.

        With `in_order` each segment is gone for good before the next one goes, so no gap can appear even when the
        log's new start could not be written down: that is how a full disk is freed.
        """
        gone = self._deleted.unlink(now_ms, in_order=in_order)
        if gone >= 0 and now_ms is not None:
            self._forget_early_epochs(gone)

    # Compaction

    def end_segment_older_than(self, timestamp: int) -> None:
        """End the active segment if its first records are older than a time, so that they can be compacted."""
        active = self._chain.active
        if self._refusal is not None or not active.size:
            return
        try:
            if active.oldest_timestamp < timestamp:
                self._could_roll()
        except (StorageError, CorruptBatch) as error:
            self.condition.raise_failed(error)

    def inactive_segments(self) -> list[Segment]:
        return self._chain.segments[:-1]

    def holds(self, segments: list[Segment]) -> bool:
        """Whether these are still, one after the other, finished segments of the log."""
        if self.condition.offline is not None or self._chain.active in segments:
            return False
        return self._chain.number_of(segments) is not None

    def replace_segments(self, old: list[Segment], new: Segment) -> None:
        """Let a cleaned segment take the place of others."""
        number = self._chain.number_of(old)
        assert number is not None

        def remove_old() -> None:
            for segment in reversed(old):
                self._deleted.add(segment.set_aside(keep_snapshot=segment is old[0]))

        with closing(self._open_directory()) as directory:
            try:
                new.put_in_place(directory, remove_old)
            except StorageError as error:
                self.condition.raise_broken(error)
        self._history.withdraw_snapshots(old[0].base_offset, old[-1].base_offset)
        self._chain.replace(number, len(old), [new])
        self._unsynced.add_directory(self.directory)

    # Ending

    def save(self) -> None:
        """Write index entries and producers that the files do not have yet, so that a start need not make them anew."""
        if self.condition.offline is not None:
            return
        self._history.note_open(self._chain.active)
        self._save(self._chain.active.save_indexes)
        producers = self._history.producers
        if producers is not None:
            producers.rest()
            if len(producers) <= FEW_PRODUCERS:
                self._save(lambda: self._history.save_snapshot(self.log_end_offset))
        self._chain.release_idle()

    def close(self) -> None:
        """Sync everything, write indexes and producers, and let the files go."""
        try:
            if self.condition.offline is None:
                self._settle()
        except (StorageError, CorruptBatch) as error:
            self.fail(error)
        self._history.withdraw_snapshots()
        for segment in self._chain.segments:
            segment.close()
        self.condition.close()

    def begin_close(self) -> SyncTicket | None:
        """Write what `close` writes; what it will sync, to be run by whichever thread before."""
        try:
            if self.condition.offline is None:
                self._write_rest()
                return self._ticket or self.begin_sync()
        except (StorageError, CorruptBatch) as error:
            self.fail(error)
        return None

    def _settle(self) -> None:
        if self._ticket is not None:
            self._ticket.run()
            self.finish_sync(self._ticket)
        self._write_rest()
        ticket = self.begin_sync()
        if ticket is not None:
            ticket.run()
            self.finish_sync(ticket)

    def _write_rest(self) -> None:
        self._history.note_open(self._chain.active)
        self._save(self._finish_segments)
        if self.is_dirty or self._history.producers is not None:
            self._load_producers()
            self._save(self._save_producers)

    def _finish_segments(self) -> None:
        for segment in self._chain.segments:
            if segment.finish():
                for path in segment.index_paths():
                    self._unsynced.add_path(path)

    # Getting to stable storage

    def begin_sync(self) -> SyncTicket | None:
        """What has to be synced now; None when everything is, or while another ticket is under way."""
        if self.condition.offline is not None or self._ticket is not None or not self.is_dirty:
            return None
        active = self._chain.active
        if active.file is not None:
            self._unsynced.add_file(active.file)
        elif not active.is_synced:
            self._unsynced.add_path(active.path)
        self._ticket = SyncTicket(self._unsynced.take(), self.log_end_offset, self._chain.written())
        return self._ticket

    def finish_sync(self, ticket: SyncTicket, failure: BaseException | None = None) -> None:
        """Take the result of a sync, or the error that it raised.

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
        if self.condition.offline is None:
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
        if self._ticket is not None or self.condition.offline is not None or not self.is_dirty:
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
        """Lower the recovery point to an offset, on disk as well, before anything above it changes."""
        if self._ticket is not None:
            self._ticket.end_offset = min(self._ticket.end_offset, offset)
        if offset < self.synced_offset:
            before, self.synced_offset = self.synced_offset, offset
            try:
                self._on_recovery_point_lowered()
            except StorageError:
                self.synced_offset = before
                raise

    # What follows from the batches

    def _load_producers(self) -> Producers:
        producers = self._history.producers
        if producers is not None:
            return producers
        try:
            return self._history.load_producers(self.log_start_offset, self.log_end_offset)
        except (StorageError, CorruptBatch) as error:
            self.condition.raise_failed(error)

    def _load_epochs(self) -> Epochs:
        try:
            return self._history.load_epochs(self.log_end_offset)
        except (StorageError, CorruptBatch) as error:
            self.condition.raise_failed(error)

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
        """The last stable offset: every transaction below it has ended, and its marker is committed."""
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
        try:
            return self._history.aborted_between(start, end, self.log_start_offset)
        except (StorageError, CorruptBatch) as error:
            self.condition.raise_failed(error)

    def aborted_within(self, offset: int, records: FileSlice, end: int) -> list[AbortedTransaction]:
        """The aborted transactions that may have records in what was read from an offset on, up to `end`."""
        for segment in self._chain.segments_from(offset):
            if segment.path == records.file.path:
                end = min(end, segment.bound_at(records.position + records.length))
                break
        return self.aborted_between(offset, end)

    def first_open_after(self, segment: Segment) -> int:
        """Where the oldest transaction began that was open at the end of a segment that has ended; -1 for none."""
        return self._aborted_index(segment).first_open

    def _aborted_index(self, segment: Segment) -> AbortedIndex:
        """The index of aborted transactions, kept up with the segment from now on."""
        try:
            return self._history.aborted(segment, self.log_start_offset)
        except (StorageError, CorruptBatch) as error:
            self.condition.raise_failed(error)
