"""Where each leader epoch begins in a log: how followers find the point at which they part from their leader.

The file `leader-epoch-checkpoint` is Kafka's: a version, a count, then `epoch start_offset` per line.
"""

from bisect import bisect_right

from .checkpoints import decode_lines, encode_lines

UNKNOWN = (-1, -1)


class Epochs:
    """Epochs and the offsets they start at, both growing."""

    __slots__ = ("_epochs", "_starts")

    def __init__(self) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []

    def __len__(self) -> int:
        return len(self._epochs)

    @property
    def latest(self) -> int | None:
        return self._epochs[-1] if self._epochs else None

    def entries(self) -> list[tuple[int, int]]:
        return list(zip(self._epochs, self._starts, strict=True))

    def assign(self, epoch: int, offset: int) -> bool:
        """Note that an epoch starts here, unless it has started before; whether anything changed.

        Entries that would be later than this one or start at or after it belong to a history that is gone.
        """
        if epoch < 0 or (self._epochs and self._epochs[-1] == epoch):
            return False
        while self._epochs and (self._epochs[-1] >= epoch or self._starts[-1] >= offset):
            self._epochs.pop()
            self._starts.pop()
        self._epochs.append(epoch)
        self._starts.append(offset)
        return True

    def at(self, offset: int) -> int:
        """The epoch that an offset was written in; -1 when it is not known."""
        number = bisect_right(self._starts, offset) - 1
        return self._epochs[number] if number >= 0 else -1

    def end_offset(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The largest known epoch up to the asked one and where it ends, as OffsetForLeaderEpoch answers."""
        if epoch < 0 or not self._epochs or epoch > self._epochs[-1]:
            return UNKNOWN
        number = bisect_right(self._epochs, epoch)
        if number == len(self._epochs):
            return epoch, log_end_offset
        return (self._epochs[number - 1] if number else epoch), self._starts[number]

    def cut_end(self, offset: int) -> bool:
        """Forget epochs that start at or after an offset; whether there were any."""
        before = len(self._starts)
        while self._starts and self._starts[-1] >= offset:
            self._epochs.pop()
            self._starts.pop()
        return len(self._starts) != before

    def cut_start(self, offset: int) -> bool:
        """Let the log begin at an offset: the epoch in force there starts there; whether anything changed."""
        number = bisect_right(self._starts, offset) - 1
        if number < 0 or (self._starts[number] == offset and number == 0):
            return False
        del self._epochs[:number]
        del self._starts[:number]
        self._starts[0] = offset
        return True

    def encode(self) -> bytes:
        return encode_lines([f"{epoch} {start}" for epoch, start in self.entries()])

    @classmethod
    def decode(cls, data: bytes) -> "Epochs | None":
        """What the file holds; None when it is damaged."""
        lines = decode_lines(data)
        if lines is None:
            return None
        epochs = cls()
        for line in lines:
            fields = line.split()
            if len(fields) != 2 or not all(field.isdecimal() for field in fields):
                return None
            epoch, start = int(fields[0]), int(fields[1])
            if len(epochs) and (epoch <= epochs._epochs[-1] or start < epochs._starts[-1]):
                return None
            epochs._epochs.append(epoch)
            epochs._starts.append(start)
        return epochs
