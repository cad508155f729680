"""What a log knows beside its records: its producers, which transactions were aborted, where its leaders' epochs begin.

It all follows from the batches; files keep it so that a start need not read everything. It is loaded when first asked
for, because most logs of a large broker are idle.
"""

from contextlib import suppress
from threading import Lock
from typing import Final

from .aborted import NONE_OPEN, AbortedIndex, AbortedTransaction
from .chain import Chain
from .checkpoints import LEADER_EPOCHS
from .disk import Disk, StorageError
from .epochs import Epochs
from .producer_state import EndedTransaction, Producers
from .replay import batches_from, load_epochs, load_producers, note_batch, snapshot_offsets, snapshot_path
from .segment import Segment

FEW_PRODUCERS: Final = 1000
"""Up to so many are written at once, and with every checkpoint; more only where a segment ends, off the loop."""


class PendingSnapshot:
    """The states of many producers at an offset, which a thread will write. Until then the snapshot before it serves:
    the batches after that one tell the same.
    """

    __slots__ = ("_disk", "_lock", "_path", "_producers", "is_begun", "obsolete", "offset")

    def __init__(self, disk: Disk, directory: str, offset: int, producers: Producers, obsolete: str | None) -> None:
        self.offset = offset
        self.obsolete = obsolete
        """A snapshot that nobody needs once this one is written."""
        self.is_begun = False
        self._disk = disk
        self._path = snapshot_path(directory, offset)
        self._producers: Producers | None = producers
        self._lock = Lock()

    @property
    def is_done(self) -> bool:
        """Whether it has been written, or will never be."""
        return self._producers is None

    def write(self) -> None:
        """Return when its content is on stable storage; where there is no space for it, the log goes without."""
        self.is_begun = True
        producers = self._producers
        if producers is not None:
            data = producers.encode()
            with self._lock:
                if self._producers is not None:
                    self._write(data)
                self._producers = None

    def _write(self, data: bytes) -> None:
        try:
            self._disk.write(self._path, data)
            self._disk.sync_file(self._path)
            if self.obsolete is not None:
                self._disk.unlink(self.obsolete)
        except StorageError as error:
            if not (error.is_full or error.is_busy):
                raise
            with suppress(StorageError):
                self._disk.unlink(self._path)

    def withdraw(self) -> None:
        """It will not be written from now on, as it may no longer tell what the log holds."""
        with self._lock:
            self._producers = None


class History:
    """Producers and epochs of one log, with their files."""

    __slots__ = ("_chain", "_disk", "_epochs", "_pending", "_snapshot_offset", "latest_epoch", "producers")

    def __init__(self, disk: Disk, chain: Chain, producers: Producers | None, epochs: Epochs | None) -> None:
        self._disk = disk
        self._chain = chain
        self.producers = producers
        self._epochs = epochs
        self.latest_epoch: int | None = epochs.latest if epochs else None
        self._snapshot_offset: int | None = None
        self._pending: list[PendingSnapshot] = []

    def load_producers(self, log_start_offset: int, log_end_offset: int) -> Producers:
        """The producer states as of the log's end."""
        if self.producers is None:
            chain = self._chain
            self.producers = load_producers(
                self._disk, chain.directory, chain.segments, log_start_offset, log_end_offset
            )
        return self.producers

    def load_epochs(self, log_end_offset: int) -> Epochs:
        if self._epochs is None:
            chain = self._chain
            self._epochs = load_epochs(self._disk, chain.directory, chain.segments, log_end_offset)
            self.latest_epoch = self._epochs.latest
        return self._epochs

    def aborted(self, segment: Segment, log_start_offset: int) -> AbortedIndex:
        """The aborted transactions of a segment, all of them; what its file does not tell is read from its batches."""
        index = segment.aborted
        if index is not None and index.covered is None:
            return index
        index = index or segment.read_aborted()
        if index is None or index.covered is None or index.covered > segment.next_offset:
            index = AbortedIndex(covered=segment.base_offset)
        assert index.covered is not None
        if index.covered < segment.next_offset:
            self._complete(segment, index, index.covered, log_start_offset)
        index.covered = None
        segment.aborted = index
        return index

    def aborted_between(self, start: int, end: int, log_start_offset: int) -> list[AbortedTransaction]:
        """The aborted transactions that may have records from offset `start` up to `end`, by their markers."""
        transactions: list[AbortedTransaction] = []
        for segment in self._chain.segments_from(start):
            index = self.aborted(segment, log_start_offset)
            transactions += index.overlapping(start, end)
            is_last = segment is self._chain.active
            if is_last or (segment.next_offset >= end and not NONE_OPEN < index.first_open < end):
                break
        return transactions

    def _complete(self, segment: Segment, index: AbortedIndex, covered: int, log_start_offset: int) -> None:
        chain = self._chain
        producers = load_producers(self._disk, chain.directory, chain.segments, log_start_offset, covered)
        for file, position, header in batches_from([segment], covered, segment.next_offset):
            if header.base_offset >= covered:
                note_aborted(index, note_batch(producers, header, header.base_offset, file, position))
        note_open(index, producers)

    def note_open(self, segment: Segment) -> None:
        """Let the index of the segment that ends here, or may, know which transaction is open at its end."""
        if segment.aborted is not None and self.producers is not None:
            note_open(segment.aborted, self.producers)

    @property
    def epochs_path(self) -> str:
        return f"{self._chain.directory}/{LEADER_EPOCHS}"

    def save_snapshot(self, offset: int) -> str | PendingSnapshot | None:
        """Write the producer states, which are those at an offset: the path, or what is left to be run by a thread
        where there are many of them; None when it was there already.
        """
        assert self.producers is not None
        if self._snapshot_offset == offset:
            return None
        obsolete = self._obsolete()
        if len(self.producers) > FEW_PRODUCERS:
            pending = PendingSnapshot(self._disk, self._chain.directory, offset, self.producers.copy(), obsolete)
            self._add_pending(pending)
            self._snapshot_offset = offset
            return pending
        path = snapshot_path(self._chain.directory, offset)
        self._disk.write(path, self.producers.encode())
        self._snapshot_offset = offset
        if obsolete is not None:
            self._disk.unlink(obsolete)
        return path

    def _obsolete(self) -> str | None:
        """The newest snapshot, if no segment begins with it."""
        newest = self._snapshot_offset
        return None if newest is None or self._chain.is_base(newest) else snapshot_path(self._chain.directory, newest)

    def _add_pending(self, pending: PendingSnapshot) -> None:
        """An earlier one that no thread has begun to write is not worth its memory any more."""
        for earlier in self._pending:
            if not earlier.is_begun:
                earlier.withdraw()
                pending.obsolete = pending.obsolete or earlier.obsolete
        self._pending = [*(earlier for earlier in self._pending if not earlier.is_done), pending]

    @property
    def is_saving(self) -> bool:
        """Whether a snapshot is still to be written: until then the one before it is needed."""
        return any(not pending.is_done for pending in self._pending)

    def cut(self, offset: int) -> None:
        """Forget producer states, and their snapshots, of a history that is about to be dropped."""
        self.withdraw_snapshots(offset)
        directory = self._chain.directory
        for snapshot in snapshot_offsets(self._disk.listdir(directory)):
            if snapshot > offset:
                self._disk.unlink(snapshot_path(directory, snapshot))
        self.producers = None
        self._snapshot_offset = None

    def withdraw_snapshots(self, after: int = -1, up_to: int | None = None) -> None:
        """Let no thread write a snapshot of these offsets any more: their history is dropped, or their log is gone."""
        for pending in self._pending:
            if pending.offset > after and (up_to is None or pending.offset <= up_to):
                pending.withdraw()


def note_aborted(index: AbortedIndex, ended: EndedTransaction | None) -> None:
    """Let an index know of a transaction that ended, in case it was aborted."""
    if ended is not None and not ended.committed:
        index.add(
            AbortedTransaction(ended.producer_id, ended.first_offset, ended.last_offset, ended.last_stable_offset)
        )


def note_open(index: AbortedIndex, producers: Producers) -> None:
    """Let an index know which transaction is the oldest that is open where its segment ends."""
    first_open = producers.first_open_offset()
    index.first_open = NONE_OPEN if first_open is None else first_open
