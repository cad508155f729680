"""What a log knows beside its records: its producers, which transactions were aborted, where its leaders' epochs begin.

It all follows from the batches; files keep it so that a start need not read everything. It is loaded when first asked
for, because most logs of a large broker are idle.
"""

from .aborted import NONE_OPEN, AbortedIndex, AbortedTransaction
from .chain import Chain
from .checkpoints import LEADER_EPOCHS
from .disk import Disk
from .epochs import Epochs
from .producer_state import EndedTransaction, Producers
from .replay import batches_from, load_epochs, load_producers, note_batch, snapshot_offsets, snapshot_path
from .segment import Segment


class History:
    """Producers and epochs of one log, with their files."""

    __slots__ = ("_chain", "_disk", "_epochs", "_snapshot_offset", "latest_epoch", "producers")

    def __init__(self, disk: Disk, chain: Chain, producers: Producers | None, epochs: Epochs | None) -> None:
        self._disk = disk
        self._chain = chain
        self.producers = producers
        self._epochs = epochs
        self.latest_epoch: int | None = epochs.latest if epochs else None
        self._snapshot_offset: int | None = None

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

    def save_snapshot(self, offset: int) -> str | None:
        """Write the producer states, which are those at an offset; the path, or None when it was there already."""
        assert self.producers is not None
        if self._snapshot_offset == offset:
            return None
        path = snapshot_path(self._chain.directory, offset)
        self._disk.write(path, self.producers.encode())
        previous, self._snapshot_offset = self._snapshot_offset, offset
        if previous is not None and not self._chain.is_base(previous):
            self._disk.unlink(snapshot_path(self._chain.directory, previous))
        return path

    def cut(self, offset: int) -> None:
        """Forget producer states, and their snapshots, of a history that is about to be dropped."""
        directory = self._chain.directory
        for snapshot in snapshot_offsets(self._disk.listdir(directory)):
            if snapshot > offset:
                self._disk.unlink(snapshot_path(directory, snapshot))
        self.producers = None
        self._snapshot_offset = None


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
