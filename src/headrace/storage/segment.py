"""One `<base offset>.log` file with its two indexes, and the index of aborted transactions (see `aborted`).

A segment is cheap until used: it knows its size and offsets, and opens its file and loads its indexes when
somebody reads or appends. Once they have entries, the indexes are written when the segment ends, when the log is
closed, and with every checkpoint; never on the way of an append, so no failure of theirs can give an offset twice.

The last few batches are remembered one by one, because most readers are near the end.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import Final

from headrace.protocol.batch import NO_TIMESTAMP, BatchHeader

from .aborted import AbortedIndex
from .disk import Directory, Disk, File, StorageError
from .index import OFFSET_ENTRY, TIME_ENTRY, OffsetIndex, TimeEntry, TimeIndex
from .open_files import OpenFiles
from .scan import CorruptBatch, scan

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
SNAPSHOT_SUFFIX: Final = ".snapshot"
TRANSACTION_INDEX_SUFFIX: Final = ".txnindex"
DELETED_SUFFIX: Final = ".deleted"
SWAP_SUFFIX: Final = ".swap"
CLEANED_SUFFIX: Final = ".cleaned"

LARGEST_RELATIVE_OFFSET: Final = 2**31 - 1
_LOOKUP_BLOCK: Final = 4096
_RECENT_AT_MOST: Final = 64
_RECENT_KEPT: Final = 32
_UNSAVED: Final = -1
_READ_SOON: Final = 64 * 1024
"""A segment of so many bytes is read as fast as its indexes."""


def offset_name(offset: int) -> str:
    """An offset as it stands in file names."""
    return f"{offset:020d}"


class Segment:
    """A stretch of a log, `base_offset` up to `next_offset`, in one file."""

    __slots__ = (
        "_aborted_saved",
        "_disk",
        "_has_index_files",
        "_index",
        "_index_saved",
        "_looked_size",
        "_recent_last",
        "_recent_positions",
        "_times",
        "_times_saved",
        "aborted",
        "base_offset",
        "created_ms",
        "file",
        "first_timestamp",
        "interval",
        "max_timestamp",
        "max_timestamp_offset",
        "next_offset",
        "open_files",
        "prefix",
        "since_index",
        "size",
        "synced_size",
        "used",
        "writer",
    )

    def __init__(
        self,
        disk: Disk,
        directory: str,
        base_offset: int,
        *,
        size: int,
        next_offset: int,
        created_ms: int,
        interval: int,
    ) -> None:
        self._disk = disk
        self.prefix = f"{directory}/{offset_name(base_offset)}"
        self.base_offset = base_offset
        self.size = size
        self.next_offset = next_offset
        self.created_ms = created_ms
        self.interval = interval
        self.file: File | None = None
        self.writer: File | None = None
        self.open_files: OpenFiles | None = None
        """Where it says that its file is open, and may be told to let it go."""
        self.used = False
        self._looked_size = size
        self.synced_size = size
        """How many bytes need no sync through this segment's own file."""
        self.aborted: AbortedIndex | None = None
        """Loaded when needed: see `History.aborted`."""
        self._aborted_saved: tuple[int, int] | None = None
        """How many entries its file has, and up to where it speaks."""
        self._has_index_files = True
        """Whether the files of the indexes may be there: then they must not say anything else than memory."""
        self._forget_indexes()

    def _forget_indexes(self) -> None:
        self._index: OffsetIndex | None = None
        self._times: TimeIndex | None = None
        self._index_saved = _UNSAVED
        self._times_saved = _UNSAVED
        self.since_index = 0
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = -1
        self.first_timestamp = NO_TIMESTAMP
        self._recent_last = array("q")
        self._recent_positions = array("q")

    @property
    def path(self) -> str:
        return self.prefix + LOG_SUFFIX

    def create(self) -> None:
        """Make the empty file; indexes follow when they have something to say."""
        self.file = self.writer = self._disk.create(self.path)
        if self.open_files is not None:
            self.open_files.add(self)
        self.begin()

    def create_aside(self) -> None:
        """Make the empty file under another name, which a start after a crash removes; `come_in` gives it its own."""
        path = self.path + CLEANED_SUFFIX
        self._disk.unlink(path)
        self.file = self._disk.create(path)
        self.begin()

    def come_in(self) -> None:
        """Take the name, which must be free by now."""
        self._disk.rename(self.path + CLEANED_SUFFIX, self.path)
        self.file = None

    def begin(self) -> None:
        """Start with empty indexes: nothing has been noted yet."""
        self._has_index_files = False
        self._index, self._times = OffsetIndex(), TimeIndex()
        self.aborted = AbortedIndex()

    def open(self) -> File:
        """The segment's file, opened when it is not yet."""
        self.used = True
        file = self.file
        if file is None:
            file = self.file = self._open()
            if self.open_files is not None:
                self.open_files.add(self)
        return file

    def _open(self) -> File:
        """With no descriptor left, those that idle segments hold are the first to be given back."""
        try:
            return self._disk.open(self.path)
        except StorageError as error:
            if self.open_files is None or not error.is_out_of_descriptors:
                raise
            self.open_files.give_back()
            return self._disk.open(self.path)

    def ready(self) -> File:
        """The segment's file, with everything known that an append needs."""
        file = self.open()
        if self._index is None:
            self.load()
        if self.size:
            self._load_first_timestamp()
        self.writer = file
        return file

    def _load_first_timestamp(self) -> None:
        if self.first_timestamp == NO_TIMESTAMP:
            _, header = next(scan(self.open(), 0, self.size, floor=self.base_offset, block=_LOOKUP_BLOCK))
            first = header.max_timestamp
            self.first_timestamp = first if first > NO_TIMESTAMP else self.created_ms

    @property
    def oldest_timestamp(self) -> int:
        """When the first records of a segment that is not empty were made."""
        self._load_first_timestamp()
        return self.first_timestamp

    def note(self, last_offset: int, max_timestamp: int, size: int) -> None:
        """Take into account a batch that has just been written at the end of the file."""
        position = self.size
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        if self.since_index > self.interval:
            self._add_index_entry(last_offset, position)
        if position == 0:
            self.first_timestamp = max_timestamp if max_timestamp > NO_TIMESTAMP else self.created_ms
        self.since_index += size
        self.size = position + size
        self.next_offset = last_offset + 1
        recent = self._recent_last
        recent.append(last_offset)
        self._recent_positions.append(position)
        if len(recent) > _RECENT_AT_MOST:
            del recent[:-_RECENT_KEPT]
            del self._recent_positions[:-_RECENT_KEPT]

    def note_indexed(self, size: int, *, next_offset: int, since_index: int, latest: TimeEntry) -> None:
        """Take into account batches at the end of the file that the indexes have been told of, of so many bytes.

        `since_index` of them follow the last index entry; `latest` is as `Segment.latest`, up to their end.
        """
        self.max_timestamp, self.max_timestamp_offset = latest
        self.since_index = since_index
        self.size += size
        self.next_offset = next_offset
        del self._recent_last[:], self._recent_positions[:]

    def _add_index_entry(self, last_offset: int, position: int) -> None:
        index, times = self._indexes()
        index.add(last_offset - self.base_offset, position)
        self._add_time_entry(times)
        self.since_index = 0

    def _add_time_entry(self, times: TimeIndex) -> None:
        if self.max_timestamp > NO_TIMESTAMP:
            times.add(self.max_timestamp, self.max_timestamp_offset - self.base_offset)

    def _indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        """Both indexes, loaded. Appends ask for them, and a property takes several times as long."""
        index, times = self._index, self._times
        if index is None or times is None:
            return self.index, self.times
        return index, times

    @property
    def index(self) -> OffsetIndex:
        if self._index is None:
            self.load()
        assert self._index is not None
        return self._index

    @property
    def times(self) -> TimeIndex:
        if self._times is None:
            self.load()
        assert self._times is not None
        return self._times

    @property
    def latest(self) -> TimeEntry:
        """The largest timestamp of the segment, and the last offset of the first batch that has it."""
        if self._times is None and self.size and self.max_timestamp == NO_TIMESTAMP:
            self.load()
        return TimeEntry(self.max_timestamp, self.max_timestamp_offset)

    @property
    def age_timestamp(self) -> int:
        """When the segment's last record was made, as far as retention is concerned."""
        timestamp = self.latest.timestamp
        return timestamp if timestamp > NO_TIMESTAMP else self.created_ms

    def index_is_full(self, limit: int) -> bool:
        """Whether the index files, of at most `limit` bytes, have no room for another entry."""
        index, times = self._indexes()
        return len(index.positions) >= limit // 8 or len(times.offsets) >= limit // 12 - 1

    def position_of(self, offset: int) -> int:
        """Where the first batch starts that reaches an offset; the size when there is none."""
        if offset >= self.next_offset:
            return self.size
        number = bisect_left(self._recent_last, offset)
        if 0 < number < len(self._recent_last):
            return self._recent_positions[number]
        try:
            return self._search(offset)
        except _WrongIndex:
            self.rebuild()
            return self._search(offset)

    def bound_at(self, position: int) -> int:
        """An offset that no batch before a position reaches; how far beyond the last of them, the index decides."""
        if position < self.size:
            index = self.index
            number = bisect_left(index.positions, position)
            if number < len(index):
                return self.base_offset + index.offsets[number]
        return self.next_offset

    def offset_near(self, position: int) -> int:
        """About the offset that stands at a position: no further from it than two entries of the index."""
        index, _ = self._indexes()
        number = bisect_right(index.positions, position) - 1
        return self.base_offset + index.offsets[number] + 1 if number >= 0 else self.base_offset

    def _search(self, offset: int) -> int:
        index, _ = self._indexes()
        number = index.floor(offset - self.base_offset)
        start = index.positions[number] if number >= 0 else 0
        expected = index.offsets[number] + self.base_offset if number >= 0 else None
        try:
            for position, header in scan(self.open(), start, self.size, floor=self.base_offset, block=_LOOKUP_BLOCK):
                if expected is not None and position == start and header.last_offset != expected:
                    raise _WrongIndex
                if header.last_offset >= offset:
                    return position
        except CorruptBatch as error:
            if error.position == start and number >= 0:
                raise _WrongIndex from error
            raise
        return self.size

    def prepare_cut(self, offset: int) -> int:
        """Open and load what `cut` needs, so that it will not stop half way; where the segment will end."""
        self.open()
        if self._index is None or self._times is None:
            self.load()
        if self.aborted is None:
            self.aborted = self.read_aborted()
        return self._batch_base(self.position_of(offset), offset)

    def _batch_base(self, position: int, offset: int) -> int:
        """The base offset of the batch at a position, if it is below an offset."""
        if position >= self.size:
            return min(offset, self.next_offset)
        _, header = next(scan(self.open(), position, self.size, floor=self.base_offset, block=_LOOKUP_BLOCK))
        return min(offset, header.base_offset)

    def load(self) -> None:
        """Read the indexes of a segment that was written completely; rebuild them when they cannot be its own."""
        index, times = self.read_indexes()
        if index is None or times is None or not self._is_complete(index, times):
            self.rebuild()
            return
        self._set_indexes(index, times)
        self.since_index = self.size - index.positions[-1] if len(index) else self.size

    def confirms(self, index: OffsetIndex, position: int) -> bool:
        """Whether the batch at a position that an index names is the one it means."""
        if position == 0:
            return True
        offset = index.offsets[bisect_left(index.positions, position)]
        try:
            _, header = next(scan(self.open(), position, self.size, floor=self.base_offset, block=_LOOKUP_BLOCK))
        except CorruptBatch:
            return False
        return header.last_offset == self.base_offset + offset

    def read_indexes(self) -> tuple[OffsetIndex | None, TimeIndex | None]:
        """What the index files hold; None for one that is missing or damaged."""
        return self.decode_indexes(self.read_index_files())

    def decode_indexes(self, files: tuple[bytes | None, bytes | None]) -> tuple[OffsetIndex | None, TimeIndex | None]:
        """As `read_indexes`, of files that were read."""
        offsets, times = files
        return (
            None if offsets is None else OffsetIndex.decode(offsets, self.size),
            None if times is None else TimeIndex.decode(times),
        )

    def read_aborted(self) -> AbortedIndex | None:
        """What the file of aborted transactions says, maybe not of the whole segment; None if missing or damaged."""
        data = self._read(TRANSACTION_INDEX_SUFFIX)
        found = None if data is None else AbortedIndex.decode(data, self.base_offset)
        if found is not None and found.covered is not None:
            self._aborted_saved = len(found), found.covered
        return found

    def trust_aborted_below(self, offset: int) -> None:
        """Let the index of aborted transactions speak for less than what is below an offset.

        Always for a batch less, so that the batch is read again and with it what is open where the segment ends.
        """
        aborted = self.read_aborted() if self.aborted is None else self.aborted
        if aborted is not None:
            aborted.cut(max(min(offset, self.next_offset) - 1, self.base_offset))
            self.aborted = aborted
            self._aborted_saved = None

    def read_index_files(self) -> tuple[bytes | None, bytes | None]:
        """The bytes of the index files; None for one that is missing."""
        files = self._read(INDEX_SUFFIX), self._read(TIME_INDEX_SUFFIX)
        self._has_index_files = files != (None, None)
        return files

    def _read(self, suffix: str) -> bytes | None:
        path = self.prefix + suffix
        return self._disk.read(path) if self._disk.exists(path) else None

    def _is_complete(self, index: OffsetIndex, times: TimeIndex) -> bool:
        span = self.next_offset - self.base_offset
        if (len(index) and index.offsets[-1] >= span) or (len(times) and times.offsets[-1] >= span):
            return False
        return bool(len(index) or len(times) or self.size <= self.interval)

    def _set_indexes(self, index: OffsetIndex, times: TimeIndex) -> None:
        self._forget_indexes()
        self._index, self._times = index, times
        self._index_saved, self._times_saved = len(index), len(times)
        last = times.last
        if last:
            self.max_timestamp, self.max_timestamp_offset = last.timestamp, last.offset + self.base_offset

    def rebuild(self) -> None:
        """Make both indexes anew from the headers of the batches."""
        size, next_offset = self.size, self.next_offset
        self.resume(OffsetIndex(), TimeIndex(), 0)
        try:
            for _, header in scan(self.open(), 0, size, floor=self.base_offset):
                self.take(header)
            self._add_time_entry(self.times)
        finally:
            self.size, self.next_offset = size, next_offset

    def resume(self, index: OffsetIndex, times: TimeIndex, position: int) -> None:
        """Go on noting batches at a position (0, or one the index names), trusting the indexes up to there."""
        self._set_indexes(index, times)
        index.cut(LARGEST_RELATIVE_OFFSET, position + 1)
        self._unsave()
        self.size = position

    def _unsave(self) -> None:
        """The files may hold entries that memory has dropped: write them anew."""
        self._index_saved = self._times_saved = _UNSAVED

    def take(self, header: BatchHeader) -> None:
        """Note a batch that a scan has found."""
        self.note(header.last_offset, header.max_timestamp, header.size)

    def cut(self, offset: int) -> None:
        """Drop every batch that reaches an offset. The index goes first: it may say too little, never too much."""
        position = self.position_of(offset)
        file = self.open()
        offset = self._batch_base(position, offset)
        index, times = self.index, self.times
        index.cut(offset - self.base_offset, position)
        times.cut(offset - self.base_offset)
        self.trust_aborted_below(offset)
        self._unsave()
        self._replace_indexes()
        file.truncate(position)
        self.synced_size = min(self.synced_size, position)
        start = restart_position(index, times)
        self.resume(index, times, start)
        for _, header in scan(file, start, position, floor=self.base_offset):
            self.take(header)
        self.next_offset = offset

    def _replace_indexes(self) -> None:
        """Write them in full; where that is not possible now, let the files go, which say too much."""
        try:
            self.save_indexes()
        except StorageError as error:
            if not (error.is_full or error.is_busy):
                raise
            for path in self.index_paths():
                self._disk.unlink(path)

    def finish(self, known: tuple[bytes | None, bytes | None] = (None, None)) -> bool:
        """Write the indexes in full, so that the last entry of the time index names the largest timestamp.

        Not when the files are known to say the same already. Whether anything was written.
        """
        if self._index is not None and self._times is not None:
            self._add_time_entry(self._times)
            if known == (self._index.encode(), self._times.encode()):
                self._index_saved, self._times_saved = len(self._index), len(self._times)
        return self.save_indexes()

    def save_indexes(self) -> bool:
        """Write what the index files do not have yet; whether there was anything.

        A short segment has none before its offset index has an entry: it is read sooner than files are made, of which a
        broker with thousands of idle logs would have two for each.
        """
        has_saved = self._save_aborted()
        if self._index is None or self._times is None:
            return has_saved
        if not len(self._index) and self.size <= _READ_SOON and not self._has_index_files:
            return has_saved
        self._has_index_files = True
        if self._index_saved == len(self._index) and self._times_saved == len(self._times):
            return has_saved
        if self._index_saved != len(self._index):
            keep = max(self._index_saved, 0)
            self._index_saved = _UNSAVED
            self._disk.patch(self.prefix + INDEX_SUFFIX, keep * OFFSET_ENTRY.size, self._index.encode(keep))
            self._index_saved = len(self._index)
        if self._times_saved != len(self._times):
            keep = max(self._times_saved, 0)
            self._times_saved = _UNSAVED
            self._disk.patch(self.prefix + TIME_INDEX_SUFFIX, keep * TIME_ENTRY.size, self._times.encode(keep))
            self._times_saved = len(self._times)
        return True

    def _save_aborted(self) -> bool:
        aborted = self.aborted
        if aborted is None:
            return False
        state = len(aborted), self.next_offset if aborted.covered is None else aborted.covered
        if state == self._aborted_saved:
            return False
        self._aborted_saved = None
        self._disk.write(self.prefix + TRANSACTION_INDEX_SUFFIX, aborted.encode(state[1]))
        self._aborted_saved = state
        return True

    def save_cleaned_indexes(self, next_offset: int) -> None:
        """Write the indexes, complete and synced, under the names that `put_in_place` expects."""
        assert self.aborted is not None
        index, times = self.index, self.times
        self._add_time_entry(times)
        self.next_offset = next_offset
        self._aborted_saved = len(self.aborted), next_offset
        files = (index.encode(), times.encode(), self.aborted.encode(next_offset))
        for path, data in zip(self.index_paths(), files, strict=True):
            self._disk.write(path + CLEANED_SUFFIX, data)
            self._disk.sync_file(path + CLEANED_SUFFIX)
        self._has_index_files = True
        self._index_saved, self._times_saved = len(index), len(times)

    def put_in_place(self, directory: Directory, remove_old: Callable[[], None]) -> None:
        """Take the place of other segments: once this one is `.swap`, recovery would finish what is begun here."""
        self._disk.rename(self.path + CLEANED_SUFFIX, self.path + SWAP_SUFFIX)
        directory.sync()
        remove_old()
        directory.sync()
        for path in self.index_paths():
            self._disk.rename(path + CLEANED_SUFFIX, path)
        self._disk.rename(self.path + SWAP_SUFFIX, self.path)

    def release(self) -> None:
        """Let go of the file and the indexes when nobody has used them since the last call."""
        if not self.was_used():
            self.let_go()

    def was_used(self) -> bool:
        """Whether anybody read or appended since the last call."""
        used = self.used or self.size != self._looked_size
        self.used = False
        self._looked_size = self.size
        return used

    @property
    def is_synced(self) -> bool:
        """Whether nothing was written through the open file that is not on stable storage."""
        return self.size <= self.synced_size

    def rest(self) -> None:
        """As the active segment: let go of the file when nobody has used it since the last call."""
        if self.file is not None and not self.was_used() and self.is_synced:
            self.close()

    def close(self) -> None:
        """Whoever still reads from the file holds it open; the next one opens it again."""
        self.file = self.writer = None
        if self.open_files is not None:
            self.open_files.discard(self)

    def let_go(self) -> None:
        """Let go of the file, and of the indexes where the files say the same."""
        self.close()
        self._recent_last, self._recent_positions = array("q"), array("q")
        if self._aborted_saved is not None:
            self.aborted = None
        if self._index is None or self._times is None:
            return
        if self._index_saved == len(self._index) and self._times_saved == len(self._times):
            self._index = self._times = None

    def files(self) -> list[str]:
        """Paths that may exist for this segment; the producers' snapshot at its base belongs to it."""
        return [self.path, *self.index_paths(), self.snapshot_path]

    @property
    def snapshot_path(self) -> str:
        """Where the states of the producers at the segment's base offset stand."""
        return self.prefix + SNAPSHOT_SUFFIX

    def index_paths(self) -> list[str]:
        return [self.prefix + suffix for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)]

    def set_aside(self, *, keep_snapshot: bool = False) -> list[str]:
        """Rename the segment's files, so that another can have its name; the new paths."""
        aside = []
        for path in reversed(self.files()):
            if self._disk.exists(path) and not (keep_snapshot and path == self.snapshot_path):
                self._disk.rename(path, path + DELETED_SUFFIX)
                aside.append(path + DELETED_SUFFIX)
        return aside


def restart_position(index: OffsetIndex, times: TimeIndex) -> int:
    """Where noting has to start again when the tails of both indexes may be lost, each on its own."""
    if times.last is None:
        return 0
    number = index.floor(times.last.offset)
    return index.positions[number] if number >= 0 else 0


class _WrongIndex(Exception):
    """An index entry does not name the batch it points to."""
