"""Opening a log: trusting what was synced, checking what was not.

The recovery point is an offset below which everything was on stable storage when it was written down. Below it a
batch that cannot be read is damage: it is reported, nothing is deleted, and the log stays offline so that its data
can be fetched again or looked at. From it on, the file may end in anything: a torn batch, blocks of zeros, garbage.
There batches are checked one by one against their CRC, and the log is cut behind the last good one.

After a clean shutdown the recovery point is the log's end, and not a byte is read.
"""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from headrace.net.clock import Clock
from headrace.protocol.batch import HEADER_SIZE, LOG_OVERHEAD, NO_PRODUCER, BatchHeader, read_header
from headrace.protocol.errors import CodedError

from .checkpoints import LEADER_EPOCHS, PARTITION_METADATA, REFETCHING
from .disk import Disk, File, StorageError, parent_of
from .epochs import Epochs
from .index import OffsetIndex, TimeIndex
from .open_files import OpenFiles
from .plain import PlainBatches, can_pass_over
from .producer_state import Producers
from .replay import load_epochs, newest_snapshot, note_batch, note_batches, snapshot_offsets, snapshot_path
from .scan import CorruptBatch, is_misplaced, scan
from .segment import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    Segment,
    restart_position,
)
from .settings import LogSettings
from .sync import Unsynced

_TEMPORARY: Final = ".tmp"
_COMPANIONS: Final = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What the data directory's checkpoints say about a log."""

    recovery_point: int = 0
    log_start_offset: int = 0
    clean: bool = False
    may_have_gaps: bool = False
    """Whether compaction may have removed the end of a segment."""
    high_watermark: int = 0
    may_refetch: bool = False
    """Whether others may hold what this log has lost."""
    is_named: bool = False
    """Whether the name of its directory is known to be on stable storage."""

    @property
    def held_offsets(self) -> int:
        """Up to where the log is known to have held something; its start where it may have been empty."""
        return max(self.recovery_point, self.high_watermark, self.log_start_offset)


class RecoveryProgress:
    """How far a recovery has come, and whether it is to be given up: shared with the thread that is at it."""

    __slots__ = ("bytes", "is_cancelled")

    def __init__(self) -> None:
        self.bytes = 0
        self.is_cancelled = False


class RecoveryCancelled(Exception):
    """The broker stops: what was not recovered is so at the next start."""


class _Watched:
    """A file that is read from its beginning to its end, as far as `scan` needs it."""

    def __init__(self, file: File, progress: RecoveryProgress) -> None:
        self._file = file
        self._progress = progress
        self.path = file.path

    def pread(self, size: int, position: int) -> bytes:
        if self._progress.is_cancelled:
            raise RecoveryCancelled(self.path)
        data = self._file.pread(size, position)
        self._progress.bytes += len(data)
        return data


class _Damaged(Exception):
    """Something below the recovery point is not as it was."""


@dataclass(slots=True, kw_only=True)
class _Recovery:
    disk: Disk
    clock: Clock
    directory: str
    settings: LogSettings
    expected: Expected
    segments: list[Segment] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    epoch_starts: list[tuple[int, int]] = field(default_factory=list)
    """Leader epochs met behind the recovery point, and where."""
    progress: RecoveryProgress = field(default_factory=RecoveryProgress)
    producers: Producers | None = None
    """What the producers have written up to where the tail was checked."""
    producers_from: int = 0
    """Batches that reach this offset are not known to them when the tail is read."""
    names_changed: bool = False
    files: OpenFiles = field(default_factory=partial(OpenFiles, 1))
    """However many segments there are, recovery holds one file open."""

    def path(self, name: str) -> str:
        return f"{self.directory}/{name}"

    def unlink(self, path: str) -> None:
        self.disk.unlink(path)
        self.names_changed = True


def open_log(
    disk: Disk,
    clock: Clock,
    directory: str,
    settings: LogSettings,
    expected: Expected,
    progress: RecoveryProgress | None = None,
) -> LogState:
    """The state of the log in an existing directory, which may be empty, after whatever happened to it.

    `StorageError` where it cannot be opened now, for want of descriptors, memory or space: to be tried again.
    """
    recovery = _Recovery(
        disk=disk,
        clock=clock,
        directory=directory,
        settings=settings,
        expected=expected,
        progress=progress or RecoveryProgress(),
    )
    state = _open_segments(recovery)
    _let_go(state.segments)
    return state


def sync_found(state: LogState) -> None:
    """Bring all that was found to stable storage, where records count once they are there: readers had seen them, and
    must not see less. A disk that refuses takes the log offline.
    """
    if state.offline is not None:
        return
    try:
        for step in state.unsynced.take():
            step()
    except StorageError as error:
        if error.is_out_of_descriptors:
            raise
        state.offline = str(error)
        state.findings.append(state.offline)
    else:
        state.synced_offset = state.log_end_offset


def _let_go(segments: list[Segment]) -> None:
    """An idle log holds nothing open. What is not synced is known by name: see `_doubt`."""
    for segment in segments:
        segment.synced_size = segment.size
        segment.close()
    for segment in segments[:-1]:
        segment.let_go()


def _open_segments(recovery: _Recovery) -> LogState:
    disk, directory = recovery.disk, recovery.directory
    sizes = disk.sizes(directory, LOG_SUFFIX)
    if REFETCHING in sizes:
        recovery.expected = Expected(may_have_gaps=recovery.expected.may_have_gaps)
    try:
        _finish_renames(recovery, sizes)
        _find_segments(recovery, sizes)
        state = _open(recovery, sizes)
    except (_Damaged, CorruptBatch, CodedError) as error:
        return _offline(recovery, f"{error}; nothing was deleted")
    except StorageError as error:
        if error.is_busy or error.is_full:
            raise
        return _offline(recovery, str(error))
    if recovery.names_changed:
        disk.sync_directory(directory)
    state.refetching = state.refetching or REFETCHING in sizes
    return state


def _open(recovery: _Recovery, sizes: dict[str, int]) -> LogState:
    expected = recovery.expected
    if not recovery.segments:
        if expected.held_offsets > expected.log_start_offset:
            return _start_refetching(recovery)
        return _start_empty(recovery, expected.log_start_offset)
    if expected.clean and expected.recovery_point >= recovery.segments[-1].base_offset:
        return _open_clean(recovery)
    return _recover(recovery, sizes)


def _start_refetching(recovery: _Recovery) -> LogState:
    """Begin anew where others may hold what is lost. That it was lost is on stable storage before the log is not."""
    lost = f"{recovery.directory} has no segments, but held offsets up to {recovery.expected.held_offsets}"
    if not recovery.expected.may_refetch:
        raise _Damaged(lost)
    recovery.disk.write_atomically(recovery.path(REFETCHING), b"")
    recovery.findings.append(f"{lost}; they have to be fetched from another replica")
    recovery.expected = Expected(may_have_gaps=recovery.expected.may_have_gaps)
    return replace(_start_empty(recovery, 0), refetching=True)


def _finish_renames(recovery: _Recovery, sizes: dict[str, int]) -> None:
    """Remove what was on its way out and let in what compaction had finished."""
    for name in list(sizes):
        if name.endswith((DELETED_SUFFIX, CLEANED_SUFFIX, _TEMPORARY)):
            recovery.unlink(recovery.path(name))
            del sizes[name]
    for name in sorted(sizes):
        if name.endswith(LOG_SUFFIX + SWAP_SUFFIX) and name in sizes:
            _finish_swap(recovery, name, sizes)


def _finish_swap(recovery: _Recovery, name: str, sizes: dict[str, int]) -> None:
    """Put a cleaned segment in the place of all those whose offsets it covers; its indexes are made anew."""
    target = name.removesuffix(SWAP_SUFFIX)
    base = end = int(target.removesuffix(LOG_SUFFIX))
    file = recovery.disk.open(recovery.path(name))
    for _, header in scan(file, 0, file.size, floor=base):
        end = header.last_offset + 1
    for old in list(sizes):
        stem, _, suffix = old.partition(".")
        if old == name or not stem.isdecimal() or not base <= int(stem) < max(end, base + 1):
            continue
        if suffix != "snapshot" or int(stem) != base:
            recovery.unlink(recovery.path(old))
            del sizes[old]
    recovery.disk.sync_directory(recovery.directory)
    recovery.disk.rename(recovery.path(name), recovery.path(target))
    recovery.names_changed = True
    del sizes[name]
    sizes[target] = file.size


def _find_segments(recovery: _Recovery, sizes: dict[str, int]) -> None:
    stems = {name.removesuffix(LOG_SUFFIX) for name in sizes if name.endswith(LOG_SUFFIX)}
    bases = sorted(int(stem) for stem in stems if stem.isdecimal())
    now_ms = recovery.clock.now_ms()
    for base, next_base in zip(bases, [*bases[1:], None], strict=False):
        segment = Segment(
            recovery.disk,
            recovery.directory,
            base,
            size=0,
            next_offset=base if next_base is None else next_base,
            created_ms=now_ms,
            interval=recovery.settings.index_interval_bytes,
        )
        segment.size = segment.synced_size = sizes[segment.path.rsplit("/", 1)[1]]
        segment.open_files = recovery.files
        recovery.segments.append(segment)
    for name in sizes:
        if name.endswith(_COMPANIONS) and name.split(".", 1)[0] not in stems:
            recovery.unlink(recovery.path(name))
    _drop_before_start(recovery)


def _drop_before_start(recovery: _Recovery) -> None:
    """Segments before the log's start were about to be deleted."""
    segments = recovery.segments
    while len(segments) > 1 and segments[1].base_offset <= recovery.expected.log_start_offset:
        for path in segments.pop(0).files():
            recovery.unlink(path)


def _start_empty(recovery: _Recovery, offset: int) -> LogState:
    segment = Segment(
        recovery.disk,
        recovery.directory,
        offset,
        size=0,
        next_offset=offset,
        created_ms=recovery.clock.now_ms(),
        interval=recovery.settings.index_interval_bytes,
    )
    segment.create()
    segment.close()
    recovery.segments[:] = [segment]
    state = _state(recovery, offset, offset)
    state.producers, state.epochs = Producers(), Epochs()
    _doubt(recovery, state)
    return state


def _state(recovery: _Recovery, end: int, synced: int) -> LogState:
    segments = recovery.segments
    return LogState(
        segments=segments,
        log_start_offset=max(recovery.expected.log_start_offset, segments[0].base_offset),
        log_end_offset=end,
        synced_offset=synced,
        findings=recovery.findings,
        unsynced=Unsynced(recovery.disk),
    )


def _open_clean(recovery: _Recovery) -> LogState:
    end = recovery.expected.recovery_point
    recovery.segments[-1].next_offset = end
    return _state(recovery, end, end)


def _offline(recovery: _Recovery, reason: str) -> LogState:
    if not recovery.segments:
        _start_empty_in_memory(recovery)
    end = max(recovery.segments[-1].next_offset, recovery.expected.recovery_point)
    state = _state(recovery, end, end)
    state.offline = reason
    state.findings.append(reason)
    return state


def _start_empty_in_memory(recovery: _Recovery) -> None:
    base = recovery.expected.log_start_offset
    recovery.segments.append(
        Segment(recovery.disk, recovery.directory, base, size=0, next_offset=base, created_ms=0, interval=0)
    )


def _recover(recovery: _Recovery, sizes: dict[str, int]) -> LogState:
    point = recovery.expected.recovery_point
    _check_gaps(recovery)
    end = _recover_tail(recovery)
    if end < point:
        raise _Damaged(f"{recovery.segments[-1].path} ends at offset {end}, but held offsets up to {point}")
    start = max(recovery.expected.log_start_offset, recovery.segments[0].base_offset)
    if end < start:
        return _restart(recovery, start)
    _drop_snapshots(recovery, sizes, end)
    state = _state(recovery, end, max(point, start))
    _doubt(recovery, state)
    state.producers = recovery.producers
    state.epochs = _recover_epochs(recovery, state)
    return state


def _doubt(recovery: _Recovery, state: LogState) -> None:
    """The process that died may have synced nothing since it wrote the recovery point, not even names.

    Files are named rather than held open: there may be very many, and nothing was written through a descriptor of ours.
    """
    unsynced = state.unsynced
    for segment in recovery.segments:
        if segment.next_offset > recovery.expected.recovery_point:
            for path in (segment.path, *segment.index_paths()):
                unsynced.add_path(path)
    unsynced.add_path(recovery.path(PARTITION_METADATA))
    unsynced.add_directory(recovery.directory)
    if not recovery.expected.is_named:
        unsynced.add_directory(parent_of(recovery.directory))


def _check_gaps(recovery: _Recovery) -> None:
    """Between segments that were synced no offset may be missing."""
    if recovery.expected.may_have_gaps or recovery.settings.compacts:
        return
    for segment, after in zip(recovery.segments, recovery.segments[1:], strict=False):
        if after.base_offset > recovery.expected.recovery_point:
            return
        last = after.base_offset - 1
        if segment.position_of(last) == segment.size:
            raise _Damaged(f"a segment is missing between {segment.path}, which has no offset {last}, and {after.path}")


def _recover_tail(recovery: _Recovery) -> int:
    """Check everything from the recovery point on, cut behind the last good batch; the log's end."""
    segments = recovery.segments
    number = len(segments) - 1
    while number > 0 and segments[number].base_offset > recovery.expected.recovery_point:
        number -= 1
    end = segments[number].base_offset
    while number < len(segments):
        segment = segments[number]
        if segment.base_offset != end and not _gap_is_fine(recovery, segment, end):
            _drop_from(recovery, number, f"offsets {end} to {segment.base_offset} before it were lost")
            break
        end, whole = _recover_segment(recovery, segment)
        number += 1
        if not whole and not (number < len(segments) and segments[number].base_offset == end):
            _drop_from(recovery, number, f"offset {end} before it was lost")
            break  # else the next one begins right there: what was cut off were no records
    return end


def _gap_is_fine(recovery: _Recovery, segment: Segment, end: int) -> bool:
    compacted = recovery.expected.may_have_gaps or recovery.settings.compacts
    return segment.base_offset > end and (compacted or segment is recovery.segments[0])


def _drop_from(recovery: _Recovery, number: int, reason: str) -> None:
    for segment in reversed(recovery.segments[number:]):
        recovery.findings.append(f"{segment.path} was dropped: {reason}, and none of it had been synced")
        for path in reversed(segment.files()):
            recovery.unlink(path)
    del recovery.segments[number:]


def _recover_segment(recovery: _Recovery, segment: Segment) -> tuple[int, bool]:
    """Where a segment ends after its tail was checked, and whether it was sound to its last byte."""
    point = recovery.expected.recovery_point
    size = segment.size
    known = segment.read_index_files()
    start = _resume(segment, point, known)
    segment.next_offset = segment.base_offset
    try:
        _check_tail(recovery, segment, start, size)
    except CorruptBatch as error:
        if segment.next_offset < point:
            raise
        segment.trust_aborted_below(point)
        _cut_tail(recovery, segment, size, error)
        return segment.next_offset, False
    segment.trust_aborted_below(point)
    _finish(segment, known)
    return segment.next_offset, True


def _check_tail(recovery: _Recovery, segment: Segment, start: int, size: int) -> None:
    """Let the segment, the producers and the epochs know of each sound batch, in one pass."""
    point = recovery.expected.recovery_point
    tail = _Tail(recovery, segment, size)
    watched = _Watched(tail.file, recovery.progress)
    skip = tail.pass_over if can_pass_over() else None
    for position, header in scan(watched, start, size, floor=segment.base_offset, checked_from=point, skip=skip):
        tail.take(position, header)


class _Tail:
    """The end of a segment that is being checked, batch by batch."""

    def __init__(self, recovery: _Recovery, segment: Segment, size: int) -> None:
        self.file = segment.open()
        self._recovery = recovery
        self._segment = segment
        self._size = size
        self._point = recovery.expected.recovery_point
        self._expected: int | None = None if segment.size else segment.base_offset
        self._epoch: int | None = None
        self._plain: PlainBatches | None = None

    def take(self, position: int, header: BatchHeader) -> None:
        """Note a sound batch; raises `CorruptBatch` where its offset cannot be right."""
        recovery, base_offset = self._recovery, header.base_offset
        if base_offset != self._expected and self._expected is not None:
            self._check_place(position, header, self._expected)
        if recovery.producers is None:
            _load_producers(recovery, self._segment, base_offset)
        last_offset = base_offset + header.last_offset_delta
        self._expected = last_offset + 1
        if header.producer_id != NO_PRODUCER and last_offset >= recovery.producers_from:
            assert recovery.producers is not None
            note_batch(recovery.producers, header, base_offset, self.file, position)
        self._segment.note(last_offset, header.max_timestamp, header.batch_length + LOG_OVERHEAD)
        if header.leader_epoch != self._epoch and base_offset >= self._point:
            self._epoch = header.leader_epoch
            recovery.epoch_starts.append((self._epoch, base_offset))

    def pass_over(self, block: bytes, at: int) -> tuple[int, int]:
        """As `scan.Skip`: note the batches that follow the one taken last, as far as they are plain."""
        segment, producers = self._segment, self._recovery.producers
        assert producers is not None
        if self._plain is None:
            producers_from = self._recovery.producers_from
            self._plain = PlainBatches(segment, checked_from=self._point, producers_from=producers_from)
        before = segment.size
        for place in self._plain.pass_over(block, at, self._epoch):
            header = read_header(block, place)
            producers.note(header, header.base_offset)
        self._expected = segment.next_offset
        return at + segment.size - before, segment.next_offset

    def _check_place(self, position: int, header: BatchHeader, expected: int) -> None:
        """Raises `CorruptBatch` where offsets are missing before a batch because its own is damaged."""
        recovery, segment = self._recovery, self._segment
        after = position + header.size
        found = self.file.pread(HEADER_SIZE, after) if after + HEADER_SIZE <= self._size else b""
        following = read_header(found) if len(found) == HEADER_SIZE else None
        gap_is_fine = recovery.expected.may_have_gaps or recovery.settings.compacts
        if is_misplaced(expected, header, following, gap_is_fine=gap_is_fine):
            reason = f"offset {header.base_offset} of a batch cannot be right where {expected} is expected"
            raise CorruptBatch(segment.path, position, reason)


def _load_producers(recovery: _Recovery, segment: Segment, offset: int) -> None:
    """The states of the producers at the first batch that is read, or later, up to the recovery point."""
    segments = recovery.segments[: recovery.segments.index(segment) + 1]
    start = max(recovery.expected.log_start_offset, segments[0].base_offset)
    trusted = max(offset, recovery.expected.recovery_point)
    producers, known = newest_snapshot(recovery.disk, recovery.directory, start, trusted)
    before, segment.next_offset = segment.next_offset, offset
    try:
        note_batches(producers, segments, known, offset)
    finally:
        segment.next_offset = before
    recovery.producers, recovery.producers_from = producers, max(known, offset)


def _finish(segment: Segment, known: tuple[bytes | None, bytes | None] = (None, None)) -> None:
    """Write the indexes if they are not as they were; a start does not need space for that."""
    try:
        segment.finish(known)
    except StorageError as error:
        if not error.is_full:
            raise


def _resume(segment: Segment, point: int, known: tuple[bytes | None, bytes | None]) -> int:
    """Let the segment note batches again from where its indexes can be trusted; that position.

    What they say beyond the recovery point is dropped and written anew by the caller: it may be of another history.
    """
    index, times = segment.decode_indexes(known)
    index, times = index or OffsetIndex(), times or TimeIndex()
    number = index.floor(point - 1 - segment.base_offset)
    trusted = min(index.positions[number] if number >= 0 else 0, restart_position(index, times))
    if not segment.confirms(index, trusted):
        trusted = 0
    index.cut(1 << 31, trusted + 1 if trusted else 0)
    times.cut(index.offsets[-1] + 1 if len(index) else 0)
    segment.resume(index, times, trusted)
    return trusted


def _cut_tail(recovery: _Recovery, segment: Segment, size: int, error: CorruptBatch) -> None:
    lost = size - segment.size
    recovery.findings.append(f"{segment.path} was cut by {lost} bytes at {segment.size}: {error.reason}")
    _finish(segment)
    file = segment.open()
    file.truncate(segment.size)
    file.datasync()


def _restart(recovery: _Recovery, start: int) -> LogState:
    """Everything up to the log's start was lost before it was synced: go on there, so no offset comes twice."""
    _drop_from(recovery, 0, f"the log starts at {start}")
    for offset in snapshot_offsets(recovery.disk.listdir(recovery.directory)):
        recovery.unlink(snapshot_path(recovery.directory, offset))
    recovery.unlink(recovery.path(LEADER_EPOCHS))
    return _start_empty(recovery, start)


def _drop_snapshots(recovery: _Recovery, sizes: dict[str, int], end: int) -> None:
    for offset in snapshot_offsets(list(sizes)):
        if offset > end:
            recovery.unlink(snapshot_path(recovery.directory, offset))


def _recover_epochs(recovery: _Recovery, state: LogState) -> Epochs:
    """The file tells the epochs below the recovery point, the batches those above."""
    point = recovery.expected.recovery_point
    epochs = load_epochs(recovery.disk, recovery.directory, recovery.segments, point)
    known = epochs.encode()
    epochs.cut_end(max(point, state.log_start_offset + 1))
    for epoch, offset in recovery.epoch_starts:
        epochs.assign(epoch, offset)
    if epochs.encode() != known:
        state.unsynced.add_document(recovery.path(LEADER_EPOCHS), epochs.encode())
    return epochs
