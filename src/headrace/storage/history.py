"""What a log knows beside its records: its producers, and where its leaders' epochs begin.

Both follow from the batches; files keep them so that a start need not read everything. They are loaded when first
asked for, because most logs of a large broker are idle.
"""

from .chain import Chain
from .checkpoints import LEADER_EPOCHS
from .disk import Disk
from .epochs import Epochs
from .producer_state import Producers
from .replay import load_epochs, load_producers, snapshot_offsets, snapshot_path


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
